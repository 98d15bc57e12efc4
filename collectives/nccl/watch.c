/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is looked at while the program does something else: NCCL's asynchronous errors, launches
 * that do not end, communicators that are on their way out. It runs in each pass of the progress
 * part, never blocks, and steps aside when a thread is inside NCCL. A context that has failed, for
 * whatever reason, has its communicators aborted (abort.c).
 */
#include <stdio.h>

#include "core/clock.h"
#include "core/log.h"
#include "nccl/backend.h"

static void check_async(tt_nccl_ctx *nc)
{
    char what[128];
    for (tt_share *s = nc->shares; s != NULL; s = s->next) {
        ncclResult_t state = ncclSuccess;
        if (s->comm == NULL)
            continue;
        ncclResult_t result = TT_INSIDE(nc, ncclCommGetAsyncError(s->comm, &state));
        if (result != ncclSuccess)
            state = result;
        if (state == ncclSuccess || state == ncclInProgress)
            continue;
        snprintf(what, sizeof what, "comm %s, rank %d", s->name, s->rank);
        tt_ctx_fail(nc->ctx, tt_nccl_status(state, s->comm, "NCCL's asynchronous error", what));
        return;
    }
}

/* The oldest launch: warned of, then asked about, then given up. */
static void check_oldest(tt_nccl_ctx *nc)
{
    tutti_ctx *ctx = nc->ctx;
    char what[192], seen[768];
    int64_t since, quiet = atomic_load(&ctx->quiet_until_ns);
    if (!tt_ring_oldest(nc, &since, what, sizeof what))
        return;
    if (quiet > since)
        since = quiet;
    double waited = (double)(tt_now_ns() - since) * 1e-9;
    if (!nc->warned && ctx->warn_after_s > 0 && waited >= ctx->warn_after_s) {
        nc->warned = true;
        tt_log_warn(TT_COLL, "%s: not finished after %.0f s", what, waited);
    }
    if (!(ctx->timeout_s > 0) || waited < ctx->timeout_s)
        return;
    if (!tt_ctx_ask(ctx, seen, sizeof seen))
        return; /* the others are being asked where they are */
    tt_ctx_fail(ctx,
                tt_fail(TUTTI_ERR_TIMEOUT, "%s: not finished after %.1f s%s", what, waited, seen));
}

void tt_nccl_watch(tutti_ctx *ctx)
{
    tt_nccl_ctx *nc = tt_nccl_ctx_of(ctx);
    const tt_doing what = {"looking for errors", "world", UINT64_MAX, ctx->timeout_s};
    tt_cuda_visit visit;
    if (nc == NULL || tt_cuda_enter(tt_cuda_of(ctx->dev), &visit) != TUTTI_OK)
        return;
    tt_ring_advance(ctx);
    if (tt_ctx_check(ctx) != TUTTI_OK) {
        tt_nccl_abort_all(nc);
    } else if (tt_nccl_try_enter(nc, &what)) {
        if (!atomic_load(&nc->closed)) {
            check_async(nc);
            tt_share_retire_step(nc);
        }
        tt_nccl_leave(nc);
        check_oldest(nc);
    }
    tt_cuda_leave(tt_cuda_of(ctx->dev), &visit);
}
