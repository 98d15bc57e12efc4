/* SPDX-License-Identifier: Apache-2.0 */
#include "boot/live.h"

static void unlink_locked(tt_live *live)
{
    if (live->newer != NULL)
        live->newer->older = live->older;
    else
        live->ctx->live.newest = live->older;
    if (live->older != NULL)
        live->older->newer = live->newer;
    live->ctx = NULL;
}

void tt_live_add(tt_live *live, tutti_ctx *ctx, const tt_live_ops *ops, void *object)
{
    *live = (tt_live){.ctx = ctx, .ops = ops, .object = object};
    pthread_mutex_lock(&ctx->live.lock);
    live->older = ctx->live.newest;
    if (live->older != NULL)
        live->older->newer = live;
    ctx->live.newest = live;
    pthread_mutex_unlock(&ctx->live.lock);
}

void tt_live_remove(tt_live *live)
{
    tutti_ctx *ctx = live->ctx;

    if (ctx == NULL)
        return;
    pthread_mutex_lock(&ctx->live.lock);
    unlink_locked(live);
    pthread_mutex_unlock(&ctx->live.lock);
}

static tt_live *take_newest(tutti_ctx *ctx)
{
    pthread_mutex_lock(&ctx->live.lock);
    tt_live *live = ctx->live.newest;
    if (live != NULL)
        unlink_locked(live);
    pthread_mutex_unlock(&ctx->live.lock);
    return live;
}

void tt_live_destroy_all(tutti_ctx *ctx)
{
    tt_live *live;

    while ((live = take_newest(ctx)) != NULL)
        live->ops->destroy(live->object);
}

void tt_live_drop_all(tutti_ctx *ctx)
{
    tt_live *live;

    while ((live = take_newest(ctx)) != NULL)
        live->ops->drop(live->object);
}
