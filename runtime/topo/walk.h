/* SPDX-License-Identifier: Apache-2.0 */
/* The search for channels: one pass over the graph with given speeds and limits (walk.c), and the
 * choice of these (graph.c). */
#ifndef TT_TOPO_WALK_H
#define TT_TOPO_WALK_H

#include "topo/graph.h"
#include "topo/wires.h"

typedef enum tt_shape {
    TT_SHAPE_RING,
    TT_SHAPE_BALANCED_TREE,
    TT_SHAPE_TREE,
    TT_SHAPE_NVLS
} tt_shape;

/* A set of channels, complete or in the making. */
typedef struct tt_channels {
    tt_shape shape;
    int cross_nic; /* 0: a channel leaves by the rail it came; 2: two channels may swap theirs */
    int n, min, max;
    float intra, inter; /* GB/s of one */
    int type_intra, type_inter; /* worst path allowed */
    bool same; /* all channels follow the first */
    int hops;
    int16_t gpu[TT_GRAPH_CHANNELS][TT_TOPO_MAX_GPUS];
    int16_t net[TT_GRAPH_CHANNELS][2];
} tt_channels;

/* A way as the search takes it: its wires, in order, with what each is to give up. */
typedef struct tt_flow {
    int32_t first; /* in flow_wires */
    uint16_t n, hops;
    uint8_t type, back_type; /* of the way, and of the way back */
    bool intel; /* PCIe gives a fifth more: through an Intel host bridge, packets are smaller */
} tt_flow;

typedef struct tt_flow_wire {
    int32_t wire, back; /* back: -1 unless the other direction gives up something too */
    float back_share; /* of what is taken forth */
    bool pcie;
} tt_flow_wire;

typedef struct tt_net_list {
    int n;
    int16_t net[TT_TOPO_MAX_NICS];
} tt_net_list;

typedef struct tt_walk {
    const tt_wires *wires;
    const tt_ways *ways;
    bool inter; /* channels come from and go to the network */
    int least_sm;
    tt_flow *flows; /* [from x ends + to]: GPUs, nets, the switch */
    tt_flow_wire *flow_wires;
    size_t n_flow_wires, cap_flow_wires;
    int ends;
    int16_t *order; /* of each GPU: the others, those with the best way first; -1: no more */
    float *left; /* GB/s left on each wire */
    float *net_left; /* on each net */
    int32_t *rail; /* of each net: the first one of its rail */
    tt_net_list *nets; /* to try, for any GPU and then for each, in this pass */
    int nets_type; /* worst path that they were listed for; -1 */
    uint64_t visited[TT_TOPO_MAX_GPUS]; /* a bit per channel */
    int steps; /* left of this pass; -1: as good as can be */
    tt_channels now;
    tt_channels *best;
} tt_walk;

/* Below 0: the way from `gpu` to `one` is better than to `two`, in whole numbers as NCCL compares.
 */
static inline int tt_walk_order(const tt_walk *walk, int gpu, int one, int two)
{
    const tt_way *a = &walk->ways->gpu_gpu[gpu * walk->wires->n_gpus + one];
    const tt_way *b = &walk->ways->gpu_gpu[gpu * walk->wires->n_gpus + two];

    return (int)a->gbps != (int)b->gbps ? (int)b->gbps - (int)a->gbps : a->hops - b->hops;
}

/* Lists the wires of all ways; walk->wires and ways are set. */
tutti_status tt_walk_prepare(tt_walk *walk);
void tt_walk_clear(tt_walk *walk);

/* Takes `times` the channel's bandwidth on the way between two nodes, or gives it back (times < 0).
 * False, with nothing taken, where the way is worse than allowed or has too little left. */
bool tt_walk_follow(tt_walk *walk, int from, int to, float times);

/* Extends walk->now by channels, copying every better set to *walk->best. */
void tt_walk_run(tt_walk *walk);

#endif
