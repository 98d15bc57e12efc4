/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send and recv, alone or many in a group: all of them are handed to the bootstrap first, then all
 * are awaited. A message is a head, which says what the sender sends, and the data itself, straight
 * from buffer to buffer; the receiver looks at the head before it trusts the data.
 *
 * Messages between two ranks meet in the order of issue. Calls on different streams could be handed
 * over in another order, so each waits for its number's turn; handing over never blocks, so turns
 * pass on as fast as streams reach their calls.
 */
#include "host/host.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "boot/circle.h"
#include "core/spare.h"

typedef struct head {
    uint64_t n, dtype;
} head;

typedef struct transfer {
    const tt_call *call;
    head head;
    tt_req head_req, data_req;
    bool head_seen;
} transfer;

struct tt_p2p {
    tt_run run; /* for waits: of the first call */
    size_t n, at;
    transfer transfer[];
};

static tutti_status post(transfer *t)
{
    const tt_call *call = t->call;
    const tt_group *group = &call->comm->group;
    tt_boot *boot = group->ctx->boot;
    const int peer = group->world[call->root];
    const size_t bytes = call->n * tutti_dtype_size(call->dtype);
    if (call->kind == TT_RECV) {
        TT_TRY(boot->ops->irecv(boot, TT_CH_P2P, peer, group->id, &t->head, sizeof t->head,
                                &t->head_req));
        if (bytes > 0)
            TT_TRY(
                boot->ops->irecv(boot, TT_CH_P2P, peer, group->id, call->out, bytes, &t->data_req));
        return TUTTI_OK;
    }
    t->head = (head){call->n, (uint64_t)call->dtype};
    TT_TRY(
        boot->ops->isend(boot, TT_CH_P2P, peer, group->id, &t->head, sizeof t->head, &t->head_req));
    if (bytes > 0)
        TT_TRY(boot->ops->isend(boot, TT_CH_P2P, peer, group->id, call->in, bytes, &t->data_req));
    return TUTTI_OK;
}

tutti_status tt_p2p_post(const tt_call *calls, size_t n, const tt_patience *patience,
                         tt_p2p **p2p_out)
{
    tt_p2p *p2p = NULL;
    tutti_status status = TUTTI_OK;
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += tt_is_p2p(calls[i].kind);
    *p2p_out = NULL;
    if (count == 0)
        return TUTTI_OK;
    const tt_upper *upper = calls[0].comm->ctx->upper;
    TT_TRY(tt_spare_take(upper->spare, sizeof *p2p + count * sizeof p2p->transfer[0], &p2p));
    *p2p_out = p2p; /* also half-way: the caller cancels */
    for (size_t i = 0; i < n && status == TUTTI_OK; i++) {
        tutti_comm *comm = calls[i].comm;
        tt_run run = {.host = comm->backend, .call = &calls[i], .patience = patience};
        if (!tt_is_p2p(calls[i].kind))
            continue;
        if (p2p->n == 0)
            p2p->run = run;
        p2p->transfer[p2p->n].call = &calls[i];
        status = tt_turn_await(&run, &comm->posted_p2p);
        if (status == TUTTI_OK)
            status = post(&p2p->transfer[p2p->n++]);
        if (status == TUTTI_OK)
            tt_turn_pass(&run, &comm->posted_p2p);
    }
    return status;
}

static tutti_status check_head(const transfer *t)
{
    const tt_call *call = t->call;
    const tt_group *group = &call->comm->group;
    if (t->head.n == call->n && t->head.dtype == (uint64_t)call->dtype)
        return TUTTI_OK;
    return tt_fail(TUTTI_ERR_MISMATCH,
                   "comm %s: rank %d sent %" PRIu64 " %s, rank %d receives %zu %s",
                   call->comm->name, group->world[call->root], t->head.n,
                   tutti_dtype_name((tutti_dtype)t->head.dtype), group->world[group->rank], call->n,
                   tutti_dtype_name(call->dtype));
}

static tutti_status test(transfer *t, bool *done_out)
{
    tt_boot *boot = t->call->comm->ctx->boot;
    *done_out = false;
    if (!t->head_seen) {
        TT_TRY(boot->ops->test(boot, &t->head_req, &t->head_seen, NULL, NULL));
        if (!t->head_seen)
            return TUTTI_OK;
        TT_TRY(check_head(t));
    }
    return boot->ops->test(boot, &t->data_req, done_out, NULL, NULL);
}

/* Tests all, so that all move; the first that is not done is where the next look begins. */
static tutti_status all_done(void *arg, bool *done_out)
{
    tt_p2p *p2p = arg;
    bool in_a_row = true;
    for (size_t i = p2p->at; i < p2p->n; i++) {
        bool done;
        TT_TRY(test(&p2p->transfer[i], &done));
        in_a_row = in_a_row && done;
        p2p->at += in_a_row;
    }
    *done_out = p2p->at == p2p->n;
    return TUTTI_OK;
}

static bool late_peer(void *arg, char *buf, size_t cap)
{
    const tt_p2p *p2p = arg;
    const tt_call *call = p2p->transfer[p2p->at].call;
    char name[TT_HOST_MAX + 64];
    tt_ctx_rank_name(call->comm->ctx, call->comm->group.world[call->root], name, sizeof name);
    snprintf(buf, cap, call->kind == TT_RECV ? "%s has not sent" : "%s has not received", name);
    return true;
}

/* Whom the transfers wait for (TUTTI_CHECK=1). */
typedef struct awaited {
    tt_stay stay;
    char what[160];
    int *world;
    tt_spot spot[];
} awaited;

static awaited *await_peers(const tt_p2p *p2p)
{
    const tt_call *first = p2p->transfer[0].call;
    tutti_ctx *ctx = first->comm->ctx;
    awaited *w = NULL;
    if (ctx->circles == NULL || first->stream.kind != TUTTI_STREAM_INLINE ||
        tt_calloc(1, sizeof *w + p2p->n * (sizeof w->spot[0] + sizeof(int)), &w) != TUTTI_OK)
        return NULL;
    w->world = (int *)(w->spot + p2p->n);
    for (size_t i = 0; i < p2p->n; i++) {
        const tt_call *call = p2p->transfer[i].call;
        const tt_group *group = &call->comm->group;
        w->world[i] = group->world[call->root];
        w->spot[i] = (tt_spot){call->kind == TT_SEND ? TT_SPOT_RECV : TT_SPOT_SEND, group->id,
                               call->meeting, group->world[group->rank]};
    }
    tt_call_text(first, w->what, sizeof w->what);
    w->stay = (tt_stay){.what = w->what,
                        .world = w->world,
                        .spot = w->spot,
                        .n = (int)p2p->n,
                        .each_its_own = true};
    tt_stay_begin(ctx, &w->stay);
    return w;
}

tutti_status tt_p2p_finish(tt_p2p *p2p)
{
    if (p2p == NULL)
        return TUTTI_OK;
    awaited *w = await_peers(p2p);
    tutti_status status = tt_link_wait_for(&p2p->run, all_done, late_peer, p2p);
    if (w != NULL)
        tt_stay_end(p2p->run.call->comm->ctx, &w->stay);
    free(w);
    if (status == TUTTI_OK)
        tt_spare_give(p2p);
    else
        tt_p2p_cancel(p2p);
    return status;
}

void tt_p2p_cancel(tt_p2p *p2p)
{
    if (p2p == NULL)
        return;
    for (size_t i = 0; i < p2p->n; i++) {
        transfer *t = &p2p->transfer[i];
        tt_boot *boot = t->call->comm->ctx->boot;
        if (t->head_req.ptr != NULL)
            boot->ops->cancel(boot, &t->head_req);
        if (t->data_req.ptr != NULL)
            boot->ops->cancel(boot, &t->data_req);
    }
    tt_spare_give(p2p);
}
