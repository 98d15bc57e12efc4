/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a reduction over several nodes: its way and route, where the chunks of each slice and
 * the units in them lie, and how much memory the stages need.
 *
 * Every rank of every node must come to the same slices, chunks and lag, so these follow from the
 * call and from what is known of the whole communicator alone; what depends on the rank (whether it
 * stages, which memory it needs) changes nothing that others see. A stage's memory is that of the
 * chunks in it at once, so all of it together does not grow with the call.
 */
#include "host/reduce.h"

/* Rank's range of a reduce_scatter, its piece of round k. */
static size_t rank_piece(const tt_reduction *p, int rank, size_t k, size_t *begin_out)
{
    const size_t begin = p->host->offset[rank], n = p->host->offset[rank + 1] - begin;
    *begin_out = begin + k * p->piece;
    return k * p->piece >= n ? 0 : tt_min_size(p->piece, n - k * p->piece);
}

/* The rank whose range has this place in a slice; -1: none, its node has fewer ranks. */
static int rank_at_place(const tt_reduction *p, int slice, int place)
{
    const int node = p->route->node_at[place];
    return slice < p->layout->node_size[node] ? tt_reduction_driver(p, slice, node) : -1;
}

static void find_places(const tt_reduction *p, tt_chunk *c)
{
    size_t *at = p->host->at, begin;
    at[0] = 0;
    for (int place = 0; place < p->route->units; place++) {
        const int rank = rank_at_place(p, c->slice, place);
        at[place + 1] = at[place] + (rank < 0 ? 0 : rank_piece(p, rank, c->k, &begin));
    }
    c->at = at;
    c->n = at[p->route->units];
}

tt_chunk tt_reduction_chunk(const tt_reduction *p, int slice, int index, size_t k)
{
    const size_t units = (size_t)p->route->units, align = TT_REDUCTION_ALIGN / p->element;
    tt_chunk c = {.index = index, .slice = slice, .k = k};
    size_t n;
    if (p->by_rank) {
        find_places(p, &c);
        return c;
    }
    tt_part(p->total, (size_t)p->slices, (size_t)slice, align, &c.begin, &n);
    const size_t done = tt_min_size(k * units * p->piece, n);
    c.begin += done;
    c.n = tt_min_size(units * p->piece, n - done);
    c.each = tt_round_up((c.n + units - 1) / units, align);
    return c;
}

size_t tt_reduction_at(const tt_reduction *p, const tt_chunk *c, int place)
{
    size_t begin = 0;
    if (!p->by_rank)
        return c->begin + tt_chunk_before(c, place);
    const int rank = rank_at_place(p, c->slice, place);
    if (rank >= 0)
        rank_piece(p, rank, c->k, &begin);
    return begin;
}

static tt_fate fate_of(const tt_call *call)
{
    if (call->kind == TT_REDUCE)
        return TT_TO_ONE;
    return call->kind == TT_ALL_REDUCE ? TT_TO_ALL : TT_TO_OWNERS;
}

/* Routes are kept: a program uses few. */
static tutti_status find_route(tt_reduction *p, tt_way way)
{
    tt_host *host = p->host;
    const tt_fate fate = fate_of(p->call);
    const int root = fate == TT_TO_ONE ? p->layout->node[p->call->root] : host->node;
    tt_route *route = &host->route[way][fate];
    p->route = route;
    if (route->stages > 0 && route->root == root)
        return TUTTI_OK;
    tt_route_free(route);
    return tt_route_create(way, fate, host->nodes, host->node, root, route);
}

static void reserve(tt_reduction *p, tt_room *r, size_t bytes, size_t stages)
{
    *r = (tt_room){p->work, tt_round_up(bytes, TT_REDUCTION_ALIGN),
                   p->lag * (stages > 0 ? stages : 1)};
    p->work += r->bytes * r->ring;
}

/* Bytes that a stage of summing receives of a chunk. */
static size_t stage_receives(const tt_reduction *p, const tt_stage *stage)
{
    size_t bytes = 0;
    for (int i = stage->first; i < stage->first + stage->hops; i++) {
        const tt_hop *hop = &p->route->hop[i];
        if (!hop->send)
            bytes += (size_t)(hop->hi - hop->lo) * p->piece * tt_reduction_hop_bytes(p, hop);
    }
    return bytes;
}

/* Stages from the end of stage `made` in which its sum is used. */
static size_t life_of(const tt_reduction *p, int made)
{
    int last = made;
    for (int t = made + 1; t < p->route->sums; t++)
        if (p->route->stage[t].from == made && p->route->stage[t].hops > 0)
            last = t;
    return (size_t)(last - made);
}

static void lay_out(tt_reduction *p)
{
    const tt_route *route = p->route;
    const size_t units = (size_t)route->units;
    p->work = 0;
    reserve(p, &p->fragments, p->whole ? 0 : units * p->piece * p->own_bytes, life_of(p, -1));
    reserve(p, &p->spare, p->call->kind == TT_ALL_REDUCE ? 0 : tt_reduction_chunk_bytes(p),
            (size_t)(route->stages - route->sums));
    for (int t = 0; t < route->sums; t++) {
        const tt_stage *stage = &route->stage[t];
        const size_t kept = (size_t)(stage->hi - stage->lo);
        const bool sum = stage->adds && t < route->sums - 1;
        reserve(p, &p->received[t], stage_receives(p, stage), 1);
        reserve(p, &p->sums[t], sum ? kept * p->piece * p->wide : 0, life_of(p, t));
    }
}

static void cut(tt_reduction *p, const tt_message *message)
{
    const tt_host *host = p->host;
    const size_t units = (size_t)p->route->units, line = TT_REDUCTION_ALIGN / p->element;
    size_t n = 0, begin;
    p->piece = message->chunk_bytes / (size_t)p->slices / units / TT_REDUCTION_ALIGN * line;
    if (p->piece == 0)
        p->piece = line;
    if (p->by_rank) {
        for (int rank = 0; rank < p->layout->size; rank++) {
            const size_t own = host->offset[rank + 1] - host->offset[rank];
            n = own > n ? own : n;
        }
        p->rounds = (n + p->piece - 1) / p->piece;
        p->piece = tt_min_size(p->piece, n);
    } else {
        tt_part(p->total, (size_t)p->slices, 0, line, &begin, &n);
        p->rounds = (n + units * p->piece - 1) / (units * p->piece);
        p->piece = tt_min_size(p->piece, tt_round_up((n + units - 1) / units, line));
    }
    p->lag = tt_min_size(message->lag, p->rounds > 0 ? p->rounds : 1);
}

tutti_status tt_reduction_plan(tt_run *run, tt_reduction *p)
{
    tt_host *host = run->host;
    const tt_call *call = run->call;
    *p = (tt_reduction){.run = run,
                        .call = call,
                        .host = host,
                        .layout = &host->comm->layout,
                        .element = tutti_dtype_size(call->dtype),
                        .wide = tt_operand_size(call->dtype, true),
                        .by_rank = call->kind == TT_REDUCE_SCATTER};
    tt_offsets(call->counts, call->n, p->layout->size, host->offset);
    p->total = p->by_rank ? host->offset[p->layout->size] : call->n;
    const tt_message message =
        tt_tune_message(&host->tune, &(tt_between){.nodes = host->nodes,
                                                   .locals = host->most_locals,
                                                   .bytes = p->total * p->element,
                                                   .slots = host->slots_pass,
                                                   .narrow = p->wide != p->element,
                                                   .pairs = host->order.pairs});
    p->slices = message.leader && !p->by_rank ? 1 : host->most_locals;
    p->mine = (p->slices - host->local + host->locals - 1) / host->locals;
    for (int i = 0; i < host->locals && host->locals > 1; i++)
        p->staged = p->staged || tt_reduction_plain_in(p, i) || tt_reduction_plain_out(p, i);
    p->reached = p->staged && host->reaches;
    p->staged = p->staged && !p->reached;
    TT_TRY(find_route(p, message.way));
    p->whole = host->locals == 1 && (!p->by_rank || message.way == TT_DIRECT);
    p->own_bytes = tt_order_node_bytes(&host->order, host->node, call->dtype);
    cut(p, &message);
    lay_out(p);
    p->scratch = (size_t)p->mine * p->work;
    p->block = TT_REDUCTION_BLOCK / p->element;
    return tt_links_reserve(run, (size_t)p->mine * p->lag * (size_t)p->route->hops,
                            p->scratch +
                                (p->reached ? (size_t)host->locals * TT_REDUCTION_BLOCK : 0));
}
