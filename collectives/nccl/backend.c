/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The NCCL backend's table, and the life of its part of a context: made with the world
 * communicator, taken down with it, which is the last to go.
 *
 * Taking down a context that is well: every NCCL communicator is finalized and destroyed, polled
 * together so that no rank blocks in one while another blocks in the next, and within the time
 * limit. A context that has failed has its communicators aborted instead; if that does not end
 * either, they are left to the end of the process, and a line says so.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "core/clock.h"
#include "core/env.h"
#include "core/log.h"
#include "core/mem.h"
#include "nccl/backend.h"

static const double abort_s = 15;
static const tt_patience retire_patience = {0, 100000, 1000000};

tt_nccl_ctx *tt_nccl_ctx_of(const tutti_ctx *ctx)
{
    const tt_upper *upper = ctx->upper;
    return upper == NULL ? NULL : upper->nccl;
}

/* What ranks tell each other of their libraries. */
typedef struct versions {
    int32_t nccl, runtime, driver;
} versions;

static tutti_status same_nccl(tutti_ctx *ctx, const versions *all)
{
    char name[TT_HOST_MAX + 64], mine[32], first[32];
    for (int r = 1; r < ctx->world.size; r++) {
        if (all[r].nccl != all[0].nccl) {
            tt_nccl_version_text(all[r].nccl, mine, sizeof mine);
            tt_nccl_version_text(all[0].nccl, first, sizeof first);
            return tt_fail(TUTTI_ERR_MISMATCH, "tutti_init: %s loaded NCCL %s, rank 0 %s",
                           tt_ctx_rank_name(ctx, r, name, sizeof name), mine, first);
        }
        if (ctx->world.rank == 0 &&
            (all[r].driver != all[0].driver || all[r].runtime != all[0].runtime))
            tt_log_warn(TT_COLL, "%s has CUDA driver %d and runtime %d, rank 0 %d and %d",
                        tt_ctx_rank_name(ctx, r, name, sizeof name), all[r].driver, all[r].runtime,
                        all[0].driver, all[0].runtime);
    }
    return TUTTI_OK;
}

static void say_version(const tt_nccl_ctx *nc)
{
    struct utsname machine;
    char text[32];
    if (nc->ctx->world.rank != 0 || uname(&machine) != 0)
        return;
    tt_nccl_version_text(nc->feature.version, text, sizeof text);
    const char *trouble = tt_nccl_known_bad(nc->feature.version, machine.machine);
    if (trouble != NULL)
        tt_log_warn(TT_COLL, "NCCL %s %s", text, trouble);
    tt_log_info(TT_COLL, "NCCL %s, %s", text,
                nc->feature.window_register != NULL ? "with symmetric windows"
                                                    : "without symmetric windows");
}

static tutti_status compare_versions(tt_nccl_ctx *nc)
{
    tutti_ctx *ctx = nc->ctx;
    versions mine = {.nccl = nc->feature.version}, *all = NULL;
    (void)cudaRuntimeGetVersion(&mine.runtime);
    (void)cudaDriverGetVersion(&mine.driver);
    tutti_status status = tt_calloc((size_t)ctx->world.size, sizeof *all, &all);
    status = tt_agree(&ctx->world, "tutti_init, NCCL's version", status);
    if (status == TUTTI_OK)
        status =
            tt_all_gather_fixed(&ctx->world, "tutti_init, NCCL's version", &mine, sizeof mine, all);
    if (status == TUTTI_OK)
        status = same_nccl(ctx, all);
    free(all);
    return status;
}

static tutti_status open_ctx(tutti_ctx *ctx)
{
    tt_upper *upper = ctx->upper;
    tt_nccl_ctx *nc;
    TT_TRY(tt_calloc(1, sizeof *nc, &nc));
    nc->ctx = ctx;
    pthread_mutex_init(&nc->lock, NULL);
    pthread_mutex_init(&nc->ring_lock, NULL);
    upper->nccl = nc;
    TT_TRY(tt_nccl_feature_get(&nc->feature));
    return tt_nccl_abort_start(nc);
}

/* All together until none is left, or until the time is up. */
static bool retire_all(tt_nccl_ctx *nc)
{
    double limit = nc->ctx->timeout_s > 0 ? nc->ctx->timeout_s : 0;
    const tt_doing what = {"tutti_finalize", "world", UINT64_MAX, limit};
    int64_t deadline = tt_deadline(limit);
    tt_wait wait;
    tt_wait_begin(&wait, &retire_patience);
    while (tt_ctx_check(nc->ctx) == TUTTI_OK) {
        tt_nccl_enter(nc, &what);
        tt_share_retire_step(nc);
        bool left = nc->retired != NULL;
        tt_nccl_leave(nc);
        if (!left)
            return true;
        if (tt_now_ns() > deadline) {
            tt_ctx_fail(nc->ctx, tt_fail(TUTTI_ERR_TIMEOUT,
                                         "tutti_finalize: ncclCommFinalize has not finished after "
                                         "%.1f s",
                                         limit));
            return false;
        }
        tt_ctx_poll(nc->ctx);
        tt_wait_once(&wait, NULL, 0);
    }
    return false;
}

static void free_shares(tt_share *list)
{
    while (list != NULL) {
        tt_share *s = list;
        list = s->next;
        tt_share_free(s);
    }
}

static void close_ctx(tutti_ctx *ctx)
{
    tt_upper *upper = ctx->upper;
    tt_nccl_ctx *nc = upper->nccl;
    tt_cuda_visit visit;
    if (nc == NULL)
        return;
    if (ctx->progress != NULL)
        tt_ctx_set_watch(ctx, NULL);
    bool entered = tt_cuda_enter(tt_cuda_of(ctx->dev), &visit) == TUTTI_OK;
    if (!retire_all(nc)) {
        tt_nccl_abort_all(nc);
        (void)!tt_nccl_abort_wait(nc, abort_s);
    }
    if (!tt_nccl_abort_end(nc)) {
        tt_log_error(TT_COLL,
                     "ncclCommAbort has not ended after %.0f s: NCCL's communicators are left to "
                     "the end of the process",
                     abort_s);
        upper->nccl = NULL; /* its thread still uses it */
        goto leave;
    }
    tt_nccl_mem_forget(nc);
    free_shares(nc->shares);
    free_shares(nc->retired);
    tt_ring_free(nc);
    pthread_mutex_destroy(&nc->ring_lock);
    pthread_mutex_destroy(&nc->lock);
    upper->nccl = NULL;
    free(nc);

leave:
    if (entered)
        tt_cuda_leave(tt_cuda_of(ctx->dev), &visit);
}

static void nccl_destroy(tutti_comm *comm)
{
    tt_nccl *own = comm->backend;
    const tt_upper *upper = comm->ctx->upper;
    if (own != NULL && own->nc != NULL) {
        tt_hier_destroy(comm);
        tt_composite_free(comm);
        tt_share_drop(own->nc, own->share);
    }
    free(own);
    comm->backend = NULL;
    if (upper->world == comm || upper->world == NULL) /* the world, made or half made */
        close_ctx(comm->ctx);
}

static tutti_status create_own(tutti_comm *comm, bool first)
{
    tt_nccl *own = NULL;
    if (first)
        TT_TRY(open_ctx(comm->ctx));
    TT_TRY(tt_calloc(1, sizeof *own, &own));
    own->nc = tt_nccl_ctx_of(comm->ctx);
    comm->backend = own;
    return TUTTI_OK;
}

static tutti_status nccl_create(tutti_comm *comm)
{
    tutti_ctx *ctx = comm->ctx;
    bool first = tt_nccl_ctx_of(ctx) == NULL;
    TT_TRY(tt_agree(&comm->group, "making a communicator", create_own(comm, first)));
    tt_nccl *own = tt_nccl_of(comm);
    if (first) {
        TT_TRY(compare_versions(own->nc));
        say_version(own->nc);
        tt_ctx_set_watch(ctx, tt_nccl_watch);
    }
    TT_TRY(tt_share_get(own->nc, &comm->group, comm->name, &own->share));
    TT_TRY(tt_agree(&comm->group, "making a communicator", tt_composite_prepare(comm)));
    return tt_hier_create(comm);
}

const tt_coll_ops tt_coll_nccl = {
    .size = sizeof(tt_coll_ops),
    .name = "nccl",
    .create = nccl_create,
    .destroy = nccl_destroy,
    .launch = tt_nccl_launch,
    .any_streams = true,
    .split = tt_nccl_split,
    .advance = tt_ring_advance,
    .native_begin = tt_nccl_native_begin,
    .native_end = tt_nccl_native_end,
    .mem_alloc = tt_nccl_mem_alloc,
    .mem_register = tt_nccl_mem_register,
    .mem_release = tt_nccl_mem_release,
};
