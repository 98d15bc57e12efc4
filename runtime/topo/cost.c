/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's cost model, restated.
 *
 * Each pair of algorithm and protocol has a bandwidth (channels x speed of one, with an efficiency
 * and a cap that depend on the GPU's generation and the number of hosts) and a latency (a base, and
 * steps of a ring or levels of a tree, each inside the host or over the network). NCCL runs the
 * pair that promises the shortest time, so the minimum over pairs is the prediction.
 *
 * The constants were measured by NCCL's authors; here they stand as tables of facts by generation.
 * In-network reductions (CollNet) and PAT are left out: the first needs a plugin that no model
 * shows, the second is for one GPU per host. The tables are used as they are for GPUs that NCCL
 * 2.28 does not know: a newer one counts as the newest.
 */
#include "topo/cost.h"

#include <math.h>
#include <stdlib.h>

#include "core/mem.h"

enum { GENERATIONS = 4, PROTOS = 3, HOSTS = 3 }; /* one host, two, more */
enum { VOLTA, AMPERE, HOPPER, BLACKWELL };

/* us: before the first step, by protocol */
static const double base_latency[2][PROTOS] = {{6.8, 14.0, 8.4}, {6.6, 14.0, 8.4}};

/* us of one step: over NVLink, PCIe, the network; of tree, ring, NVLS, NVLS tree */
enum { NVLINK, PCI, NET };
static const double step_latency[3][4][PROTOS] = {
    {{0.6, 1.25, 4.0}, {0.6, 1.9, 3.4}, {0, 0, 25}, {0, 0, 25}},
    {{1.0, 1.9, 4.0}, {1.0, 2.5, 5.7}, {0, 0, 0}, {0, 0, 0}},
    {{5.0, 8.5, 14}, {2.7, 4.0, 14}, {0, 0, 18}, {0, 0, 20.9}},
};

/* GB/s in all. On one host by GPU generation; on several by CPU: row 1 AMD, row 0 others. */
static const double ll_cap[GENERATIONS][HOSTS] = {
    {39, 39, 20.4}, {87.7, 22.5, 19}, {141, 45, 35}, {282, 90, 70}};
/* GB/s of a channel */
static const double ring_ll128_cap[GENERATIONS] = {20, 20, 36.7, 40};
static const double tree_ll128_cap[GENERATIONS][HOSTS] = {
    {20, 20, 20}, {20, 20, 20}, {36.7, 36.7, 29}, {55.6, 31.67, 20}};
static const double tree_cap[GENERATIONS][HOSTS] = {
    {26.5, 18.5, 10}, {24, 23.6, 17.8}, {38.7, 41.4, 36}, {70, 42.8, 24}};
static const double nvls_tree_cap[GENERATIONS][HOSTS] = {
    {26.5, 18.5, 10}, {24, 23.6, 17.8}, {0, 57.7, 45.5}, {0, 96, 80}};
static const double nvls_efficiency[GENERATIONS] = {0, 0, 0.85, 0.74};

/* Trees fall short of the model at medium sizes; percent, by powers of two from 64 bytes on. */
enum { TREE_SIZES = 23 };
static const unsigned char tree_percent[PROTOS][TREE_SIZES] = {
    {100, 100, 100, 100, 90, 80, 70, 70,  70,  70,  60, 50,
     40,  40,  50,  60,  70, 80, 90, 100, 100, 100, 100},
    {100, 100, 100, 100, 100, 90, 80, 80, 80, 70,  60, 60,
     60,  60,  60,  60,  80,  90, 90, 90, 90, 100, 100},
    {90, 90, 90, 90, 90, 90, 90, 80, 70, 60, 60, 50, 50, 50, 50, 60, 70, 80, 70, 70, 80, 90, 90},
};

static int generation(const tt_cost *cost)
{
    return cost->sm_min >= 100  ? BLACKWELL
           : cost->sm_min >= 90 ? HOPPER
           : cost->sm_min >= 80 ? AMPERE
                                : VOLTA;
}

static int hosts_column(const tt_cost *cost)
{
    return cost->nodes > 2 ? 2 : cost->nodes - 1;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static int floor_log2(double value)
{
    return value < 1 ? 0 : (int)floor(log2(value));
}

static const tt_lanes *lanes_of(const tt_cost *cost, tt_algo algo)
{
    return algo == TT_ALGO_RING ? &cost->ring : algo == TT_ALGO_TREE ? &cost->tree : &cost->nvls;
}

static double ll_limit(const tt_cost *cost)
{
    int row = cost->nodes == 1 ? generation(cost) : cost->vendor == TT_VENDOR_AMD;
    return ll_cap[row][hosts_column(cost)];
}

static double ring_busbw(const tt_cost *cost, tt_proto proto)
{
    const tt_lanes *ring = &cost->ring;
    double bw = ring->channels * (cost->nodes <= 2 ? ring->gbps_intra : ring->gbps_inter);
    if (proto == TT_PROTO_LL)
        return smaller(ll_limit(cost), bw * 0.5);
    if (proto == TT_PROTO_LL128)
        return smaller(bw * 0.92, ring->channels * ring_ll128_cap[generation(cost)]);
    return bw;
}

static double tree_busbw(const tt_cost *cost, tt_proto proto)
{
    const tt_lanes *tree = &cost->tree;
    int gen = generation(cost), column = hosts_column(cost);
    double bw = tree->channels * (cost->nodes <= 2 ? tree->gbps_intra : tree->gbps_inter);
    bw = smaller(bw * 0.92, tree->channels * tree_cap[gen][column]);
    if (proto == TT_PROTO_LL)
        return smaller(bw / 3.8, ll_limit(cost));
    if (proto == TT_PROTO_LL128)
        return smaller(bw * (cost->nodes == 1 ? 7.0 / 9.0 : 120.0 / 128.0),
                       tree->channels * tree_ll128_cap[gen][column]);
    return bw;
}

/* Each channel is one GPU that reduces in the switch; itself it contributes nothing to its own. */
static double nvls_busbw(const tt_cost *cost, tt_algo algo, tt_cost_coll coll)
{
    const tt_lanes *nvls = &cost->nvls;
    int gen = generation(cost);
    if (nvls->channels < 2)
        return 0;
    double intra = nvls->gbps_intra * nvls_efficiency[gen] * (nvls->channels - 1) / nvls->channels;
    intra *= coll == TT_COST_ALL_REDUCE ? 2 : (cost->local - 1.0) / cost->local;
    double inter = nvls->gbps_inter;
    if (algo == TT_ALGO_NVLS_TREE) {
        inter *= cost->nodes <= 2 ? 2 : 1;
        inter = smaller(inter, nvls_tree_cap[gen][hosts_column(cost)]);
    }
    return nvls->channels * smaller(intra, inter);
}

/* NCCL's protocol of 128-byte lines counts on stores that arrive in order. */
static bool ll128_possible(const tt_cost *cost, const tt_lanes *lanes)
{
    return lanes->type_intra <= TUTTI_PATH_NVB &&
           lanes->type_inter <= (cost->sm_min >= 90 ? TUTTI_PATH_PXN : TUTTI_PATH_PXB) &&
           (cost->sm_min == cost->sm_max || cost->sm_min >= 90) && cost->sm_min >= 70;
}

static bool possible(const tt_cost *cost, tt_algo algo, tt_proto proto, tt_cost_coll coll)
{
    const tt_lanes *lanes = lanes_of(cost, algo);
    bool nvls = algo == TT_ALGO_NVLS || algo == TT_ALGO_NVLS_TREE;
    if (lanes->channels == 0 || (nvls && proto != TT_PROTO_SIMPLE))
        return false;
    if (nvls && (cost->nodes == 1) != (algo == TT_ALGO_NVLS))
        return false; /* NVLS alone over several hosts needs in-network reductions */
    if (coll != TT_COST_ALL_REDUCE && algo != TT_ALGO_RING && algo != TT_ALGO_NVLS)
        return false;
    return proto != TT_PROTO_LL128 || ll128_possible(cost, lanes);
}

/* Bytes of the buffer per microsecond and 1000, as NCCL counts. */
static double algorithm_bw(const tt_cost *cost, tt_algo algo, tt_proto proto, tt_cost_coll coll)
{
    int n = cost->nodes * cost->local;
    double steps = coll == TT_COST_ALL_REDUCE ? 2 * (n - 1) : n - 1;
    if (algo == TT_ALGO_RING)
        return ring_busbw(cost, proto) * n / steps;
    if (algo == TT_ALGO_TREE)
        return tree_busbw(cost, proto) * 0.5;
    double bw = nvls_busbw(cost, algo, coll);
    return coll == TT_COST_ALL_REDUCE ? bw * n / steps : bw;
}

static double ring_latency(const tt_cost *cost, tt_proto proto, tt_cost_coll coll, double intra,
                           double inter)
{
    double rounds = coll == TT_COST_ALL_REDUCE ? 2 : 1;
    double steps = rounds * (cost->nodes * cost->local - 1);
    double inter_steps = rounds * (cost->nodes - 1);
    if (cost->nodes > 1) { /* posting to the network costs the proxy's CPU time in every step */
        double post = cost->vendor == TT_VENDOR_AMD && cost->arch == TT_ARCH_X86 ? 2.0 : 1.0;
        intra = fmax(intra, proto == TT_PROTO_SIMPLE ? 3 * post : post);
    }
    return base_latency[1][proto] + (steps - inter_steps) * intra + inter_steps * inter;
}

static double latency(const tt_cost *cost, tt_algo algo, tt_proto proto, tt_cost_coll coll)
{
    int hardware = lanes_of(cost, algo)->type_intra <= TUTTI_PATH_NVL ? NVLINK : PCI;
    double intra = step_latency[hardware][algo][proto];
    /* with one GPU on each host nothing hides the network */
    double inter = step_latency[NET][cost->local == 1 ? TT_ALGO_TREE : algo][proto];
    inter += cost->net_latency * (proto == TT_PROTO_SIMPLE ? 2 : 1); /* and the flush */
    int levels = floor_log2(cost->nodes);
    switch (algo) {
    case TT_ALGO_RING:
        return ring_latency(cost, proto, coll, intra, inter);
    case TT_ALGO_TREE:
        return base_latency[0][proto] + 2 * ((cost->local - 1) * intra + levels * inter);
    case TT_ALGO_NVLS:
        return intra;
    default:
        return intra + 2 * levels * inter;
    }
}

static double pair_time(const tt_cost *cost, tt_algo algo, tt_proto proto, tt_cost_coll coll,
                        double bytes)
{
    double bw = algorithm_bw(cost, algo, proto, coll);
    double lat = latency(cost, algo, proto, coll);
    int size = floor_log2(bytes / 64);
    if (bw <= 0)
        return INFINITY;
    if (algo == TT_ALGO_TREE && size < TREE_SIZES)
        bw *= tree_percent[proto][size] / 100.0;
    /* NCCL runs twice the channels that the search found */
    double per_channel = bytes / (2.0 * cost->ring.channels * cost->nodes * cost->local);
    if (algo == TT_ALGO_RING && proto == TT_PROTO_SIMPLE && cost->nodes > 1 &&
        coll == TT_COST_ALL_REDUCE && per_channel >= 64)
        lat *= cost->sm_min < 80 ? 1.9 : 1.4;
    return lat + bytes / (1000 * bw);
}

tt_cost_time tt_cost_of(const tt_cost *cost, tt_cost_coll coll, double bytes)
{
    tt_cost_time best = {.us = 0, .algo = TT_ALGO_RING};
    if (cost->nodes * cost->local < 2)
        return best;
    best.us = INFINITY;
    for (int algo = TT_ALGO_TREE; algo <= TT_ALGO_NVLS_TREE; algo++)
        for (int proto = TT_PROTO_LL; proto <= TT_PROTO_SIMPLE; proto++) {
            if (!possible(cost, (tt_algo)algo, (tt_proto)proto, coll))
                continue;
            double us = pair_time(cost, (tt_algo)algo, (tt_proto)proto, coll, bytes);
            if (us < best.us)
                best = (tt_cost_time){us, (tt_algo)algo, (tt_proto)proto};
        }
    return best;
}

double tt_cost_busbw(const tt_cost *cost, tt_cost_coll coll, double bytes)
{
    double n = (double)cost->nodes * cost->local;
    double us = tt_cost_of(cost, coll, bytes).us;
    double factor = coll == TT_COST_ALL_REDUCE ? 2 * (n - 1) / n : (n - 1) / n;
    return us > 0 ? bytes / (1000 * us) * factor : 0;
}

static tt_lanes lanes_from(const tt_graph *graph)
{
    return (tt_lanes){graph->channels,   graph->gbps_intra, graph->gbps_inter,
                      graph->type_intra, graph->type_inter, (uint8_t)graph->cross_nic,
                      graph->fallback};
}

static tutti_status find_lanes(const tt_machine *machine, const int *gpus, tt_cost *cost)
{
    tt_graph *graphs;
    TT_TRY(tt_calloc(TT_GRAPH_NVLS + 1, sizeof *graphs, &graphs));
    tutti_status status = tt_graph_search_all(machine, gpus, cost->local, cost->nodes, graphs);
    if (status == TUTTI_OK) {
        cost->ring = lanes_from(&graphs[TT_GRAPH_RING]);
        cost->tree = lanes_from(&graphs[TT_GRAPH_TREE]);
        cost->nvls = lanes_from(&graphs[TT_GRAPH_NVLS]);
    }
    free(graphs);
    return status;
}

tutti_status tt_cost_model(const tt_machine *machine, const int *gpus, int n, int nodes,
                           tt_cost *cost_out)
{
    tt_cost cost = {.nodes = nodes, .local = n, .sm_min = 1000};
    if (n < 1 || nodes < 1)
        return tt_fail(TUTTI_ERR_ARG, "cost model: %d GPUs on each of %d hosts", n, nodes);
    if (tt_cost_cache_find(machine->costs, gpus, n, nodes, cost_out))
        return TUTTI_OK;
    for (int i = 0; i < n; i++) {
        int sm = machine->gpus[gpus[i]].sm;
        if (sm == 0)
            sm = 80;
        cost.sm_min = sm < cost.sm_min ? sm : cost.sm_min;
        cost.sm_max = sm > cost.sm_max ? sm : cost.sm_max;
    }
    if (machine->n_numa > 0) {
        cost.vendor = machine->numa[0].vendor;
        cost.arch = machine->numa[0].arch;
    }
    for (int i = 0; i < machine->n_nics; i++)
        cost.net_latency = fmaxf(cost.net_latency, machine->nics[i].latency);
    if (n * nodes > 1)
        TT_TRY(find_lanes(machine, gpus, &cost));
    tt_cost_cache_keep(machine->costs, gpus, &cost);
    *cost_out = cost;
    return TUTTI_OK;
}

const char *tt_algo_name(tt_algo algo)
{
    static const char *const name[] = {"Tree", "Ring", "NVLS", "NVLSTree"};
    return name[algo];
}

const char *tt_proto_name(tt_proto proto)
{
    static const char *const name[] = {"LL", "LL128", "Simple"};
    return name[proto];
}
