/* SPDX-License-Identifier: Apache-2.0 */
/*
 * all_reduce, reduce_scatter and reduce over several nodes (one node: sum.c), which differ only in
 * who gets which part of the result.
 *
 * The elements are cut into slices, one for each local rank of the largest node, or a single one
 * where a call is so small that messages count more than bytes. In every node one rank drives a
 * slice (local rank s, counted around in nodes with fewer ranks): it sums its node's fragments
 * (order.c), exchanges them with the drivers of the other nodes as the route says (route.c), adds
 * what comes, and hands the results to its local ranks.
 *
 * A slice goes chunk by chunk, each cut into the route's units; the units of a reduce_scatter are
 * pieces of the ranks' own ranges. Chunks pass the stages as a pipeline: a chunk is in a stage for
 * `lag` iterations, in which its messages travel while later chunks are summed, so that lag
 * messages are under way with each partner and memory is bounded whatever the size. All nodes do
 * the same steps in the same order, oldest chunks first; that orders the messages between two
 * ranks, and a rank may wait for them in that order.
 *
 * Registered buffers are read and written by the drivers in place; plain ones that the system lets
 * ranks reach (reach.c) in the same way, others' input by way of scratch memory. Else, if a buffer
 * that peers must reach is plain, the node works in staged rounds: ranks with plain input copy a
 * chunk into a slot, a barrier, ranks with plain output copy results from the drivers' slots. Input
 * slots are free again two barriers later, output slots two iterations after they were written. In
 * place is safe in every mixture: a piece is overwritten only by its driver, after it was read and
 * sent.
 *
 * Results are made and received where this rank wants them; a node's only rank sends from its
 * input: between such nodes nothing is copied.
 */
#include "host/reduce.h"

#include <string.h>

static char *in_slot(const tt_reduction *p, int local, size_t k, int slice)
{
    return tt_control_slot(p->host, local, (int)(k % TT_IN_SLOTS)) +
           (size_t)slice * tt_reduction_chunk_bytes(p);
}

static char *out_slot(const tt_reduction *p, int local, size_t k, int slice)
{
    return tt_control_slot(p->host, local, TT_IN_SLOTS + (int)(k % TT_OUT_SLOTS)) +
           (size_t)slice * tt_reduction_chunk_bytes(p);
}

static char *in_room(const tt_reduction *p, const tt_chunk *c, const tt_room *r)
{
    return p->host->work + (size_t)c->index * p->work + r->at + c->k % r->ring * r->bytes;
}

/* What this node has of a place: a sum made in stage `from`; -1: its own fragments. */
static const char *held(const tt_reduction *p, const tt_chunk *c, int from, int place)
{
    const int first = from < 0 ? 0 : p->route->stage[from].lo;
    if (from >= 0)
        return in_room(p, c, &p->sums[from]) + tt_chunk_between(c, first, place) * p->wide;
    if (p->whole)
        return p->host->peer[p->host->local].in + tt_reduction_at(p, c, place) * p->element;
    return in_room(p, c, &p->fragments) + tt_chunk_before(c, place) * p->own_bytes;
}

/* Where the result of a place is made or received. */
static char *result_of(const tt_reduction *p, const tt_chunk *c, int place)
{
    const tt_host *host = p->host;
    const size_t at = tt_reduction_at(p, c, place) * p->element;
    if (p->call->kind == TT_ALL_REDUCE)
        return (char *)p->call->out + at;
    if (p->by_rank && place == p->route->lo)
        return (char *)p->call->out + at - host->offset[host->comm->group.rank] * p->element;
    if (!p->by_rank && host->node == p->route->root) {
        char *out = host->peer[p->layout->local[p->call->root]].out;
        if (out != NULL)
            return out + at;
    }
    return in_room(p, c, &p->spare) + tt_chunk_before(c, place) * p->element;
}

static tt_link *link_of(const tt_reduction *p, const tt_chunk *c, int hop)
{
    size_t row = (size_t)c->index * p->lag + c->k % p->lag;
    return &p->host->links[row * (size_t)p->route->hops + (size_t)hop];
}

/* A block of a chunk's input, n elements from `at` of the vector on; they are `before` elements
 * into the chunk. */
typedef struct block {
    size_t at, before, n;
} block;

static tutti_status view_input(const tt_reduction *p, const tt_chunk *c, int local, block b)
{
    const tt_host *host = p->host;
    const tt_peer *peer = &host->peer[local];
    const char *in = peer->in;
    if (in != NULL) {
        in += b.at * p->element;
    } else if (p->reached) {
        char *room = host->work + p->scratch + (size_t)local * p->block * p->element;
        TT_TRY(tt_reach_read(p->run, local, peer->notice.in.offset + b.at * p->element, room,
                             b.n * p->element));
        in = room;
    } else {
        in = in_slot(p, local, c->k, c->slice) + b.before * p->element;
    }
    host->operand[local] = (tt_operand){in, false};
    return TUTTI_OK;
}

/* Sums the node's fragments of adjacent places [lo, hi). */
static tutti_status sum_adjacent(const tt_reduction *p, const tt_chunk *c, int lo, int hi)
{
    tt_host *host = p->host;
    const tt_order *order = &host->order;
    const size_t n = tt_chunk_between(c, lo, hi), at = tt_reduction_at(p, c, lo);
    block b = {at, tt_chunk_before(c, lo), 0};
    for (size_t done = 0; done < n; done += b.n, b.at += b.n, b.before += b.n) {
        char *out = in_room(p, c, &p->fragments) + tt_chunk_before(c, lo) * p->own_bytes;
        b.n = tt_min_size(p->block, n - done);
        for (int i = 0; i < host->locals; i++)
            TT_TRY(view_input(p, c, i, b));
        for (int i = 0; i < order->own; i++) {
            const bool partial = order->partial[order->first[host->node] + i];
            const size_t bytes = tt_operand_size(p->call->dtype, partial);
            tt_reduce(&(tt_reduce_job){.tree = &order->fragment[i],
                                       .in = host->operand,
                                       .n = b.n,
                                       .dtype = p->call->dtype,
                                       .op = p->call->op,
                                       .out = out + done * bytes,
                                       .out_partial = partial,
                                       .divisor = 1});
            out += n * bytes;
        }
    }
    return TUTTI_OK;
}

static tutti_status sum_fragments(const tt_reduction *p, const tt_chunk *c, int lo, int hi)
{
    if (p->whole)
        return TUTTI_OK;
    if (!p->by_rank)
        return sum_adjacent(p, c, lo, hi);
    for (int place = lo; place < hi; place++)
        TT_TRY(sum_adjacent(p, c, place, place + 1));
    return TUTTI_OK;
}

static tutti_status post_receives(const tt_reduction *p, const tt_chunk *c, int t)
{
    const tt_stage *stage = &p->route->stage[t];
    const bool sums = t < p->route->sums;
    char *at = sums ? in_room(p, c, &p->received[t]) : NULL;
    for (int i = stage->first; i < stage->first + stage->hops; i++) {
        const tt_hop *hop = &p->route->hop[i];
        const size_t n = tt_chunk_between(c, hop->lo, hop->hi);
        const size_t bytes = sums ? tt_reduction_hop_bytes(p, hop) : p->element;
        if (hop->send)
            continue;
        char *to = sums ? at : result_of(p, c, hop->lo);
        if (n > 0)
            TT_TRY(tt_link_recv(p->run, link_of(p, c, i),
                                tt_reduction_driver(p, c->slice, hop->node), to, n * bytes));
        at += sums ? n * bytes : 0;
    }
    return TUTTI_OK;
}

static tutti_status send_hop(const tt_reduction *p, const tt_chunk *c, int t, int i)
{
    const tt_hop *hop = &p->route->hop[i];
    const bool sums = t < p->route->sums;
    const size_t n = tt_chunk_between(c, hop->lo, hop->hi);
    if (n == 0)
        return TUTTI_OK;
    return tt_link_send(p->run, link_of(p, c, i), tt_reduction_driver(p, c->slice, hop->node),
                        sums ? held(p, c, p->route->stage[t].from, hop->lo)
                             : result_of(p, c, hop->lo),
                        n * (sums ? tt_reduction_hop_bytes(p, hop) : p->element));
}

/* A chunk enters a stage. What is sent at first is summed just before. */
static tutti_status enter(const tt_reduction *p, const tt_chunk *c, int t)
{
    const tt_stage *stage = &p->route->stage[t];
    bool keeps = t > 0 || stage->lo == stage->hi; /* or: what it keeps has been summed */
    TT_TRY(post_receives(p, c, t));
    for (int i = stage->first; i < stage->first + stage->hops; i++) {
        const tt_hop *hop = &p->route->hop[i];
        if (!hop->send)
            continue;
        if (t == 0 && hop->lo >= stage->lo && hop->hi <= stage->hi) {
            if (!keeps)
                TT_TRY(sum_fragments(p, c, stage->lo, stage->hi));
            keeps = true;
        } else if (t == 0) {
            TT_TRY(sum_fragments(p, c, hop->lo, hop->hi));
        }
        TT_TRY(send_hop(p, c, t, i));
    }
    return keeps ? TUTTI_OK : sum_fragments(p, c, stage->lo, stage->hi);
}

/* Takes what a node sent of places from lo on as operands, all of the node's fragments; returns the
 * next one. `at` is where its first place lies. */
static void view_node(const tt_reduction *p, int node, const char *at, size_t n)
{
    const tt_order *order = &p->host->order;
    for (int i = order->first[node]; i < order->first[node + 1]; i++) {
        p->host->operand[i] = (tt_operand){at, order->partial[i]};
        at += n * tt_operand_size(p->call->dtype, order->partial[i]);
    }
}

static void view_direct(const tt_reduction *p, const tt_chunk *c, size_t n)
{
    const tt_stage *stage = &p->route->stage[0];
    const char *at = in_room(p, c, &p->received[0]);
    view_node(p, p->host->node, held(p, c, -1, stage->lo), n);
    for (int i = stage->first; i < stage->first + stage->hops; i++) {
        const tt_hop *hop = &p->route->hop[i];
        if (hop->send)
            continue;
        view_node(p, hop->node, at, n);
        at += n * tt_reduction_hop_bytes(p, hop);
    }
}

/* This node's sum and the one that came, from place lo on; the lower node's is on the left. */
static void view_pair(const tt_reduction *p, const tt_chunk *c, int t, int lo)
{
    tt_host *host = p->host;
    const tt_order *order = &host->order;
    const tt_stage *stage = &p->route->stage[t];
    const tt_hop *hop = &p->route->hop[stage->first];
    while (hop->send)
        hop++;
    const int mine = hop->node > host->node ? 0 : 1;
    host->operand[mine] = (tt_operand){
        held(p, c, stage->from, lo), stage->from >= 0 || order->partial[order->first[host->node]]};
    host->operand[1 - mine] =
        (tt_operand){in_room(p, c, &p->received[t]) +
                         tt_chunk_between(c, hop->lo, lo) * tt_reduction_hop_bytes(p, hop),
                     hop->joined || order->partial[order->first[hop->node]]};
}

/* Adds what came in stage t of places [lo, hi), which lie together at `out`. */
static void add(const tt_reduction *p, const tt_chunk *c, int t, int lo, int hi)
{
    const bool direct = p->route->way == TT_DIRECT, last = t == p->route->sums - 1;
    const size_t n = tt_chunk_between(c, lo, hi);
    if (n == 0)
        return;
    if (direct)
        view_direct(p, c, n);
    else
        view_pair(p, c, t, lo);
    tt_reduce(&(tt_reduce_job){.tree = direct ? &p->host->order.top : &p->host->pair,
                               .in = p->host->operand,
                               .n = n,
                               .dtype = p->call->dtype,
                               .op = p->call->op,
                               .out = last ? result_of(p, c, lo) : in_room(p, c, &p->sums[t]),
                               .out_partial = !last,
                               .divisor = last && p->call->op == TUTTI_AVG ? p->layout->size : 1});
}

/* A chunk leaves a stage: all that was under way has arrived. */
static tutti_status leave(const tt_reduction *p, const tt_chunk *c, int t)
{
    const tt_route *route = p->route;
    const tt_stage *stage = &route->stage[t];
    const bool last = t == route->sums - 1;
    int lo = stage->lo, hi = stage->hi;
    for (int i = stage->first; i < stage->first + stage->hops; i++)
        TT_TRY(tt_link_wait(p->run, link_of(p, c, i)));
    if (t >= route->sums || !stage->adds)
        return TUTTI_OK;
    if (last && route->way == TT_DOUBLING) { /* has more than it is to have */
        lo = route->lo;
        hi = route->hi;
    }
    if (!last || !p->by_rank) {
        add(p, c, t, lo, hi);
        return TUTTI_OK;
    }
    for (int place = lo; place < hi; place++)
        add(p, c, t, place, place + 1);
    return TUTTI_OK;
}

/* Hands a chunk of results to the local ranks that want it. */
static tutti_status deliver(const tt_reduction *p, const tt_chunk *c)
{
    const tt_host *host = p->host;
    const size_t bytes = c->n * p->element;
    bool slot = false;
    if (p->by_rank || bytes == 0)
        return TUTTI_OK;
    const char *from = result_of(p, c, 0);
    for (int i = 0; i < host->locals; i++) {
        char *out = host->peer[i].out;
        if (!tt_reduction_wants(p, host->ranks[i]))
            continue;
        if (out == NULL && p->reached)
            TT_TRY(tt_reach_write(
                p->run, i, host->peer[i].notice.out.offset + c->begin * p->element, from, bytes));
        slot = slot || (out == NULL && !p->reached);
        if (out != NULL && out + c->begin * p->element != from)
            memcpy(out + c->begin * p->element, from, bytes);
    }
    if (slot)
        memcpy(out_slot(p, host->local, c->k, c->slice), from, bytes);
    return TUTTI_OK;
}

static tutti_status move_on(const tt_reduction *p, size_t k, int t)
{
    for (int index = 0; index < p->mine; index++) {
        const tt_chunk c =
            tt_reduction_chunk(p, p->host->local + index * p->host->locals, index, k);
        if (t > 0)
            TT_TRY(leave(p, &c, t - 1));
        if (t < p->route->stages)
            TT_TRY(enter(p, &c, t));
        else
            TT_TRY(deliver(p, &c));
    }
    return TUTTI_OK;
}

static void copy_in(const tt_reduction *p, size_t k)
{
    const int local = p->host->local;
    if (!p->staged || !tt_reduction_plain_in(p, local))
        return;
    for (int slice = 0; slice < p->slices; slice++) {
        if (slice % p->host->locals == local)
            continue;
        const tt_chunk c = tt_reduction_chunk(p, slice, 0, k);
        const int step = p->by_rank ? 1 : p->route->units; /* places that lie together */
        for (int place = 0; place < p->route->units && c.n > 0; place += step)
            memcpy(in_slot(p, local, k, slice) + tt_chunk_before(&c, place) * p->element,
                   (const char *)p->call->in + tt_reduction_at(p, &c, place) * p->element,
                   tt_chunk_between(&c, place, place + step) * p->element);
    }
}

/* What this rank drives it has written to its output itself. */
static void copy_out(const tt_reduction *p, size_t k)
{
    const tt_host *host = p->host;
    if (!p->staged || !tt_reduction_plain_out(p, host->local))
        return;
    for (int slice = 0; slice < p->slices; slice++) {
        if (slice % host->locals == host->local)
            continue;
        const tt_chunk c = tt_reduction_chunk(p, slice, 0, k);
        if (c.n > 0)
            memcpy((char *)p->call->out + c.begin * p->element,
                   out_slot(p, slice % host->locals, k, slice), c.n * p->element);
    }
}

tutti_status tt_host_reduce(tt_run *run)
{
    tt_reduction p;
    TT_TRY(tt_reduction_plan(run, &p));
    if (p.rounds == 0)
        return TUTTI_OK;
    const size_t end = (size_t)p.route->stages * p.lag; /* iterations to the end of a chunk */
    const bool paced = p.rounds >= TT_LINK_PACED && run->patience->spin_ns == 0;
    for (size_t i = 0; i <= p.rounds + end; i++) {
        run->left = paced ? p.rounds + end - i + 1 : 0;
        if (i < p.rounds)
            copy_in(&p, i);
        if (p.staged && (i < p.rounds || i > end))
            TT_TRY(tt_meet_barrier(run));
        for (int t = p.route->stages; t >= 0; t--)
            if (i >= (size_t)t * p.lag && i - (size_t)t * p.lag < p.rounds)
                TT_TRY(move_on(&p, i - (size_t)t * p.lag, t));
        if (i > end)
            copy_out(&p, i - end - 1);
    }
    run->left = 0;
    if (!p.staged)
        TT_TRY(tt_meet_barrier(run)); /* peers read and wrote this rank's buffers */
    return tt_links_wait_all(run);
}
