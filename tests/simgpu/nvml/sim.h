/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the NVML stand-in. */
#ifndef SIMGPU_NVML_SIM_H
#define SIMGPU_NVML_SIM_H

#include <stdbool.h>

#pragma GCC visibility push(default)
#include "nvml.h"
#pragma GCC visibility pop

#include "../engine.h"

/* A handle: a GPU of the machine or an instance of one. */
struct nvmlDevice_st {
    int physical, instance; /* -1: the GPU itself */
    sg_gpu gpu;
};

/* The start of every call. False: *out is what the call returns. `device` may be NULL where the
 * call has none. */
bool nv_begin(const char *call, nvmlDevice_t device, bool has_device, nvmlReturn_t *out);
/* What SIMGPU_NVML says of `key` for a GPU (and a link or a peer, -1: none). */
long nv_setting(const char *key, int gpu, int sub, long otherwise);
nvmlDevice_t nv_device(int physical);
void nv_pci(const char *bus_id, unsigned domain, unsigned bus, unsigned device, nvmlPciInfo_t *out);
bool nv_link_up(nvmlDevice_t device, unsigned link);

/* Returns from the calling function unless the call may go on. */
#define NV_BEGIN(device)                                                                           \
    do {                                                                                           \
        nvmlReturn_t nv_result;                                                                    \
        if (!nv_begin(__func__, (device), true, &nv_result))                                       \
            return nv_result;                                                                      \
    } while (0)
#define NV_NEED(pointer)                                                                           \
    do {                                                                                           \
        if ((pointer) == NULL)                                                                     \
            return NVML_ERROR_INVALID_ARGUMENT;                                                    \
    } while (0)

#endif
