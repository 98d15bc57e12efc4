/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees over nodes.
 *
 * The two trees are those of Sanders, Speck and Traeff (Two-tree algorithms for full bandwidth
 * broadcast, reduction and scan, Parallel Computing 35, 2009): binary search trees over the m =
 * nodes - 1 others. In a search tree over places 1 ... m a place with its lowest bit at l lies over
 * places l / 2 to its left and right, so odd places are leaves. The other tree has the same form
 * with places mirrored (m even) or moved on by one (m odd), which makes the leaves of one the inner
 * nodes of the other. Node 0 feeds both roots. A node then receives each half once, and sends each
 * half of the data twice at most, one of the halves not at all: pieces flow at the link's full
 * speed, log2(nodes) hops deep.
 *
 * A chain would do for bandwidth, but is `nodes` hops deep; a binomial tree is not for large data:
 * node 0 sends it log2(nodes) times.
 */
#include "host/fan.h"

#include <stdbool.h>

static int lowest_bit(int value)
{
    return value & -value;
}

/* The place of a node in a tree over m places, and the node at a place. */
static int place_of(tt_fan fan, int m, int node)
{
    if (fan == TT_FAN_EVEN)
        return node;
    if (m % 2 == 0)
        return m + 1 - node;
    return node == 1 ? m : node - 1;
}

static int node_at(tt_fan fan, int m, int place)
{
    if (fan == TT_FAN_EVEN)
        return place;
    if (m % 2 == 0)
        return m + 1 - place;
    return place == m ? 1 : place + 1;
}

/* 0: none. */
static int place_over(int m, int place)
{
    const int bit = lowest_bit(place), over = (place ^ bit) | bit << 1;
    return over <= m ? over : place ^ bit;
}

static int place_below(int m, int place, bool right)
{
    int bit = lowest_bit(place) >> 1;
    if (!right)
        return bit > 0 ? place - bit : 0;
    while (bit > 0 && place + bit > m)
        bit >>= 1;
    return bit > 0 ? place + bit : 0;
}

static int root_place(int m)
{
    int place = 1;
    while (place <= m / 2)
        place *= 2;
    return place;
}

static int binary_child(tt_fan fan, int nodes, int node, int *at)
{
    const int m = nodes - 1;
    if (node == 0)
        return (*at)++ == 0 ? node_at(fan, m, root_place(m)) : -1;
    while (*at < 2) {
        int place = place_below(m, place_of(fan, m, node), (*at)++ == 1);
        if (place > 0)
            return node_at(fan, m, place);
    }
    return -1;
}

/* Children of d: d + 2^i below the lowest bit of d. */
static int binomial_child(int nodes, int node, int *at)
{
    const int step = 1 << *at;
    if (node + step >= nodes || (node & step) != 0)
        return -1;
    ++*at;
    return node + step;
}

int tt_fan_child(tt_fan fan, int nodes, int node, int *at)
{
    if (nodes == 1)
        return -1;
    if (fan == TT_FAN_FLAT)
        return node == 0 && *at < nodes - 1 ? ++*at : -1;
    return fan == TT_FAN_BINOMIAL ? binomial_child(nodes, node, at)
                                  : binary_child(fan, nodes, node, at);
}

int tt_fan_parent(tt_fan fan, int nodes, int node)
{
    const int m = nodes - 1;
    if (fan == TT_FAN_FLAT)
        return 0;
    if (fan == TT_FAN_BINOMIAL)
        return node & (node - 1);
    const int over = place_over(m, place_of(fan, m, node));
    return over == 0 ? 0 : node_at(fan, m, over);
}
