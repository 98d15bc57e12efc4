/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which GPU a rank gets, decided before any context exists: none of the calls here opens one, so no
 * rank leaves half a gigabyte on another's GPU.
 *
 * CUDA_VISIBLE_DEVICES (indices, UUIDs or MIG instances, read by CUDA itself) is the launcher's
 * word: its order is kept. Without it CUDA orders GPUs by speed, or by bus with
 * CUDA_DEVICE_ORDER; then local rank i takes the i-th by PCI bus id, the only name that NVML, sysfs
 * and NCCL's topology agree on. A launcher that shows each rank its own GPU only, or each its own
 * few, is served too: rank i takes number i modulo what it sees, and two ranks on one GPU are
 * refused later by UUID (boot/device_pick.c).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "device/cuda_device.h"

static tutti_status no_gpu(cudaError_t error)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    (void)cudaGetLastError();
    if ((error == cudaSuccess || error == cudaErrorNoDevice) && visible != NULL)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "CUDA_VISIBLE_DEVICES=%s leaves no GPU", visible);
    if (error == cudaSuccess)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "cudaGetDeviceCount finds none");
    return tt_fail(TUTTI_ERR_UNSUPPORTED, "cudaGetDeviceCount: %s (%s)", cudaGetErrorString(error),
                   cudaGetErrorName(error));
}

tutti_status tt_cuda_probe(void)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    return error == cudaSuccess && count > 0 ? TUTTI_OK : no_gpu(error);
}

int tt_cuda_list(char (*pci_out)[TT_DEVICE_ID_MAX], int cap)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    count = count < cap ? count : cap;
    for (int i = 0; i < count; i++)
        if (cudaDeviceGetPCIBusId(pci_out[i], TT_DEVICE_ID_MAX, i) != cudaSuccess) {
            (void)cudaGetLastError();
            pci_out[i][0] = '\0';
        }
    return count;
}

tutti_status tt_cuda_describe(int ordinal, char pci_out[TT_CUDA_PCI_MAX],
                              char id_out[TT_DEVICE_ID_MAX])
{
    struct cudaDeviceProp prop;
    const unsigned char *u = (const unsigned char *)prop.uuid.bytes;
    TT_TRY(TT_CUDA(cudaDeviceGetPCIBusId(pci_out, TT_CUDA_PCI_MAX, ordinal)));
    TT_TRY(TT_CUDA(cudaGetDeviceProperties(&prop, ordinal)));
    snprintf(id_out, TT_DEVICE_ID_MAX,
             "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             strstr(prop.name, " MIG ") != NULL ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5],
             u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    return TUTTI_OK;
}

typedef struct gpu {
    char pci[TT_CUDA_PCI_MAX];
    int ordinal;
} gpu;

static int by_pci(const void *a, const void *b)
{
    const gpu *x = a, *y = b;
    int order = strcmp(x->pci, y->pci);
    return order != 0 ? order : x->ordinal - y->ordinal;
}

static tutti_status nth_by_pci(int n, int count, int *ordinal_out)
{
    gpu *all;
    tutti_status status = TUTTI_OK;
    TT_TRY(tt_calloc((size_t)count, sizeof *all, &all));
    for (int i = 0; i < count && status == TUTTI_OK; i++) {
        all[i].ordinal = i;
        status = TT_CUDA(cudaDeviceGetPCIBusId(all[i].pci, sizeof all[i].pci, i));
    }
    if (status == TUTTI_OK) {
        qsort(all, (size_t)count, sizeof *all, by_pci);
        *ordinal_out = all[n].ordinal;
    }
    free(all);
    return status;
}

tutti_status tt_cuda_choose(int local_rank, int local_size, int *ordinal_out)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count < 1)
        return no_gpu(error);
    if (visible != NULL || count < local_size) {
        *ordinal_out = local_rank % count;
        return TUTTI_OK;
    }
    return nth_by_pci(local_rank, count, ordinal_out);
}
