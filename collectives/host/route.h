/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who sends what to whom between nodes in a reduction: the stages that a chunk goes through, as one
 * node sees them. A chunk is cut into units; a stage moves ranges of them. All nodes have the same
 * number of stages, and what one sends to another in a stage the other receives in that stage.
 */
#ifndef TT_HOST_ROUTE_H
#define TT_HOST_ROUTE_H

#include <stdbool.h>

#include "core/status.h"

typedef enum tt_way {
    TT_DIRECT, /* every unit goes to its owner at once: two stages, nodes^2 messages */
    TT_HALVING, /* half of the units to a partner, half of the rest to the next ...: as many bytes,
                   log2(nodes) messages of each node */
    TT_DOUBLING, /* everything to every partner: more bytes, half of the stages */
    TT_WAYS
} tt_way;

/* What becomes of the sums. */
typedef enum tt_fate {
    TT_TO_ALL, /* each node gets everything */
    TT_TO_ONE, /* one node gets everything */
    TT_TO_OWNERS, /* node m gets unit m; there are as many units as nodes */
    TT_FATES
} tt_fate;

/* Units [lo, hi), counted by place, to or from a node. */
typedef struct tt_hop {
    int node, lo, hi;
    bool send;
    bool joined; /* the data is a sum over several nodes */
} tt_hop;

typedef struct tt_stage {
    int first, hops; /* hop[first ... first + hops - 1] */
    int lo, hi; /* what this node has a sum of behind the stage, if it is one of summing */
    int from; /* the stage whose sum is sent and added to, -1: the node's own */
    bool adds; /* something is received and added */
} tt_stage;

typedef struct tt_route {
    tt_way way;
    int nodes, units, hops;
    int sums, stages; /* stages of summing, then those that hand out; number of both */
    int *node_at; /* TT_TO_OWNERS: the node whose unit has this place, else NULL */
    tt_stage *stage;
    tt_hop *hop;
    int lo, hi; /* what this node has at the end; TT_TO_OWNERS: its own unit */
    int root; /* the node that TT_TO_ONE goes to */
} tt_route;

/* nodes >= 2. Except by TT_DIRECT the sum is the balanced tree over the nodes (kernels.h): what two
 * nodes hold is added as soon as they meet, the lower node's on the left. */
tutti_status tt_route_create(tt_way way, tt_fate fate, int nodes, int node, int root,
                             tt_route *route_out);
void tt_route_free(tt_route *route); /* takes one that is all zero */

#endif
