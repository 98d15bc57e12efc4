/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths of a machine in the form that the rest of the library reads: matrices by GPU, NIC and
 * domain. Routes and rules are wires.c's and ways.c's; their graph is dropped here, since nothing
 * but the search for channels needs it again.
 *
 * Between hosts nothing is stored: 8,192 GPUs would have 67 million pairs, and each follows from
 * two rows of the hosts' own.
 */
#include "topo/paths.h"

#include <stdlib.h>

#include "core/mem.h"
#include "topo/wires.h"

const char *tt_path_name(tutti_path_type type)
{
    static const char *const names[] = {"LOC", "NVL", "NVB", "C2C", "PIX", "PXB",
                                        "P2C", "PXN", "PHB", "SYS", "NET", "DIS"};

    return (size_t)type < sizeof names / sizeof *names ? names[type] : "?";
}

void tt_paths_free(tt_paths *paths)
{
    if (paths == NULL)
        return;
    free(paths->gpu_gpu);
    free(paths->gpu_nic);
    free(paths->gpu_numa);
    free(paths->raw_gpu_gpu);
    free(paths->raw_gpu_nic);
    free(paths->p2p);
    free(paths->gdr);
    free(paths->nics);
    free(paths->n_local);
    free(paths->nic_first);
    free(paths->nic_count);
    free(paths->island);
    free(paths);
}

static tutti_status allocate(tt_paths *p)
{
    size_t gpus = (size_t)p->n_gpus, nics = (size_t)p->n_nics;

    TT_TRY(tt_calloc(gpus * gpus, sizeof(tt_path), &p->gpu_gpu));
    TT_TRY(tt_calloc(gpus * nics, sizeof(tt_path), &p->gpu_nic));
    TT_TRY(tt_calloc(gpus * (size_t)p->n_numa, sizeof(tt_path), &p->gpu_numa));
    TT_TRY(tt_calloc(gpus * gpus, sizeof(tt_path), &p->raw_gpu_gpu));
    TT_TRY(tt_calloc(gpus * nics, sizeof(tt_path), &p->raw_gpu_nic));
    TT_TRY(tt_calloc(gpus, gpus, &p->p2p));
    TT_TRY(tt_calloc(gpus, nics, &p->gdr));
    TT_TRY(tt_calloc(gpus * nics, sizeof(int32_t), &p->nics));
    TT_TRY(tt_calloc(gpus, sizeof(int32_t), &p->n_local));
    TT_TRY(tt_calloc(gpus, sizeof(int32_t), &p->nic_first));
    TT_TRY(tt_calloc(gpus, sizeof(int32_t), &p->nic_count));
    return tt_calloc(gpus, sizeof(int32_t), &p->island);
}

/* The GPU in between: where the first wire of an NVB route leads, or the relay of PXN. */
static int16_t gpu_between(const tt_wires *w, int from, int to, const tt_way *way)
{
    const tt_route *route = tt_route_to(w, from, to);

    if (way->via >= 0)
        return w->nodes[way->via].kind == TT_N_GPU ? (int16_t)way->via : -1;
    if (way->type != TUTTI_PATH_NVB || route->wire < 0)
        return -1;
    return w->nodes[w->wires[route->wire].to].kind == TT_N_GPU ? (int16_t)w->wires[route->wire].to
                                                               : -1;
}

static tt_path path_of(const tt_wires *w, int from, int to, const tt_way *way)
{
    return (tt_path){way->gbps, way->hops, way->type, gpu_between(w, from, to, way)};
}

static tt_path raw_path(const tt_wires *w, int from, int to)
{
    const tt_route *route = tt_route_to(w, from, to);
    tt_way way = {route->gbps, -1, route->hops, route->type};

    return path_of(w, from, to, &way);
}

static void fill_gpu(tt_paths *p, const tt_ways *ways, int g)
{
    const tt_wires *w = ways->wires;
    size_t row = (size_t)g * (size_t)p->n_gpus, nets = (size_t)g * (size_t)p->n_nics;

    for (int to = 0; to < p->n_gpus; to++) {
        const tt_way *way = &ways->gpu_gpu[row + (size_t)to];

        p->gpu_gpu[row + (size_t)to] = path_of(w, g, to, way);
        p->raw_gpu_gpu[row + (size_t)to] = raw_path(w, g, to);
        p->p2p[row + (size_t)to] = way->via < 0 && way->type < TUTTI_PATH_NET;
    }
    for (int n = 0; n < p->n_nics; n++) {
        p->gpu_nic[nets + (size_t)n] =
            path_of(w, g, tt_net_node(w, n), &ways->gpu_net[nets + (size_t)n]);
        p->raw_gpu_nic[nets + (size_t)n] = raw_path(w, g, tt_net_node(w, n));
        p->gdr[nets + (size_t)n] = tt_ways_gdr(ways, g, n);
    }
    for (int c = 0; c < p->n_numa; c++)
        p->gpu_numa[(size_t)g * (size_t)p->n_numa + (size_t)c] = raw_path(w, g, tt_cpu_node(w, c));
    p->nic_first[g] = tt_ways_net(ways, g, 0);
    p->nic_count[g] = tt_ways_net_count(ways, g);
    if (p->n_nics > 0)
        p->n_local[g] = tt_ways_local_nets(ways, g, &p->nics[nets]);
}

int tt_paths_groups(const tt_paths *paths, tutti_path_type worst, int32_t *group_out)
{
    int stack[TT_TOPO_MAX_GPUS], n = paths->n_gpus, groups = 0;

    for (int g = 0; g < n; g++)
        group_out[g] = -1;
    for (int g = 0; g < n; g++) {
        int depth = 0;

        if (group_out[g] >= 0)
            continue;
        stack[depth++] = g;
        group_out[g] = groups;
        while (depth > 0) {
            int from = stack[--depth];

            for (int to = 0; to < n; to++)
                if (group_out[to] < 0 && paths->gpu_gpu[from * n + to].type <= worst) {
                    group_out[to] = groups;
                    stack[depth++] = to;
                }
        }
        groups++;
    }
    return groups;
}

tutti_status tt_paths_compute(const tt_machine *machine, const tt_path_rules *rules,
                              tt_paths **paths_out)
{
    tt_paths *p;
    tt_wires *wires = NULL;
    tt_ways *ways = NULL;
    tutti_status status;

    TT_TRY(tt_calloc(1, sizeof *p, &p));
    p->n_gpus = machine->n_gpus;
    p->n_nics = machine->n_nics;
    p->n_numa = machine->n_numa;
    status = allocate(p);
    if (status == TUTTI_OK)
        status = tt_wires_make(machine, NULL, 0, !rules->nvb_disable, &wires);
    if (status == TUTTI_OK)
        status = tt_ways_make(wires, rules, &ways);
    if (status != TUTTI_OK)
        goto free_paths;
    for (int g = 0; g < p->n_gpus; g++)
        fill_gpu(p, ways, g);
    tt_ways_limits(ways, false, &p->max_gbps, &p->total_gbps);
    p->n_islands = tt_paths_groups(p, TUTTI_PATH_NVB, p->island);
    tt_ways_free(ways);
    tt_wires_free(wires);
    *paths_out = p;
    return TUTTI_OK;

free_paths:
    tt_ways_free(ways);
    tt_wires_free(wires);
    tt_paths_free(p);
    return status;
}

int tt_paths_nic(const tt_machine *machine, int gpu, int channel)
{
    const tt_paths *p = machine->paths;
    const int32_t *local = &p->nics[(size_t)gpu * (size_t)p->n_nics];
    int at = 0;

    if (p->nic_first[gpu] < 0)
        return -1;
    while (local[at] != p->nic_first[gpu])
        at++;
    return local[(at + channel % p->nic_count[gpu]) % p->n_local[gpu]];
}

/* GB/s of a GPU's links into the switch fabric. */
static float into_switch(const tt_machine *m, int gpu)
{
    float gbps = 0;

    for (int i = 0; i < m->n_nvlinks; i++)
        if (m->nvlinks[i].gpu == gpu && m->nvlinks[i].peer == TT_PEER_SWITCH)
            gbps += m->nvlinks[i].gbps;
    return gbps;
}

static const tt_path *first_nic_path(const tt_machine *m, int gpu)
{
    int nic = m->paths->nic_first[gpu];

    return nic < 0 ? NULL : &m->paths->gpu_nic[(size_t)gpu * (size_t)m->n_nics + (size_t)nic];
}

tt_path tt_topo_path_between(const tutti_topo *topo, int host_a, int gpu_a, int host_b, int gpu_b)
{
    const tt_machine *a = tt_topo_machine_of(topo, host_a), *b = tt_topo_machine_of(topo, host_b);
    const tt_path *one, *two;

    if (host_a == host_b)
        return a->paths->gpu_gpu[(size_t)gpu_a * (size_t)a->n_gpus + (size_t)gpu_b];
    if (tt_topo_same_fabric(topo, host_a, host_b)) {
        float out = into_switch(a, gpu_a), in = into_switch(b, gpu_b);

        if (out > 0 && in > 0)
            return (tt_path){out < in ? out : in, 2, TUTTI_PATH_NVL, -1};
    }
    one = first_nic_path(a, gpu_a);
    two = first_nic_path(b, gpu_b);
    if (one == NULL || two == NULL)
        return (tt_path){0, 0, TUTTI_PATH_DIS, -1};
    return (tt_path){one->gbps < two->gbps ? one->gbps : two->gbps,
                     (uint16_t)(one->hops + two->hops), TUTTI_PATH_NET, -1};
}
