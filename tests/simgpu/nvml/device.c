/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVML over the simulated machine: start, handles, what a GPU is. All GPUs of the machine are
 * shown, whatever CUDA_VISIBLE_DEVICES hides from CUDA, in the order of their bus addresses, as
 * NVML does.
 *
 * What a healthy idle machine would not show is set in SIMGPU_NVML, e.g.
 * "temp:0=91;link:3:5=0;pcie_width:2=4;p2p:0:1=1": KEY:GPU[:LINK or PEER]=NUMBER, `*` for any GPU.
 * The keys stand in README.md.
 */
#include "sim.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64, INSTANCES = 7 };

static int users;
static struct nvmlDevice_st devices[MOST], instances[MOST][INSTANCES];

long nv_setting(const char *key, int gpu, int sub, long otherwise)
{
    const char *all = getenv("SIMGPU_NVML");
    char name[64], any[64];
    if (sub >= 0) {
        snprintf(name, sizeof(name), "%s:%d:%d=", key, gpu, sub);
        snprintf(any, sizeof(any), "%s:*:%d=", key, sub);
    } else {
        snprintf(name, sizeof(name), "%s:%d=", key, gpu);
        snprintf(any, sizeof(any), "%s:*=", key);
    }
    for (const char *at = all; at != NULL && *at != '\0'; at = strchr(at, ';')) {
        at += *at == ';';
        if (strncmp(at, name, strlen(name)) == 0)
            return strtol(at + strlen(name), NULL, 0);
        if (strncmp(at, any, strlen(any)) == 0)
            return strtol(at + strlen(any), NULL, 0);
    }
    return otherwise;
}

bool nv_begin(const char *call, nvmlDevice_t device, bool has_device, nvmlReturn_t *out)
{
    int error = -1;
    sg_verdict verdict = sg_call(&error, call, "gpu=%d", device != NULL ? device->physical : -1);
    *out = NVML_SUCCESS;
    if (verdict == SG_FAIL)
        *out = error >= 0 ? error : NVML_ERROR_UNKNOWN;
    else if (verdict == SG_GO && users == 0)
        *out = NVML_ERROR_UNINITIALIZED;
    else if (verdict == SG_GO && has_device && device == NULL)
        *out = NVML_ERROR_INVALID_ARGUMENT;
    else if (verdict == SG_GO && has_device && sg_device_lost(device->physical))
        *out = NVML_ERROR_GPU_IS_LOST;
    return verdict == SG_GO && *out == NVML_SUCCESS;
}

nvmlReturn_t nvmlInit_v2(void)
{
    int error = -1;
    if (sg_call(&error, "nvmlInit_v2", " ") == SG_FAIL)
        return error >= 0 ? error : NVML_ERROR_DRIVER_NOT_LOADED;
    sg_lock();
    int n = sg_machine_count();
    for (int i = 0; users == 0 && i < n && i < MOST; i++)
        devices[i] = (struct nvmlDevice_st){i, -1, *sg_machine_gpu(i)};
    users++;
    sg_unlock();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit(void)
{
    return nvmlInit_v2();
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    return nvmlInit_v2();
}

nvmlReturn_t nvmlShutdown(void)
{
    nvmlReturn_t result;
    if (!nv_begin("nvmlShutdown", NULL, false, &result))
        return result;
    sg_lock();
    users--;
    sg_unlock();
    return NVML_SUCCESS;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS:
        return "Success";
    case NVML_ERROR_UNINITIALIZED:
        return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT:
        return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED:
        return "Not Supported";
    case NVML_ERROR_NO_PERMISSION:
        return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND:
        return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST:
        return "GPU is lost";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
        return "Argument version mismatch";
    default:
        return "Unknown Error";
    }
}

static nvmlReturn_t give_text(const char *text, char *out, unsigned length)
{
    NV_NEED(out);
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

#define NO_DEVICE()                                                                                \
    do {                                                                                           \
        nvmlReturn_t nv_result;                                                                    \
        if (!nv_begin(__func__, NULL, false, &nv_result))                                          \
            return nv_result;                                                                      \
    } while (0)

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    NO_DEVICE();
    return give_text("580.82.07", version, length);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    NO_DEVICE();
    return give_text("13.580.82.07", version, length);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    NO_DEVICE();
    NV_NEED(version);
    *version = 13000;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

/* ---- handles ---- */

nvmlDevice_t nv_device(int physical)
{
    return physical >= 0 && physical < sg_machine_count() ? &devices[physical] : NULL;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    NO_DEVICE();
    NV_NEED(count);
    *count = (unsigned)sg_machine_count();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    NO_DEVICE();
    NV_NEED(device);
    nvmlDevice_t found = nv_device(index < MOST ? (int)index : -1);
    if (found == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (sg_device_lost(found->physical))
        return NVML_ERROR_GPU_IS_LOST;
    *device = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* Instances of the GPUs that CUDA shows this process. */
static nvmlDevice_t instance(int physical, int index)
{
    if (index < 0 || index >= INSTANCES)
        return NULL;
    for (int i = 0; i < sg_device_count(); i++) {
        const sg_gpu *gpu = sg_device(i);
        if (gpu->physical != physical || gpu->mig != index)
            continue;
        struct nvmlDevice_st *made = &instances[physical][index];
        *made = (struct nvmlDevice_st){physical, index, *gpu};
        return made;
    }
    return NULL;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    NO_DEVICE();
    NV_NEED(uuid);
    NV_NEED(device);
    for (int i = 0; i < sg_machine_count(); i++) {
        if (strcmp(devices[i].gpu.uuid, uuid) == 0) {
            *device = &devices[i];
            return NVML_SUCCESS;
        }
        for (int k = 0; k < INSTANCES; k++) {
            nvmlDevice_t mig = instance(i, k);
            if (mig != NULL && strcmp(mig->gpu.uuid, uuid) == 0) {
                *device = mig;
                return NVML_SUCCESS;
            }
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *pci, nvmlDevice_t *device)
{
    unsigned domain, bus, slot;
    NO_DEVICE();
    NV_NEED(pci);
    NV_NEED(device);
    if (sscanf(pci, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(pci, "%x:%x", &bus, &slot) != 2)
            return NVML_ERROR_INVALID_ARGUMENT;
    }
    for (int i = 0; i < sg_machine_count(); i++) {
        const sg_gpu *gpu = &devices[i].gpu;
        if (gpu->pci_domain == domain && gpu->pci_bus == bus && gpu->pci_device == slot) {
            *device = &devices[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *pci, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(pci, device);
}

/* ---- what it is ---- */

#define NUMBER(call, type, value)                                                                  \
    nvmlReturn_t call(nvmlDevice_t device, type *out)                                              \
    {                                                                                              \
        NV_BEGIN(device);                                                                          \
        NV_NEED(out);                                                                              \
        *out = (type)(value);                                                                      \
        return NVML_SUCCESS;                                                                       \
    }
NUMBER(nvmlDeviceGetIndex, unsigned, device->physical)
NUMBER(nvmlDeviceGetMinorNumber, unsigned, device->physical)
NUMBER(nvmlDeviceGetNumGpuCores, unsigned, device->gpu.sm_count * 64)
NUMBER(nvmlDeviceIsMigDeviceHandle, unsigned, device->instance >= 0)

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    NV_BEGIN(device);
    return give_text(device->gpu.name, name, length);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    NV_BEGIN(device);
    return give_text(device->gpu.uuid, uuid, length);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
    char text[32];
    NV_BEGIN(device);
    snprintf(text, sizeof(text), "15%04d%06d", sg_host_index(), device->physical);
    return give_text(text, serial, length);
}

void nv_pci(const char *bus_id, unsigned domain, unsigned bus, unsigned device, nvmlPciInfo_t *out)
{
    memset(out, 0, sizeof(*out));
    snprintf(out->busIdLegacy, sizeof(out->busIdLegacy), "%.15s", bus_id);
    snprintf(out->busId, sizeof(out->busId), "%08X:%02X:%02X.0", domain, bus, device);
    out->domain = domain;
    out->bus = bus;
    out->device = device;
    out->pciDeviceId = 0x20b210deu;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    NV_BEGIN(device);
    NV_NEED(pci);
    const sg_gpu *gpu = &device->gpu;
    char upper[16];
    for (size_t i = 0; i < sizeof(upper); i++)
        upper[i] = (char)toupper((unsigned char)gpu->pci[i]);
    nv_pci(upper, gpu->pci_domain, gpu->pci_bus, gpu->pci_device, pci);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    NV_BEGIN(device);
    NV_NEED(major);
    NV_NEED(minor);
    *major = device->gpu.cc_major;
    *minor = device->gpu.cc_minor;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned *node)
{
    NV_BEGIN(device);
    NV_NEED(node);
    if (device->gpu.numa < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *node = (unsigned)device->gpu.numa;
    return NVML_SUCCESS;
}

/* ---- instances ---- */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    NV_BEGIN(device);
    NV_NEED(current);
    NV_NEED(pending);
    if (device->gpu.cc_major != 8 && device->gpu.cc_major != 9)
        return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = instance(device->physical, 0) != NULL;
    return NVML_SUCCESS;
}

NUMBER(nvmlDeviceGetMaxMigDeviceCount, unsigned, INSTANCES)

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned index,
                                                 nvmlDevice_t *mig)
{
    NV_BEGIN(device);
    NV_NEED(mig);
    nvmlDevice_t found = instance(device->physical, index < INSTANCES ? (int)index : -1);
    if (found == NULL)
        return NVML_ERROR_NOT_FOUND;
    *mig = found;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    NV_BEGIN(mig);
    NV_NEED(device);
    *device = &devices[mig->physical];
    return NVML_SUCCESS;
}

static nvmlReturn_t instance_number(nvmlDevice_t device, unsigned *out, int number)
{
    NV_BEGIN(device);
    NV_NEED(out);
    if (device->instance < 0)
        return NVML_ERROR_NOT_SUPPORTED;
    *out = (unsigned)number;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned *id)
{
    return instance_number(device, id, device != NULL ? device->instance + 1 : 0);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned *id)
{
    return instance_number(device, id, 0);
}
