/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routes of reductions between nodes, carried out in symbols: what a node holds of a unit is a
 * number made from the order in which it was added, so a sum in another order than the balanced
 * tree's is another number. Every message sent must be received in the same stage, in the same
 * size; every unit must be held when it is sent, and be where it belongs at the end.
 */
#include "tt_test.h"

#include "host/kernels.h"
#include "host/route.h"

enum { NODES_MOST = 40, UNITS_MOST = NODES_MOST };

typedef struct job {
    int nodes, root;
    tt_way way;
    tt_fate fate;
    tt_route route[NODES_MOST];
    uint64_t held[NODES_MOST][UNITS_MOST]; /* 0: nothing */
    uint64_t sent[NODES_MOST][UNITS_MOST]; /* by the node at hand, before it adds */
} job;

static uint64_t join(uint64_t left, uint64_t right)
{
    return ((left * 0x9e3779b97f4a7c15u) ^ (right + 0x7f4a7c15u + (left >> 29))) | 1;
}

static uint64_t tree(int first, int n)
{
    if (n == 1)
        return (uint64_t)first * 2 + 3;
    const int left = tt_tree_left(n);
    return join(tree(first, left), tree(first + left, n - left));
}

static bool matches(const tt_hop *a, int node, const tt_hop *b)
{
    return b->send && b->node == node && b->lo == a->lo && b->hi == a->hi && b->joined == a->joined;
}

/* The sender's hop that meets a receive; NULL: there is none. */
static const tt_hop *sender_of(const job *j, int node, int t, const tt_hop *hop)
{
    const tt_route *peer = &j->route[hop->node];
    const tt_stage *stage = &peer->stage[t];
    for (int i = stage->first; i < stage->first + stage->hops; i++)
        if (matches(hop, node, &peer->hop[i]))
            return &peer->hop[i];
    return NULL;
}

static void receive(job *j, int node, int t, const tt_hop *hop)
{
    const bool sums = t < j->route[node].sums;
    assert_non_null(sender_of(j, node, t, hop));
    for (int unit = hop->lo; unit < hop->hi; unit++) {
        uint64_t *mine = &j->held[node][unit], other = j->sent[hop->node][unit];
        assert_true(other != 0);
        if (!sums)
            *mine = other;
        else if (j->way != TT_DIRECT)
            *mine = hop->node < node ? join(other, *mine) : join(*mine, other);
        else
            *mine += other; /* added by the tree of all, not as they come */
    }
}

/* Behind a stage of summing a node holds what the stage says, or what it held before. */
static void drop(job *j, int node, int t)
{
    const tt_route *route = &j->route[node];
    const tt_stage *stage = &route->stage[t];
    for (int unit = 0; unit < route->units && t < route->sums; unit++)
        if (unit < stage->lo || unit >= stage->hi)
            j->held[node][unit] = 0;
}

static void carry_out(job *j, int t)
{
    size_t sends = 0, receives = 0;
    memcpy(j->sent, j->held, sizeof j->held);
    for (int node = 0; node < j->nodes; node++) {
        const tt_stage *stage = &j->route[node].stage[t];
        for (int i = stage->first; i < stage->first + stage->hops; i++) {
            const tt_hop *hop = &j->route[node].hop[i];
            if (!hop->send)
                receive(j, node, t, hop);
            sends += hop->send;
            receives += !hop->send;
        }
        drop(j, node, t);
    }
    assert_int_equal(sends, receives);
}

static uint64_t expected(const job *j)
{
    uint64_t sum = 0;
    if (j->way != TT_DIRECT)
        return tree(0, j->nodes);
    for (int node = 0; node < j->nodes; node++)
        sum += tree(node, 1);
    return sum;
}

static void check_end(const job *j)
{
    for (int node = 0; node < j->nodes; node++) {
        const tt_route *route = &j->route[node];
        const bool has_all = j->fate == TT_TO_ALL || (j->fate == TT_TO_ONE && node == j->root);
        assert_int_equal(route->hi - route->lo,
                         j->fate == TT_TO_OWNERS ? 1 : (has_all ? route->units : 0));
        for (int unit = route->lo; unit < route->hi; unit++)
            assert_true(j->held[node][unit] == expected(j));
        if (j->fate == TT_TO_OWNERS)
            assert_int_equal(route->node_at[route->lo], node);
    }
}

static void try_job(job *j)
{
    for (int node = 0; node < j->nodes; node++) {
        assert_int_equal(tt_route_create(j->way, j->fate, j->nodes, node, j->root, &j->route[node]),
                         TUTTI_OK);
        assert_int_equal(j->route[node].stages, j->route[0].stages);
        for (int unit = 0; unit < j->route[node].units; unit++)
            j->held[node][unit] = tree(node, 1);
    }
    for (int t = 0; t < j->route[0].stages; t++)
        carry_out(j, t);
    check_end(j);
    for (int node = 0; node < j->nodes; node++)
        tt_route_free(&j->route[node]);
}

static void every_route_is_the_tree(void **state)
{
    static job j;
    (void)state;
    for (j.nodes = 2; j.nodes <= NODES_MOST; j.nodes++)
        for (int way = 0; way < TT_WAYS; way++)
            for (int fate = 0; fate < TT_FATES; fate++)
                for (j.root = 0; j.root < (fate == TT_TO_ONE ? j.nodes : 1); j.root++) {
                    j.way = (tt_way)way;
                    j.fate = (tt_fate)fate;
                    try_job(&j);
                }
}

/* Per node, halving sends no more than twice the data, whatever the number of nodes. */
static void halving_sends_little(void **state)
{
    (void)state;
    for (int nodes = 2; nodes <= 1024; nodes = nodes * 5 / 4 + 1) {
        for (int node = 0; node < nodes; node += 1 + nodes / 7) {
            tt_route route;
            int sent = 0;
            assert_int_equal(tt_route_create(TT_HALVING, TT_TO_ALL, nodes, node, 0, &route),
                             TUTTI_OK);
            for (int i = 0; i < route.hops; i++)
                sent += route.hop[i].send ? route.hop[i].hi - route.hop[i].lo : 0;
            assert_true(sent <= 2 * route.units);
            tt_route_free(&route);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_route_is_the_tree),
        cmocka_unit_test(halving_sends_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
