/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "core/log.h"
#include "core/mem.h"
#include "device/cuda_device.h"

tutti_status tt_cuda_copy(tt_device *base, void *dst, const void *src, size_t bytes,
                          tutti_stream stream)
{
    cudaStream_t s = NULL;
    (void)base;
    TT_TRY(tt_cuda_stream(stream, &s));
    if (bytes == 0)
        return TUTTI_OK;
    return TT_CUDA(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s));
}

tutti_status tt_cuda_zero(tt_device *base, void *dst, size_t bytes, tutti_stream stream)
{
    cudaStream_t s = NULL;
    (void)base;
    TT_TRY(tt_cuda_stream(stream, &s));
    if (bytes == 0)
        return TUTTI_OK;
    return TT_CUDA(cudaMemsetAsync(dst, 0, bytes, s));
}

/* All bits set is a quiet NaN in every format: exponent full, fraction not zero. */
tutti_status tt_cuda_fill_nan(tt_device *base, void *dst, size_t n, tutti_dtype dtype,
                              tutti_stream stream)
{
    cudaStream_t s = NULL;
    (void)base;
    if (dtype != TUTTI_FLOAT32 && dtype != TUTTI_FLOAT64 && dtype != TUTTI_BFLOAT16 &&
        dtype != TUTTI_FLOAT16)
        return tt_fail(TUTTI_ERR_ARG, "%s has no NaN", tutti_dtype_name(dtype));
    TT_TRY(tt_cuda_stream(stream, &s));
    if (n == 0)
        return TUTTI_OK;
    return TT_CUDA(cudaMemsetAsync(dst, 0xff, n * tutti_dtype_size(dtype), s));
}

tutti_status tt_cuda_mem_alloc(tt_device *base, size_t bytes, void **ptr_out)
{
    const tt_cuda *dev = tt_cuda_of(base);
    size_t free_bytes = 0, total = 0;
    tt_cuda_visit visit;
    void *ptr = NULL;
    TT_TRY(tt_cuda_enter(dev, &visit));
    cudaError_t error = cudaMalloc(&ptr, bytes == 0 ? 1 : bytes);
    if (error == cudaErrorMemoryAllocation)
        (void)cudaMemGetInfo(&free_bytes, &total);
    tt_cuda_leave(dev, &visit);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return tt_fail(TUTTI_ERR_NO_MEMORY,
                       "cudaMalloc of %zu bytes on GPU %d: out of memory, %zu of %zu are free",
                       bytes, dev->ordinal, free_bytes, total);
    }
    TT_TRY(tt_cuda_status(error, "cudaMalloc"));
    *ptr_out = ptr;
    return TUTTI_OK;
}

void tt_cuda_mem_free(tt_device *base, void *ptr)
{
    const tt_cuda *dev = tt_cuda_of(base);
    tt_cuda_visit visit;
    if (ptr == NULL || tt_cuda_enter(dev, &visit) != TUTTI_OK)
        return;
    cudaError_t error = cudaFree(ptr);
    tt_cuda_leave(dev, &visit);
    if (error != cudaSuccess)
        tt_log_debug(TT_DEV, "cudaFree: %s", cudaGetErrorString(error));
}

tutti_status tt_cuda_host_alloc(tt_device *base, size_t bytes, void **ptr_out)
{
    const tt_cuda *dev = tt_cuda_of(base);
    tt_cuda_visit visit;
    void *ptr = NULL;
    TT_TRY(tt_cuda_enter(dev, &visit));
    tutti_status status = TT_CUDA(cudaHostAlloc(&ptr, bytes == 0 ? 1 : bytes, 0));
    tt_cuda_leave(dev, &visit);
    if (status != TUTTI_OK)
        return tt_fail_more(status, "%zu bytes of page-locked host memory", bytes);
    *ptr_out = ptr;
    return TUTTI_OK;
}

void tt_cuda_host_free(tt_device *base, void *ptr)
{
    const tt_cuda *dev = tt_cuda_of(base);
    tt_cuda_visit visit;
    if (ptr == NULL || tt_cuda_enter(dev, &visit) != TUTTI_OK)
        return;
    cudaError_t error = cudaFreeHost(ptr);
    tt_cuda_leave(dev, &visit);
    if (error != cudaSuccess)
        tt_log_debug(TT_DEV, "cudaFreeHost: %s", cudaGetErrorString(error));
}

/* Addresses of device memory never become host memory, so a yes may be kept; it may outlive the
 * allocation, whose use is then CUDA's to refuse. */
bool tt_cuda_usable(tt_device *base, const void *ptr)
{
    tt_cuda *dev = tt_cuda_of(base);
    uintptr_t address = (uintptr_t)ptr;
    _Atomic uintptr_t *seen =
        &dev->seen[(address >> 8 ^ address >> 16 ^ address >> 24) % TT_CUDA_SEEN];
    struct cudaPointerAttributes attributes;
    if (atomic_load_explicit(seen, memory_order_relaxed) == address)
        return true;
    if (cudaPointerGetAttributes(&attributes, ptr) != cudaSuccess) {
        (void)cudaGetLastError();
        return false;
    }
    if (attributes.type != cudaMemoryTypeDevice && attributes.type != cudaMemoryTypeManaged)
        return false;
    atomic_store_explicit(seen, address, memory_order_relaxed);
    return true;
}
