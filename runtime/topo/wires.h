/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine as a graph of nodes and directed wires, as NCCL builds it from its XML: GPUs, nets,
 * NUMA domains, one NVSwitch for all, NIC cards and PCI switches; and the routes over it, one
 * breadth-first search per node that paths may begin at. Internal to paths.c and graph.c.
 */
#ifndef TT_TOPO_WIRES_H
#define TT_TOPO_WIRES_H

#include "topo/paths.h"

typedef enum tt_node_kind {
    TT_N_GPU,
    TT_N_NET,
    TT_N_CPU,
    TT_N_NVS,
    TT_N_CARD,
    TT_N_PCI
} tt_node_kind;
typedef enum tt_wire_type {
    TT_W_LOC = TUTTI_PATH_LOC,
    TT_W_NVL = TUTTI_PATH_NVL,
    TT_W_C2C = TUTTI_PATH_C2C,
    TT_W_PCI = TUTTI_PATH_PIX,
    TT_W_SYS = TUTTI_PATH_SYS,
    TT_W_NET = TUTTI_PATH_NET
} tt_wire_type;

typedef struct tt_wire {
    int32_t to;
    int32_t back; /* wire of the same type from `to`; -1: one way only */
    float gbps;
    uint8_t type; /* tt_wire_type */
} tt_wire;

typedef struct tt_node {
    int32_t first, n; /* its wires, in the order in which they are tried */
    int32_t index; /* of the machine's list of the kind */
    uint8_t kind; /* tt_node_kind */
    uint16_t n_sys; /* wires from domain to domain, which follow each other: they are as fast */
} tt_node;

/* The way from a node to a base: the first wire of it, then the way of that wire's far end. */
typedef struct tt_route {
    float gbps;
    int32_t wire; /* -1: none, or the base itself */
    uint16_t hops;
    uint8_t type; /* tutti_path_type */
} tt_route;

/* Nodes are ordered: GPUs, nets, NUMA domains, then the NVSwitch; these are the bases. */
typedef struct tt_wires {
    const tt_machine *machine;
    tt_node *nodes;
    tt_wire *wires;
    tt_route *routes; /* [base x n_nodes + node] */
    int n_nodes, n_wires, n_bases;
    int n_gpus, n_nets, n_cpus, nvs; /* nvs: node, -1 without NVSwitch */
} tt_wires;

/* gpus: those that take part (the others do not exist for the graph), NULL for all. */
tutti_status tt_wires_make(const tt_machine *machine, const int *gpus, int n, bool nvb,
                           tt_wires **wires_out);
void tt_wires_free(tt_wires *wires);

static inline int tt_net_node(const tt_wires *w, int net)
{
    return w->n_gpus + net;
}
static inline int tt_cpu_node(const tt_wires *w, int cpu)
{
    return w->n_gpus + w->n_nets + cpu;
}
static inline const tt_route *tt_route_to(const tt_wires *w, int node, int base)
{
    return &w->routes[(size_t)base * (size_t)w->n_nodes + (size_t)node];
}
/* The NUMA domain nearest to a GPU; -1: none is reachable. */
int tt_wires_local_cpu(const tt_wires *w, int gpu);

/* The way a transfer takes between two devices: the route, or two routes by `via`. */
typedef struct tt_way {
    float gbps;
    int32_t via; /* node; -1 */
    uint16_t hops;
    uint8_t type; /* tutti_path_type */
} tt_way;

/* A GPU's best nets, as its channels take them. */
typedef struct tt_local {
    int16_t *nets; /* n of them; behind room for all, the place of each net in the list, -1 */
    int n;
    int first; /* place of channel 0's */
    int turn; /* how many the channels take in turn */
    bool stale;
} tt_local;

/* Ways between the GPUs and nets of a graph after the rules on P2P, GPUDirect and PXN. */
typedef struct tt_ways {
    const tt_wires *wires;
    tt_path_rules rules;
    tt_way *gpu_gpu; /* [from x n_gpus + to] */
    tt_way *gpu_net; /* [gpu x n_nets + net] */
    tt_way *net_gpu; /* [net x n_gpus + gpu] */
    int32_t *net_local_gpu; /* [net] the GPU that uses it; -1 */
    tt_local *local; /* [gpu] */
} tt_ways;

tutti_status tt_ways_make(const tt_wires *wires, const tt_path_rules *rules, tt_ways **ways_out);
void tt_ways_free(tt_ways *ways);
/* A GPU's best nets, in order; returns their number. */
int tt_ways_local_nets(const tt_ways *ways, int gpu, int *nets);
/* A net's best GPUs, and their type. */
int tt_ways_local_gpus(const tt_ways *ways, int net, int *gpus, int *type_out);
/* How many nets the channels of a GPU take in turn; 0: it has none. */
int tt_ways_net_count(const tt_ways *ways, int gpu);
/* The net that the channel of a GPU takes; -1: none. */
int tt_ways_net(const tt_ways *ways, int gpu, int channel);
/* May reads from and writes to the GPU's memory by this net bypass the CPU? */
bool tt_ways_gdr(const tt_ways *ways, int gpu, int net);
/* The fastest way of any GPU (to GPUs, or to nets where `inter`), and the speed of the fastest
 * GPU's links. */
void tt_ways_limits(const tt_ways *ways, bool inter, float *max_out, float *total_out);

#endif
