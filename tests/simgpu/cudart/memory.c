/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allocation. Pools are one default pool per device without limits. A stream-ordered allocation is
 * a write on its stream: another stream that uses the memory without waiting is a race.
 */
#include "api.h"

#include <stdio.h>

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    ENTER("%zu", bytes);
    NOT_WHILE_CAPTURING(NULL);
    if (out == NULL) {
        return rt_done(cudaErrorInvalidValue);
    }
    *out = NULL;
    if (bytes > 0) {
        *out = sg_alloc_device(sg_current_device(), bytes, __func__, false);
    }
    return rt_done(bytes > 0 && *out == NULL ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFree(void *ptr)
{
    char name[128];
    ENTER_ALWAYS("%s", log_pointer(ptr, name, sizeof(name)));
    NOT_WHILE_CAPTURING(NULL);
    return ptr == NULL ? cudaSuccess : rt_done((cudaError_t)sg_free(ptr, __func__));
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    ENTER("%zu flags=%u", bytes, flags);
    NOT_WHILE_CAPTURING(NULL);
    if (out == NULL || flags > 7) {
        return rt_done(cudaErrorInvalidValue);
    }
    *out = bytes > 0 ? sg_alloc_pinned(bytes, __func__) : NULL;
    return rt_done(bytes > 0 && *out == NULL ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    return cudaHostAlloc(out, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *ptr)
{
    char name[128];
    ENTER_ALWAYS("%s", log_pointer(ptr, name, sizeof(name)));
    NOT_WHILE_CAPTURING(NULL);
    return ptr == NULL ? cudaSuccess : rt_done((cudaError_t)sg_free(ptr, __func__));
}

cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned int flags)
{
    ENTER("%zu flags=%u", bytes, flags);
    NOT_WHILE_CAPTURING(NULL);
    return rt_done((cudaError_t)sg_register(ptr, bytes, __func__));
}

cudaError_t cudaHostUnregister(void *ptr)
{
    ENTER_ALWAYS("%s", "");
    NOT_WHILE_CAPTURING(NULL);
    return rt_done((cudaError_t)sg_unregister(ptr, __func__));
}

cudaError_t cudaHostGetDevicePointer(void **out, void *host, unsigned int flags)
{
    sg_memory m;
    ENTER("flags=%u", flags);
    if (!sg_memory_find(host, &m) || m.kind == SG_MEM_DEVICE || m.freed) {
        return rt_done(cudaErrorInvalidValue);
    }
    *out = host;
    return cudaSuccess;
}

cudaError_t cudaHostGetFlags(unsigned int *flags, void *host)
{
    sg_memory m;
    ENTER("%s", "");
    if (!sg_memory_find(host, &m) || m.kind == SG_MEM_DEVICE) {
        return rt_done(cudaErrorInvalidValue);
    }
    *flags = cudaHostAllocPortable | cudaHostAllocMapped;
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    ENTER("%s", "");
    int device = sg_current_device();
    *total = sg_device(device)->memory;
    *free_bytes = *total - sg_device_used(device);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *ptr)
{
    sg_memory m;
    ENTER("%p", ptr);
    if (out == NULL) {
        return rt_done(cudaErrorInvalidValue);
    }
    bool known = sg_memory_find(ptr, &m) && !m.freed;
    *out = (struct cudaPointerAttributes){.type = cudaMemoryTypeUnregistered, .device = -2};
    if (known && m.kind == SG_MEM_DEVICE) {
        out->type = cudaMemoryTypeDevice;
        out->device = sg_device_visible(m.device);
        out->devicePointer = (void *)(uintptr_t)ptr;
    } else {
        out->hostPointer = (void *)(uintptr_t)ptr;
        if (known) {
            out->type = cudaMemoryTypeHost;
            out->device = sg_device_visible(m.device);
            out->devicePointer = (void *)(uintptr_t)ptr;
        }
    }
    return cudaSuccess;
}

/* ---- stream-ordered ---- */

static sg_step nothing(void *arg, sg_op *op)
{
    (void)arg;
    (void)op;
    return SG_DONE;
}

cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream)
{
    cudaError_t error;
    ENTER("%zu %s", bytes, sg_name_stream(stream));
    sg_stream *s = rt_stream(stream, __func__, &error);
    if (s == NULL || out == NULL) {
        return s == NULL ? error : rt_done(cudaErrorInvalidValue);
    }
    *out = bytes > 0 ? sg_alloc_device(sg_stream_device(s), bytes, __func__, false) : NULL;
    if (bytes > 0 && *out == NULL) {
        return rt_done(cudaErrorMemoryAllocation);
    }
    sg_range all = {*out, bytes, true};
    sg_op_desc desc = {
        .label = "cudaMallocAsync", .site = CALLER, .ranges = &all, .n_ranges = 1, .run = nothing};
    return rt_done(bytes > 0 ? (cudaError_t)sg_enqueue(s, &desc) : cudaSuccess);
}

cudaError_t cudaFreeAsync(void *ptr, cudaStream_t stream)
{
    cudaError_t error;
    char name[128];
    ENTER("%s %s", log_pointer(ptr, name, sizeof(name)), sg_name_stream(stream));
    sg_stream *s = rt_stream(stream, __func__, &error);
    if (s == NULL || ptr == NULL) {
        return s == NULL ? error : cudaSuccess;
    }
    return rt_done((cudaError_t)sg_free_async(s, ptr, __func__));
}

static int pools[64]; /* their addresses are the handles */

static bool is_pool(cudaMemPool_t pool)
{
    return (char *)pool >= (char *)pools && (char *)pool < (char *)(pools + 64);
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *out, int device)
{
    ENTER("%d", device);
    if (out == NULL || device < 0 || device >= sg_visible_count()) {
        return rt_done(out == NULL ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
    }
    *out = (cudaMemPool_t)(void *)&pools[device];
    return cudaSuccess;
}

cudaError_t cudaDeviceGetMemPool(cudaMemPool_t *out, int device)
{
    return cudaDeviceGetDefaultMemPool(out, device);
}

cudaError_t cudaMallocFromPoolAsync(void **out, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream)
{
    if (!is_pool(pool)) {
        return rt_done(cudaErrorInvalidValue);
    }
    return cudaMallocAsync(out, bytes, stream);
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attr, void *value)
{
    ENTER("%d", (int)attr);
    return rt_done(is_pool(pool) && value != NULL ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep)
{
    ENTER("%zu", keep);
    return rt_done(is_pool(pool) ? cudaSuccess : cudaErrorInvalidValue);
}
