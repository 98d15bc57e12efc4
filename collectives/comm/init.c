/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/live.h"
#include "comm/comm.h"
#include "comm/planning.h"
#include "core/mem.h"
#include "core/spare.h"
#include "trace/recorder.h"

static void last_seen(const tutti_ctx *ctx, char *buf, size_t cap)
{
    const tt_upper *upper = ctx->upper;
    tt_recorder_last(upper->recorder, buf, cap);
}

static tutti_status make_world(tutti_ctx *ctx)
{
    tutti_comm_opts opts = TUTTI_COMM_OPTS_INIT;
    tt_upper *upper = NULL;
    tutti_status status = tt_calloc(1, sizeof *upper, &upper);
    if (status == TUTTI_OK) {
        pthread_mutex_init(&upper->lock, NULL);
        ctx->upper = upper;
        status = tt_recorder_create(&upper->recorder);
    }
    if (status == TUTTI_OK)
        status = tt_spare_create(&upper->spare);
    TT_TRY(tt_agree(&ctx->world, "tutti_init, world communicator", status));
    tt_ctx_set_last_seen(ctx, last_seen);
    /* Ids of its own: exchanges of the context (tutti_step, checkpoints) may run in another thread
     * than those of the program. */
    tt_group group = ctx->world;
    TT_TRY(tt_group_new_ids(&ctx->world, 1, &group.id));
    memset(group.round, 0, sizeof group.round);
    opts.name = "world";
    if ((ctx->flags & TUTTI_INIT_REPRODUCIBLE) != 0)
        opts.flags |= TUTTI_COMM_REPRODUCIBLE;
    return tt_comm_create(ctx, &group, &opts, &upper->world);
}

/* Communicators before the context: their work runs on its streams and bootstrap. */
static void destroy_comms(tutti_ctx *ctx)
{
    tt_upper *upper = ctx->upper;
    if (upper == NULL)
        return;
    tt_comms_destroy(ctx);
    tt_ctx_set_last_seen(ctx, NULL);
    tt_recorder_destroy(upper->recorder);
    tt_spare_drop(upper->spare);
    pthread_mutex_destroy(&upper->lock);
    free(upper);
    ctx->upper = NULL;
}

tutti_status tutti_init(const tutti_init_opts *opts, tutti_ctx **ctx_out)
{
    tutti_ctx *ctx = NULL;
    if (ctx_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_init: ctx_out is NULL");
    TT_TRY(tt_context_create(opts, &ctx));
    tutti_status status = tt_planning_make(ctx);
    if (status == TUTTI_OK)
        status = make_world(ctx);
    if (status != TUTTI_OK) {
        tt_ctx_fail(ctx, status);
        goto destroy_ctx;
    }
    *ctx_out = ctx;
    return TUTTI_OK;
destroy_ctx:
    destroy_comms(ctx);
    tt_planning_end(ctx);
    tt_context_destroy(ctx);
    return status;
}

/* Together: what was begun ends on all ranks before any of them takes the bootstrap away. */
static tutti_status leave(tutti_ctx *ctx)
{
    TT_TRY(tt_ctx_check(ctx));
    return tt_ctx_hooks_run(ctx, -2);
}

tutti_status tutti_finalize(tutti_ctx *ctx)
{
    char text[TT_ERROR_TEXT_MAX];
    if (ctx == NULL)
        return TUTTI_OK;
    if (tt_ctx_on_worker(ctx))
        return tt_fail(TUTTI_ERR_STATE,
                       "tutti_finalize: called from work on a stream of the context");
    tutti_status status = leave(ctx);
    snprintf(text, sizeof text, "%s", tutti_last_error());
    if (tt_ctx_check(ctx) == TUTTI_OK)
        tt_live_destroy_all(ctx);
    destroy_comms(ctx);
    tutti_status end =
        tt_ctx_check(ctx); /* destroying has no status: what failed in it shows here */
    if (end == TUTTI_OK)
        end = tt_barrier(&ctx->world, "tutti_finalize");
    if (status == TUTTI_OK && end != TUTTI_OK) {
        status = end;
        snprintf(text, sizeof text, "%s", tutti_last_error());
    }
    tt_planning_end(ctx);
    tt_context_destroy(ctx);
    return status == TUTTI_OK ? TUTTI_OK : tt_fail_text(status, text);
}
