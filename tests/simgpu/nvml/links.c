/* SPDX-License-Identifier: Apache-2.0 */
/* NVML over the simulated machine: how GPUs are joined. Switches sit at bus addresses of their own,
 * three links each, as on the real machines. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, int *level)
{
    NV_BEGIN(a);
    NV_NEED(b);
    NV_NEED(level);
    int otherwise = NVML_TOPOLOGY_SYSTEM;
    if (a->physical == b->physical)
        otherwise = NVML_TOPOLOGY_INTERNAL;
    else if (a->gpu.pcie_switch == b->gpu.pcie_switch)
        otherwise = NVML_TOPOLOGY_SINGLE;
    else if (a->gpu.numa == b->gpu.numa)
        otherwise = NVML_TOPOLOGY_NODE;
    *level = (int)nv_setting("ancestor", a->physical, b->physical, otherwise);
    return NVML_SUCCESS;
}

bool nv_link_up(nvmlDevice_t device, unsigned link)
{
    return link < (unsigned)device->gpu.nvlinks &&
           nv_setting("link", device->physical, (int)link, 1) != 0;
}

/* Whether a link of `a` that is up leads to `b`, by a switch or not. */
static bool linked(nvmlDevice_t a, nvmlDevice_t b)
{
    for (unsigned k = 0; k < (unsigned)a->gpu.nvlinks; k++)
        if (nv_link_up(a, k) &&
            (a->gpu.nvswitch ? b->gpu.nvlinks > 0 : a->gpu.link_peer[k] == b->physical))
            return true;
    return false;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, int caps, int *status)
{
    NV_BEGIN(a);
    NV_NEED(b);
    NV_NEED(status);
    bool by_link = linked(a, b);
    int otherwise = NVML_P2P_STATUS_OK;
    if (!by_link && (caps == NVML_P2P_CAPS_INDEX_NVLINK || caps == NVML_P2P_CAPS_INDEX_ATOMICS))
        otherwise = NVML_P2P_STATUS_NOT_SUPPORTED;
    else if (!by_link && a->gpu.numa != b->gpu.numa)
        otherwise = NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED;
    *status = (int)nv_setting("p2p", a->physical, b->physical, otherwise);
    return NVML_SUCCESS;
}

static nvmlReturn_t link_begin(const char *call, nvmlDevice_t device, unsigned link)
{
    nvmlReturn_t result;
    if (!nv_begin(call, device, true, &result))
        return result;
    if (link >= NVML_NVLINK_MAX_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    return link < (unsigned)device->gpu.nvlinks ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

#define LINK_BEGIN(device, link)                                                                   \
    do {                                                                                           \
        nvmlReturn_t nv_result = link_begin(__func__, (device), (link));                           \
        if (nv_result != NVML_SUCCESS)                                                             \
            return nv_result;                                                                      \
    } while (0)

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, int *active)
{
    LINK_BEGIN(device, link);
    NV_NEED(active);
    *active = nv_link_up(device, link);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
    LINK_BEGIN(device, link);
    NV_NEED(version);
    *version = (unsigned)device->gpu.nvlink_version;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, int capability,
                                           unsigned *result)
{
    enum { P2P = 0, P2P_ATOMICS = 2, VALID = 5 };
    LINK_BEGIN(device, link);
    NV_NEED(result);
    *result = nv_link_up(device, link) &&
              (capability == P2P || capability == P2P_ATOMICS || capability == VALID);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link,
                                                 nvmlPciInfo_t *pci)
{
    LINK_BEGIN(device, link);
    NV_NEED(pci);
    if (!nv_link_up(device, link))
        return NVML_ERROR_NOT_SUPPORTED;
    if (!device->gpu.nvswitch) {
        nvmlDevice_t peer = nv_device(device->gpu.link_peer[link]);
        return peer != NULL ? nvmlDeviceGetPciInfo_v3(peer, pci) : NVML_ERROR_NOT_SUPPORTED;
    }
    char legacy[16];
    unsigned bus = 0xc4 + link / 3;
    snprintf(legacy, sizeof(legacy), "0000:%02X:00.0", bus & 0xffu);
    nv_pci(legacy, 0, bus, 0, pci);
    pci->pciDeviceId = 0x1af110deu;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, int *type)
{
    LINK_BEGIN(device, link);
    NV_NEED(type);
    if (!nv_link_up(device, link))
        return NVML_ERROR_NOT_SUPPORTED;
    *type = device->gpu.nvswitch ? NVML_NVLINK_DEVICE_TYPE_SWITCH : NVML_NVLINK_DEVICE_TYPE_GPU;
    return NVML_SUCCESS;
}

/* Megabytes per second of one link, by its generation. */
static unsigned link_speed(nvmlDevice_t device)
{
    static const unsigned speeds[] = {0, 20000, 25781, 26562, 26562, 53125};
    int version = device->gpu.nvlink_version;
    return version > 0 && version <= 5 ? speeds[version] : 0;
}

static void field(nvmlDevice_t device, nvmlFieldValue_t *v)
{
    v->valueType = 1;
    v->nvmlReturn = NVML_SUCCESS;
    v->value.ullVal = 0;
    switch (v->fieldId) {
    case NVML_FI_DEV_NVLINK_LINK_COUNT:
        v->value.uiVal = (unsigned)device->gpu.nvlinks;
        break;
    case NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON:
    case NVML_FI_DEV_NVLINK_GET_SPEED:
        v->value.uiVal = link_speed(device);
        break;
    case NVML_FI_DEV_NVLINK_GET_STATE:
        if (v->scopeId >= (unsigned)device->gpu.nvlinks)
            v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        v->value.uiVal = nv_link_up(device, v->scopeId);
        break;
    case NVML_FI_DEV_NVLINK_GET_VERSION:
        v->value.uiVal = (unsigned)device->gpu.nvlink_version;
        break;
    case NVML_FI_DEV_C2C_LINK_COUNT:
        v->value.uiVal = device->gpu.c2c_links;
        break;
    case NVML_FI_DEV_C2C_LINK_GET_STATUS:
    case NVML_FI_DEV_C2C_LINK_GET_MAX_BW:
        if (v->scopeId >= device->gpu.c2c_links)
            v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        v->value.uiVal = v->fieldId == NVML_FI_DEV_C2C_LINK_GET_STATUS
                             ? nv_setting("c2c", device->physical, (int)v->scopeId, 1) != 0
                             : device->gpu.c2c_mbps;
        break;
    default:
        v->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
    }
}

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    NV_BEGIN(device);
    NV_NEED(values);
    for (int i = 0; i < count; i++)
        field(device, &values[i]);
    return NVML_SUCCESS;
}

/* ---- the fabric beyond the machine ---- */

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info)
{
    NV_BEGIN(device);
    NV_NEED(info);
    memset(info, 0, sizeof(*info));
    long cluster = nv_setting("cluster", device->physical, -1, (long)device->gpu.cluster);
    info->state = (unsigned char)nv_setting("fabric", device->physical, -1, cluster != 0 ? 3 : 0);
    info->cliqueId = (unsigned)nv_setting("clique", device->physical, -1, (long)device->gpu.clique);
    memcpy(info->clusterUuid, &cluster, sizeof(cluster));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info)
{
    nvmlGpuFabricInfo_t plain;
    NV_NEED(info);
    unsigned version = info->version >> 24;
    if (version != 2 && version != 3)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = nvmlDeviceGetGpuFabricInfo(device, &plain);
    if (result != NVML_SUCCESS)
        return result;
    memcpy(info->clusterUuid, plain.clusterUuid, sizeof(info->clusterUuid));
    info->status = plain.status;
    info->cliqueId = plain.cliqueId;
    info->state = plain.state;
    info->healthMask = 0;
    return NVML_SUCCESS;
}
