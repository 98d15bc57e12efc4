/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine from the cells of a matrix. The matrix says how far devices are apart, so the smallest
 * tree with these distances is built: devices that are PIX share a switch, those that are PXB share
 * a switch of switches, PHB and NODE are at the same NUMA domain, SYS at another.
 *
 * The domain of a GPU is the NUMA node that is printed beside it, as NCCL reads it from sysfs, even
 * where the matrix calls two GPUs of one node SYS; without a number it follows from the cells, and
 * from equal CPU lists. A NIC is put into the domain of the GPU nearest to it. What the tree can't
 * show stays readable in machine->smi.
 *
 * NVLinks: the matrix tells the links of a pair, not what is between. More links than a GPU has,
 * when added up over its peers, can only be a switch.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/matrix.h"

typedef struct builder {
    const tt_matrix *x;
    tutti_topo *topo;
    tt_machine *m;
    int32_t *domain; /* of a device; -1: not yet */
    int32_t *pix, *pxb; /* first device of its group */
    int32_t *place; /* index in the model's list */
    int n_domains;
} builder;

static tt_smi kind(const builder *b, int one, int two)
{
    uint8_t cell = tt_matrix_cell(b->x, one, two);

    if (cell == TT_SMI_UNKNOWN) /* the other half may tell */
        cell = tt_matrix_cell(b->x, two, one);
    return cell > TT_SMI_NV ? TT_SMI_NV : (tt_smi)cell;
}

static bool in_domain(tt_smi smi)
{
    return smi >= TT_SMI_PIX && smi <= TT_SMI_NODE;
}

static int new_domain(builder *b, int device)
{
    b->domain[device] = b->n_domains++;
    return b->domain[device];
}

/* GPUs with a NUMA number: those of one number are one domain. */
static void place_numbered(builder *b)
{
    const tt_matrix *x = b->x;

    for (int i = 0; i < x->n; i++) {
        const char *numa = x->devices[i].numa;

        if (x->devices[i].gpu < 0 || *numa == 0 || strspn(numa, "0123456789") != strlen(numa))
            continue;
        for (int j = 0; j < i && b->domain[i] < 0; j++)
            if (x->devices[j].gpu >= 0 && strcmp(x->devices[j].numa, numa) == 0)
                b->domain[i] = b->domain[j];
        if (b->domain[i] < 0)
            (void)new_domain(b, i);
    }
}

/* Does the matrix call the device SYS from one that is in the domain already? */
static bool contradicts(const builder *b, int device, int domain)
{
    for (int i = 0; i < b->x->n; i++)
        if (b->domain[i] == domain && kind(b, device, i) == TT_SMI_SYS)
            return true;
    return false;
}

static void place_gpu(builder *b, int gpu)
{
    const tt_matrix_device *d = b->x->devices;

    for (int i = 0; i < b->x->n && b->domain[gpu] < 0; i++)
        if (d[i].gpu >= 0 && b->domain[i] >= 0 && in_domain(kind(b, gpu, i)))
            b->domain[gpu] = b->domain[i];
    for (int i = 0; i < b->x->n && b->domain[gpu] < 0; i++)
        if (d[i].gpu >= 0 && b->domain[i] >= 0 && strcmp(d[i].cpus, d[gpu].cpus) == 0 &&
            strcmp(d[i].numa, d[gpu].numa) == 0 && !contradicts(b, gpu, b->domain[i]))
            b->domain[gpu] = b->domain[i];
    if (b->domain[gpu] < 0)
        (void)new_domain(b, gpu);
}

/* The nearest placed device that is at a NIC's domain, GPUs first. */
static void place_nic(builder *b, int nic)
{
    tt_smi best = TT_SMI_SYS;

    for (int pass = 0; pass < 2 && b->domain[nic] < 0; pass++)
        for (int i = 0; i < b->x->n; i++) {
            tt_smi smi = kind(b, nic, i);

            if ((b->x->devices[i].gpu >= 0) != (pass == 0) || i == nic || b->domain[i] < 0 ||
                !in_domain(smi) || smi >= best)
                continue;
            best = smi;
            b->domain[nic] = b->domain[i];
        }
    if (b->domain[nic] < 0)
        (void)new_domain(b, nic);
}

static void place_devices(builder *b)
{
    for (int i = 0; i < b->x->n; i++)
        b->domain[i] = -1;
    place_numbered(b);
    for (int i = 0; i < b->x->n; i++)
        if (b->x->devices[i].gpu >= 0 && b->domain[i] < 0)
            place_gpu(b, i);
    for (int i = 0; i < b->x->n; i++)
        if (b->x->devices[i].gpu < 0)
            place_nic(b, i);
}

/* group[i]: the first device that i is joined with by cells up to `worst`, within a domain. */
static void make_groups(const builder *b, tt_smi worst, int32_t *group, int32_t *stack)
{
    int n = b->x->n;

    for (int i = 0; i < n; i++)
        group[i] = -1;
    for (int i = 0; i < n; i++) {
        int depth = 0;

        if (group[i] >= 0)
            continue;
        group[i] = i;
        stack[depth++] = i;
        while (depth > 0) {
            int from = stack[--depth];

            for (int to = 0; to < n; to++) {
                tt_smi smi = kind(b, from, to);

                if (group[to] >= 0 || smi < TT_SMI_PIX || smi > worst ||
                    b->domain[to] != b->domain[from])
                    continue;
                group[to] = i;
                stack[depth++] = to;
            }
        }
    }
}

static int size_of(const builder *b, const int32_t *group, int first)
{
    int size = 0;

    for (int i = 0; i < b->x->n; i++)
        size += group[i] == first;
    return size;
}

static tutti_status add_function(builder *b, int parent, int domain, uint32_t class_code,
                                 int *at_out)
{
    TT_TRY(tt_machine_add_pci(b->m, at_out));
    b->m->pci[*at_out].parent = parent;
    b->m->pci[*at_out].numa = domain;
    b->m->pci[*at_out].class_code = class_code;
    b->m->pci[*at_out].numa_from = TT_FROM_FILE;
    return TUTTI_OK;
}

static void fill_gpu(builder *b, int device, tt_gpu *gpu)
{
    const tt_matrix_device *d = &b->x->devices[device];

    gpu->dev = d->gpu;
    gpu->line = d->line;
    gpu->nvlink_from = b->x->cells != NULL && d->line != 0 ? TT_FROM_FILE : TT_UNKNOWN;
    gpu->pci_from = TT_UNKNOWN;
    if (*d->numa != 0 && strspn(d->numa, "0123456789") == strlen(d->numa) && strlen(d->numa) < 6)
        gpu->affinity_node = atoi(d->numa);
    if (*d->memory_node != 0 && strspn(d->memory_node, "0123456789") == strlen(d->memory_node) &&
        strlen(d->memory_node) < 6)
        gpu->memory_node = atoi(d->memory_node);
    gpu->gdr = TT_YES; /* nvidia-smi does not tell; it is what NCCL finds with a driver for it */
    if (d->line != 0 && tt_cpuset_parse_list(d->cpus, &gpu->cpus) == TUTTI_OK)
        gpu->cpus_from = TT_FROM_FILE;
}

static tutti_status add_device(builder *b, int device, int parent, int domain)
{
    const tt_matrix_device *d = &b->x->devices[device];
    int pci, at;

    TT_TRY(add_function(b, parent, domain, d->gpu >= 0 ? 0x030200 : 0x020000, &pci));
    if (d->gpu >= 0) {
        TT_TRY(tt_machine_add_gpu(b->m, &at));
        b->m->gpus[at].pci = pci;
        b->m->gpus[at].numa = domain;
        fill_gpu(b, device, &b->m->gpus[at]);
    } else {
        tt_nic *nic;

        TT_TRY(tt_machine_add_nic(b->m, &at));
        nic = &b->m->nics[at];
        nic->pci = pci;
        nic->numa = domain;
        nic->line = d->line;
        nic->gdr = TT_YES;
        (void)snprintf(nic->name, sizeof nic->name, "%s", d->name);
        nic->kind = strncmp(d->name, "roce", 4) == 0 ? TT_NIC_ROCE : TT_NIC_UNKNOWN;
    }
    b->place[device] = at;
    return TUTTI_OK;
}

/* The devices that share the switch of `first`, below one (PIX), or directly where it is alone. */
static tutti_status add_pix_group(builder *b, int first, int parent, bool needs_switch)
{
    int domain = b->domain[first], at = parent;

    if (needs_switch || size_of(b, b->pix, first) > 1)
        TT_TRY(add_function(b, parent, domain, 0x060400, &at));
    for (int i = first; i < b->x->n; i++)
        if (b->pix[i] == first)
            TT_TRY(add_device(b, i, at, domain));
    return TUTTI_OK;
}

static tutti_status add_pxb_group(builder *b, int first)
{
    int switches = 0, at = -1;

    for (int i = first; i < b->x->n; i++)
        switches += b->pxb[i] == first && b->pix[i] == i;
    if (switches > 1)
        TT_TRY(add_function(b, -1, b->domain[first], 0x060400, &at));
    for (int i = first; i < b->x->n; i++)
        if (b->pxb[i] == first && b->pix[i] == i)
            TT_TRY(add_pix_group(b, i, at, switches > 1));
    return TUTTI_OK;
}

static tutti_status add_tree(builder *b)
{
    for (int d = 0; d < b->n_domains; d++)
        for (int i = 0; i < b->x->n; i++)
            if (b->domain[i] == d && b->pxb[i] == i)
                TT_TRY(add_pxb_group(b, i));
    return TUTTI_OK;
}

static tutti_status add_domains(builder *b)
{
    for (int d = 0; d < b->n_domains; d++) {
        int at;

        TT_TRY(tt_machine_add_numa(b->m, &at));
    }
    return TUTTI_OK;
}

/* A domain's number and processors are its GPUs'. */
static tutti_status number_domains(builder *b)
{
    for (int i = 0; i < b->m->n_gpus; i++) {
        const tt_gpu *gpu = &b->m->gpus[i];
        tt_numa *numa = &b->m->numa[gpu->numa];

        if (gpu->affinity_node >= 0) {
            numa->id = gpu->affinity_node;
            numa->id_from = TT_FROM_FILE;
        }
        TT_TRY(tt_cpuset_or(&numa->cpus, &gpu->cpus, &numa->cpus));
        if (numa->cpus.n_words != 0)
            numa->cpus_from = TT_FROM_RULE;
    }
    return TUTTI_OK;
}

static int links(const builder *b, int one, int two)
{
    uint8_t cell = tt_matrix_cell(b->x, one, two);

    return cell > TT_SMI_NV ? cell - TT_SMI_NV : 0;
}

/* More links than any GPU has, over its peers, or as many as only machines with switches have; and
 * every device that has links has them to every other such one. */
static bool has_switch(const builder *b)
{
    int linked = 0, sum, peers;
    bool many = false;

    for (int i = 0; i < b->x->n; i++) {
        peers = 0;
        for (int j = 0; j < b->x->n && peers == 0; j++)
            peers = links(b, i, j) > 0;
        linked += peers;
    }
    for (int i = 0; i < b->x->n; i++) {
        sum = peers = 0;
        for (int j = 0; j < b->x->n; j++) {
            sum += links(b, i, j);
            peers += links(b, i, j) > 0;
            many |= links(b, i, j) > 14;
        }
        if (peers > 0 && peers != linked - 1)
            return false;
        many |= sum > 18;
    }
    return many;
}

static tutti_status add_link(builder *b, int gpu, int peer, int count)
{
    tt_nvlink *link;
    int at;

    TT_TRY(tt_machine_add_nvlink(b->m, &at));
    link = &b->m->nvlinks[at];
    link->gpu = b->place[gpu];
    link->peer_gpu = peer >= 0 ? b->place[peer] : -1;
    link->count = (uint16_t)count;
    link->tclass = peer >= 0 ? 0x030200 : 0x068000;
    link->target = peer >= 0 ? TT_BUSID_NONE : TT_BUSID_HIDDEN;
    return TUTTI_OK;
}

static tutti_status add_nvlinks(builder *b)
{
    bool through_switch = has_switch(b);

    for (int i = 0; i < b->x->n; i++) {
        int most = 0;

        for (int j = 0; j < b->x->n; j++) {
            int count = b->x->devices[j].gpu >= 0 && i != j ? links(b, i, j) : 0;

            most = count > most ? count : most;
            if (count > 0 && !through_switch && b->x->devices[i].gpu >= 0)
                TT_TRY(add_link(b, i, j, count));
        }
        if (through_switch && most > 0 && b->x->devices[i].gpu >= 0)
            TT_TRY(add_link(b, i, -1, most));
    }
    return TUTTI_OK;
}

/* The cells and P2P statuses in the model's order. */
static tutti_status keep_cells(builder *b)
{
    const tt_matrix *x = b->x;
    tt_machine *m = b->m;
    size_t n = (size_t)(m->n_gpus + m->n_nics), gpus = (size_t)m->n_gpus;

    TT_TRY(tt_calloc(n, n, &m->smi));
    for (int i = 0; i < x->n; i++)
        for (int j = 0; j < x->n; j++) {
            size_t row = (size_t)(b->place[i] + (x->devices[i].gpu >= 0 ? 0 : m->n_gpus));
            size_t column = (size_t)(b->place[j] + (x->devices[j].gpu >= 0 ? 0 : m->n_gpus));

            m->smi[row * n + column] = tt_matrix_cell(x, i, j);
        }
    if (x->p2p == NULL)
        return TUTTI_OK;
    TT_TRY(tt_calloc(gpus, gpus, &m->p2p));
    for (size_t i = 0; i < gpus; i++)
        for (size_t j = 0; j < gpus; j++) {
            int one = m->gpus[i].dev, two = m->gpus[j].dev;

            if (one < x->n_p2p && two < x->n_p2p)
                m->p2p[i * gpus + j] = x->p2p[one * x->n_p2p + two];
        }
    return TUTTI_OK;
}

static tutti_status build(builder *b)
{
    size_t n = (size_t)b->x->n;

    TT_TRY(tt_calloc(n, 5 * sizeof *b->domain, &b->domain));
    b->pix = b->domain + n;
    b->pxb = b->pix + n;
    b->place = b->pxb + n;
    place_devices(b);
    make_groups(b, TT_SMI_PIX, b->pix, b->place + n);
    make_groups(b, TT_SMI_PXB, b->pxb, b->place + n);
    TT_TRY(tt_topo_add_machine(b->topo, &b->m));
    b->m->system.from = TT_FROM_FILE;
    TT_TRY(add_domains(b));
    TT_TRY(add_tree(b));
    TT_TRY(number_domains(b));
    TT_TRY(add_nvlinks(b));
    TT_TRY(keep_cells(b));
    TT_TRY(tt_topo_add_host(b->topo, 0, "host0"));
    return tt_topo_seal(b->topo);
}

tutti_status tt_matrix_build(const tt_matrix *matrix, tutti_topo *topo)
{
    builder b = {.x = matrix, .topo = topo};
    tutti_status status = build(&b);

    free(b.domain);
    return status;
}
