/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_memory.h"

#include <dlfcn.h>

#include "boot/context.h"

bool tt_on_gpu(tutti_ctx *ctx)
{
    return ctx->dev_ops->kind == TUTTI_BACKEND_CUDA;
}

void *tt_plain_alloc(tutti_ctx *ctx, size_t bytes)
{
    void *ptr = NULL;
    if (!tt_on_gpu(ctx))
        return malloc(bytes);
    return ctx->dev_ops->mem_alloc(ctx->dev, bytes, &ptr) == TUTTI_OK ? ptr : NULL;
}

void tt_plain_free(tutti_ctx *ctx, void *ptr)
{
    if (!tt_on_gpu(ctx))
        free(ptr);
    else if (ptr != NULL)
        ctx->dev_ops->mem_free(ctx->dev, ptr);
}

static tutti_status move(tutti_ctx *ctx, void *to, const void *from, size_t bytes)
{
    tutti_stream stream;
    if (!tt_on_gpu(ctx)) {
        memcpy(to, from, bytes);
        return TUTTI_OK;
    }
    tutti_status status = tutti_stream_create(ctx, "test", 0, &stream);
    if (status != TUTTI_OK)
        return status;
    status = ctx->dev_ops->copy(ctx->dev, to, from, bytes, stream);
    if (status == TUTTI_OK)
        status = tutti_stream_sync(ctx, stream);
    tutti_stream_destroy(ctx, stream);
    return status;
}

tutti_status tt_put(tutti_ctx *ctx, void *to, const void *host, size_t bytes)
{
    return move(ctx, to, host, bytes);
}

tutti_status tt_get(tutti_ctx *ctx, void *host, const void *from, size_t bytes)
{
    return move(ctx, host, from, bytes);
}

/* The calls of CUDA are looked up: this file is built without CUDA's headers as well. */
void *tt_staging_alloc(tutti_ctx *ctx, size_t bytes)
{
    int (*alloc)(void **, size_t) = NULL;
    void *ptr = NULL;
    if (!tt_on_gpu(ctx))
        return malloc(bytes);
    *(void **)&alloc = dlsym(RTLD_DEFAULT, "cudaMallocHost");
    return alloc != NULL && alloc(&ptr, bytes) == 0 ? ptr : NULL;
}

void tt_staging_free(tutti_ctx *ctx, void *ptr)
{
    int (*release)(void *) = NULL;
    if (!tt_on_gpu(ctx)) {
        free(ptr);
        return;
    }
    *(void **)&release = dlsym(RTLD_DEFAULT, "cudaFreeHost");
    if (release != NULL && ptr != NULL)
        (void)release(ptr);
}

tutti_status tt_copy(tutti_ctx *ctx, void *to, const void *from, size_t bytes, tutti_stream stream)
{
    return bytes == 0 ? TUTTI_OK : ctx->dev_ops->copy(ctx->dev, to, from, bytes, stream);
}

tutti_status tt_call_host(tutti_ctx *ctx, tutti_stream stream, tutti_stream_fn fn, void *arg)
{
    int (*launch)(void *, tutti_stream_fn, void *) = NULL;
    if (!tt_on_gpu(ctx))
        return tutti_stream_call(ctx, stream, fn, arg);
    *(void **)&launch = dlsym(RTLD_DEFAULT, "cudaLaunchHostFunc");
    return launch != NULL && launch(stream.handle, fn, arg) == 0 ? TUTTI_OK : TUTTI_ERR_DEVICE;
}

tutti_status tt_first_stream(tutti_ctx *ctx, tutti_stream *out)
{
    if (tt_on_gpu(ctx))
        return tutti_stream_create(ctx, "first", 0, out);
    *out = (tutti_stream){0};
    return TUTTI_OK;
}
