/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices: count, choice, properties, peers, versions. A property that nothing simulated here can
 * depend on is 0; attributes that are not in the list are refused by name, so that a program does
 * not plan with an invented number.
 */
#include "api.h"

#include <cuda_profiler_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The program's ordinal to the engine's; -1: there is none. */
static int engine_ordinal(int device)
{
    return device >= 0 && device < sg_visible_count() ? sg_device_base() + device : -1;
}

static const sg_gpu *device_of(int device)
{
    return sg_device(engine_ordinal(device));
}

cudaError_t cudaGetDeviceCount(int *count)
{
    ENTER_ALWAYS("%s", "");
    if (count == NULL) {
        return rt_done(cudaErrorInvalidValue);
    }
    *count = sg_visible_count();
    return rt_done(*count > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int *device)
{
    ENTER_ALWAYS("%s", "");
    if (device == NULL) {
        return rt_done(cudaErrorInvalidValue);
    }
    *device = sg_device_visible(sg_current_device());
    return rt_done(sg_visible_count() > 0 ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    ENTER_ALWAYS("%d", device);
    cudaError_t error = (cudaError_t)sg_set_device(engine_ordinal(device));
    return rt_done(sg_visible_count() > 0 ? error : cudaErrorNoDevice);
}

cudaError_t cudaInitDevice(int device, unsigned int deviceFlags, unsigned int flags)
{
    ENTER_ALWAYS("%d %u %u", device, deviceFlags, flags);
    return rt_done(device_of(device) != NULL ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaSetDeviceFlags(unsigned int flags)
{
    ENTER("%u", flags);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceFlags(unsigned int *flags)
{
    ENTER("%s", "");
    *flags = cudaDeviceScheduleAuto | cudaDeviceMapHost;
    return cudaSuccess;
}

enum { SHARED = 49152, SHARED_SM = 167936, SHARED_OPTIN = 166912 };

static void fill(struct cudaDeviceProp *p, const sg_gpu *g)
{
    memset(p, 0, sizeof(*p));
    snprintf(p->name, sizeof(p->name), "%s%s", g->name, g->mig >= 0 ? " MIG" : "");
    memcpy(p->uuid.bytes, g->uuid_bytes, sizeof(g->uuid_bytes));
    p->totalGlobalMem = g->memory;
    p->sharedMemPerBlock = SHARED;
    p->sharedMemPerMultiprocessor = SHARED_SM;
    p->sharedMemPerBlockOptin = SHARED_OPTIN;
    p->reservedSharedMemPerBlock = 1024;
    p->regsPerBlock = p->regsPerMultiprocessor = 65536;
    p->warpSize = 32;
    p->memPitch = 2147483647;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->totalConstMem = 65536;
    p->major = g->cc_major;
    p->minor = g->cc_minor;
    p->textureAlignment = 512;
    p->multiProcessorCount = g->sm_count;
    p->maxThreadsPerMultiProcessor = 2048;
    p->maxBlocksPerMultiProcessor = 32;
    p->canMapHostMemory = p->concurrentKernels = p->ECCEnabled = p->unifiedAddressing = 1;
    p->pciBusID = (int)g->pci_bus;
    p->pciDeviceID = (int)g->pci_device;
    p->pciDomainID = (int)g->pci_domain;
    p->asyncEngineCount = 3;
    p->memoryBusWidth = 5120;
    p->l2CacheSize = 40 << 20;
    p->streamPrioritiesSupported = p->computePreemptionSupported = 1;
    p->canUseHostPointerForRegisteredMem = p->hostRegisterSupported = 1;
    p->memoryPoolsSupported = 1;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    ENTER_ALWAYS("%d", device);
    const sg_gpu *g = device_of(device);
    if (prop == NULL || g == NULL) {
        return rt_done(prop == NULL ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    }
    fill(prop, g);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    ENTER_ALWAYS("%d %d", (int)attr, device);
    const sg_gpu *g = device_of(device);
    if (value == NULL || g == NULL) {
        return rt_done(value == NULL ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    }
    struct cudaDeviceProp p;
    fill(&p, g);
    const struct {
        enum cudaDeviceAttr attr;
        int value;
    } known[] = {{cudaDevAttrMaxThreadsPerBlock, p.maxThreadsPerBlock},
                 {cudaDevAttrMaxBlockDimX, p.maxThreadsDim[0]},
                 {cudaDevAttrMaxGridDimX, p.maxGridSize[0]},
                 {cudaDevAttrMaxGridDimY, p.maxGridSize[1]},
                 {cudaDevAttrMaxSharedMemoryPerBlock, SHARED},
                 {cudaDevAttrMaxSharedMemoryPerMultiprocessor, SHARED_SM},
                 {cudaDevAttrMaxSharedMemoryPerBlockOptin, SHARED_OPTIN},
                 {cudaDevAttrWarpSize, 32},
                 {cudaDevAttrMultiProcessorCount, g->sm_count},
                 {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
                 {cudaDevAttrMaxBlocksPerMultiprocessor, 32},
                 {cudaDevAttrIntegrated, 0},
                 {cudaDevAttrCanMapHostMemory, 1},
                 {cudaDevAttrComputeMode, cudaComputeModeDefault},
                 {cudaDevAttrConcurrentKernels, 1},
                 {cudaDevAttrEccEnabled, 1},
                 {cudaDevAttrPciBusId, p.pciBusID},
                 {cudaDevAttrPciDeviceId, p.pciDeviceID},
                 {cudaDevAttrPciDomainId, p.pciDomainID},
                 {cudaDevAttrAsyncEngineCount, 3},
                 {cudaDevAttrUnifiedAddressing, 1},
                 {cudaDevAttrComputeCapabilityMajor, g->cc_major},
                 {cudaDevAttrComputeCapabilityMinor, g->cc_minor},
                 {cudaDevAttrStreamPrioritiesSupported, 1},
                 {cudaDevAttrManagedMemory, 0},
                 {cudaDevAttrPageableMemoryAccess, 0},
                 {cudaDevAttrConcurrentManagedAccess, 0},
                 {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
                 {cudaDevAttrCooperativeLaunch, 0},
                 {cudaDevAttrHostRegisterSupported, 1},
                 {cudaDevAttrMemoryPoolsSupported, 1},
                 {cudaDevAttrGPUDirectRDMASupported, 0},
                 {cudaDevAttrClusterLaunch, 0},
                 {cudaDevAttrIpcEventSupport, 0},
                 {cudaDevAttrL2CacheSize, p.l2CacheSize},
                 {cudaDevAttrHostNumaId, g->numa}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (known[i].attr == attr) {
            *value = known[i].value;
            return cudaSuccess;
        }
    }
    char name[64];
    snprintf(name, sizeof(name), "cudaDeviceGetAttribute(%d)", (int)attr);
    sg_refuse(name);
}

cudaError_t cudaDeviceGetPCIBusId(char *text, int len, int device)
{
    ENTER_ALWAYS("%d", device);
    const sg_gpu *g = device_of(device);
    if (text == NULL || len < 13 || g == NULL) {
        return rt_done(g == NULL ? cudaErrorInvalidDevice : cudaErrorInvalidValue);
    }
    snprintf(text, (size_t)len, "%04X:%02X:%02X.0", g->pci_domain, g->pci_bus, g->pci_device);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *text)
{
    ENTER_ALWAYS("%s", text != NULL ? text : "");
    unsigned domain = 0, bus, slot;
    if (device == NULL || text == NULL ||
        (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3 &&
         (domain = 0, sscanf(text, "%x:%x", &bus, &slot) != 2))) {
        return rt_done(cudaErrorInvalidValue);
    }
    for (int i = 0; i < sg_visible_count(); i++) {
        const sg_gpu *g = device_of(i);
        if (g->pci_domain == domain && g->pci_bus == bus && g->pci_device == slot) {
            *device = i;
            return cudaSuccess;
        }
    }
    return rt_done(cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER("%s", "");
    NOT_WHILE_CAPTURING(NULL);
    return rt_done((cudaError_t)sg_wait_device(sg_current_device(), __func__));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER("%s", "");
    if (least != NULL) {
        *least = 0;
    }
    if (greatest != NULL) {
        *greatest = -5;
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetLimit(size_t *value, enum cudaLimit limit)
{
    ENTER("%d", (int)limit);
    *value = limit == cudaLimitStackSize ? 1024 : 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceSetLimit(enum cudaLimit limit, size_t value)
{
    ENTER("%d %zu", (int)limit, value);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetCacheConfig(enum cudaFuncCache *config)
{
    ENTER("%s", "");
    *config = cudaFuncCachePreferNone;
    return cudaSuccess;
}

cudaError_t cudaDeviceSetCacheConfig(enum cudaFuncCache config)
{
    ENTER("%d", (int)config);
    return cudaSuccess;
}

/* Peers reach each other by NVLink, or below one PCIe switch. */
static bool reach(int a, int b)
{
    const sg_gpu *x = device_of(a), *y = device_of(b);
    if (x->mig >= 0 || y->mig >= 0) {
        return false;
    }
    bool linked = x->nvswitch && y->nvswitch;
    for (int k = 0; k < 18 && !x->nvswitch; k++) {
        linked = linked || x->link_peer[k] == y->physical;
    }
    return linked || x->pcie_switch == y->pcie_switch;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    ENTER_ALWAYS("%d %d", device, peer);
    if (can == NULL || device_of(device) == NULL || device_of(peer) == NULL) {
        return rt_done(can == NULL ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    }
    *can = device != peer && reach(device, peer);
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    ENTER("%d %u", peer, flags);
    int device = sg_device_visible(sg_current_device());
    if (device_of(peer) == NULL || peer == device || !reach(device, peer)) {
        return rt_done(cudaErrorInvalidDevice);
    }
    return rt_done((cudaError_t)sg_peer_enable(sg_current_device(), engine_ordinal(peer), true));
}

cudaError_t cudaDeviceDisablePeerAccess(int peer)
{
    ENTER("%d", peer);
    return rt_done((cudaError_t)sg_peer_enable(sg_current_device(), engine_ordinal(peer), false));
}

cudaError_t cudaDeviceGetP2PAttribute(int *value, enum cudaDeviceP2PAttr attr, int from, int to)
{
    ENTER_ALWAYS("%d %d %d", (int)attr, from, to);
    if (value == NULL || device_of(from) == NULL || device_of(to) == NULL || from == to) {
        return rt_done(cudaErrorInvalidDevice);
    }
    bool nvlink = device_of(from)->nvlinks > 0;
    *value =
        attr == cudaDevP2PAttrPerformanceRank ? (nvlink ? 0 : 1)
        : attr == cudaDevP2PAttrAccessSupported || attr == cudaDevP2PAttrCudaArrayAccessSupported
            ? reach(from, to)
            : nvlink;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    ENTER_ALWAYS("%s", "");
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    ENTER_ALWAYS("%s", "");
    *version = sg_visible_count() > 0 ? CUDART_VERSION : 0;
    return cudaSuccess;
}

/* There is no simulated driver: programs that look driver calls up must live without. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                             unsigned int version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status)
{
    ENTER("%s %u %llu", symbol, version, flags);
    *function = NULL;
    if (status != NULL) {
        *status = cudaDriverEntryPointSymbolNotFound;
    }
    return cudaSuccess;
}

cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags,
                                    enum cudaDriverEntryPointQueryResult *status)
{
    return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, status);
}

cudaError_t cudaProfilerStart(void)
{
    return cudaSuccess;
}

cudaError_t cudaProfilerStop(void)
{
    return cudaSuccess;
}
