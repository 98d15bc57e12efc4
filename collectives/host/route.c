/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stages of a reduction between nodes.
 *
 * The balanced tree over n nodes has a full tree of l nodes on its left (l: the largest power of
 * two below n) and the rest, r <= l nodes, on its right. A join of the two is one stage, number
 * log2(l):
 *
 *   r = l   Both sides hold the same parts of their sums at the same index. Index i of the left and
 *           of the right exchange halves of their part; then each holds half as much of the sum.
 *   r < l   The right side's first q nodes (q: the largest power of two up to r) hold its sum, in
 *           larger parts. Each sends them, piece by piece, to the nodes of the left that hold the
 *           same units; the right has nothing left. A node so sends and receives no more than once
 *           the data, which for many nodes is what the bound asks for, too.
 *
 * So index i of a subtree holds the units that agree with i in the lower bits. Units lie in the
 * order of their reversed bits, which makes all of these ranges: bits(i, k) below. With owners
 * there are n units; unit l + j lies behind unit j, whose node holds both and hands one on at the
 * end. Handing out mirrors the joins, from the last to the first. Doubling has a single unit:
 * whoever would send a half sends all, and both sides come out of a join with the sum.
 *
 * Rings were rejected: they add in another order for every unit. So was folding the surplus nodes
 * into others first: that is not the tree's order either.
 */
#include "host/route.h"

#include <stdlib.h>

#include "core/mem.h"
#include "host/kernels.h"

typedef struct builder {
    tt_route *route;
    tt_fate fate;
    int node, root;
    int power; /* the largest power of two up to `nodes` */
    int *start; /* of place b's units, power + 1 of them */
    int hops;
} builder;

static int log2_of(int n)
{
    int bits = 0;
    while (n >> (bits + 1) != 0)
        bits++;
    return bits;
}

static int reversed(int value, int bits)
{
    int out = 0;
    for (int i = 0; i < bits; i++)
        out |= (value >> i & 1) << (bits - 1 - i);
    return out;
}

/* The units that agree with i in the lower k bits. */
static void bits(const builder *b, int i, int k, int *lo_out, int *hi_out)
{
    int at = reversed(i & ((1 << k) - 1), k) * (b->power >> k);
    *lo_out = b->start[at];
    *hi_out = b->start[at + (b->power >> k)];
}

/* Hops are added stage by stage, in order. */
static void add_hop(builder *b, int stage, tt_hop hop)
{
    tt_stage *s = &b->route->stage[stage];
    if (s->hops++ == 0)
        s->first = b->hops;
    b->route->hop[b->hops++] = hop;
}

/* The part that index i of a subtree of n nodes holds of its sum. */
static void part(const builder *b, int i, int n, int *lo_out, int *hi_out)
{
    int levels = log2_of(n);
    *lo_out = *hi_out = 0;
    if (b->route->way == TT_DOUBLING)
        *hi_out = b->route->units;
    else if (i < 1 << levels)
        bits(b, i, levels, lo_out, hi_out);
}

/* A join of equal sides: index i < l of one side with the same of the other. */
static void join_equal(builder *b, int stage, int i, int peer, int l)
{
    int lo, hi, peer_lo, peer_hi;
    bool right = peer < b->node;
    part(b, i + (right ? l : 0), 2 * l, &lo, &hi);
    part(b, i + (right ? 0 : l), 2 * l, &peer_lo, &peer_hi);
    add_hop(b, stage, (tt_hop){peer, lo, hi, false, l > 1});
    add_hop(b, stage, (tt_hop){peer, peer_lo, peer_hi, true, l > 1});
}

/* One that holds a part of the smaller, right side. */
static void join_from_right(builder *b, int stage, int first, int l, int j, int r)
{
    int q = 1 << log2_of(r), lo, hi;
    bool doubles = b->route->way == TT_DOUBLING;
    if (doubles)
        add_hop(b, stage, (tt_hop){first + j, 0, b->route->units, false, l > 1});
    for (int i = j; i < l && (doubles || j < q); i += doubles ? r : q) {
        part(b, i, l, &lo, &hi);
        add_hop(b, stage, (tt_hop){first + i, lo, hi, true, r > 1});
    }
}

static void join_from_left(builder *b, int stage, int first, int l, int i, int r)
{
    int q = 1 << log2_of(r), lo, hi;
    bool doubles = b->route->way == TT_DOUBLING;
    part(b, i, l, &lo, &hi);
    add_hop(b, stage, (tt_hop){first + l + i % (doubles ? r : q), lo, hi, false, r > 1});
    if (doubles && i < r)
        add_hop(b, stage, (tt_hop){first + l + i, lo, hi, true, l > 1});
}

/* The stages of summing in the subtree of n nodes from `first` on, which this node is in. */
static void join(builder *b, int first, int n)
{
    if (n == 1)
        return;
    const int l = tt_tree_left(n), r = n - l, at = b->node - first, stage = log2_of(l);
    if (at < l)
        join(b, first, l);
    else
        join(b, first + l, r);
    if (r == l)
        join_equal(b, stage, at % l, first + (at + l) % n, l);
    else if (at < l)
        join_from_left(b, stage, first, l, at, r);
    else
        join_from_right(b, stage, first, l, at - l, r);
    part(b, at, n, &b->route->stage[stage].lo, &b->route->stage[stage].hi);
}

/* Handing out: whether a side of a subtree wants what the other holds. */
static bool wants(const builder *b, int first, int n)
{
    return b->fate == TT_TO_ALL || (b->root >= first && b->root < first + n);
}

static void hand_equal(builder *b, int stage, int first, int l, int at)
{
    const bool right = at >= l;
    int lo, hi, peer_at = right ? at - l : at + l;
    part(b, peer_at, 2 * l, &lo, &hi);
    if (wants(b, first + (right ? l : 0), l))
        add_hop(b, stage, (tt_hop){first + peer_at, lo, hi, false, true});
    part(b, at, 2 * l, &lo, &hi);
    if (wants(b, first + (right ? 0 : l), l))
        add_hop(b, stage, (tt_hop){first + peer_at, lo, hi, true, true});
}

/* The left of unequal sides has everything; the right's holders get what they held. */
static void hand_right(builder *b, int stage, int first, int l, int r, int at)
{
    const int q = 1 << log2_of(r);
    int lo, hi;
    if (at < l) {
        part(b, at, l, &lo, &hi);
        add_hop(b, stage, (tt_hop){first + l + at % q, lo, hi, true, true});
        return;
    }
    for (int i = at - l; i < l && at - l < q; i += q) {
        part(b, i, l, &lo, &hi);
        add_hop(b, stage, (tt_hop){first + i, lo, hi, false, true});
    }
}

static void hand_out(builder *b, int first, int n)
{
    if (n == 1)
        return;
    const int l = tt_tree_left(n), r = n - l, at = b->node - first;
    const int stage = 2 * b->route->sums - 1 - log2_of(l);
    if (r == l)
        hand_equal(b, stage, first, l, at);
    else if (wants(b, first + l, r))
        hand_right(b, stage, first, l, r, at);
    if (at < l && wants(b, first, l))
        hand_out(b, first, l);
    else if (at >= l && wants(b, first + l, r))
        hand_out(b, first + l, r);
}

/* Units beyond the power of two go from the node that holds them to their own. */
static void hand_on(builder *b)
{
    const tt_route *route = b->route;
    const int surplus = b->node < b->power ? b->node + b->power : b->node;
    if (surplus >= route->nodes || b->power == route->nodes)
        return;
    const int holder = surplus - b->power,
              place = b->start[reversed(holder, log2_of(b->power))] + 1;
    const bool send = b->node == holder;
    add_hop(b, route->sums, (tt_hop){send ? surplus : holder, place, place + 1, send, true});
}

static void find_end(builder *b)
{
    tt_route *route = b->route;
    route->hi = b->fate == TT_TO_ALL || b->root == b->node ? route->units : 0;
    if (b->fate != TT_TO_OWNERS)
        return;
    for (int place = 0; place < route->units; place++)
        if (route->node_at[place] == b->node)
            route->lo = place;
    route->hi = route->lo + 1;
}

static void build_direct(builder *b)
{
    tt_route *route = b->route;
    const int me = b->node, n = route->nodes;
    for (int i = 1; i < n; i++) { /* not all to the same one */
        int to = (me + i) % n, from = (me - i + n) % n;
        add_hop(b, 0, (tt_hop){from, me, me + 1, false, false});
        add_hop(b, 0, (tt_hop){to, to, to + 1, true, false});
    }
    route->stage[0].lo = me;
    route->stage[0].hi = me + 1;
    for (int i = 1; i < n && route->stages > 1; i++) {
        int to = (me + i) % n, from = (me - i + n) % n;
        if (b->fate == TT_TO_ALL || b->root == me)
            add_hop(b, 1, (tt_hop){from, from, from + 1, false, true});
        if (b->fate == TT_TO_ALL || b->root == to)
            add_hop(b, 1, (tt_hop){to, me, me + 1, true, true});
    }
}

static void build_by_joins(builder *b)
{
    const tt_route *route = b->route;
    join(b, 0, route->nodes);
    if (route->way == TT_DOUBLING)
        return; /* all have everything */
    if (b->fate == TT_TO_OWNERS)
        hand_on(b);
    else
        hand_out(b, 0, route->nodes);
}

/* Whose sum each stage sends and adds to; what a stage leaves as it was. */
static void trace_sums(const builder *b)
{
    const tt_route *route = b->route;
    int lo = 0, hi = route->units, from = -1;
    for (int i = 0; i < route->sums; i++) {
        tt_stage *stage = &route->stage[i];
        stage->from = from;
        for (int h = 0; h < stage->hops; h++)
            stage->adds = stage->adds || !route->hop[stage->first + h].send;
        if (stage->hops == 0) {
            stage->lo = lo;
            stage->hi = hi;
        }
        lo = stage->lo;
        hi = stage->hi;
        from = stage->adds ? i : from;
    }
}

static tutti_status place_units(builder *b)
{
    tt_route *route = b->route;
    const int levels = log2_of(b->power);
    int place = 0;
    if (b->fate == TT_TO_OWNERS)
        TT_TRY(tt_calloc((size_t)route->nodes, sizeof *route->node_at, &route->node_at));
    TT_TRY(tt_calloc((size_t)b->power + 1, sizeof *b->start, &b->start));
    for (int at = 0; at < b->power; at++) {
        int unit = reversed(at, levels);
        b->start[at] = place;
        for (; b->fate == TT_TO_OWNERS && unit < route->nodes; unit += b->power)
            route->node_at[place++] = unit;
        place += b->fate != TT_TO_OWNERS;
    }
    b->start[b->power] = place;
    for (int i = 0; route->way == TT_DIRECT && route->node_at != NULL && i < route->nodes; i++)
        route->node_at[i] = i;
    return TUTTI_OK;
}

static void count_stages(const builder *b)
{
    tt_route *route = b->route;
    route->sums = route->way == TT_DIRECT ? 1 : log2_of(route->nodes - 1) + 1;
    if (b->fate == TT_TO_OWNERS)
        route->stages = route->sums + (route->way == TT_HALVING && b->power < route->nodes);
    else
        route->stages = route->way == TT_DOUBLING ? route->sums : 2 * route->sums;
}

static int units_of(tt_way way, tt_fate fate, int nodes, int power)
{
    if (way == TT_DIRECT || fate == TT_TO_OWNERS)
        return nodes;
    return way == TT_HALVING ? power : 1;
}

tutti_status tt_route_create(tt_way way, tt_fate fate, int nodes, int node, int root,
                             tt_route *route_out)
{
    const int power = 1 << log2_of(nodes);
    tt_route route = {
        .way = way, .nodes = nodes, .units = units_of(way, fate, nodes, power), .root = root};
    builder b = {&route, fate, node, root, power, NULL, 0};
    count_stages(&b);
    tutti_status status = place_units(&b);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)route.stages, sizeof *route.stage, &route.stage);
    if (status == TUTTI_OK) /* in a stage a node meets each other one at most twice */
        status =
            tt_calloc(4 * (size_t)nodes + 2 * (size_t)route.stages, sizeof *route.hop, &route.hop);
    if (status != TUTTI_OK)
        goto free_route;
    if (way == TT_DIRECT)
        build_direct(&b);
    else
        build_by_joins(&b);
    trace_sums(&b);
    find_end(&b);
    route.hops = b.hops;
    free(b.start);
    *route_out = route;
    return TUTTI_OK;

free_route:
    free(b.start);
    tt_route_free(&route);
    return status;
}

void tt_route_free(tt_route *route)
{
    free(route->hop);
    free(route->stage);
    free(route->node_at);
    *route = (tt_route){0};
}
