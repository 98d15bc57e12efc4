/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the wires to what NCCL does with them. A GPU pair too far apart for peer to peer goes
 * through the host's memory, at the processor of the receiving side. A NIC that may not reach a
 * GPU's memory goes through the processor near the GPU. A NIC may be used by way of a GPU that is
 * nearer to it and has NVLink to us (PXN).
 *
 * The rules depend on one another's results and on the order in which devices are visited (nets
 * outside, GPUs inside), so the order is kept. A detour is remembered as one node in between: all
 * detours consist of two plain routes.
 */
#include <stdlib.h>

#include "core/mem.h"
#include "topo/wires.h"

#define GG(w, p, g) (&(w)->gpu_gpu[(size_t)(p) * (size_t)(w)->wires->n_gpus + (size_t)(g)])
#define GN(w, g, n) (&(w)->gpu_net[(size_t)(g) * (size_t)(w)->wires->n_nets + (size_t)(n)])
#define NG(w, n, g) (&(w)->net_gpu[(size_t)(n) * (size_t)(w)->wires->n_gpus + (size_t)(g)])

enum { CHANNELS = 64 }; /* most a communicator has */

static const tt_gpu *gpu_of(const tt_wires *w, int gpu)
{
    return &w->machine->gpus[w->nodes[gpu].index];
}

static tt_way plain(const tt_route *route)
{
    return (tt_way){route->gbps, -1, route->hops, route->type};
}

/* C2C to the processor, then its PCIe, has a type of its own. */
static int merge(int one, int two)
{
    int worst = one > two ? one : two, best = one > two ? two : one;

    return worst == TUTTI_PATH_PHB && best == TUTTI_PATH_C2C ? TUTTI_PATH_P2C : worst;
}

static tt_way detour(const tt_wires *w, int from, int via, int to)
{
    const tt_route *one = tt_route_to(w, from, via), *two = tt_route_to(w, via, to);
    bool pxn = w->nodes[via].kind == TT_N_GPU;

    return (tt_way){one->gbps < two->gbps ? one->gbps : two->gbps, via,
                    (uint16_t)(one->hops + two->hops),
                    (uint8_t)(pxn ? TUTTI_PATH_PXN : merge(one->type, two->type))};
}

/* Two GPUs with an AMD processor may talk across it; otherwise no further than PCIe switches. */
static int p2p_level(const tt_ways *ways)
{
    const tt_machine *m = ways->wires->machine;

    if (ways->rules.p2p_level >= 0)
        return ways->rules.p2p_level;
    if (m->n_numa > 0 && m->numa[0].arch == TT_ARCH_X86 && m->numa[0].vendor == TT_VENDOR_AMD &&
        ways->wires->n_gpus <= 2)
        return TUTTI_PATH_SYS;
    return TUTTI_PATH_PXB;
}

/* The driver's word counts on PCIe; refusing NVLink pairs is an error of NCCL's, and a finding. */
static bool refused(const tt_ways *ways, int p, int g, int type)
{
    const tt_machine *m = ways->wires->machine;
    int one = ways->wires->nodes[p].index, two = ways->wires->nodes[g].index;

    if (m->p2p == NULL || p == g || type <= TUTTI_PATH_NVB)
        return false;
    return m->p2p[(size_t)one * (size_t)m->n_gpus + (size_t)two] > TT_P2P_OK;
}

static void set_gpu_ways(tt_ways *ways)
{
    const tt_wires *w = ways->wires;
    int level = p2p_level(ways);

    for (int g = 0; g < w->n_gpus; g++) {
        int cpu = tt_wires_local_cpu(w, g);

        for (int p = 0; p < w->n_gpus; p++) {
            tt_way *way = GG(ways, p, g);

            *way = plain(tt_route_to(w, p, g));
            if (cpu >= 0 && (way->type > level || refused(ways, p, g, way->type)))
                *way = detour(w, p, tt_cpu_node(w, cpu), g);
        }
    }
}

static void set_net_ways(tt_ways *ways)
{
    const tt_wires *w = ways->wires;

    for (int n = 0; n < w->n_nets; n++)
        for (int g = 0; g < w->n_gpus; g++) {
            int net = tt_net_node(w, n), cpu = tt_wires_local_cpu(w, g), c;

            *GN(ways, g, n) = plain(tt_route_to(w, g, net));
            *NG(ways, n, g) = plain(tt_route_to(w, net, g));
            if (cpu < 0)
                continue;
            c = tt_cpu_node(w, cpu);
            if (merge(tt_route_to(w, g, c)->type, tt_route_to(w, net, c)->type) != TUTTI_PATH_P2C)
                continue;
            if (GN(ways, g, n)->type > TUTTI_PATH_P2C)
                GN(ways, g, n)->type = TUTTI_PATH_P2C;
            if (NG(ways, n, g)->type > TUTTI_PATH_P2C)
                NG(ways, n, g)->type = TUTTI_PATH_P2C;
        }
}

/* Indices of the best of `n` ways: most bandwidth, then the nearest type. */
static int best_of(const tt_way *ways, int n, int *best, int *type_out)
{
    float gbps = 0;
    int type = TUTTI_PATH_DIS, count = 0;

    for (int i = 0; i < n; i++) {
        if (ways[i].gbps > gbps || (ways[i].gbps == gbps && ways[i].type < type)) {
            gbps = ways[i].gbps;
            type = ways[i].type;
            count = 0;
        }
        if (ways[i].gbps == gbps && ways[i].type == type)
            best[count++] = i;
    }
    *type_out = type;
    return count;
}

int tt_ways_local_gpus(const tt_ways *ways, int net, int *gpus, int *type_out)
{
    return best_of(NG(ways, net, 0), ways->wires->n_gpus, gpus, type_out);
}

/* The low bits of a number in reverse order, `range` being a power of two. */
static int mirrored(int value, int range)
{
    int mirror = 0;

    for (int bit = 1, other = range / 2; bit < range; bit *= 2, other /= 2)
        if (value & bit)
            mirror |= other;
    return mirror;
}

/* Lists a GPU's nets anew. Its channels take some of them in turn: the GPUs that are nearest to the
 * first one share. */
static void list_nets(tt_ways *ways, int gpu)
{
    tt_local *local = &ways->local[gpu];
    int nets[TT_TOPO_MAX_NICS], gpus[TT_TOPO_MAX_GPUS], n = ways->wires->n_nets, type, sharing;
    int16_t *place = local->nets + n;

    local->stale = false;
    local->n = n == 0 ? 0 : best_of(GN(ways, gpu, 0), n, nets, &type);
    for (int i = 0; i < n; i++)
        place[i] = -1;
    for (int i = 0; i < local->n; i++) {
        local->nets[i] = (int16_t)nets[i];
        place[nets[i]] = (int16_t)i;
    }
    if (local->n == 0)
        return;
    sharing = tt_ways_local_gpus(ways, nets[0], gpus, &type);
    local->turn = sharing > 0 ? (local->n + sharing - 1) / sharing : local->n;
    local->first = gpu_of(ways->wires, gpu)->dev;
    if ((local->n & (local->n - 1)) == 0)
        local->first = mirrored(local->first, local->n);
    local->first = (int)((unsigned)local->first % (unsigned)local->n);
}

int tt_ways_local_nets(const tt_ways *ways, int gpu, int *nets)
{
    for (int i = 0; i < ways->local[gpu].n; i++)
        nets[i] = ways->local[gpu].nets[i];
    return ways->local[gpu].n;
}

int tt_ways_net_count(const tt_ways *ways, int gpu)
{
    return ways->local[gpu].n == 0 ? 0 : ways->local[gpu].turn;
}

int tt_ways_net(const tt_ways *ways, int gpu, int channel)
{
    const tt_local *local = &ways->local[gpu];

    if (local->n == 0)
        return -1;
    return local->nets[(local->first + channel % local->turn) % local->n];
}

/* The lowest channel in which a GPU takes a net; CHANNELS: in none. */
static int channel_of(const tt_ways *ways, int gpu, int net)
{
    const tt_local *local = &ways->local[gpu];
    int place = local->nets[ways->wires->n_nets + net], channel;

    if (place < 0)
        return CHANNELS;
    channel = (place - local->first + local->n) % local->n;
    return channel < local->turn && channel < CHANNELS ? channel : CHANNELS;
}

/* Among a net's nearest GPUs the one that takes it, in the lowest channel; -1: none does. */
static int user_of(tt_ways *ways, int net)
{
    int gpus[TT_TOPO_MAX_GPUS], type, best = CHANNELS, user = -1;
    int n = ways->wires->n_gpus == 0 ? 0 : tt_ways_local_gpus(ways, net, gpus, &type);

    for (int i = 0; i < n; i++) {
        int channel;

        if (ways->local[gpus[i]].stale)
            list_nets(ways, gpus[i]);
        channel = channel_of(ways, gpus[i], net);
        if (channel < best) {
            best = channel;
            user = gpus[i];
        }
    }
    return user;
}

/* After a change of the ways of a GPU to a net and back. */
static void way_changed(tt_ways *ways, int gpu, int net)
{
    ways->local[gpu].stale = true;
    for (int g = 0; g < ways->wires->n_gpus; g++)
        if (ways->local[g].n > 0 && ways->local[g].nets[0] == net)
            ways->local[g].stale = true;
}

bool tt_ways_gdr(const tt_ways *ways, int gpu, int net)
{
    const tt_wires *w = ways->wires;
    const tt_way *way = GN(ways, gpu, net);
    int level = ways->rules.gdr_level >= 0 ? ways->rules.gdr_level : TUTTI_PATH_PXB;
    int distance = way->type;

    if (w->machine->nics[net].gdr != TT_YES || gpu_of(w, gpu)->gdr != TT_YES)
        return false;
    if (distance == TUTTI_PATH_PXN)
        distance = GN(ways, way->via, net)->type;
    if (distance == TUTTI_PATH_P2C)
        distance = TUTTI_PATH_C2C;
    return distance <= level;
}

/* A peer that has the net nearer and NVLink to us. */
static bool relays(const tt_ways *ways, int peer, int g, int n)
{
    const tt_wires *w = ways->wires;
    int worst = ways->rules.pxn_c2c ? TUTTI_PATH_P2C : TUTTI_PATH_PXB;
    const tt_way *theirs = GN(ways, peer, n), *ours = GN(ways, g, n);

    if (theirs->type > worst || GG(ways, peer, g)->type > TUTTI_PATH_NVL)
        return false;
    if (w->machine->numa[gpu_of(w, peer)->numa].system !=
        w->machine->numa[gpu_of(w, g)->numa].system)
        return false;
    return theirs->gbps > ours->gbps || ours->type > TUTTI_PATH_PXN;
}

static void adjust_net_way(tt_ways *ways, int n, int g)
{
    const tt_wires *w = ways->wires;

    if (!ways->rules.pxn_disable) {
        int peer = user_of(ways, n);

        if (peer >= 0 && peer != g && relays(ways, peer, g, n)) {
            *GN(ways, g, n) = detour(w, g, peer, tt_net_node(w, n));
            way_changed(ways, g, n);
        }
    }
    if (GN(ways, g, n)->type < TUTTI_PATH_PHB && !tt_ways_gdr(ways, g, n)) {
        int cpu = tt_wires_local_cpu(w, g);

        if (cpu < 0)
            return;
        *NG(ways, n, g) = detour(w, tt_net_node(w, n), tt_cpu_node(w, cpu), g);
        *GN(ways, g, n) = detour(w, g, tt_cpu_node(w, cpu), tt_net_node(w, n));
        way_changed(ways, g, n);
    }
}

void tt_ways_free(tt_ways *ways)
{
    if (ways == NULL)
        return;
    free(ways->gpu_gpu);
    free(ways->gpu_net);
    free(ways->net_gpu);
    free(ways->net_local_gpu);
    for (int g = 0; ways->local != NULL && g < ways->wires->n_gpus; g++)
        free(ways->local[g].nets);
    free(ways->local);
    free(ways);
}

tutti_status tt_ways_make(const tt_wires *wires, const tt_path_rules *rules, tt_ways **ways_out)
{
    size_t gpus = (size_t)wires->n_gpus, nets = (size_t)wires->n_nets;
    tt_ways *ways;
    tutti_status status;

    TT_TRY(tt_calloc(1, sizeof *ways, &ways));
    ways->wires = wires;
    ways->rules = *rules;
    status = tt_calloc(gpus * gpus, sizeof(tt_way), &ways->gpu_gpu);
    if (status == TUTTI_OK)
        status = tt_calloc(gpus * nets, sizeof(tt_way), &ways->gpu_net);
    if (status == TUTTI_OK)
        status = tt_calloc(gpus * nets, sizeof(tt_way), &ways->net_gpu);
    if (status == TUTTI_OK)
        status = tt_calloc(nets, sizeof(int32_t), &ways->net_local_gpu);
    if (status == TUTTI_OK)
        status = tt_calloc(gpus, sizeof *ways->local, &ways->local);
    for (size_t g = 0; status == TUTTI_OK && g < gpus; g++)
        status = tt_calloc(2 * nets, sizeof(int16_t), &ways->local[g].nets);
    if (status != TUTTI_OK)
        goto free_ways;
    set_gpu_ways(ways);
    set_net_ways(ways);
    for (int g = 0; g < wires->n_gpus; g++)
        list_nets(ways, g);
    for (int n = 0; n < wires->n_nets; n++)
        for (int g = 0; g < wires->n_gpus; g++)
            adjust_net_way(ways, n, g);
    for (int g = 0; g < wires->n_gpus; g++)
        list_nets(ways, g);
    for (int n = 0; n < wires->n_nets; n++)
        ways->net_local_gpu[n] = user_of(ways, n);
    *ways_out = ways;
    return TUTTI_OK;

free_ways:
    tt_ways_free(ways);
    return status;
}

void tt_ways_limits(const tt_ways *ways, bool inter, float *max_out, float *total_out)
{
    const tt_wires *w = ways->wires;
    float max = 0, total = 0;

    if (!inter && w->n_gpus == 1) {
        *max_out = *total_out = 5000.0f;
        return;
    }
    for (int g = 0; g < w->n_gpus; g++) {
        const tt_node *node = &w->nodes[g];
        float nvlink = 0, pcie = 0;

        for (int i = 0; i < (inter ? w->n_nets : w->n_gpus); i++) {
            const tt_way *way = inter ? GN(ways, g, i) : GG(ways, g, i);

            if (way->hops > 0 && way->gbps > max)
                max = way->gbps;
        }
        for (int l = node->first; l < node->first + node->n; l++) {
            if (w->wires[l].type == TT_W_NVL)
                nvlink += w->wires[l].gbps;
            if (w->wires[l].type == TT_W_PCI)
                pcie = w->wires[l].gbps;
        }
        total = nvlink > total ? nvlink : total;
        total = pcie > total ? pcie : total;
    }
    *max_out = max;
    *total_out = total;
}
