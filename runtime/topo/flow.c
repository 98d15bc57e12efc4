/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bandwidth that channels take from the wires of their ways. The search does this some hundred
 * thousand times, so the wires of each way are listed once, with all that does not depend on the
 * channel's speed.
 *
 * Bandwidth is put back by taking a negative amount, so a state is the sum of what was taken. It is
 * kept rounded to thousandths, as NCCL does, or the errors of floating point would decide.
 */
#include <stdlib.h>

#include "core/mem.h"
#include "topo/walk.h"

static const tt_gpu *gpu_facts(const tt_wires *w, int node)
{
    return &w->machine->gpus[w->nodes[node].index];
}

/* Ends of ways are numbered GPUs, nets, the switch. */
static int end_of(const tt_walk *w, int node)
{
    return node == w->wires->nvs ? w->ends - 1 : node;
}

static int node_of(const tt_walk *w, int end)
{
    return end < w->wires->n_gpus + w->wires->n_nets ? end : w->wires->nvs;
}

static tt_way way_between(const tt_walk *w, int from, int to)
{
    const tt_wires *x = w->wires;
    size_t gpus = (size_t)x->n_gpus, nets = (size_t)x->n_nets;
    const tt_route *route;

    if (from < x->n_gpus && to < x->n_gpus)
        return w->ways->gpu_gpu[(size_t)from * gpus + (size_t)to];
    if (from < x->n_gpus && to < x->n_gpus + x->n_nets)
        return w->ways->gpu_net[(size_t)from * nets + (size_t)to - gpus];
    if (to < x->n_gpus && from < x->n_gpus + x->n_nets)
        return w->ways->net_gpu[((size_t)from - gpus) * gpus + (size_t)to];
    route = tt_route_to(x, from, to);
    return (tt_way){route->gbps, -1, route->hops, route->type};
}

/* What goes in the other direction: GPUs before Ampere answer what comes from the network, and
 * POWER's NVLink to the processor is one budget for both. */
static float backflow(const tt_wires *x, int start, const tt_wire *wire)
{
    const tt_node *far = &x->nodes[wire->to];
    float back = 0;

    if (far->kind == TT_N_GPU && gpu_facts(x, wire->to)->sm < 80 &&
        x->nodes[start].kind != TT_N_GPU)
        back += 0.125f;
    if (far->kind == TT_N_CPU && x->machine->numa[far->index].arch == TT_ARCH_POWER &&
        wire->type == TT_W_NVL)
        back += 1;
    return back;
}

static bool is_intel(const tt_wires *x, int node)
{
    const tt_numa *numa = &x->machine->numa[x->nodes[node].index];

    return x->nodes[node].kind == TT_N_CPU && numa->arch == TT_ARCH_X86 &&
           numa->vendor == TT_VENDOR_INTEL;
}

/* Appends the wires of the route from a node to a base. */
static tutti_status collect(tt_walk *w, tt_flow *flow, int start, int from, int base)
{
    const tt_wires *x = w->wires;

    for (int node = from; node != base;) {
        int32_t at = tt_route_to(x, node, base)->wire;
        const tt_wire *wire = &x->wires[at];
        tt_flow_wire entry = {at, -1, 0, wire->type == TT_W_PCI};

        TT_TRY(tt_grow(&w->flow_wires, &w->cap_flow_wires, w->n_flow_wires + 1,
                       sizeof *w->flow_wires));
        entry.back_share = backflow(x, start, wire);
        entry.back = entry.back_share > 0 ? wire->back : -1;
        flow->intel = flow->intel || (flow->type == TUTTI_PATH_PHB &&
                                      x->nodes[start].kind == TT_N_GPU && is_intel(x, wire->to));
        w->flow_wires[w->n_flow_wires++] = entry;
        flow->n++;
        node = wire->to;
    }
    return TUTTI_OK;
}

static tutti_status make_flow(tt_walk *w, int from, int to, tt_flow *flow)
{
    tt_way way = way_between(w, from, to);

    *flow = (tt_flow){.first = (int32_t)w->n_flow_wires, .hops = way.hops, .type = way.type};
    flow->back_type = way_between(w, to, from).type;
    if (way.type >= TUTTI_PATH_DIS || from == to)
        return TUTTI_OK;
    if (way.via < 0)
        return collect(w, flow, from, from, to);
    TT_TRY(collect(w, flow, from, from, way.via));
    return collect(w, flow, from, way.via, to);
}

/* Ports of one rail have one GUID (without: one number) and port. */
static bool is_rail(const tt_machine *m, int one, int two)
{
    const tt_nic *a = &m->nics[one], *b = &m->nics[two];

    if (a->port != b->port || a->has_guid != b->has_guid)
        return false;
    return a->has_guid ? a->guid == b->guid
                       : a->dev == b->dev && m->numa[a->numa].system == m->numa[b->numa].system;
}

static tutti_status prepare_nets(tt_walk *w)
{
    const tt_machine *m = w->wires->machine;

    TT_TRY(tt_calloc((size_t)w->wires->n_nets, sizeof(float), &w->net_left));
    TT_TRY(tt_calloc((size_t)w->wires->n_nets, sizeof(int32_t), &w->rail));
    TT_TRY(tt_calloc((size_t)w->wires->n_gpus + 1, sizeof *w->nets, &w->nets));
    w->nets_type = -1;
    for (int i = 0; i < w->wires->n_nets; i++) {
        w->net_left[i] = m->nics[i].gbps;
        while (w->rail[i] < i && !is_rail(m, w->rail[i], i))
            w->rail[i]++;
    }
    return TUTTI_OK;
}

/* Ties stay in the order of numbers from the GPU's own on. */
static tutti_status prepare_order(tt_walk *w)
{
    int n = w->wires->n_gpus;

    TT_TRY(tt_calloc((size_t)n * (size_t)n, sizeof *w->order, &w->order));
    for (int gpu = 0; gpu < n; gpu++) {
        int16_t *order = &w->order[gpu * n];
        int count = 0;

        for (int i = 1; i < n; i++) {
            int other = (gpu + i) % n, at = count;

            if (w->ways->gpu_gpu[gpu * n + other].hops == 0)
                continue;
            for (; at > 0 && tt_walk_order(w, gpu, other, order[at - 1]) < 0; at--)
                order[at] = order[at - 1];
            order[at] = (int16_t)other;
            count++;
        }
        for (; count < n; count++)
            order[count] = -1;
    }
    return TUTTI_OK;
}

tutti_status tt_walk_prepare(tt_walk *w)
{
    const tt_wires *x = w->wires;
    size_t ends;

    w->ends = x->n_gpus + x->n_nets + 1;
    ends = (size_t)w->ends;
    TT_TRY(tt_calloc(ends * ends, sizeof *w->flows, &w->flows));
    TT_TRY(tt_calloc((size_t)x->n_wires, sizeof(float), &w->left));
    TT_TRY(prepare_nets(w));
    TT_TRY(prepare_order(w));
    for (int i = 0; i < x->n_wires; i++)
        w->left[i] = x->wires[i].gbps;
    for (int from = 0; from < w->ends; from++)
        for (int to = 0; to < w->ends; to++) {
            bool gpu = from < x->n_gpus || to < x->n_gpus;

            if (gpu && node_of(w, from) >= 0 && node_of(w, to) >= 0)
                TT_TRY(make_flow(w, node_of(w, from), node_of(w, to),
                                 &w->flows[(size_t)from * ends + (size_t)to]));
        }
    return TUTTI_OK;
}

void tt_walk_clear(tt_walk *w)
{
    free(w->flows);
    free(w->flow_wires);
    free(w->left);
    free(w->net_left);
    free(w->rail);
    free(w->order);
    free(w->nets);
}

/* To thousandths, halves away from zero. */
static void take(float *left, float gbps)
{
    float thousandths = (*left - gbps) * 1000;

    *left = (float)(int)(thousandths + (thousandths >= 0 ? 0.5f : -0.5f)) / 1000;
}

/* Takes from up to n wires of a way and returns how many had as much. */
static int take_along(tt_walk *w, const tt_flow *flow, int n, float gbps, float pcie)
{
    for (int i = 0; i < n; i++) {
        const tt_flow_wire *wire = &w->flow_wires[flow->first + i];
        float forth = wire->pcie ? pcie : gbps, back = forth * wire->back_share;

        if (w->left[wire->wire] < forth || (back != 0 && w->left[wire->back] < back))
            return i;
        take(&w->left[wire->wire], forth);
        if (back != 0)
            take(&w->left[wire->back], back);
    }
    return n;
}

static bool is_tree(tt_shape shape)
{
    return shape == TT_SHAPE_BALANCED_TREE || shape == TT_SHAPE_TREE;
}

bool tt_walk_follow(tt_walk *w, int from, int to, float times)
{
    const tt_flow *flow = &w->flows[end_of(w, from) * w->ends + end_of(w, to)];
    int from_kind = w->wires->nodes[from].kind, to_kind = w->wires->nodes[to].kind;
    bool intra = from_kind != TT_N_NET && to_kind != TT_N_NET;
    int worst = intra ? w->now.type_intra : w->now.type_inter, done;
    float gbps = (intra ? w->now.intra : w->now.inter) * times;
    float pcie = flow->intel ? gbps * 6 / 5 : gbps;

    if (flow->type >= TUTTI_PATH_DIS)
        return false;
    if (times == 1 && (flow->type > worst || (is_tree(w->now.shape) && flow->back_type > worst)))
        return false;
    done = take_along(w, flow, flow->n, gbps, pcie);
    if (done < flow->n) {
        (void)take_along(w, flow, done, -gbps, -pcie);
        return false;
    }
    w->now.hops += (int)(times * (float)flow->hops);
    return true;
}
