/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host backend's table: communicators, and calls queued on streams.
 *
 * The calls of a launch run in the caller's thread (inline) or in the stream's worker. Whoever
 * comes first, collectives of a communicator run in the order of issue: each waits for its number.
 * Numbers are given in the order of issue over all streams, and a stream's work only waits for what
 * was issued before, so the lowest number that has not run can always run.
 *
 * A failed call leaves its number where it is: its context has failed, and so have the calls behind
 * it.
 */
#include "host/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/spare.h"
#include "trace/recorder.h"

enum { MIN_PART = 64 /* bytes of a slot's part: one element at least, aligned */ };

/* Calls queued on a stream. */
typedef struct job {
    size_t n;
    tt_call call[];
} job;

static bool late_turn(void *arg, char *buf, size_t cap)
{
    (void)arg;
    snprintf(buf, cap, "an earlier call on this communicator still waits on its stream");
    return true;
}

tutti_status tt_turn_await(tt_run *run, _Atomic uint32_t *turn)
{
    tutti_comm *comm = run->host->comm;
    const uint32_t number = (uint32_t)run->call->seq;
    uint32_t seen = atomic_load_explicit(turn, memory_order_acquire);
    tt_op_wait wait;
    if (seen == number)
        return tt_ctx_check(comm->ctx);
    tt_op_wait_begin(&wait, comm->ctx, run->patience, tt_run_what(run), late_turn, NULL);
    while (seen != number) {
        TT_TRY(tt_op_wait_once(&wait, turn, seen));
        seen = atomic_load_explicit(turn, memory_order_acquire);
    }
    return TUTTI_OK;
}

void tt_turn_pass(const tt_run *run, _Atomic uint32_t *turn)
{
    atomic_store_explicit(turn, (uint32_t)run->call->seq + 1, memory_order_release);
    if (atomic_load(&run->host->comm->pending) >
        0) /* who waits, or is waited for, is on a stream */
        tt_futex_wake_all(turn);
}

static tutti_status run_kind(tt_run *run)
{
    if (run->form != TT_LARGE) {
        tt_small_finish(run);
        return TUTTI_OK;
    }
    switch (run->call->kind) {
    case TT_ALL_REDUCE:
    case TT_REDUCE_SCATTER:
    case TT_REDUCE:
        return run->host->nodes == 1 ? tt_host_sum(run) : tt_host_reduce(run);
    case TT_ALL_GATHER:
    case TT_BROADCAST:
        return tt_lead_fits(run) ? tt_host_lead(run) : tt_host_spread(run);
    default:
        return tt_host_pairs(run);
    }
}

static tutti_status run_collective(const tt_call *call, const tt_patience *patience)
{
    tt_run run = {.host = call->comm->backend, .call = call, .patience = patience};
    tt_lane *lane = call->comm->lane;
    tt_small_choose(&run);
    TT_TRY(tt_turn_await(&run, &call->comm->done_seq));
    tt_lane_begin(lane, tt_kind_name(call->kind), call->seq, call->n);
    tutti_status status = tt_meet(&run);
    if (status == TUTTI_OK)
        status = run_kind(&run);
    if (status == TUTTI_OK) {
        tt_lane_end(lane);
        tt_turn_pass(&run, &call->comm->done_seq);
    } else {
        tt_links_cancel(&run);
    }
    return status;
}

/* The collectives among the calls; *at: the one that is carried out. */
static tutti_status run_all(const tt_call *calls, size_t n, const tt_patience *patience, size_t *at)
{
    for (size_t step = 1; *at < n; *at += step) {
        const tt_call *call = &calls[*at];
        step = 1;
        if (tt_is_p2p(call->kind))
            continue;
        step = tt_ahead_count(call, n - *at);
        TT_TRY(step == 1 ? run_collective(call, patience) : tt_ahead_run(call, step, patience));
    }
    return TUTTI_OK;
}

/* Everything the calls own is given back. */
static tutti_status carry_out(tt_call *calls, size_t n, const tt_patience *patience)
{
    tutti_ctx *ctx = calls[0].comm->ctx;
    tt_p2p *p2p = NULL;
    tutti_status status = tt_p2p_post(calls, n, patience, &p2p);
    if (status == TUTTI_OK) {
        size_t at = 0;
        status = run_all(calls, n, patience, &at);
        const tt_host *host = at < n ? calls[at].comm->backend : NULL;
        if (status != TUTTI_OK && host->reaches)
            tt_reach_withdraw(host);
    }
    if (status == TUTTI_OK)
        status = tt_p2p_finish(p2p);
    else
        tt_p2p_cancel(p2p);
    for (size_t i = 0; i < n; i++)
        tt_call_free(&calls[i]);
    return status == TUTTI_OK ? TUTTI_OK : tt_ctx_fail(ctx, status);
}

static void count_pending(const job *j, bool begins)
{
    for (size_t i = 0; i < j->n; i++) {
        _Atomic uint32_t *pending = &j->call[i].comm->pending;
        if (begins)
            atomic_fetch_add(pending, 1);
        else if (atomic_fetch_sub(pending, 1) == 1)
            tt_futex_wake_all(pending); /* an address only: the communicator may be gone */
    }
}

static tutti_status run_job(void *arg)
{
    job *j = arg;
    tutti_status status = carry_out(j->call, j->n, &j->call[0].comm->ctx->worker_patience);
    count_pending(j, false);
    tt_spare_give(j);
    return status;
}

static tutti_status queue(tt_call *calls, size_t n)
{
    tutti_ctx *ctx = calls[0].comm->ctx;
    job *j;
    const tt_upper *upper = ctx->upper;
    tutti_status status = tt_spare_take(upper->spare, sizeof *j + n * sizeof j->call[0], &j);
    if (status != TUTTI_OK)
        goto free_calls;
    j->n = n;
    memcpy(j->call, calls, n * sizeof *calls);
    count_pending(j, true);
    status = ctx->dev_ops->stream_call(ctx->dev, calls[0].stream, run_job, j, 0);
    if (status == TUTTI_OK)
        return TUTTI_OK;
    count_pending(j, false);
    tt_spare_give(j);

free_calls:
    for (size_t i = 0; i < n; i++)
        tt_call_free(&calls[i]);
    return status;
}

static tutti_status host_launch(tt_call *calls, size_t n)
{
    if (calls[0].stream.kind == TUTTI_STREAM_INLINE)
        return carry_out(calls, n, &calls[0].comm->ctx->caller_patience);
    return queue(calls, n);
}

/* Blocks of an all_gather that some rank of some node provides: its own, and those it receives. */
static int spread_share(const tt_layout *at)
{
    int most = 1;
    for (int node = 0; node < at->nodes; node++) {
        const int locals = at->node_size[node];
        for (int local = 0; local < locals; local++) {
            int blocks = 1;
            for (int rank = 0; rank < at->size; rank++)
                blocks += at->node[rank] != node && at->local[rank] % locals == local;
            most = blocks > most ? blocks : most;
        }
    }
    return most;
}

static tutti_status measure(tt_host *host)
{
    const tt_layout *at = &host->comm->layout;
    const int rank = host->comm->group.rank;
    size_t parts;
    host->node = at->node[rank];
    host->nodes = at->nodes;
    host->local = at->local[rank];
    host->locals = at->node_size[host->node];
    host->ranks = at->node_rank + at->node_first[host->node];
    for (int node = 0; node < at->nodes; node++)
        if (at->node_size[node] > host->most_locals)
            host->most_locals = at->node_size[node];
    host->spread_share = spread_share(at);
    parts = (size_t)host->most_locals * (size_t)host->nodes;
    if (parts < (size_t)host->spread_share)
        parts = (size_t)host->spread_share;
    if (host->nodes > 2 && parts < 2 * TT_SLOT_SPLIT * (size_t)host->most_locals)
        parts = 2 * TT_SLOT_SPLIT * (size_t)host->most_locals;
    TT_TRY(tt_kernels_choose());
    TT_TRY(tt_tune_find(host->most_locals, host->comm->ctx->chunk_bytes, TT_SLOTS, &host->tune));
    if (host->tune.slot_bytes < parts * MIN_PART)
        host->tune.slot_bytes = parts * MIN_PART;
    return TUTTI_OK;
}

static tutti_status prepare(tt_host *host)
{
    const tutti_comm *comm = host->comm;
    const size_t size = (size_t)comm->layout.size, locals = (size_t)host->locals;
    const bool reproducible = (comm->flags & TUTTI_COMM_REPRODUCIBLE) != 0;
    TT_TRY(tt_calloc(locals, sizeof *host->peer, &host->peer));
    TT_TRY(tt_calloc(locals + 1, sizeof *host->target, &host->target));
    TT_TRY(tt_calloc(locals, sizeof *host->count, &host->count));
    TT_TRY(tt_calloc(locals, sizeof *host->pid, &host->pid));
    TT_TRY(tt_calloc(locals, sizeof *host->payload, &host->payload));
    TT_TRY(tt_calloc(size + 1, sizeof *host->operand, &host->operand)); /* two at least */
    TT_TRY(tt_calloc(2 * (size + 1), sizeof *host->offset, &host->offset));
    TT_TRY(tt_calloc((size_t)host->nodes + 1, sizeof *host->at, &host->at));
    TT_TRY(tt_calloc(2 * size, sizeof *host->seat, &host->seat));
    TT_TRY(tt_tree_balanced(0, 2, &host->pair));
    return tt_order_create(&comm->layout, host->node, reproducible, &host->order);
}

static void host_destroy(tutti_comm *comm)
{
    tt_host *host = comm->backend;
    if (host == NULL)
        return;
    tt_control_destroy(host);
    tt_order_free(&host->order);
    tt_tree_free(&host->pair);
    for (int i = 0; i < TT_WAYS * TT_FATES; i++)
        tt_route_free(&host->route[i / TT_FATES][i % TT_FATES]);
    free(host->links);
    free(host->work);
    free(host->payload);
    free(host->count);
    free(host->pid);
    free(host->seat);
    free(host->offset);
    free(host->at);
    free(host->operand);
    free(host->target);
    free(host->peer);
    free(host);
    comm->backend = NULL;
}

static tutti_status host_create(tutti_comm *comm)
{
    tt_host *host = NULL;
    tutti_status status = tt_calloc(1, sizeof *host, &host);
    if (status == TUTTI_OK) {
        host->comm = comm;
        comm->backend = host;
        status = measure(host);
        if (status == TUTTI_OK)
            status = prepare(host);
    }
    TT_TRY(tt_agree(&comm->group, "making a communicator", status));
    TT_TRY(tt_control_create(host));
    if (host->nodes == 1 && host->locals > 1 && !host->counted && !comm->ctx->check &&
        comm->ctx->caller_patience.spin_ns > 0)
        comm->quick_n = host->tune.small_bytes + 1;
    return TUTTI_OK;
}

const tt_coll_ops tt_coll_host = {
    .size = sizeof(tt_coll_ops),
    .name = "host",
    .create = host_create,
    .destroy = host_destroy,
    .launch = host_launch,
    .quick = tt_host_quick,
    .mem_alloc = tt_mem_alloc,
    .mem_register = tt_mem_register,
    .mem_release = tt_mem_release,
};
