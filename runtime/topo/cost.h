/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a collective costs by NCCL's own model: time = latency + bytes / bandwidth for every
 * algorithm and protocol, of which the fastest counts. From the channels that the graph search
 * finds (topo/graph.h) and the constants of NCCL 2.28 (ncclTopoTuneModel, ncclTopoGetAlgoTime).
 */
#ifndef TT_TOPO_COST_H
#define TT_TOPO_COST_H

#include "topo/graph.h"

typedef enum tt_cost_coll {
    TT_COST_ALL_REDUCE,
    TT_COST_ALL_GATHER,
    TT_COST_REDUCE_SCATTER
} tt_cost_coll;
typedef enum tt_algo { TT_ALGO_TREE, TT_ALGO_RING, TT_ALGO_NVLS, TT_ALGO_NVLS_TREE } tt_algo;
typedef enum tt_proto { TT_PROTO_LL, TT_PROTO_LL128, TT_PROTO_SIMPLE } tt_proto;

/* What a search found, without the orders. channels 0: the pattern is not possible. */
typedef struct tt_lanes {
    int channels;
    float gbps_intra, gbps_inter; /* of one channel */
    uint8_t type_intra, type_inter; /* tutti_path_type */
    uint8_t cross_nic;
    bool fallback;
} tt_lanes;

typedef struct tt_cost {
    int nodes, local; /* hosts, and GPUs of each */
    int sm_min, sm_max;
    tt_cpu_vendor vendor;
    tt_cpu_arch arch;
    float net_latency; /* us, of the NICs */
    tt_lanes ring, tree, nvls;
} tt_cost;

typedef struct tt_cost_time {
    double us; /* 0: one rank */
    tt_algo algo;
    tt_proto proto;
} tt_cost_time;

/* Of n GPUs of a machine, and as many on each of nodes - 1 equal hosts. Errors: ARG, NO_MEMORY. */
tutti_status tt_cost_model(const tt_machine *machine, const int *gpus, int n, int nodes,
                           tt_cost *cost_out);
/* cost_cache.c: models already made of a machine, at most some hundred; for any thread. A machine
 * without (NULL) finds nothing and keeps nothing. */
typedef struct tt_cost_cache tt_cost_cache;
tutti_status tt_cost_cache_create(tt_cost_cache **cache_out);
void tt_cost_cache_free(tt_cost_cache *cache);
bool tt_cost_cache_find(tt_cost_cache *cache, const int *gpus, int n, int nodes, tt_cost *cost_out);
void tt_cost_cache_keep(tt_cost_cache *cache, const int *gpus, const tt_cost *cost);

/* bytes: of the whole buffer, as NCCL counts (all-gather: of the result). */
tt_cost_time tt_cost_of(const tt_cost *cost, tt_cost_coll coll, double bytes);
/* The bandwidth that a large collective approaches, GB/s on each link ("bus bandwidth"). */
double tt_cost_busbw(const tt_cost *cost, tt_cost_coll coll, double bytes);

const char *tt_algo_name(tt_algo algo); /* "Ring" */
const char *tt_proto_name(tt_proto proto); /* "LL128" */

#endif
