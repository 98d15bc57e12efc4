/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How many channels of what speed NCCL would find for a set of GPUs of one host that talks to
 * `nodes` equal ones: an own search over the same model with the same candidate speeds.
 */
#ifndef TT_TOPO_GRAPH_H
#define TT_TOPO_GRAPH_H

#include "topo/paths.h"

typedef enum tt_graph_pattern { TT_GRAPH_RING, TT_GRAPH_TREE, TT_GRAPH_NVLS } tt_graph_pattern;

enum { TT_GRAPH_CHANNELS = 64 };

typedef struct tt_graph {
    int pattern;
    int channels; /* 0: the pattern is not possible */
    float gbps_intra, gbps_inter; /* of one channel, inside the host and through its NICs */
    uint8_t type_intra, type_inter; /* tutti_path_type, the worst used */
    int cross_nic;
    bool fallback; /* nothing fitted: one slow channel in rank order (NCCL tells at INFO only) */
    int n_gpus;
    int16_t order[TT_GRAPH_CHANNELS][TT_TOPO_MAX_GPUS]; /* positions in gpus[] along each channel */
    int16_t nic_in[TT_GRAPH_CHANNELS], nic_out[TT_GRAPH_CHANNELS]; /* -1: one node */
} tt_graph;

/* gpus: n distinct GPU indices of the machine; nodes >= 1. Deterministic, no allocation kept. */
tutti_status tt_graph_search(const tt_machine *machine, const int *gpus, int n, int nodes,
                             tt_graph_pattern pattern, tt_graph *graph_out);

/* All three in one go, in the order of tt_graph_pattern: the tree needs the ring. */
tutti_status tt_graph_search_all(const tt_machine *machine, const int *gpus, int n, int nodes,
                                 tt_graph *graphs_out);

#endif
