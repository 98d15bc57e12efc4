/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A launch: the calls of one group, or one call alone, on one or several streams.
 *
 * Before: each stream waits for the launches that must come first (ring.c). Then one NCCL group per
 * communicator with all calls that are single NCCL operations, so that sends meet receives and NCCL
 * fuses what it can; a lone collective goes without a group, for that costs. Communicators go in
 * the order of their ids, which is the same on all ranks: NCCL launches those of one group one
 * after another all the same, in the order in which a rank has named them. Calls made of several
 * operations one after another (composite.c, hier.c) follow in order, outside of the group. After:
 * an event.
 *
 * A communicator that connects lazily answers "in progress" and has not queued anything yet: then
 * the host waits, bounded, for only behind that an event means something. It happens with the first
 * calls only.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nccl/backend.h"
#include "trace/recorder.h"

/* What a launch touches: pairs of communicator and stream, each with its last call. */
typedef struct launch {
    tt_nccl_ctx *nc;
    tt_call *calls;
    size_t n;
    int streams;
    tutti_stream stream[TT_STREAMS_MAX];
    uint64_t capture[TT_STREAMS_MAX];
} launch;

static int stream_index(const launch *l, tutti_stream stream)
{
    for (int i = 0; i < l->streams; i++)
        if (l->stream[i].handle == stream.handle)
            return i;
    return -1;
}

static tutti_status list_streams(launch *l)
{
    tutti_ctx *ctx = l->nc->ctx;
    for (size_t i = 0; i < l->n; i++) {
        if (stream_index(l, l->calls[i].stream) >= 0)
            continue;
        if (l->streams == TT_STREAMS_MAX)
            return tt_fail(TUTTI_ERR_UNSUPPORTED, "a group uses more than %d streams",
                           TT_STREAMS_MAX);
        TT_TRY(tt_device_capture(ctx->dev, l->calls[i].stream, &l->capture[l->streams]));
        l->stream[l->streams++] = l->calls[i].stream;
    }
    return TUTTI_OK;
}

/* Whether an earlier call of the launch is on the same communicator (NCCL's) and stream. */
static bool seen_before(const launch *l, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (tt_nccl_of(l->calls[i].comm)->share == tt_nccl_of(l->calls[at].comm)->share &&
            l->calls[i].stream.handle == l->calls[at].stream.handle)
            return true;
    return false;
}

static tutti_status follow(launch *l)
{
    tt_nccl_ctx *nc = l->nc;
    for (size_t i = 0; i < l->n; i++) {
        const tt_call *call = &l->calls[i];
        const tt_share *share = tt_nccl_of(call->comm)->share;
        if (i > 0 && seen_before(l, i))
            continue;
        uint64_t capture = l->capture[stream_index(l, call->stream)];
        TT_TRY(tt_point_follow(nc, &share->last, call->stream, capture));
        if (share->comm != NULL && !nc->feature.orders_launches)
            TT_TRY(tt_point_follow(nc, &nc->last, call->stream, capture));
    }
    return TUTTI_OK;
}

static bool is_plain(const tt_call *call)
{
    return tt_nccl_of(call->comm)->share->comm != NULL && !tt_call_is_composite(call) &&
           !tt_hier_takes(call);
}

static tutti_status settle(launch *l, const tt_call *call)
{
    char text[192], what[224];
    tt_call_text(call, text, sizeof text);
    snprintf(what, sizeof what, "%s, rank %d", text, call->comm->group.rank);
    return tt_nccl_settle_inside(l->nc, tt_nccl_of(call->comm)->share->comm, what,
                                 l->nc->ctx->timeout_s);
}

static const tt_share *share_of(const tt_call *call)
{
    return tt_nccl_of(call->comm)->share;
}

/* All or nothing: an error within the group still has to close it. */
static tutti_status enqueue_group(launch *l, const tt_call *named)
{
    const tt_share *share = share_of(named);
    ncclResult_t state = ncclSuccess;
    tutti_status status =
        tt_nccl_call_status(TT_INSIDE(l->nc, ncclGroupStart()), "ncclGroupStart", named);
    char text[TT_ERROR_TEXT_MAX];
    TT_TRY(status);
    for (size_t i = 0; i < l->n && status == TUTTI_OK; i++)
        if (share_of(&l->calls[i]) == share && is_plain(&l->calls[i]))
            status = tt_call_enqueue(&l->calls[i], &state);
    if (status != TUTTI_OK)
        memcpy(text, tutti_last_error(), strnlen(tutti_last_error(), sizeof text - 1) + 1);
    ncclResult_t end = TT_INSIDE(l->nc, ncclGroupEnd());
    if (status != TUTTI_OK)
        return tt_fail_text(status, text);
    TT_TRY(tt_nccl_call_status(end, "ncclGroupEnd", named));
    return end == ncclInProgress || state == ncclInProgress ? settle(l, named) : TUTTI_OK;
}

static tutti_status enqueue_one(launch *l, const tt_call *call)
{
    ncclResult_t state = ncclSuccess;
    TT_TRY(tt_call_enqueue(call, &state));
    return __builtin_expect(state == ncclInProgress, 0) ? settle(l, call) : TUTTI_OK;
}

/* A call on the communicator with the least id from `from` on, and the number of plain calls on it.
 */
static const tt_call *next_plain(const launch *l, uint64_t from, size_t *n_out)
{
    const tt_call *least = NULL;
    for (size_t i = 0; i < l->n; i++) {
        const tt_call *call = &l->calls[i];
        if (share_of(call)->id < from || !is_plain(call))
            continue;
        if (least == NULL || share_of(call)->id < share_of(least)->id) {
            least = call;
            *n_out = 0;
        }
        *n_out += share_of(call) == share_of(least);
    }
    return least;
}

static tutti_status enqueue(launch *l)
{
    size_t n = 0;
    for (const tt_call *call = next_plain(l, 0, &n); call != NULL;
         call = next_plain(l, share_of(call)->id + 1, &n))
        TT_TRY(n == 1 && !tt_call_needs_group(call) ? enqueue_one(l, call)
                                                    : enqueue_group(l, call));
    for (size_t i = 0; i < l->n; i++) {
        const tt_call *call = &l->calls[i];
        if (tt_nccl_of(call->comm)->share->comm == NULL)
            TT_TRY(tt_call_local(l->calls, l->n, i));
        else if (tt_call_is_composite(call))
            TT_TRY(tt_call_composite(call));
        else if (tt_hier_takes(call))
            TT_TRY(tt_hier_run(call));
    }
    return TUTTI_OK;
}

/* The first stream follows the others, so that its event stands for the launch. NCCL makes the
 * streams of a group wait for each other all the same. */
static tutti_status join_streams(launch *l)
{
    tutti_ctx *ctx = l->nc->ctx;
    for (int i = 1; i < l->streams; i++) {
        tt_event **event = &l->nc->join[i];
        if (*event == NULL)
            TT_TRY(ctx->dev_ops->event_create(ctx->dev, false, event));
        TT_TRY(ctx->dev_ops->event_record(ctx->dev, *event, l->stream[i]));
        TT_TRY(ctx->dev_ops->event_wait(ctx->dev, *event, l->stream[0]));
    }
    return TUTTI_OK;
}

static bool same_comm_later(const launch *l, size_t at)
{
    for (size_t i = at + 1; i < l->n; i++)
        if (l->calls[i].comm == l->calls[at].comm)
            return true;
    return false;
}

/* One entry per communicator, on the first stream. */
static tutti_status remember(launch *l)
{
    tt_nccl_at(l->nc, "CUDA");
    if (l->streams > 1)
        TT_TRY(join_streams(l));
    for (size_t i = 0; i < l->n; i++) {
        tt_call call = l->calls[i];
        if (l->n > 1 && same_comm_later(l, i))
            continue;
        call.stream = l->stream[0];
        TT_TRY(tt_ring_add(l->nc, &call, l->capture[0]));
    }
    return TUTTI_OK;
}

/* In the flight recorder: one that stays inside NCCL is to be seen too. */
static void show(const launch *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const tt_call *call = &l->calls[i];
        if (l->capture[stream_index(l, call->stream)] == 0 &&
            atomic_load_explicit(&call->comm->pending, memory_order_relaxed) == 0)
            tt_lane_begin(call->comm->lane, tt_kind_name(call->kind), call->seq, call->n);
    }
}

static tutti_status run(launch *l)
{
    if (atomic_load_explicit(&l->nc->closed, memory_order_relaxed))
        return tt_ctx_check(l->nc->ctx);
    TT_TRY(list_streams(l));
    TT_TRY(follow(l));
    show(l);
    tutti_status status = enqueue(l);
    if (status != TUTTI_OK && atomic_load(&l->nc->closed))
        return tt_ctx_check(l->nc->ctx); /* it came back because it was aborted */
    return status == TUTTI_OK ? remember(l) : status;
}

/* The caller's thread may have another device current. */
static tutti_status visit_device(const tt_nccl_ctx *nc, int *before_out)
{
    int wanted = tt_cuda_of(nc->ctx->dev)->ordinal;
    TT_TRY(TT_CUDA(cudaGetDevice(before_out)));
    return __builtin_expect(*before_out != wanted, 0) ? TT_CUDA(cudaSetDevice(wanted)) : TUTTI_OK;
}

static void leave_device(const tt_nccl_ctx *nc, int before)
{
    if (__builtin_expect(before != tt_cuda_of(nc->ctx->dev)->ordinal, 0))
        (void)cudaSetDevice(before);
}

tutti_status tt_nccl_launch(tt_call *calls, size_t n)
{
    launch l = {.nc = tt_nccl_of(calls[0].comm)->nc, .calls = calls, .n = n};
    int before;
    const tt_doing what = {tt_kind_name(calls[0].kind), calls[0].comm->name, calls[0].seq,
                           l.nc->ctx->timeout_s};
    tt_nccl_enter(l.nc, &what);
    tutti_status status = visit_device(l.nc, &before);
    if (status == TUTTI_OK) {
        status = run(&l);
        leave_device(l.nc, before);
    }
    tt_nccl_leave(l.nc);
    for (size_t i = 0; i < n; i++)
        tt_call_free(&calls[i]);
    return status;
}

static tutti_status begin_native(tt_nccl_ctx *nc, tutti_comm *comm, tutti_stream stream)
{
    uint64_t capture = 0;
    const tt_share *share = tt_nccl_of(comm)->share;
    if (atomic_load(&nc->closed))
        return tt_ctx_check(nc->ctx);
    TT_TRY(tt_device_capture(nc->ctx->dev, stream, &capture));
    TT_TRY(tt_point_follow(nc, &share->last, stream, capture));
    if (!nc->feature.orders_launches)
        TT_TRY(tt_point_follow(nc, &nc->last, stream, capture));
    return visit_device(nc, &nc->native_device);
}

tutti_status tt_nccl_native_begin(tutti_comm *comm, tutti_stream stream, void **native_out)
{
    tt_nccl_ctx *nc = tt_nccl_of(comm)->nc;
    if (tt_nccl_of(comm)->share->comm == NULL)
        return tt_fail(TUTTI_ERR_UNSUPPORTED,
                       "native_begin: comm %s is of a single rank and has no ncclComm_t "
                       "(TUTTI_NCCL_ONE=1 makes one)",
                       comm->name);
    const tt_doing what = {"the program's own part", comm->name, UINT64_MAX, nc->ctx->timeout_s};
    tt_nccl_enter(nc, &what);
    tutti_status status = begin_native(nc, comm, stream);
    if (status != TUTTI_OK) {
        tt_nccl_leave(nc);
        return status;
    }
    tt_nccl_at(nc, "tutti_comm_native_end");
    nc->native = comm;
    nc->native_stream = stream;
    *native_out = tt_nccl_of(comm)->share->comm;
    return TUTTI_OK;
}

tutti_status tt_nccl_native_end(tutti_comm *comm)
{
    tt_nccl_ctx *nc = tt_nccl_of(comm)->nc;
    uint64_t capture = 0;
    if (nc->native != comm)
        return tt_fail(TUTTI_ERR_STATE, "native_end on comm %s without native_begin", comm->name);
    const tt_call call = {.kind = TT_KIND_COUNT, .comm = comm, .stream = nc->native_stream};
    nc->native = NULL;
    leave_device(nc, nc->native_device);
    tutti_status status = tt_device_capture(nc->ctx->dev, call.stream, &capture);
    if (status == TUTTI_OK)
        status = tt_ring_add(nc, &call, capture);
    tt_nccl_leave(nc);
    return status == TUTTI_OK ? TUTTI_OK : tt_ctx_fail(nc->ctx, status);
}
