/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches on their way: an event behind each, in a ring that remembers the order of issue.
 *
 * The ring answers three questions without a host function on any stream: whether a communicator's
 * work has ended (`pending`, for destroy and split), where this rank is (the flight recorder), and
 * how long the oldest launch has been the oldest (the watchdog). Whoever wants to know advances the
 * tail: the progress thread, or a thread that waits.
 *
 * The event also orders the next launch on another stream: launches of one communicator are carried
 * out in the order of issue, and so are those of different ones unless NCCL sees to it, because two
 * collectives that start in different orders on two ranks can wait for each other for ever.
 *
 * A captured launch is not in the ring: its event would belong to the graph. Its order against the
 * other launches of the same capture is kept by `captured`; against all others by the graph's
 * launch.
 */
#include <stdio.h>

#include "core/clock.h"
#include "nccl/backend.h"
#include "trace/recorder.h"

tutti_status tt_point_follow(tt_nccl_ctx *nc, const tt_point *point, tutti_stream stream,
                             uint64_t capture)
{
    if (!point->set || point->capture != capture || point->stream.handle == stream.handle)
        return TUTTI_OK;
    return nc->ctx->dev_ops->event_wait(nc->ctx->dev, point->event, stream);
}

static void set_point(tt_point *point, tt_event *event, tutti_stream stream, uint64_t capture)
{
    point->event = event;
    point->stream = stream;
    point->capture = capture;
    point->set = true;
}

static tutti_status capture_point(tutti_ctx *ctx, tt_point *point, tutti_stream stream,
                                  uint64_t capture)
{
    if (point->captured == NULL)
        TT_TRY(ctx->dev_ops->event_create(ctx->dev, false, &point->captured));
    TT_TRY(ctx->dev_ops->event_record(ctx->dev, point->captured, stream));
    set_point(point, point->captured, stream, capture);
    return TUTTI_OK;
}

/* The flight recorder shows the oldest launch of a communicator. */
static void show_next(tt_nccl_ctx *nc, tutti_comm *comm)
{
    tt_lane_end(comm->lane);
    if (atomic_load(&comm->pending) == 1) /* the one that has just ended */
        return;
    for (uint64_t at = nc->tail; at != nc->head; at++) {
        const tt_launch *launch = &nc->ring[at % TT_RING];
        if (launch->comm == comm) {
            tt_lane_begin(comm->lane, launch->kind, launch->seq, launch->n);
            return;
        }
    }
}

static void advance_locked(tt_nccl_ctx *nc)
{
    tutti_ctx *ctx = nc->ctx;
    while (nc->tail != nc->head) {
        tt_launch *launch = &nc->ring[nc->tail % TT_RING];
        bool passed = false;
        if (ctx->dev_ops->event_query(ctx->dev, launch->event, &passed) != TUTTI_OK || !passed)
            return;
        atomic_fetch_sub(&launch->share->inflight, 1);
        nc->tail++;
        show_next(nc, launch->comm);
        if (atomic_fetch_sub(&launch->comm->pending, 1) == 1)
            tt_futex_wake_all(&launch->comm->pending);
        nc->tail_since_ns = tt_now_ns();
        nc->warned = nc->asked = false;
    }
}

void tt_ring_advance(tutti_ctx *ctx)
{
    tt_nccl_ctx *nc = tt_nccl_ctx_of(ctx);
    if (nc == NULL)
        return;
    pthread_mutex_lock(&nc->ring_lock);
    advance_locked(nc);
    pthread_mutex_unlock(&nc->ring_lock);
}

static bool late_ring(void *arg, char *buf, size_t cap)
{
    (void)arg;
    snprintf(buf, cap, "%d calls are under way and none of them ends", TT_RING);
    return true;
}

/* CUDA's own queues are about as long: this host is far ahead of its GPU. */
static tutti_status make_room(tt_nccl_ctx *nc)
{
    tt_op_wait wait;
    if (nc->head - nc->tail < TT_RING)
        return TUTTI_OK;
    tt_op_wait_begin(&wait, nc->ctx, &nc->ctx->worker_patience, "issuing a call", late_ring, NULL);
    for (;;) {
        advance_locked(nc);
        if (nc->head - nc->tail < TT_RING)
            return TUTTI_OK;
        tt_nccl_at(nc, "CUDA"); /* this wait has its own limit */
        pthread_mutex_unlock(&nc->ring_lock);
        tutti_status status = tt_op_wait_once(&wait, NULL, 0);
        pthread_mutex_lock(&nc->ring_lock);
        TT_TRY(status);
    }
}

static tutti_status add_locked(tt_nccl_ctx *nc, const tt_call *call)
{
    tutti_ctx *ctx = nc->ctx;
    tt_share *share = tt_nccl_of(call->comm)->share;
    TT_TRY(make_room(nc));
    tt_launch *launch = &nc->ring[nc->head % TT_RING];
    if (launch->event == NULL)
        TT_TRY(ctx->dev_ops->event_create(ctx->dev, false, &launch->event));
    TT_TRY(ctx->dev_ops->event_record(ctx->dev, launch->event, call->stream));
    launch->comm = call->comm;
    launch->share = share;
    launch->kind = tt_kind_name(call->kind);
    launch->seq = call->seq;
    launch->n = call->n;
    if (atomic_fetch_add(&call->comm->pending, 1) == 0 && call->kind == TT_KIND_COUNT)
        tt_lane_begin(call->comm->lane, launch->kind, launch->seq, launch->n); /* else shown */
    atomic_fetch_add(&share->inflight, 1);
    if (nc->head == nc->tail)
        nc->tail_since_ns = tt_now_ns();
    nc->head++;
    set_point(&share->last, launch->event, call->stream, 0);
    set_point(&nc->last, launch->event, call->stream, 0);
    return TUTTI_OK;
}

tutti_status tt_ring_add(tt_nccl_ctx *nc, const tt_call *call, uint64_t capture)
{
    if (__builtin_expect(capture != 0, 0)) {
        TT_TRY(capture_point(nc->ctx, &tt_nccl_of(call->comm)->share->last, call->stream, capture));
        return capture_point(nc->ctx, &nc->last, call->stream, capture);
    }
    pthread_mutex_lock(&nc->ring_lock);
    tutti_status status = add_locked(nc, call);
    pthread_mutex_unlock(&nc->ring_lock);
    return status;
}

static bool late_share(void *arg, char *buf, size_t cap)
{
    tt_share *share = arg;
    unsigned n = atomic_load(&share->inflight);
    snprintf(buf, cap, "%u calls on streams of this rank are not done", n);
    return n > 0;
}

tutti_status tt_ring_drain_share(tt_nccl_ctx *nc, tt_share *share)
{
    char what[128];
    tt_op_wait wait;
    snprintf(what, sizeof what, "waiting for the calls on comm %s", share->name);
    tt_op_wait_begin(&wait, nc->ctx, &nc->ctx->worker_patience, what, late_share, share);
    for (;;) {
        tt_ring_advance(nc->ctx);
        if (atomic_load(&share->inflight) == 0)
            return TUTTI_OK;
        TT_TRY(tt_op_wait_once(&wait, NULL, 0));
    }
}

bool tt_ring_oldest(tt_nccl_ctx *nc, int64_t *since_out, char *what, size_t cap)
{
    pthread_mutex_lock(&nc->ring_lock);
    bool any = nc->head != nc->tail;
    if (any) {
        const tt_launch *launch = &nc->ring[nc->tail % TT_RING];
        *since_out = nc->tail_since_ns;
        snprintf(what, cap, "%s %llu on comm %s, rank %d", launch->kind,
                 (unsigned long long)launch->seq, launch->comm->name, launch->comm->group.rank);
    }
    pthread_mutex_unlock(&nc->ring_lock);
    return any;
}

void tt_ring_free(tt_nccl_ctx *nc)
{
    tutti_ctx *ctx = nc->ctx;
    for (int i = 0; i < TT_RING; i++)
        if (nc->ring[i].event != NULL)
            ctx->dev_ops->event_destroy(ctx->dev, nc->ring[i].event);
    for (int i = 0; i < TT_STREAMS_MAX; i++)
        ctx->dev_ops->event_destroy(ctx->dev, nc->join[i]);
    ctx->dev_ops->event_destroy(ctx->dev, nc->last.captured);
}
