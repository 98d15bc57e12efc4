/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ways over the wires, NVLink by cuts.
 *
 * A ring passes every cut of its members at least once in each direction, so the narrowest cut
 * bounds what all rings together carry; NCCL's search comes close to the bound on the machines
 * there are. It is cheap enough to be asked for every group of every placement that is tried, which
 * the search itself (graph.c) is not. Up to CUT_GPUS members all cuts are tried, beyond that those
 * that part one GPU from the rest, which is exact where a switch joins them.
 */
#include "topo/fabric.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

enum { CUT_GPUS = 8 };

static void find_nvlinks(tt_fabric *f)
{
    const tt_machine *m = f->machine;
    for (int l = 0; l < m->n_nvlinks; l++) {
        const tt_nvlink *link = &m->nvlinks[l];
        if (link->peer == TT_PEER_GPU)
            f->direct[link->gpu * m->n_gpus + link->peer_gpu] += link->gbps;
        else if (link->peer == TT_PEER_SWITCH)
            f->uplink[link->gpu] += link->gbps;
    }
}

tutti_status tt_fabric_create(const tt_machine *machine, tt_fabric **fabric_out)
{
    tt_fabric *f = NULL;
    size_t gpus = (size_t)machine->n_gpus;
    TT_TRY(tt_calloc(1, sizeof *f, &f));
    f->machine = machine;
    tutti_status status = tt_wires_make(machine, NULL, 0, true, &f->wires);
    if (status == TUTTI_OK)
        status = tt_calloc(gpus * gpus, sizeof(float), &f->direct);
    if (status == TUTTI_OK)
        status = tt_calloc(gpus, sizeof(float), &f->uplink);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)1 << CUT_GPUS, sizeof(float), &f->cut);
    if (status != TUTTI_OK)
        goto destroy_f;
    for (int i = 0; i < 1 << CUT_GPUS; i++)
        f->cut[i] = -1;
    find_nvlinks(f);
    *fabric_out = f;
    return TUTTI_OK;
destroy_f:
    tt_fabric_destroy(f);
    return status;
}

void tt_fabric_destroy(tt_fabric *fabric)
{
    if (fabric == NULL)
        return;
    tt_wires_free(fabric->wires);
    free(fabric->direct);
    free(fabric->uplink);
    free(fabric->cut);
    free(fabric);
}

/* Appends the wires from a node to a base; returns the new length. */
static int follow(const tt_wires *w, int node, int base, int way[TT_WAY_MAX], int n)
{
    while (node != base && n < TT_WAY_MAX) {
        const tt_route *route = tt_route_to(w, node, base);
        if (route->wire < 0)
            break;
        way[n++] = route->wire;
        node = w->wires[route->wire].to;
    }
    return n;
}

static int follow_by(const tt_wires *w, int from, int by, int to, int way[TT_WAY_MAX])
{
    int n = by < 0 ? 0 : follow(w, from, by, way, 0);
    return follow(w, by < 0 ? from : by, to, way, n);
}

int tt_fabric_way(const tt_fabric *fabric, int a, int b, int way[TT_WAY_MAX])
{
    const tt_wires *w = fabric->wires;
    bool direct = fabric->machine->paths->p2p[a * fabric->machine->n_gpus + b] != 0;
    return follow_by(w, a, direct ? -1 : tt_wires_local_cpu(w, a), b, way);
}

int tt_fabric_way_nic(const tt_fabric *fabric, int gpu, int nic, bool out, int way[TT_WAY_MAX])
{
    const tt_wires *w = fabric->wires;
    bool direct = fabric->machine->paths->gdr[gpu * fabric->machine->n_nics + nic] != 0;
    int net = tt_net_node(w, nic), by = direct ? -1 : tt_wires_local_cpu(w, gpu);
    return follow_by(w, out ? gpu : net, by, out ? net : gpu, way);
}

static float cut_of(const tt_fabric *f, const int *gpus, int n, unsigned side)
{
    float across = 0, up[2] = {0, 0};
    for (int i = 0; i < n; i++) {
        up[side >> i & 1] += f->uplink[gpus[i]];
        for (int j = 0; j < n; j++)
            if ((side >> i & 1) != 0 && (side >> j & 1) == 0)
                across += f->direct[gpus[i] * f->machine->n_gpus + gpus[j]];
    }
    return across + (up[0] < up[1] ? up[0] : up[1]);
}

static float narrowest(const tt_fabric *f, const int *gpus, int n)
{
    float least = -1;
    if (n <= CUT_GPUS) {
        for (unsigned side = 1; side < 1u << (n - 1); side++) {
            float cut = cut_of(f, gpus, n, side);
            least = least < 0 || cut < least ? cut : least;
        }
        return least;
    }
    for (int i = 0; i < n; i++) {
        float cut = f->uplink[gpus[i]];
        for (int j = 0; j < n; j++)
            cut += f->direct[gpus[i] * f->machine->n_gpus + gpus[j]];
        least = least < 0 || cut < least ? cut : least;
    }
    return least;
}

float tt_fabric_island(tt_fabric *fabric, const int *gpus, int n)
{
    unsigned set = 0;
    if (n < 2)
        return 0;
    for (int i = 0; i < n; i++)
        if (fabric->machine->paths->island[gpus[i]] != fabric->machine->paths->island[gpus[0]])
            return 0;
    for (int i = 0; i < n; i++) {
        if (gpus[i] >= CUT_GPUS)
            return narrowest(fabric, gpus, n);
        set |= 1u << gpus[i];
    }
    if (fabric->cut[set] < 0)
        fabric->cut[set] = narrowest(fabric, gpus, n);
    return fabric->cut[set];
}
