/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is looked at while the program does something else: NCCL's asynchronous errors, launches
 * that do not end, communicators that are on their way out. It runs in each pass of the progress
 * part, never blocks, and steps aside when a thread is inside NCCL.
 *
 * Failure: a context that has failed, for whatever reason, has its NCCL communicators aborted, on
 * every rank, because each hears of it; that ends kernels that spin for a peer that has gone, and
 * with them the streams. An abort may hang itself, so it has a thread of its own, and who must end
 * waits for that thread only so long. It waits for `lock` first: NCCL allows an abort only when no
 * other thread is inside.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"
#include "nccl/backend.h"

enum { LOCK_S = 5 };

/* Outlives the context if the abort hangs: two hold it, the last frees it. */
struct tt_abort {
    _Atomic int refs;
    _Atomic bool done;
    tt_nccl_ctx *nc; /* used until `done` */
    int ordinal;
};

static void drop_abort(tt_abort *a)
{
    if (atomic_fetch_sub(&a->refs, 1) == 1)
        free(a);
}

static bool lock_for(pthread_mutex_t *lock, int seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    return pthread_mutex_timedlock(lock, &until) == 0;
}

static void abort_list(tt_share *list)
{
    for (tt_share *s = list; s != NULL; s = s->next) {
        if (s->comm == NULL)
            continue;
        ncclResult_t result = ncclCommAbort(s->comm);
        if (result != ncclSuccess && result != ncclInProgress)
            tt_log_warn(TT_COLL, "comm %s: ncclCommAbort: %s", s->name, ncclGetErrorString(result));
        s->comm = NULL;
    }
}

static void *abort_main(void *arg)
{
    tt_abort *a = arg;
    tt_nccl_ctx *nc = a->nc;
    (void)cudaSetDevice(a->ordinal);
    bool locked = lock_for(&nc->lock, LOCK_S);
    if (!locked)
        tt_log_warn(TT_COLL, "a thread has been inside NCCL for %d s: aborting all the same",
                    LOCK_S);
    nc->closed = true;
    abort_list(nc->shares);
    abort_list(nc->retired);
    if (locked)
        pthread_mutex_unlock(&nc->lock);
    atomic_store(&a->done, true);
    drop_abort(a);
    return NULL;
}

void tt_nccl_abort_all(tt_nccl_ctx *nc)
{
    pthread_t thread;
    tt_abort *a = NULL;
    pthread_mutex_lock(&nc->ring_lock);
    bool first = nc->abort == NULL && tt_calloc(1, sizeof *a, &a) == TUTTI_OK;
    if (first) {
        a->refs = 2;
        a->nc = nc;
        a->ordinal = tt_cuda_of(nc->ctx->dev)->ordinal;
        nc->abort = a;
    }
    pthread_mutex_unlock(&nc->ring_lock);
    if (!first)
        return;
    if (tt_thread_start(&thread, "tutti-abort", abort_main, a) != TUTTI_OK) {
        tt_log_error(TT_COLL, "cannot abort NCCL: %s", tutti_last_error());
        drop_abort(a); /* what the thread would hold; never done */
        return;
    }
    pthread_detach(thread);
}

bool tt_nccl_abort_wait(tt_nccl_ctx *nc, double seconds)
{
    int64_t deadline = tt_deadline(seconds);
    tt_abort *a = nc->abort;
    while (a != NULL && !atomic_load(&a->done)) {
        if (tt_now_ns() > deadline)
            return false;
        tt_sleep_ns(1000000);
    }
    if (a != NULL)
        drop_abort(a);
    nc->abort = NULL;
    return true;
}

static void check_async(tt_nccl_ctx *nc)
{
    char what[128];
    for (tt_share *s = nc->shares; s != NULL; s = s->next) {
        ncclResult_t state = ncclSuccess;
        if (s->comm == NULL)
            continue;
        ncclResult_t result = ncclCommGetAsyncError(s->comm, &state);
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
    tt_cuda_visit visit;
    if (nc == NULL || tt_cuda_enter(tt_cuda_of(ctx->dev), &visit) != TUTTI_OK)
        return;
    tt_ring_advance(ctx);
    if (tt_ctx_check(ctx) != TUTTI_OK) {
        tt_nccl_abort_all(nc);
    } else if (pthread_mutex_trylock(&nc->lock) == 0) {
        if (!nc->closed) {
            check_async(nc);
            tt_share_retire_step(nc);
        }
        pthread_mutex_unlock(&nc->lock);
        check_oldest(nc);
    }
    tt_cuda_leave(tt_cuda_of(ctx->dev), &visit);
}
