/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL communicators: made, shared, split, retired.
 *
 * One costs half a gigabyte and seconds, so communicators of equal membership share it, and a
 * single rank has none (TUTTI_NCCL_ONE=1 makes one all the same). Sharing is agreed: each rank says
 * which one it has, for one rank may have let go of what another still holds.
 *
 * They are made non-blocking, so that a rank that never comes costs a time limit and not the job:
 * the id goes over the bootstrap, then a barrier (else the rank that is first blocks in NCCL while
 * its message still has to be progressed), then NCCL is polled while the bootstrap moves.
 *
 * Retiring does not wait for the others, because destroying a communicator does not:
 * ncclCommFinalize is begun, and ncclCommDestroy follows from a later pass, or at the end, once
 * NCCL says it is done.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/env.h"
#include "core/log.h"
#include "core/mem.h"
#include "nccl/backend.h"
#include "topo/plan.h"

static const tt_patience settle_patience = {50000, 50000, 1000000};

/* NCCL is asked under the lock, so that a question without an answer is seen. */
static ncclResult_t ask(tt_nccl_ctx *nc, ncclComm_t comm, bool inside, ncclResult_t *state_out)
{
    const tt_doing what = {"waiting for NCCL", "world", UINT64_MAX, nc->ctx->timeout_s};
    if (!inside)
        tt_nccl_enter(nc, &what);
    ncclResult_t result = ncclInvalidUsage; /* the communicator may be gone */
    if (!atomic_load(&nc->closed))
        result = TT_INSIDE(nc, ncclCommGetAsyncError(comm, state_out));
    if (!inside)
        tt_nccl_leave(nc);
    return result;
}

static tutti_status settle(tt_nccl_ctx *nc, ncclComm_t comm, const char *what, double limit_s,
                           bool inside)
{
    int64_t begun = tt_now_ns();
    bool warned = false;
    tt_wait wait;
    tt_wait_begin(&wait, &settle_patience);
    for (;;) {
        ncclResult_t state = ncclSuccess;
        TT_TRY(tt_ctx_check(nc->ctx));
        ncclResult_t result = ask(nc, comm, inside, &state);
        TT_TRY(tt_ctx_check(nc->ctx));
        TT_TRY(tt_nccl_status(result, comm, "ncclCommGetAsyncError", what));
        if (state != ncclInProgress)
            return tt_nccl_status(state, comm, "ncclCommGetAsyncError", what);
        tt_ctx_poll(nc->ctx);
        double waited = (double)(tt_now_ns() - begun) * 1e-9;
        if (limit_s > 0 && waited > limit_s)
            return tt_fail(TUTTI_ERR_TIMEOUT,
                           "%s: NCCL has not finished after %.1f s (NCCL_DEBUG=INFO shows what it "
                           "waits for)",
                           what, waited);
        if (!warned && nc->ctx->warn_after_s > 0 && waited > nc->ctx->warn_after_s) {
            warned = true;
            tt_log_warn(TT_COLL, "%s: NCCL has not finished after %.0f s", what, waited);
        }
        tt_wait_once(&wait, NULL, 0);
    }
}

tutti_status tt_nccl_settle(tt_nccl_ctx *nc, ncclComm_t comm, const char *what, double limit_s)
{
    return settle(nc, comm, what, limit_s, false);
}

tutti_status tt_nccl_settle_inside(tt_nccl_ctx *nc, ncclComm_t comm, const char *what,
                                   double limit_s)
{
    return settle(nc, comm, what, limit_s, true);
}

static double init_limit(void)
{
    double seconds;
    return tt_env_get_seconds(TT_ENV_INIT_TIMEOUT, &seconds) == TUTTI_OK ? seconds : 300;
}

static bool wants_comm(int size)
{
    bool one = false;
    return size > 1 || (tt_env_get_bool(TT_ENV_NCCL_ONE, &one) == TUTTI_OK && one);
}

static tt_share *find(tt_nccl_ctx *nc, const tt_group *group)
{
    size_t bytes = (size_t)group->size * sizeof *group->world;
    tt_share *s;
    pthread_mutex_lock(&nc->lock);
    for (s = nc->shares; s != NULL; s = s->next)
        if (s->size == group->size && memcmp(s->world, group->world, bytes) == 0)
            break;
    pthread_mutex_unlock(&nc->lock);
    return s;
}

void tt_share_free(tt_share *share)
{
    if (share == NULL)
        return;
    free(share->world);
    free(share);
}

static tutti_status new_share(const tt_group *group, const char *name, tt_share **share_out)
{
    tt_share *s = NULL;
    TT_TRY(tt_calloc(1, sizeof *s, &s));
    tutti_status status = tt_calloc((size_t)group->size, sizeof *s->world, &s->world);
    if (status != TUTTI_OK) {
        tt_share_free(s);
        return status;
    }
    if (group->size > 0)
        memcpy(s->world, group->world, (size_t)group->size * sizeof *s->world);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->id = group->id;
    s->size = group->size;
    s->rank = group->rank;
    *share_out = s;
    return TUTTI_OK;
}

static void list_share(tt_nccl_ctx *nc, tt_share *s)
{
    pthread_mutex_lock(&nc->lock);
    s->next = nc->shares;
    nc->shares = s;
    pthread_mutex_unlock(&nc->lock);
}

/* What a failed creation has begun is left to the abort of all: its context fails. */
static void give_up(tt_nccl_ctx *nc, tt_share *s)
{
    if (s->comm == NULL) {
        tt_share_free(s);
        return;
    }
    list_share(nc, s);
    tt_nccl_abort_more(nc); /* it may have aborted the others already */
}

/* The plan's settings, the same on every rank. Without memory for them NCCL's own do. */
static ncclConfig_t planned_config(const tt_nccl_ctx *nc, const tt_share *s)
{
    ncclConfig_t config = tt_nccl_config(s->name);
    tt_comm_config plan;
    const tt_comm_use use = {.in_turn = !nc->feature.orders_launches};
    if (s->size < 2 || s->world == NULL ||
        tt_plan_comm_config(nc->ctx->plan, s->world, s->size, &use, &plan) != TUTTI_OK)
        return config;
    if (plan.min_ctas > 0)
        config.minCTAs = plan.min_ctas;
    if (plan.max_ctas > 0)
        config.maxCTAs = plan.max_ctas;
    if (plan.cga_cluster_size >= 0)
        config.cgaClusterSize = plan.cga_cluster_size;
    if (plan.split_share > 0)
        config.splitShare = plan.split_share;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    if (plan.nvls_ctas > 0)
        config.nvlsCTAs = plan.nvls_ctas;
#endif
    if (plan.why[0] != '\0' && s->rank == 0)
        tt_log_info(TT_COLL, "comm %s: %s", s->name, plan.why);
    return config;
}

static tutti_status join(tt_nccl_ctx *nc, tt_group *group, tt_share *s, const tt_buf *id,
                         const char *what)
{
    ncclConfig_t config = planned_config(nc, s);
    ncclUniqueId unique;
    tt_cuda_visit visit;
    memcpy(&unique, id->data, sizeof unique);
    TT_TRY(tt_cuda_enter(tt_cuda_of(nc->ctx->dev), &visit));
    const tt_doing doing = {"making a communicator", s->name, UINT64_MAX, init_limit()};
    tt_nccl_enter(nc, &doing);
    ncclResult_t result =
        TT_INSIDE(nc, ncclCommInitRankConfig(&s->comm, group->size, unique, group->rank, &config));
    tt_nccl_leave(nc);
    tt_cuda_leave(tt_cuda_of(nc->ctx->dev), &visit);
    TT_TRY(tt_nccl_status(result, NULL, "ncclCommInitRankConfig", what));
    return tt_nccl_settle(nc, s->comm, what, init_limit());
}

static tutti_status make_id(tt_nccl_ctx *nc, const tt_share *s, ncclUniqueId *id_out,
                            const char *what)
{
    const tt_doing doing = {"making a communicator", s->name, UINT64_MAX, init_limit()};
    tt_nccl_enter(nc, &doing);
    ncclResult_t result = TT_INSIDE(nc, ncclGetUniqueId(id_out));
    tt_nccl_leave(nc);
    return tt_nccl_status(result, NULL, "ncclGetUniqueId", what);
}

/* Collective: by NCCL's rendezvous. */
static tutti_status connect_share(tt_nccl_ctx *nc, tt_group *group, tt_share *s)
{
    ncclUniqueId mine;
    tt_buf id = {0};
    char what[128];
    tutti_status status = TUTTI_OK;
    snprintf(what, sizeof what, "making comm %s of %d ranks", s->name, s->size);
    memset(&mine, 0, sizeof mine);
    if (group->rank == 0)
        status = make_id(nc, s, &mine, what);
    TT_TRY(tt_agree(group, "NCCL's id", status)); /* all know before any waits for it */
    status = tt_bcast_blob(group, "NCCL's id", 0, &mine, sizeof mine, &id);
    if (status == TUTTI_OK)
        status = tt_barrier(group, "NCCL's id has arrived");
    if (status == TUTTI_OK && id.size != sizeof mine)
        status =
            tt_fail(TUTTI_ERR_MISMATCH, "NCCL's id has %zu bytes, not %zu", id.size, sizeof mine);
    if (status == TUTTI_OK)
        status = join(nc, group, s, &id, what);
    tt_buf_free(&id);
    if (status != TUTTI_OK)
        status = tt_ctx_fail(nc->ctx, status); /* the others may wait for this rank inside NCCL */
    return tt_agree(group, "making an NCCL communicator", status);
}

tutti_status tt_share_get(tt_nccl_ctx *nc, tt_group *group, const char *name, tt_share **share_out)
{
    tt_share *have = find(nc, group), *made = NULL;
    uint64_t mine = have == NULL ? 0 : have->id, *all = NULL;
    tutti_status status = tt_calloc((size_t)group->size, sizeof *all, &all);
    if (status == TUTTI_OK)
        status = new_share(group, name, &made);
    status = tt_agree(group, "making a communicator", status);
    if (status == TUTTI_OK)
        status = tt_all_gather_fixed(group, "which NCCL communicator", &mine, sizeof mine, all);
    if (status != TUTTI_OK) {
        free(all);
        tt_share_free(made);
        return status;
    }
    for (int r = 0; r < group->size; r++)
        if (all[r] == 0 || all[r] != all[0])
            have = NULL;
    free(all);
    if (have != NULL) {
        tt_share_free(made);
        have->refs++;
        *share_out = have;
        return TUTTI_OK;
    }
    if (wants_comm(group->size))
        status = connect_share(nc, group, made);
    if (status != TUTTI_OK) {
        give_up(nc, made);
        return status;
    }
    made->refs = 1;
    list_share(nc, made);
    *share_out = made;
    return TUTTI_OK;
}

/* Splitting. */

/* What each rank of the parent says: its part, and whether it has a communicator for it. */
typedef struct bid {
    int64_t color;
    uint64_t have;
} bid;

static bool part_needs(const bid *bids, int n, int64_t color)
{
    uint64_t first = 0;
    int members = 0;
    bool same = true;
    for (int i = 0; i < n; i++) {
        if (bids[i].color != color)
            continue;
        first = members++ == 0 ? bids[i].have : first;
        same = same && bids[i].have == first;
    }
    return members > 1 && (!same || first == 0);
}

static tutti_status split_comm(tt_nccl_ctx *nc, tt_share *parent, tt_share *s, int color)
{
    ncclConfig_t config = planned_config(nc, s);
    const char *what = "splitting a communicator";
    ncclComm_t made = NULL;
    tt_cuda_visit visit;
    TT_TRY(tt_ring_drain_share(nc, parent)); /* NCCL wants it quiet */
    TT_TRY(tt_cuda_enter(tt_cuda_of(nc->ctx->dev), &visit));
    const tt_doing doing = {"splitting", parent->name, UINT64_MAX, init_limit()};
    tt_nccl_enter(nc, &doing);
    ncclResult_t result = ncclInvalidUsage;
    if (!atomic_load(&nc->closed))
        result = TT_INSIDE(nc, ncclCommSplit(parent->comm, color < 0 ? NCCL_SPLIT_NOCOLOR : color,
                                             s->rank, &made, &config));
    tt_nccl_leave(nc);
    tt_cuda_leave(tt_cuda_of(nc->ctx->dev), &visit);
    TT_TRY(tt_ctx_check(nc->ctx));
    TT_TRY(tt_nccl_status(result, parent->comm, "ncclCommSplit", what));
    s->comm = made; /* whoever gives up leaves it to the abort */
    TT_TRY(tt_nccl_settle(nc, parent->comm, what, init_limit()));
    return made == NULL ? TUTTI_OK : tt_nccl_settle(nc, made, what, init_limit());
}

static tutti_status prepare_part(tt_nccl_ctx *nc, tutti_comm *parent, const tt_group *part,
                                 int color)
{
    static const tt_group nobody = {.size = 0};
    tt_share *s = NULL;
    char name[64];
    bool joins = color >= 0;
    snprintf(name, sizeof name, "%s.%u", parent->name, joins ? (unsigned)part->id : 0u);
    tutti_status status = new_share(joins ? part : &nobody, name, &s);
    status = tt_agree(&parent->group, "splitting a communicator", status);
    if (status == TUTTI_OK)
        status = tt_agree(&parent->group, "splitting a communicator",
                          split_comm(nc, tt_nccl_of(parent)->share, s, color));
    if (status != TUTTI_OK) {
        if (s != NULL)
            give_up(nc, s);
        return status;
    }
    if (joins)
        list_share(nc, s); /* tt_share_get finds it */
    else
        tt_share_free(s);
    return TUTTI_OK;
}

tutti_status tt_nccl_split(tutti_comm *parent, const tt_group *part, int color)
{
    tt_nccl_ctx *nc = tt_nccl_of(parent)->nc;
    const int n = parent->group.size;
    bid mine = {part->size > 0 ? color : -1, 0}, *bids = NULL;
    bool any = false;
    if (tt_nccl_of(parent)->share->comm == NULL)
        return TUTTI_OK;
    if (part->size > 0) {
        const tt_share *have = find(nc, part);
        mine.have = have == NULL ? 0 : have->id;
    }
    tutti_status status = tt_calloc((size_t)n, sizeof *bids, &bids);
    status = tt_agree(&parent->group, "splitting a communicator", status);
    if (status == TUTTI_OK)
        status = tt_all_gather_fixed(&parent->group, "which NCCL communicators", &mine, sizeof mine,
                                     bids);
    for (int i = 0; i < n && status == TUTTI_OK; i++)
        any = any || (bids[i].color >= 0 && part_needs(bids, n, bids[i].color));
    bool me = status == TUTTI_OK && mine.color >= 0 && part_needs(bids, n, mine.color);
    free(bids);
    return status == TUTTI_OK && any ? prepare_part(nc, parent, part, me ? color : -1) : status;
}

/* The end. */

void tt_share_retire_step(tt_nccl_ctx *nc)
{
    for (tt_share **at = &nc->retired; *at != NULL;) {
        tt_share *s = *at;
        ncclResult_t state = ncclSuccess;
        if (!s->finalizing) {
            s->finalizing = true;
            ncclResult_t result = TT_INSIDE(nc, ncclCommFinalize(s->comm));
            if (result != ncclSuccess && result != ncclInProgress)
                tt_log_warn(TT_COLL, "comm %s: ncclCommFinalize: %s", s->name,
                            ncclGetErrorString(result));
        }
        if (TT_INSIDE(nc, ncclCommGetAsyncError(s->comm, &state)) == ncclSuccess &&
            state == ncclInProgress) {
            at = &s->next;
            continue;
        }
        ncclResult_t result = TT_INSIDE(nc, ncclCommDestroy(s->comm));
        if (result != ncclSuccess && result != ncclInProgress)
            tt_log_warn(TT_COLL, "comm %s: ncclCommDestroy: %s", s->name,
                        ncclGetErrorString(result));
        if (atomic_load(&nc->closed))
            return; /* it hung and has been given up meanwhile: the list is the abort thread's */
        *at = s->next;
        tt_share_free(s);
    }
}

void tt_share_drop(tt_nccl_ctx *nc, tt_share *share)
{
    if (share == NULL || --share->refs > 0)
        return;
    const tt_doing what = {"destroying", share->name, UINT64_MAX, nc->ctx->timeout_s};
    tt_nccl_enter(nc, &what);
    nc->ctx->dev_ops->event_destroy(nc->ctx->dev, share->last.captured);
    share->last = (tt_point){0};
    for (tt_share **at = &nc->shares; *at != NULL; at = &(*at)->next) {
        if (*at == share) {
            *at = share->next;
            break;
        }
    }
    if (share->comm == NULL) {
        tt_share_free(share);
    } else if (tt_ctx_check(nc->ctx) != TUTTI_OK) { /* the abort is to find it */
        share->next = nc->shares;
        nc->shares = share;
    } else {
        share->next = nc->retired;
        nc->retired = share;
        tt_share_retire_step(nc);
    }
    tt_nccl_leave(nc);
}
