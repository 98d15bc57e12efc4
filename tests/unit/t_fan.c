/* SPDX-License-Identifier: Apache-2.0 */
/* The trees by which nodes hand on data: for every number of nodes, what one calls its child calls
 * it its parent, everybody is reached once, in few hops, and the two trees share the sending. */
#include "host/fan.h"

#include "tt_test.h"

enum { NODES_MOST = 130 };
static const tt_fan fans[] = {TT_FAN_FLAT, TT_FAN_BINOMIAL, TT_FAN_EVEN, TT_FAN_ODD};

static int log2_up(int n)
{
    int bits = 0;
    while (1 << bits < n)
        bits++;
    return bits;
}

/* Follows the tree from node 0 and counts each node's children. */
static void walk(tt_fan fan, int nodes, int children[NODES_MOST])
{
    int queue[NODES_MOST] = {0}, depth[NODES_MOST] = {0}, n = 1, child;
    for (int i = 0; i < n; i++) {
        const int node = queue[i];
        int at = 0;
        children[node] = 0;
        while ((child = tt_fan_child(fan, nodes, node, &at)) >= 0) {
            assert_true(child > 0 && child < nodes && n < nodes);
            assert_int_equal(tt_fan_parent(fan, nodes, child), node);
            depth[n] = depth[i] + 1;
            assert_true(depth[n] <= 1 + log2_up(nodes));
            queue[n++] = child;
            children[node]++;
        }
    }
    assert_int_equal(n, nodes); /* each has one parent, so nobody was met twice */
}

static void everybody_is_reached_once(void **state)
{
    int children[NODES_MOST];
    (void)state;
    for (int nodes = 1; nodes <= NODES_MOST; nodes++)
        for (size_t i = 0; i < sizeof fans / sizeof fans[0]; i++)
            walk(fans[i], nodes, children);
}

/* Of two halves no node sends more than the whole. */
static void two_trees_share(void **state)
{
    int even[NODES_MOST], odd[NODES_MOST];
    (void)state;
    for (int nodes = 2; nodes <= NODES_MOST; nodes++) {
        walk(TT_FAN_EVEN, nodes, even);
        walk(TT_FAN_ODD, nodes, odd);
        for (int node = 0; node < nodes; node++)
            assert_true(even[node] + odd[node] <= 2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everybody_is_reached_once),
        cmocka_unit_test(two_trees_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
