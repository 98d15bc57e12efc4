/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A machine from its spec (see synthetic.c for the words): domains, then switches with their GPUs
 * and NICs, then NVLinks, then what is taken out. Bus ids are made up from the place in the list,
 * so they are unique and the same for the same words.
 */
#include <stdio.h>
#include <string.h>

#include "topo/spec.h"

static float gts_of(int gen)
{
    static const float rates[] = {0, 2.5f, 5, 8, 16, 32, 64};

    return rates[gen];
}

static tt_busid new_busid(const tt_machine *m)
{
    unsigned at = (unsigned)m->n_pci + 1;

    return (tt_busid)(at / 256) << 20 | (tt_busid)(at % 256) << 12;
}

static tutti_status add_function(const tt_spec *s, tt_machine *m, int parent, int numa,
                                 uint32_t class_code, int *at_out)
{
    tt_busid busid = new_busid(m);
    tt_pci *pci;

    TT_TRY(tt_machine_add_pci(m, at_out));
    pci = &m->pci[*at_out];
    pci->busid = busid;
    pci->parent = parent;
    pci->numa = numa;
    pci->class_code = class_code;
    if (s->tree != TT_TREE_FLAT) {
        pci->gts = gts_of(s->gen);
        pci->lanes = (uint16_t)s->lanes;
        pci->link_from = pci->numa_from = TT_FROM_FILE;
    }
    return TUTTI_OK;
}

/* The domain of a GPU, as the description numbers domains. */
static int domain_of_gpu(const tt_spec *s, int gpu)
{
    if (gpu < s->n_gpu_numa)
        return s->gpu_numa[gpu];
    return gpu * s->numa / s->gpus;
}

/* Domains come in the order in which GPUs use them, as in NCCL's XML; the others follow.
 * place[number] is the model's index. */
static void order_domains(const tt_spec *s, int place[TT_TOPO_MAX_NUMA])
{
    int n = 0;

    for (int d = 0; d < s->numa; d++)
        place[d] = -1;
    for (int g = 0; g < s->gpus; g++)
        if (place[domain_of_gpu(s, g)] < 0)
            place[domain_of_gpu(s, g)] = n++;
    for (int d = 0; d < s->numa; d++)
        if (place[d] < 0)
            place[d] = n++;
}

static tutti_status add_domain(const tt_spec *s, tt_machine *m, int number)
{
    tt_numa *numa;
    int at;

    TT_TRY(tt_machine_add_numa(m, &at));
    numa = &m->numa[at];
    numa->id = s->tree == TT_TREE_FLAT ? -1 : number;
    numa->id_from = s->tree == TT_TREE_FLAT ? TT_UNKNOWN : TT_FROM_FILE;
    numa->arch = s->arch;
    numa->vendor = s->vendor;
    numa->family = s->vendor == TT_VENDOR_INTEL ? 6 : s->vendor == TT_VENDOR_AMD ? 23 : 0;
    numa->model = s->cpu_model;
    numa->cpu_from = numa->cpus_from = TT_FROM_FILE;
    for (int c = 0; c < s->cores && number * s->cores + c < TT_CPUS_MAX; c++)
        TT_TRY(tt_cpuset_add(&numa->cpus, number * s->cores + c));
    return TUTTI_OK;
}

static tutti_status add_gpu(const tt_spec *s, tt_machine *m, int parent, int numa, int number)
{
    tt_gpu *gpu;
    int at, pci;

    TT_TRY(add_function(s, m, parent, numa, 0x030200, &pci));
    m->pci[pci].vendor = 0x10de;
    TT_TRY(tt_machine_add_gpu(m, &at));
    gpu = &m->gpus[at];
    gpu->pci = pci;
    gpu->numa = numa;
    gpu->dev = gpu->rank = number;
    gpu->sm = s->sm;
    gpu->gdr = s->gdr ? TT_YES : TT_NO;
    gpu->mig = TT_NO;
    gpu->memory = (uint64_t)s->mem * 1000000000u;
    gpu->sm_from = gpu->pci_from = gpu->nvlink_from = gpu->mig_from = TT_FROM_FILE;
    gpu->c2c_from = TT_FROM_FILE;
    gpu->c2c_links = (uint16_t)s->c2c;
    gpu->c2c_mbps = (uint32_t)s->c2c_mbps;
    (void)snprintf(gpu->name, sizeof gpu->name, "%s", s->name);
    return TUTTI_OK;
}

static tutti_status add_nic(const tt_spec *s, tt_machine *m, int parent, int numa, int number)
{
    tt_nic *nic;
    int at, pci;

    TT_TRY(add_function(s, m, parent, numa, s->net == TT_NIC_IB ? 0x020700 : 0x020000, &pci));
    if (s->net == TT_NIC_EFA) {
        m->pci[pci].vendor = 0x1d0f;
        m->pci[pci].device = 0xefa1;
    }
    TT_TRY(tt_machine_add_nic(m, &at));
    nic = &m->nics[at];
    nic->pci = pci;
    nic->numa = numa;
    nic->dev = number < s->n_nic_order ? s->nic_order[number] : number;
    nic->port = s->net == TT_NIC_ETHERNET ? 0 : 1;
    nic->mbps = (int64_t)s->rate * 1000;
    nic->guid = (uint64_t)nic->dev + 1;
    nic->has_guid = true;
    nic->kind = (uint8_t)s->net;
    nic->gdr = s->gdr && s->net != TT_NIC_ETHERNET ? TT_YES : TT_NO;
    nic->coll = TT_NO;
    nic->up = TT_YES;
    nic->speed_from = nic->pci_from = TT_FROM_FILE;
    nic->maxconn = 131072;
    (void)snprintf(nic->name, sizeof nic->name,
                   s->net == TT_NIC_ETHERNET ? "eth%d"
                   : s->net == TT_NIC_EFA    ? "rdmap%d"
                                             : "mlx5_%d",
                   nic->dev);
    return TUTTI_OK;
}

/* The switches of a domain, each with its GPUs and its share of the NICs. */
static tutti_status add_switches(const tt_spec *s, tt_machine *m, int number, int numa)
{
    int switches = (s->gpus + s->per_switch - 1) / s->per_switch;

    for (int w = 0; w < switches; w++) {
        int first = w * s->per_switch, at;

        if (domain_of_gpu(s, first) != number)
            continue;
        TT_TRY(add_function(s, m, -1, numa, 0x060400, &at));
        for (int g = first; g < first + s->per_switch && g < s->gpus; g++)
            TT_TRY(add_gpu(s, m, at, numa, g));
        for (int n = 0; n < s->nics; n++)
            if (n * switches / s->nics == w)
                TT_TRY(add_nic(s, m, at, numa, n));
    }
    return TUTTI_OK;
}

static tutti_status add_devices(const tt_spec *s, tt_machine *m, int number, int numa)
{
    if (s->tree == TT_TREE_SWITCH && s->gpus > 0)
        return add_switches(s, m, number, numa);
    for (int g = 0; g < s->gpus; g++)
        if (domain_of_gpu(s, g) == number)
            TT_TRY(add_gpu(s, m, -1, numa, g));
    for (int n = 0; n < s->nics; n++)
        if (n * s->numa / s->nics == number)
            TT_TRY(add_nic(s, m, -1, numa, n));
    return TUTTI_OK;
}

static tutti_status add_tree(const tt_spec *s, tt_machine *m)
{
    int place[TT_TOPO_MAX_NUMA];

    order_domains(s, place);
    for (int at = 0; at < s->numa; at++)
        for (int number = 0; number < s->numa; number++)
            if (place[number] == at) {
                TT_TRY(add_domain(s, m, number));
                TT_TRY(add_devices(s, m, number, at));
            }
    return TUTTI_OK;
}

/* Links of DGX-1's hybrid cube mesh between GPUs a < b of 8. */
static int cube_links(int a, int b)
{
    static const uint8_t links[8][8] = {
        {0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0}, {1, 2, 0, 2, 0, 0, 1, 0},
        {2, 1, 2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1},
        {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0},
    };

    return a < 8 && b < 8 ? links[a][b] : 0;
}

static int links_between(const tt_spec *s, int a, int b)
{
    switch (s->nvlink) {
    case TT_SPEC_MESH:
        return s->links;
    case TT_SPEC_PAIR:
        return a / 2 == b / 2 ? s->links : 0;
    case TT_SPEC_RING:
        return (a + 1) % s->gpus == b || (b + 1) % s->gpus == a ? s->links : 0;
    case TT_SPEC_CUBE:
        return cube_links(a, b);
    default:
        return 0;
    }
}

/* Links that the description takes away from those of GPU a to b (-1: the switch). */
static int links_taken(const tt_spec *s, int a, int b)
{
    int taken = 0;

    for (int i = 0; i < s->n_taken; i++) {
        const struct taken *t = &s->taken[i];
        bool pair = t->b >= 0 && ((t->a == a && t->b == b) || (t->a == b && t->b == a));

        if (t->what == 'l' && (pair || (t->b < 0 && (t->a == a || t->a == b))))
            taken += t->count;
    }
    return taken;
}

/* The place of a GPU in the model by its number; -1 of -1. */
static int index_of(const tt_machine *m, int number)
{
    for (int i = 0; i < m->n_gpus; i++)
        if (m->gpus[i].dev == number)
            return i;
    return -1;
}

static tutti_status add_links(const tt_spec *s, tt_machine *m, int gpu, int peer, int count)
{
    int at;

    count -= links_taken(s, gpu, peer);
    if (count <= 0)
        return TUTTI_OK;
    gpu = index_of(m, gpu);
    peer = index_of(m, peer);
    TT_TRY(tt_machine_add_nvlink(m, &at));
    m->nvlinks[at].gpu = gpu;
    m->nvlinks[at].peer_gpu = peer;
    m->nvlinks[at].count = (uint16_t)count;
    m->nvlinks[at].tclass = peer < 0 ? 0x068000 : 0x030200;
    m->nvlinks[at].target = peer < 0 ? TT_BUSID_HIDDEN : m->pci[m->gpus[peer].pci].busid;
    return TUTTI_OK;
}

static tutti_status add_nvlinks(const tt_spec *s, tt_machine *m)
{
    for (int a = 0; a < s->gpus; a++) {
        if (s->nvlink == TT_SPEC_SWITCH)
            TT_TRY(add_links(s, m, a, -1, s->links));
        for (int b = 0; b < s->gpus; b++)
            if (a != b)
                TT_TRY(add_links(s, m, a, b, links_between(s, a, b)));
    }
    return TUTTI_OK;
}

static void drop_gpu(tt_machine *m, int gpu)
{
    int kept = 0;

    tt_cpuset_free(&m->gpus[gpu].cpus);
    memmove(&m->gpus[gpu], &m->gpus[gpu + 1], (size_t)(--m->n_gpus - gpu) * sizeof *m->gpus);
    for (int i = 0; i < m->n_nvlinks; i++) {
        tt_nvlink link = m->nvlinks[i];

        if (link.gpu == gpu || link.peer_gpu == gpu)
            continue;
        link.gpu -= link.gpu > gpu;
        link.peer_gpu -= link.peer_gpu > gpu;
        m->nvlinks[kept++] = link;
    }
    m->n_nvlinks = kept;
}

static tutti_status take_out(const tt_spec *s, tt_machine *m)
{
    for (int i = 0; i < s->n_taken; i++) {
        const struct taken *t = &s->taken[i];
        int at = t->what == 'g' ? index_of(m, t->a) : -1;

        if (t->what == 'l')
            continue;
        for (int n = 0; t->what == 'n' && n < m->n_nics; n++)
            if (m->nics[n].dev == t->a)
                at = n;
        if (at < 0)
            return tt_fail(TUTTI_ERR_ARG, "machine description: there is no %s %d to take out",
                           t->what == 'g' ? "GPU" : "NIC", t->a);
        if (t->what == 'g')
            drop_gpu(m, at);
        else
            memmove(&m->nics[at], &m->nics[at + 1], (size_t)(--m->n_nics - at) * sizeof *m->nics);
    }
    return TUTTI_OK;
}

static tutti_status check(const tt_spec *s)
{
    for (int i = 0; i < s->n_gpu_numa; i++)
        if (s->gpu_numa[i] >= s->numa)
            return tt_fail(TUTTI_ERR_ARG, "machine description: gpunuma names domain %d of %d",
                           s->gpu_numa[i], s->numa);
    for (int i = 0; i < s->n_nic_order; i++)
        for (int j = 0; j < i; j++)
            if (s->nic_order[i] == s->nic_order[j])
                return tt_fail(TUTTI_ERR_ARG, "machine description: nicorder names %d twice",
                               s->nic_order[i]);
    if (s->n_nic_order != 0 && s->n_nic_order != s->nics)
        return tt_fail(TUTTI_ERR_ARG, "machine description: nicorder has %d numbers for %d NICs",
                       s->n_nic_order, s->nics);
    if (s->nvlink == TT_SPEC_CUBE && s->gpus != 8)
        return tt_fail(TUTTI_ERR_ARG, "machine description: nvlink=cube is of 8 GPUs, not %d",
                       s->gpus);
    return TUTTI_OK;
}

static tutti_status add_hosts(const tt_spec *s, tutti_topo *topo)
{
    for (int i = 0; i < s->hosts; i++) {
        char name[TT_TOPO_NAME];

        (void)snprintf(name, sizeof name, "host%d", i);
        TT_TRY(tt_topo_add_host(topo, 0, name));
        if (s->fabric > 0) {
            int number = i / s->fabric + 1;

            memcpy(topo->hosts[i].cluster, &number, sizeof number);
            topo->hosts[i].clique = 1;
        }
    }
    return TUTTI_OK;
}

tutti_status tt_spec_build(const tt_spec *s, tutti_topo *topo)
{
    tt_machine *m;

    TT_TRY(check(s));
    TT_TRY(tt_topo_add_machine(topo, &m));
    TT_TRY(add_tree(s, m));
    TT_TRY(add_nvlinks(s, m));
    TT_TRY(take_out(s, m));
    m->system.from = TT_FROM_FILE;
    m->system.flat = m->system.virtual_machine = s->tree == TT_TREE_FLAT ? TT_YES : TT_NO;
    m->system.rdma = s->nics > 0 && s->net != TT_NIC_ETHERNET ? TT_YES : TT_NO;
    m->system.efa = s->nics > 0 && s->net == TT_NIC_EFA ? TT_YES : TT_NO;
    TT_TRY(add_hosts(s, topo));
    return tt_topo_seal(topo);
}
