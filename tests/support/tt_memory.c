/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_memory.h"

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

tutti_status tt_first_stream(tutti_ctx *ctx, tutti_stream *out)
{
    if (tt_on_gpu(ctx))
        return tutti_stream_create(ctx, "first", 0, out);
    *out = (tutti_stream){0};
    return TUTTI_OK;
}
