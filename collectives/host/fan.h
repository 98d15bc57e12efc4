/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How nodes hand on data that all of them get: trees over the nodes, which are counted from the one
 * that has the data, 0.
 */
#ifndef TT_HOST_FAN_H
#define TT_HOST_FAN_H

typedef enum tt_fan {
    TT_FAN_FLAT, /* from 0 to each: as much as an all_gather sends anyway */
    TT_FAN_BINOMIAL, /* log2(nodes) hops, as many messages of node 0: for what is small */
    TT_FAN_EVEN, /* with TT_FAN_ODD, for half of the data each: no node sends to others in both, */
    TT_FAN_ODD /* and to two in one at most, so that none sends more than everything once */
} tt_fan;

/* 0 < node < nodes. */
int tt_fan_parent(tt_fan fan, int nodes, int node);
/* The node's next child; *at counts from 0. -1: no more. */
int tt_fan_child(tt_fan fan, int nodes, int node, int *at);

#endif
