/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels: what nvcc's start-up code registers, and launches. The fat binary itself is not looked
 * at; a kernel is known by the name under which its host stub is registered.
 */
#include "api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct function {
    const void *stub;
    char *name;
    const sg_kernel *kernel; /* once looked up */
    void *module;
    struct function *next;
} function;

typedef struct module {
    const void *binary;
} module;

static function *functions;

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *stub, char *device_function,
                            const char *name, int thread_limit, uint3 *tid, uint3 *bid, dim3 *bdim,
                            dim3 *gdim, int *wsize);
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext,
                       size_t bytes, int constant, int global);
char __cudaInitModule(void **handle);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *stub);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream);

void **__cudaRegisterFatBinary(void *binary)
{
    module *m = calloc(1, sizeof(*m));
    if (m != NULL) {
        m->binary = binary;
    }
    return (void **)m;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
    sg_lock();
    for (function **at = &functions; *at != NULL;) {
        function *f = *at;
        if (f->module == (void *)handle) {
            *at = f->next;
            free(f->name);
            free(f);
        } else {
            at = &f->next;
        }
    }
    sg_unlock();
    free(handle);
}

char __cudaInitModule(void **handle)
{
    (void)handle;
    return 1;
}

void __cudaRegisterFunction(void **handle, const char *stub, char *device_function,
                            const char *name, int thread_limit, uint3 *tid, uint3 *bid, dim3 *bdim,
                            dim3 *gdim, int *wsize)
{
    function *f = calloc(1, sizeof(*f));
    (void)device_function, (void)thread_limit, (void)tid, (void)bid, (void)bdim, (void)gdim;
    (void)wsize;
    if (f == NULL) {
        return;
    }
    f->stub = stub;
    f->name = strdup(name);
    f->module = (void *)handle;
    sg_lock();
    f->next = functions;
    functions = f;
    sg_unlock();
}

/* Variables are registered by any program that has one; using one is refused (cudaMemcpyToSymbol).
 */
void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext,
                       size_t bytes, int constant, int global)
{
    (void)handle, (void)host, (void)device, (void)name, (void)ext, (void)bytes, (void)constant;
    (void)global;
}

/* A function by its stub, or by the handle that __cudaGetKernel gave out for it. */
static function *find(const void *stub)
{
    function *f = functions;
    while (f != NULL && f->stub != stub && f != stub) {
        f = f->next;
    }
    return f;
}

static const sg_kernel *kernel_of(const void *stub, const char *call)
{
    char text[512];
    sg_lock();
    function *f = find(stub);
    if (f != NULL && f->kernel == NULL) {
        f->kernel = sg_kernel_find(f->name);
        if (f->kernel == NULL) {
            snprintf(text, sizeof(text), "%s of kernel %s, which no plug-in registers,", call,
                     f->name);
            sg_refuse(text);
        }
    }
    const sg_kernel *kernel = f != NULL ? f->kernel : NULL;
    sg_unlock();
    return kernel;
}

/* ---- the configuration between <<<>>> and the stub ---- */

typedef struct configuration {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
} configuration;

enum { DEPTH = 16 };
static __thread configuration pushed[DEPTH];
static __thread int depth;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
    if (depth == DEPTH) {
        return 1;
    }
    pushed[depth++] = (configuration){grid, block, shared, stream};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (depth == 0) {
        return rt_done(cudaErrorMissingConfiguration);
    }
    const configuration *c = &pushed[--depth];
    *grid = c->grid;
    *block = c->block;
    *shared = c->shared;
    memcpy(stream, &c->stream, sizeof(c->stream));
    return cudaSuccess;
}

/* ---- launches ---- */

static bool fits(dim3 grid, dim3 block, size_t shared)
{
    size_t threads = (size_t)block.x * block.y * block.z;
    return threads > 0 && threads <= 1024 && block.z <= 64 && grid.x > 0 && grid.y > 0 &&
           grid.z > 0 && grid.x <= 2147483647u && grid.y <= 65535 && grid.z <= 65535 &&
           shared <= 166912;
}

static cudaError_t launch(const void *stub, const configuration *c, void **args, const void *site)
{
    cudaError_t error;
    const sg_kernel *kernel = kernel_of(stub, "the launch");
    if (kernel == NULL) {
        return rt_done(cudaErrorInvalidDeviceFunction);
    }
    sg_stream *s = rt_stream(c->stream, kernel->name, &error);
    if (s == NULL) {
        return error;
    }
    if (sg_stream_check(s, kernel->name) != SG_OK) {
        return rt_done(cudaErrorInvalidResourceHandle);
    }
    if (!fits(c->grid, c->block, c->shared)) {
        sg_finding("launch",
                   "kernel %s with grid (%u,%u,%u) and block (%u,%u,%u), %zu shared bytes",
                   kernel->name, c->grid.x, c->grid.y, c->grid.z, c->block.x, c->block.y,
                   c->block.z, c->shared);
        return rt_done(cudaErrorInvalidConfiguration);
    }
    sg_launch shape = {
        {c->grid.x, c->grid.y, c->grid.z}, {c->block.x, c->block.y, c->block.z}, c->shared};
    return rt_done((cudaError_t)sg_kernel_launch(s, kernel, &shape, args, site));
}

static const char *name_of(const void *stub)
{
    sg_lock();
    const function *f = find(stub);
    const char *name = f != NULL ? f->name : "?";
    sg_unlock();
    return name;
}

cudaError_t cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **args, size_t shared,
                             cudaStream_t stream)
{
    ENTER_HOT("%s grid=%u,%u,%u block=%u,%u,%u shared=%zu %s", name_of(stub), grid.x, grid.y,
              grid.z, block.x, block.y, block.z, shared, sg_name_stream(stream));
    configuration c = {grid, block, shared, stream};
    return launch(stub, &c, args, CALLER);
}

cudaError_t __cudaGetKernel(cudaKernel_t *out, const void *stub)
{
    sg_lock();
    function *f = find(stub);
    sg_unlock();
    *out = (cudaKernel_t)f;
    return f != NULL ? cudaSuccess : rt_done(cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaGetKernel(cudaKernel_t *out, const void *stub)
{
    ENTER("%s", name_of(stub));
    return __cudaGetKernel(out, stub);
}

/* The stub of nvcc 13's start-up code: the same call, the same name in tables and logs. */
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **args,
                               size_t shared, cudaStream_t stream)
{
    return cudaLaunchKernel((const void *)kernel, grid, block, args, shared, stream);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *stub, void **args)
{
    ENTER_HOT("%s", name_of(stub));
    if (config == NULL) {
        return rt_done(cudaErrorInvalidValue);
    }
    if (config->numAttrs > 0) {
        sg_refuse("cudaLaunchKernelExC with attributes");
    }
    configuration c = {config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream};
    return launch(stub, &c, args, CALLER);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *stub)
{
    ENTER("%s", name_of(stub));
    if (out == NULL || kernel_of(stub, __func__) == NULL) {
        return rt_done(out == NULL ? cudaErrorInvalidValue : cudaErrorInvalidDeviceFunction);
    }
    const sg_gpu *g = sg_device(sg_current_device());
    memset(out, 0, sizeof(*out));
    out->maxThreadsPerBlock = 1024;
    out->numRegs = 32;
    out->ptxVersion = out->binaryVersion = 10 * g->cc_major + g->cc_minor;
    out->maxDynamicSharedSizeBytes = 49152;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *stub, enum cudaFuncAttribute attr, int value)
{
    ENTER("%s %d=%d", name_of(stub), (int)attr, value);
    return rt_done(kernel_of(stub, __func__) != NULL ? cudaSuccess
                                                     : cudaErrorInvalidDeviceFunction);
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *stub,
                                                                   int threads, size_t shared,
                                                                   unsigned int flags)
{
    ENTER("%s threads=%d shared=%zu flags=%u", name_of(stub), threads, shared, flags);
    if (blocks == NULL || threads < 1 || kernel_of(stub, __func__) == NULL) {
        return rt_done(cudaErrorInvalidValue);
    }
    int by_threads = 2048 / ((threads + 31) / 32 * 32);
    int by_shared = shared > 0 ? (int)(167936 / shared) : 32;
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    *blocks = *blocks > 32 ? 32 : *blocks;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *stub,
                                                          int threads, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, stub, threads, shared, 0);
}
