/* SPDX-License-Identifier: Apache-2.0 */
/* NVML over the simulated machine: what a GPU is doing. Idle and healthy, unless SIMGPU_NVML says
 * otherwise; memory in use is what the process has allocated. */
#include "sim.h"

#include <string.h>
#include <unistd.h>

#define SETTING(call, type, key, otherwise)                                                        \
    nvmlReturn_t call(nvmlDevice_t device, type *out)                                              \
    {                                                                                              \
        NV_BEGIN(device);                                                                          \
        NV_NEED(out);                                                                              \
        *out = (type)nv_setting(key, device->physical, -1, otherwise);                             \
        return NVML_SUCCESS;                                                                       \
    }
#define PCIE_GEN(device) ((device)->gpu.cc_major >= 9 ? 5 : 4)
SETTING(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, "pcie_gen_max", PCIE_GEN(device))
SETTING(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned, "pcie_gen_max", PCIE_GEN(device))
SETTING(nvmlDeviceGetMaxPcieLinkWidth, unsigned, "pcie_width_max", 16)
SETTING(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, "pcie_gen", PCIE_GEN(device))
SETTING(nvmlDeviceGetCurrPcieLinkWidth, unsigned, "pcie_width", 16)
SETTING(nvmlDeviceGetPowerUsage, unsigned, "power", 60000)
SETTING(nvmlDeviceGetEnforcedPowerLimit, unsigned, "power_limit", 400000)
SETTING(nvmlDeviceGetPersistenceMode, int, "persistence", 1)
SETTING(nvmlDeviceGetPcieReplayCounter, unsigned, "replays", 0)
SETTING(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, "throttle", 1)
SETTING(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, "throttle", 1)

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    NV_BEGIN(device);
    NV_NEED(rates);
    rates->gpu = (unsigned)nv_setting("util", device->physical, -1, 0);
    rates->memory = (unsigned)nv_setting("util_memory", device->physical, -1, 0);
    return NVML_SUCCESS;
}

/* Of this process, and what SIMGPU_NVML adds for others, in MiB. */
static unsigned long long used(nvmlDevice_t device)
{
    unsigned long long bytes = (unsigned long long)nv_setting("used", device->physical, -1, 0)
                               << 20;
    for (int i = 0; i < sg_device_count(); i++)
        if (sg_device(i)->physical == device->physical &&
            (device->instance < 0 || sg_device(i)->mig == device->instance))
            bytes += sg_device_used(i);
    return bytes;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    NV_BEGIN(device);
    NV_NEED(memory);
    memory->total = device->gpu.memory;
    memory->used = used(device);
    memory->free = memory->total > memory->used ? memory->total - memory->used : 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    nvmlMemory_t plain;
    NV_NEED(memory);
    if (memory->version >> 24 != 2)
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlReturn_t result = nvmlDeviceGetMemoryInfo(device, &plain);
    if (result != NVML_SUCCESS)
        return result;
    memory->total = plain.total;
    memory->used = plain.used;
    memory->free = plain.free;
    memory->reserved = 0;
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *celsius)
{
    NV_BEGIN(device);
    NV_NEED(celsius);
    if (sensor != 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    *celsius = (unsigned)nv_setting("temp", device->physical, -1, 35);
    return NVML_SUCCESS;
}

static const unsigned max_clocks[] = {1410, 1410, 1593, 1290}; /* graphics, SM, memory, video */

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned *mhz)
{
    NV_BEGIN(device);
    NV_NEED(mhz);
    if (type < 0 || type > 3)
        return NVML_ERROR_INVALID_ARGUMENT;
    *mhz = max_clocks[type];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned *mhz)
{
    nvmlReturn_t result = nvmlDeviceGetMaxClockInfo(device, type, mhz);
    if (result == NVML_SUCCESS)
        *mhz = (unsigned)nv_setting("clock", device->physical, type, (long)*mhz);
    return result;
}

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, int counter, unsigned *kib_per_s)
{
    NV_BEGIN(device);
    NV_NEED(kib_per_s);
    if (counter != 0 && counter != 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    *kib_per_s =
        (unsigned)nv_setting(counter == 0 ? "pcie_tx" : "pcie_rx", device->physical, -1, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count,
                                                     nvmlProcessInfo_t *infos)
{
    NV_BEGIN(device);
    NV_NEED(count);
    nvmlProcessInfo_t found[2];
    unsigned n = 0, cap = *count;
    long other = nv_setting("process", device->physical, -1, 0);
    if (used(device) > 0)
        found[n++] = (nvmlProcessInfo_t){(unsigned)getpid(), used(device), ~0u, ~0u};
    if (other != 0)
        found[n++] = (nvmlProcessInfo_t){(unsigned)other, 1ull << 30, ~0u, ~0u};
    *count = n;
    if (n > cap)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    if (n > 0)
        memcpy(infos, found, n * sizeof(*infos));
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *current, int *pending)
{
    NV_BEGIN(device);
    NV_NEED(current);
    NV_NEED(pending);
    *current = *pending = (int)nv_setting("ecc", device->physical, -1, 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, int type, int counter,
                                         unsigned long long *count)
{
    NV_BEGIN(device);
    NV_NEED(count);
    if ((type != 0 && type != 1) || (counter != 0 && counter != 1))
        return NVML_ERROR_INVALID_ARGUMENT;
    *count = (unsigned long long)nv_setting(type == 0 ? "ecc_corrected" : "ecc_uncorrected",
                                            device->physical, -1, 0);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned *corrected,
                                       unsigned *uncorrected, unsigned *pending, unsigned *failed)
{
    NV_BEGIN(device);
    NV_NEED(corrected);
    NV_NEED(uncorrected);
    NV_NEED(pending);
    NV_NEED(failed);
    *corrected = (unsigned)nv_setting("remap_corrected", device->physical, -1, 0);
    *uncorrected = (unsigned)nv_setting("remap_uncorrected", device->physical, -1, 0);
    *pending = (unsigned)nv_setting("remap_pending", device->physical, -1, 0);
    *failed = (unsigned)nv_setting("remap_failed", device->physical, -1, 0);
    return NVML_SUCCESS;
}
