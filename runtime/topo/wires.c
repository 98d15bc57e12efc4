/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The graph and its routes. Ties between equal ways are decided by the order of a node's wires, and
 * the channels that a search finds depend on them, so the order is NCCL's: fastest first, then as
 * described, the way up last.
 *
 * Wires are collected per node in lists kept sorted while inserting, then laid flat. A PCI function
 * beneath which no GPU and no NIC hangs is left out: nothing passes it. Cost: one search per base
 * over all wires.
 */
#include "topo/wires.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

typedef struct list {
    tt_wire *wires;
    size_t n, cap;
} list;

typedef struct builder {
    const tt_machine *m;
    tt_node *nodes;
    list *lists;
    int32_t *pci_node, *gpu_node; /* of a PCI index, of a GPU index; -1 */
    int32_t *card_node; /* by card number */
    int32_t *parent; /* of a node; -1 */
    int n_nodes, cap, n_cards;
    int first_cpu, nvs;
} builder;

static int add_node(builder *b, tt_node_kind kind, int index)
{
    b->nodes[b->n_nodes] = (tt_node){.index = index, .kind = (uint8_t)kind};
    b->parent[b->n_nodes] = -1;
    return b->n_nodes++;
}

/* Wires of one pair and type add up. The list stays sorted, fastest first, equal ones in order. */
static tutti_status connect(builder *b, int from, int to, tt_wire_type type, float gbps)
{
    list *l = &b->lists[from];
    tt_wire wire = {to, -1, gbps, (uint8_t)type};
    size_t at = 0;

    while (at < l->n && (l->wires[at].to != to || l->wires[at].type != type))
        at++;
    if (at < l->n) {
        wire.gbps += l->wires[at].gbps;
    } else {
        TT_TRY(tt_grow(&l->wires, &l->cap, l->n + 1, sizeof *l->wires));
        l->n++;
    }
    for (; at > 0 && l->wires[at - 1].gbps < wire.gbps; at--)
        l->wires[at] = l->wires[at - 1];
    l->wires[at] = wire;
    return TUTTI_OK;
}

static tutti_status connect_both(builder *b, int one, int two, tt_wire_type type, float gbps)
{
    TT_TRY(connect(b, one, two, type, gbps));
    return connect(b, two, one, type, gbps);
}

/* Broadcom switches that show two levels and have full speed across: 4 and 5 are the generation of
 * the upper (level 0) or lower (level 1) one, 0 for anything else. */
static int broadcom(const tt_pci *pci, int level)
{
    uint16_t sub = pci->sub_device & 0xf000;

    if (pci->vendor != 0x1000 || pci->sub_vendor != 0x1000)
        return 0;
    if (pci->device == 0xc010 && sub == 0xa000)
        return 4;
    return pci->device == 0xc030 && sub == (level == 0 ? 0 : 0x1000) ? 5 : 0;
}

/* The switch that a device's wire goes to: a lower Broadcom switch is passed over. */
static int32_t upper(const tt_machine *m, int32_t pci)
{
    int32_t up = m->pci[pci].parent;
    int gen = broadcom(&m->pci[pci], 1);

    if (gen == 0 || up < 0 || broadcom(&m->pci[up], 0) != gen)
        return pci;
    /* Three levels are not flattened twice. */
    if (gen == 4 && m->pci[up].parent >= 0 && broadcom(&m->pci[m->pci[up].parent], 0) == 4)
        return pci;
    return up;
}

static bool is_switch(const tt_pci *pci)
{
    return pci->kind == TT_PCI_BRIDGE || pci->kind == TT_PCI_OTHER;
}

/* Marks, in pci_node, the switches above GPUs and NICs with -2. */
static void mark_used(builder *b, const int *gpus, int n)
{
    const tt_machine *m = b->m;

    for (int i = 0; i < n; i++)
        for (int32_t p = m->gpus[gpus[i]].pci; p >= 0; p = m->pci[p].parent)
            b->pci_node[p] = -2;
    for (int i = 0; i < m->n_nics; i++)
        for (int32_t p = m->nics[i].pci; p >= 0; p = m->pci[p].parent)
            b->pci_node[p] = -2;
}

/* The node above a PCI function, or above the NUMA domain itself. */
static int above(const builder *b, int32_t pci, int32_t numa)
{
    int32_t up = pci >= 0 ? b->m->pci[pci].parent : -1;

    while (up >= 0) {
        int32_t sw = upper(b->m, up);

        if (b->pci_node[sw] >= 0)
            return b->pci_node[sw];
        up = b->m->pci[sw].parent;
    }
    return b->first_cpu + numa;
}

static void add_nodes(builder *b, const int *gpus, int n)
{
    const tt_machine *m = b->m;

    for (int i = 0; i < n; i++)
        b->gpu_node[gpus[i]] = add_node(b, TT_N_GPU, gpus[i]);
    for (int i = 0; i < m->n_nics; i++)
        (void)add_node(b, TT_N_NET, i);
    b->first_cpu = b->n_nodes;
    for (int i = 0; i < m->n_numa; i++)
        (void)add_node(b, TT_N_CPU, i);
    b->nvs = -1;
    for (int i = 0; i < m->n_nvlinks && b->nvs < 0; i++)
        if (m->nvlinks[i].peer == TT_PEER_SWITCH && b->gpu_node[m->nvlinks[i].gpu] >= 0)
            b->nvs = add_node(b, TT_N_NVS, 0);
    for (int i = 0; i < m->n_pci; i++) {
        bool used = b->pci_node[i] == -2;

        b->pci_node[i] = -1;
        if (used && is_switch(&m->pci[i]) && upper(m, i) == i)
            b->pci_node[i] = add_node(b, TT_N_PCI, i);
    }
}

static tutti_status hang(builder *b, int node, int parent, tt_wire_type type, float gbps)
{
    b->parent[node] = parent;
    return connect_both(b, node, parent, type, gbps);
}

/* A PCI function's device: the GPU, or the card with its ports. */
static tutti_status wire_function(builder *b, int32_t pci)
{
    const tt_machine *m = b->m;
    const tt_pci *p = &m->pci[pci];

    if (b->pci_node[pci] >= 0)
        return hang(b, b->pci_node[pci], above(b, pci, p->numa), TT_W_PCI, p->gbps);
    for (int i = 0; i < m->n_gpus; i++)
        if (m->gpus[i].pci == pci && b->gpu_node[i] >= 0)
            TT_TRY(hang(b, b->gpu_node[i], above(b, pci, p->numa), TT_W_PCI, p->gbps));
    for (int i = 0; i < m->n_nics; i++) {
        const tt_nic *nic = &m->nics[i];

        if (nic->pci != pci || nic->card < 0 || nic->card >= b->n_cards)
            continue;
        if (b->card_node[nic->card] < 0) {
            b->card_node[nic->card] = add_node(b, TT_N_CARD, nic->card);
            TT_TRY(hang(b, b->card_node[nic->card], above(b, pci, p->numa), TT_W_PCI, p->gbps));
        }
    }
    return TUTTI_OK;
}

/* Devices without a PCI function hang on their NUMA domain: a GPU as at an unknown slot, a card
 * without any limit. */
static tutti_status wire_loose(builder *b)
{
    const tt_machine *m = b->m;

    for (int i = 0; i < m->n_gpus; i++)
        if (m->gpus[i].pci < 0 && b->gpu_node[i] >= 0)
            TT_TRY(hang(b, b->gpu_node[i], b->first_cpu + m->gpus[i].numa, TT_W_PCI, 12.0f));
    for (int i = 0; i < m->n_nics; i++) {
        const tt_nic *nic = &m->nics[i];

        if (nic->card < 0 || nic->card >= b->n_cards)
            return tt_fail(TUTTI_ERR_CORRUPT, "NIC %d is of no card", i);
        if (nic->pci < 0 && b->card_node[nic->card] < 0) {
            b->card_node[nic->card] = add_node(b, TT_N_CARD, nic->card);
            TT_TRY(hang(b, b->card_node[nic->card], b->first_cpu + nic->numa, TT_W_PCI, 5000.0f));
        }
    }
    for (int i = 0; i < m->n_nics; i++)
        TT_TRY(connect_both(b, b->first_cpu - m->n_nics + i, b->card_node[m->nics[i].card],
                            TT_W_NET, m->nics[i].gbps));
    return TUTTI_OK;
}

static tutti_status wire_nvlinks(builder *b)
{
    const tt_machine *m = b->m;

    for (int i = 0; i < m->n_nvlinks; i++) {
        const tt_nvlink *link = &m->nvlinks[i];
        int node = b->gpu_node[link->gpu];

        if (node < 0 || link->peer == TT_PEER_MISSING || link->count == 0)
            continue;
        if (link->peer == TT_PEER_SWITCH)
            TT_TRY(connect_both(b, node, b->nvs, TT_W_NVL, link->gbps));
        else if (link->peer == TT_PEER_CPU)
            TT_TRY(connect_both(b, node, b->first_cpu + m->gpus[link->gpu].numa, TT_W_NVL,
                                link->gbps));
        else if (b->gpu_node[link->peer_gpu] >= 0) /* the far end connects itself back */
            TT_TRY(connect(b, node, b->gpu_node[link->peer_gpu], TT_W_NVL, link->gbps));
    }
    for (int i = 0; i < m->n_gpus; i++) {
        const tt_gpu *gpu = &m->gpus[i];

        if (b->gpu_node[i] >= 0 && gpu->c2c_links != 0)
            TT_TRY(connect_both(b, b->gpu_node[i], b->first_cpu + gpu->numa, TT_W_C2C,
                                (float)((double)gpu->c2c_links * gpu->c2c_mbps / 1000.0)));
    }
    for (int i = 0; i < m->n_pcilinks; i++) {
        int one = b->pci_node[m->pcilinks[i].a], two = b->pci_node[m->pcilinks[i].b];

        if (one >= 0 && two >= 0 && one != two)
            TT_TRY(connect(b, one, two, TT_W_LOC, 5000.0f));
    }
    return TUTTI_OK;
}

/* GB/s between two NUMA domains of a host, by the first one's processor. */
static float between_domains(const tt_numa *numa)
{
    if (numa->arch == TT_ARCH_POWER)
        return 32;
    if (numa->arch == TT_ARCH_ARM)
        return 6;
    if (numa->arch != TT_ARCH_X86)
        return 5000;
    if (numa->vendor == TT_VENDOR_AMD)
        return 16;
    if (numa->vendor == TT_VENDOR_ZHAOXIN)
        return numa->family == 7 && numa->model == 0x5b ? 9 : 6;
    if (numa->vendor != TT_VENDOR_INTEL)
        return 5000;
    if (numa->family != 6 || numa->model < 0x55)
        return 6;
    return numa->model >= 0xcf ? 40.0f : numa->model >= 0x8f ? 22.0f : 10.0f;
}

static tutti_status wire_domains(builder *b)
{
    const tt_machine *m = b->m;

    for (int i = 0; i < m->n_numa; i++)
        for (int j = 0; j < m->n_numa; j++)
            if (i != j && m->numa[i].system == m->numa[j].system)
                TT_TRY(connect(b, b->first_cpu + i, b->first_cpu + j, TT_W_SYS,
                               between_domains(&m->numa[i])));
    return TUTTI_OK;
}

/* The first wire to the node above goes last. */
static void sink_parent(builder *b, int node)
{
    list *l = &b->lists[node];
    size_t at = 0;
    tt_wire up;

    if (b->parent[node] < 0)
        return;
    while (at < l->n && l->wires[at].to != b->parent[node])
        at++;
    if (at == l->n)
        return;
    up = l->wires[at];
    memmove(&l->wires[at], &l->wires[at + 1], (l->n - at - 1) * sizeof up);
    l->wires[l->n - 1] = up;
}

static tutti_status lay_flat(builder *b, tt_wires *w)
{
    size_t total = 0;
    int at = 0;

    for (int i = 0; i < b->n_nodes; i++) {
        if (b->nodes[i].kind != TT_N_NET)
            sink_parent(b, i);
        total += b->lists[i].n;
    }
    TT_TRY(tt_calloc(total, sizeof *w->wires, &w->wires));
    for (int i = 0; i < b->n_nodes; i++) {
        b->nodes[i].first = at;
        b->nodes[i].n = (int32_t)b->lists[i].n;
        for (size_t l = 0; l < b->lists[i].n; l++)
            b->nodes[i].n_sys =
                (uint16_t)(b->nodes[i].n_sys + (b->lists[i].wires[l].type == TT_W_SYS));
        if (b->lists[i].n != 0)
            memcpy(&w->wires[at], b->lists[i].wires, b->lists[i].n * sizeof *w->wires);
        at += b->nodes[i].n;
    }
    w->n_wires = at;
    for (int i = 0; i < b->n_nodes; i++)
        for (int l = b->nodes[i].first; l < b->nodes[i].first + b->nodes[i].n; l++) {
            const tt_node *far = &b->nodes[w->wires[l].to];

            for (int r = far->first; r < far->first + far->n && w->wires[l].back < 0; r++)
                if (w->wires[r].to == i && w->wires[r].type == w->wires[l].type)
                    w->wires[l].back = r;
        }
    return TUTTI_OK;
}

static void builder_free(builder *b)
{
    for (int i = 0; i < b->cap && b->lists != NULL; i++)
        free(b->lists[i].wires);
    free(b->lists);
    free(b->pci_node);
    free(b->gpu_node);
    free(b->card_node);
    free(b->parent);
    free(b->nodes);
}

static tutti_status builder_make(const tt_machine *m, builder *b)
{
    *b = (builder){.m = m};
    for (int i = 0; i < m->n_nics; i++)
        if (m->nics[i].card >= b->n_cards)
            b->n_cards = m->nics[i].card + 1;
    if (b->n_cards > 2 * TT_TOPO_MAX_PCI)
        return tt_fail(TUTTI_ERR_CORRUPT, "a NIC has card number %d", b->n_cards - 1);
    b->cap = m->n_gpus + 2 * m->n_nics + m->n_numa + 1 + m->n_pci;
    TT_TRY(tt_calloc((size_t)b->cap, sizeof *b->nodes, &b->nodes));
    TT_TRY(tt_calloc((size_t)b->cap, sizeof *b->lists, &b->lists));
    TT_TRY(tt_calloc((size_t)b->cap, sizeof(int32_t), &b->parent));
    TT_TRY(tt_calloc((size_t)m->n_pci, sizeof(int32_t), &b->pci_node));
    TT_TRY(tt_calloc((size_t)m->n_gpus, sizeof(int32_t), &b->gpu_node));
    TT_TRY(tt_calloc((size_t)b->n_cards, sizeof(int32_t), &b->card_node));
    memset(b->pci_node, -1, (size_t)m->n_pci * sizeof(int32_t));
    memset(b->gpu_node, -1, (size_t)m->n_gpus * sizeof(int32_t));
    memset(b->card_node, -1, (size_t)b->n_cards * sizeof(int32_t));
    return TUTTI_OK;
}

static tutti_status build(builder *b, const int *gpus, int n, tt_wires *w)
{
    mark_used(b, gpus, n);
    add_nodes(b, gpus, n);
    for (int i = 0; i < b->m->n_pci; i++)
        TT_TRY(wire_function(b, i));
    TT_TRY(wire_loose(b));
    TT_TRY(wire_nvlinks(b));
    TT_TRY(wire_domains(b));
    TT_TRY(lay_flat(b, w));
    w->n_nodes = b->n_nodes;
    w->n_gpus = n;
    w->n_nets = b->m->n_nics;
    w->n_cpus = b->m->n_numa;
    w->nvs = b->nvs;
    w->n_bases = n + w->n_nets + w->n_cpus + (b->nvs >= 0 ? 1 : 0);
    w->nodes = b->nodes;
    b->nodes = NULL;
    return TUTTI_OK;
}

static uint8_t hop_type(const tt_wires *w, int from, const tt_wire *wire, const tt_route *before,
                        int hops)
{
    int kind = w->nodes[from].kind, far = w->nodes[wire->to].kind;
    uint8_t type = wire->type == TT_W_NET ? (uint8_t)TUTTI_PATH_LOC : wire->type;

    if (kind == TT_N_PCI && far == TT_N_PCI)
        type = TUTTI_PATH_PXB;
    if (wire->type == TT_W_PCI && (kind == TT_N_CPU || far == TT_N_CPU))
        type = TUTTI_PATH_PHB;
    if (kind == TT_N_GPU && before->type == TUTTI_PATH_NVL && type == TUTTI_PATH_NVL && hops > 1)
        type = TUTTI_PATH_NVB;
    return type > before->type ? type : before->type;
}

/* Over a GPU leads only one NVLink hop to a GPU, and only from the base's neighbour. */
static bool may_pass(const tt_wires *w, int base, int node, const tt_wire *wire, int hops, bool nvb)
{
    if (node == base || w->nodes[node].kind != TT_N_GPU)
        return true;
    return nvb && wire->type == TT_W_NVL && w->nodes[wire->to].kind == TT_N_GPU && hops <= 1;
}

static bool came_from_domain(const tt_wires *w, const tt_route *here)
{
    return here->wire >= 0 && w->wires[here->wire].type == TT_W_SYS;
}

/* Breadth first: fewer hops win, among equal hops more bandwidth. queue holds two layers. Domains
 * are all joined to each other, so from one that was reached from another no domain is new: with
 * hundreds of them their wires would be most of the search. */
static void search_from(const tt_wires *w, int base, bool nvb, int32_t *queue, int32_t *seen)
{
    tt_route *route = &w->routes[(size_t)base * (size_t)w->n_nodes];
    int32_t *layer = queue, *next = queue + w->n_nodes;
    int n = 1;

    for (int i = 0; i < w->n_nodes; i++) {
        route[i] = (tt_route){0, -1, 0, TUTTI_PATH_DIS};
        seen[i] = -1;
    }
    route[base] = (tt_route){5000.0f, -1, 0, TUTTI_PATH_LOC};
    layer[0] = base;
    for (int hops = 0; n > 0; hops++) {
        int32_t *swap = layer;
        int m = 0;

        for (int k = 0; k < n; k++) {
            int node = layer[k];
            tt_route here = route[node];
            bool no_domain = came_from_domain(w, &here);

            for (int l = w->nodes[node].first; l < w->nodes[node].first + w->nodes[node].n; l++) {
                const tt_wire *wire = &w->wires[l];
                tt_route *far = &route[wire->to];
                float gbps = here.gbps < wire->gbps ? here.gbps : wire->gbps;

                if (no_domain && wire->type == TT_W_SYS) {
                    l += w->nodes[node].n_sys - 1;
                    continue;
                }
                if (wire->back < 0 || !may_pass(w, base, node, wire, here.hops, nvb) ||
                    (far->gbps != 0 && far->hops <= here.hops) || far->gbps >= gbps)
                    continue;
                *far = (tt_route){gbps, wire->back, (uint16_t)(here.hops + 1),
                                  hop_type(w, node, wire, &here, here.hops + 1)};
                if (seen[wire->to] != hops) {
                    seen[wire->to] = hops;
                    next[m++] = wire->to;
                }
            }
        }
        layer = next;
        next = swap;
        n = m;
    }
}

static tutti_status make_routes(tt_wires *w, bool nvb)
{
    size_t entries = (size_t)w->n_bases * (size_t)w->n_nodes;
    int32_t *queue;

    if (entries > 4u << 20)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "too large a machine: %d x %d paths", w->n_bases,
                       w->n_nodes);
    TT_TRY(tt_calloc(entries, sizeof *w->routes, &w->routes));
    TT_TRY(tt_calloc(3 * (size_t)w->n_nodes, sizeof *queue, &queue));
    for (int base = 0; base < w->n_bases; base++)
        search_from(w, base, nvb, queue, queue + 2 * (size_t)w->n_nodes);
    free(queue);
    return TUTTI_OK;
}

void tt_wires_free(tt_wires *w)
{
    if (w == NULL)
        return;
    free(w->nodes);
    free(w->wires);
    free(w->routes);
    free(w);
}

tutti_status tt_wires_make(const tt_machine *machine, const int *gpus, int n, bool nvb,
                           tt_wires **wires_out)
{
    int every[TT_TOPO_MAX_GPUS];
    builder b = {0};
    tt_wires *w;
    tutti_status status;

    TT_TRY(tt_calloc(1, sizeof *w, &w));
    w->machine = machine;
    if (gpus == NULL) {
        for (n = 0; n < machine->n_gpus && n < TT_TOPO_MAX_GPUS; n++)
            every[n] = n;
        gpus = every;
    }
    status = builder_make(machine, &b);
    if (status == TUTTI_OK)
        status = build(&b, gpus, n, w);
    if (status == TUTTI_OK)
        status = make_routes(w, nvb);
    builder_free(&b);
    if (status != TUTTI_OK)
        goto free_wires;
    *wires_out = w;
    return TUTTI_OK;

free_wires:
    tt_wires_free(w);
    return status;
}

int tt_wires_local_cpu(const tt_wires *w, int gpu)
{
    int best = -1, least = 0;

    for (int c = 0; c < w->n_cpus; c++) {
        int hops = tt_route_to(w, gpu, tt_cpu_node(w, c))->hops;

        if (hops > 0 && (least == 0 || hops < least)) {
            best = c;
            least = hops;
        }
    }
    return best;
}
