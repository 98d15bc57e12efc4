/* SPDX-License-Identifier: Apache-2.0 */
/* The public streams: argument checks and the device's slots. */
#include "tutti/stream.h"

#include "boot/context.h"
#include "device/device.h"

tutti_status tutti_stream_create(tutti_ctx *ctx, const char *name, int priority,
                                 tutti_stream *stream_out)
{
    if (ctx == NULL || stream_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_stream_create: %s is NULL",
                       ctx == NULL ? "ctx" : "stream_out");
    return ctx->dev_ops->stream_create(ctx->dev, name, priority, stream_out);
}

void tutti_stream_destroy(tutti_ctx *ctx, tutti_stream stream)
{
    if (ctx != NULL)
        ctx->dev_ops->stream_destroy(ctx->dev, stream);
}

tutti_status tutti_stream_wait(tutti_ctx *ctx, tutti_stream stream, tutti_stream until)
{
    const tt_device_ops *ops;
    tt_event *event;
    tutti_status status;

    if (ctx == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_stream_wait: ctx is NULL");
    ops = ctx->dev_ops;
    TT_TRY(ops->event_create(ctx->dev, false, &event));
    status = ops->event_record(ctx->dev, event, until);
    if (status == TUTTI_OK)
        status = ops->event_wait(ctx->dev, event, stream);
    ops->event_destroy(ctx->dev, event);
    return status;
}

tutti_status tutti_stream_sync(tutti_ctx *ctx, tutti_stream stream)
{
    if (ctx == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_stream_sync: ctx is NULL");
    TT_TRY(ctx->dev_ops->stream_sync(ctx->dev, stream));
    return tt_ctx_check(ctx);
}

typedef struct user_call {
    tutti_stream_fn fn;
    void *arg;
} user_call;

static tutti_status run_user_call(void *arg)
{
    const user_call *call = arg;

    call->fn(call->arg);
    return TUTTI_OK;
}

tutti_status tutti_stream_call(tutti_ctx *ctx, tutti_stream stream, tutti_stream_fn fn, void *arg)
{
    user_call call = {fn, arg};

    if (ctx == NULL || fn == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_stream_call: %s is NULL", ctx == NULL ? "ctx" : "fn");
    return ctx->dev_ops->stream_call(ctx->dev, stream, run_user_call, &call, sizeof call);
}
