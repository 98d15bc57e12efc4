/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On the bus a switch is two levels of bridges: the upstream port, and below it a downstream port
 * for each device. NCCL keeps the upper one and skips the lower; a root port is the processor. So
 * the parent of a function is the bridge two above it, or the processor if there is none.
 *
 * The model wants each domain's tree in order, children by bus id. Children are linked in lists
 * made from one sort, so a long bus costs n log n.
 */
#include "topo/tree.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

typedef struct builder {
    tt_machine *m;
    const tt_raw_pci *raw;
    int n;
    int32_t *at; /* the caller's at_out */
    int32_t *first, *next; /* children of a shown bridge */
    int32_t *order; /* all by bus id */
    uint8_t *shown;
} builder;

static int32_t parent_of(const builder *b, int32_t i)
{
    int32_t port = b->raw[i].parent;

    return port < 0 ? -1 : b->raw[port].parent;
}

static int by_busid(const void *one, const void *two, void *arg)
{
    const tt_raw_pci *raw = arg;
    tt_busid a = raw[*(const int32_t *)one].pci.busid, b = raw[*(const int32_t *)two].pci.busid;

    return a != b ? (a > b) - (a < b) : *(const int32_t *)one - *(const int32_t *)two;
}

/* The NUMA node of a function is that of the top of its tree. */
static int node_of(const builder *b, int32_t i)
{
    while (parent_of(b, i) >= 0)
        i = parent_of(b, i);
    return b->raw[i].node;
}

static void link_children(builder *b)
{
    for (int32_t i = 0; i < b->n; i++) {
        b->order[i] = i;
        b->first[i] = b->next[i] = -1;
    }
    qsort_r(b->order, (size_t)b->n, sizeof *b->order, by_busid, (void *)(size_t)b->raw);
    for (int k = b->n - 1; k >= 0; k--) {
        int32_t i = b->order[k], up = parent_of(b, i);

        if (!b->shown[i] || up < 0)
            continue;
        b->next[i] = b->first[up];
        b->first[up] = i;
    }
}

static tutti_status add(builder *b, int32_t i, int parent, int numa)
{
    const tt_raw_pci *raw = &b->raw[i];
    tt_pci *pci;
    int at;

    TT_TRY(tt_machine_add_pci(b->m, &at));
    pci = &b->m->pci[at];
    *pci = raw->pci;
    pci->parent = parent;
    pci->numa = numa;
    if (raw->parent >= 0) { /* no faster than the port above */
        const tt_pci *port = &b->raw[raw->parent].pci;

        if (port->gts > 0 && (pci->gts <= 0 || port->gts < pci->gts))
            pci->gts = port->gts;
        if (port->lanes > 0 && (pci->lanes == 0 || port->lanes < pci->lanes))
            pci->lanes = port->lanes;
    }
    b->at[i] = at;
    for (int32_t child = b->first[i]; child >= 0; child = b->next[child])
        TT_TRY(add(b, child, at, numa));
    return TUTTI_OK;
}

int tt_tree_domain(const tt_machine *machine, int node)
{
    for (int i = 0; i < machine->n_numa; i++)
        if (machine->numa[i].id == node)
            return i;
    return -1;
}

static tutti_status add_domains(builder *b, const int *wanted, int n)
{
    for (int i = 0; i < n; i++) {
        int node = node_of(b, wanted[i]), at;

        if (tt_tree_domain(b->m, node) >= 0)
            continue;
        TT_TRY(tt_machine_add_numa(b->m, &at));
        b->m->numa[at].id = node;
    }
    return TUTTI_OK;
}

static tutti_status build(builder *b, const int *wanted, int n_wanted)
{
    for (int i = 0; i < n_wanted; i++)
        for (int32_t up = wanted[i]; up >= 0 && !b->shown[up]; up = parent_of(b, up))
            b->shown[up] = 1;
    link_children(b);
    TT_TRY(add_domains(b, wanted, n_wanted));
    for (int d = 0; d < b->m->n_numa; d++)
        for (int k = 0; k < b->n; k++) {
            int32_t i = b->order[k];

            if (b->shown[i] && parent_of(b, i) < 0 && node_of(b, i) == b->m->numa[d].id)
                TT_TRY(add(b, i, -1, d));
        }
    return TUTTI_OK;
}

tutti_status tt_tree_build(tt_machine *machine, const tt_raw_pci *raw, int n, const int *wanted,
                           int n_wanted, int32_t *at_out)
{
    builder b = {.m = machine, .raw = raw, .n = n, .at = at_out};
    size_t count = (size_t)n;
    int32_t *lists;
    tutti_status status;

    for (int i = 0; i < n; i++)
        at_out[i] = -1;
    TT_TRY(tt_calloc(count, 3 * sizeof(int32_t) + 1, &lists));
    b.first = lists;
    b.next = lists + count;
    b.order = lists + 2 * count;
    b.shown = (uint8_t *)(lists + 3 * count);
    status = build(&b, wanted, n_wanted);
    free(lists);
    return status;
}
