/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of every reader: the model is checked, and what follows from its facts by rule is filled
 * in: link speeds in GB/s, NVLink peers, an SM by the PCI device id, kinds of devices, paths.
 *
 * Readers may be fed by anyone, so nothing is assumed of their indices; whoever comes after may
 * rely on them. Speeds and their defaults are NCCL's (its topo.h and topo.cc), so that estimates
 * can be compared with its own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/cost.h"
#include "topo/paths.h"

float tt_nvlink_gbps(int sm)
{
    if (sm >= 100)
        return 40.1f;
    if (sm >= 90)
        return 20.6f;
    if (sm == 86)
        return 12.0f;
    if (sm >= 60 && sm < 70)
        return 18.0f;
    return 20.0f;
}

int tt_nvlink_max(int sm)
{
    if (sm >= 90)
        return 18;
    if (sm >= 80)
        return 12;
    if (sm >= 70)
        return 6;
    return sm >= 60 ? 4 : 0;
}

int tt_sm_of_device(uint16_t device)
{
    static const struct {
        uint16_t first, last;
        int16_t sm;
    } ranges[] = {
        {0x15f0, 0x15ff, 60},  {0x1b00, 0x1d7f, 61},  {0x1d80, 0x1dff, 70},  {0x1e00, 0x21ff, 75},
        {0x2080, 0x20ff, 80},  {0x2200, 0x25ff, 86},  {0x2300, 0x23ff, 90},  {0x2680, 0x28ff, 89},
        {0x2900, 0x29ff, 100}, {0x2b80, 0x2dff, 120}, {0x2e00, 0x2eff, 121}, {0x3180, 0x31ff, 103},
    };
    int sm = 0;

    /* A later, narrower range wins: the A100's lies within Turing's. */
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (device >= ranges[i].first && device <= ranges[i].last)
            sm = ranges[i].sm;
    return sm;
}

/* GB/s of a PCIe link: generations 1 to 6 by their transfers per second, else as generation 3. */
static float pcie_gbps(float gts, int lanes)
{
    static const float rates[] = {2.5f, 5, 8, 16, 32, 64};
    static const int per_lane[] = {15, 30, 60, 120, 240, 480}; /* 100 Mbit/s */
    int lane = 60;

    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (fabsf(gts - rates[i]) < 0.01f)
            lane = per_lane[i];
    return (float)((lanes == 0 ? 16 : lanes) * lane / 80.0);
}

static uint8_t kind_of(const tt_pci *pci)
{
    if (pci->class_code >> 16 == 0x03)
        return TT_PCI_GPU;
    if (pci->class_code >> 16 == 0x02)
        return TT_PCI_NIC;
    if (pci->class_code == 0x068000 && pci->vendor == 0x10de)
        return TT_PCI_NVSWITCH;
    if (pci->class_code >> 8 == 0x0604)
        return TT_PCI_BRIDGE;
    return TT_PCI_OTHER;
}

static bool within(int32_t index, int n)
{
    return index >= -1 && index < n;
}

static tutti_status seal_pci(tt_machine *m)
{
    for (int i = 0; i < m->n_pci; i++) {
        tt_pci *pci = &m->pci[i];

        if (!within(pci->parent, i) || pci->numa < 0 || pci->numa >= m->n_numa)
            return tt_fail(TUTTI_ERR_CORRUPT, "PCI device %d has no place in the tree", i);
        if (pci->parent >= 0)
            pci->numa = m->pci[pci->parent].numa;
        pci->kind = kind_of(pci);
        pci->gbps = pcie_gbps(pci->gts, pci->lanes);
    }
    for (int i = 0; i < m->n_gpus; i++)
        if (within(m->gpus[i].pci, m->n_pci) && m->gpus[i].pci >= 0)
            m->pci[m->gpus[i].pci].kind = TT_PCI_GPU;
    for (int i = 0; i < m->n_nics; i++)
        if (within(m->nics[i].pci, m->n_pci) && m->nics[i].pci >= 0)
            m->pci[m->nics[i].pci].kind = TT_PCI_NIC;
    return TUTTI_OK;
}

static tutti_status seal_gpus(tt_machine *m)
{
    for (int i = 0; i < m->n_gpus; i++) {
        tt_gpu *gpu = &m->gpus[i];

        if (!within(gpu->pci, m->n_pci) || gpu->numa < 0 || gpu->numa >= m->n_numa)
            return tt_fail(TUTTI_ERR_CORRUPT, "GPU %d has no place in the tree", i);
        if (gpu->pci >= 0)
            gpu->numa = m->pci[gpu->pci].numa;
        if (gpu->sm_from == TT_UNKNOWN && gpu->pci >= 0 && m->pci[gpu->pci].vendor == 0x10de) {
            gpu->sm = tt_sm_of_device(m->pci[gpu->pci].device);
            gpu->sm_from = gpu->sm != 0 ? TT_FROM_RULE : TT_UNKNOWN;
        }
    }
    return TUTTI_OK;
}

static tutti_status seal_nics(tt_machine *m)
{
    for (int i = 0; i < m->n_nics; i++) {
        tt_nic *nic = &m->nics[i];

        if (!within(nic->pci, m->n_pci) || nic->numa < 0 || nic->numa >= m->n_numa)
            return tt_fail(TUTTI_ERR_CORRUPT, "NIC %d has no place in the tree", i);
        if (nic->pci >= 0)
            nic->numa = m->pci[nic->pci].numa;
        nic->gbps = (float)(nic->mbps > 0 ? (double)nic->mbps / 8000.0 : 1.25);
    }
    return TUTTI_OK;
}

/* The GPU with this bus id on the host (`system` of a fused machine) of another; -1: none. */
static int gpu_at(const tt_machine *m, tt_busid busid, int system)
{
    for (int i = 0; i < m->n_gpus; i++) {
        const tt_gpu *gpu = &m->gpus[i];

        if (gpu->pci >= 0 && m->pci[gpu->pci].busid == busid && m->numa[gpu->numa].system == system)
            return i;
    }
    return -1;
}

static void seal_link(const tt_machine *m, tt_nvlink *link)
{
    const tt_gpu *gpu = &m->gpus[link->gpu];

    link->gbps = (float)link->count * tt_nvlink_gbps(gpu->sm);
    if (link->peer_gpu >= 0) { /* told by the reader */
        link->peer = link->peer_gpu == link->gpu ? TT_PEER_SELF : TT_PEER_GPU;
        return;
    }
    if (link->tclass == 0x068001) {
        link->peer = TT_PEER_CPU;
        return;
    }
    if (link->tclass >> 16 != 0x03) {
        link->peer = TT_PEER_SWITCH;
        return;
    }
    link->peer_gpu = gpu_at(m, link->target, m->numa[gpu->numa].system);
    if (link->peer_gpu == link->gpu)
        link->peer = TT_PEER_SELF;
    else
        link->peer = link->peer_gpu >= 0 ? TT_PEER_GPU : TT_PEER_MISSING;
}

/* By GPU, the order of one GPU's entries kept. */
static tutti_status sort_links(tt_machine *m)
{
    tt_nvlink *sorted;
    int at = 0;

    TT_TRY(tt_calloc((size_t)m->n_nvlinks, sizeof *sorted, &sorted));
    for (int gpu = 0; gpu < m->n_gpus; gpu++)
        for (int i = 0; i < m->n_nvlinks; i++)
            if (m->nvlinks[i].gpu == gpu)
                sorted[at++] = m->nvlinks[i];
    free(m->nvlinks);
    m->nvlinks = sorted;
    return TUTTI_OK;
}

static tutti_status seal_links(tt_machine *m)
{
    for (int i = 0; i < m->n_nvlinks; i++) {
        tt_nvlink *link = &m->nvlinks[i];

        if (link->gpu < 0 || link->gpu >= m->n_gpus || !within(link->peer_gpu, m->n_gpus))
            return tt_fail(TUTTI_ERR_CORRUPT, "NVLink entry %d belongs to no GPU", i);
        seal_link(m, link);
    }
    for (int i = 0; i < m->n_pcilinks; i++)
        if (m->pcilinks[i].a < 0 || m->pcilinks[i].a >= m->n_pci || m->pcilinks[i].b < 0 ||
            m->pcilinks[i].b >= m->n_pci)
            return tt_fail(TUTTI_ERR_CORRUPT, "PCI switch link %d has no ends", i);
    return sort_links(m);
}

static void clean_texts(tt_machine *m)
{
    for (int i = 0; i < m->n_gpus; i++) {
        tt_text_clean(m->gpus[i].name);
        tt_text_clean(m->gpus[i].uuid);
    }
    for (int i = 0; i < m->n_nics; i++) {
        tt_text_clean(m->nics[i].name);
        tt_text_clean(m->nics[i].netdev);
    }
    tt_text_clean(m->system.driver);
    tt_text_clean(m->system.product);
}

static tutti_status seal_machine(tt_machine *m)
{
    tt_path_rules rules = TT_PATH_RULES_INIT;

    if (m->n_numa == 0)
        return tt_fail(TUTTI_ERR_CORRUPT, "it describes neither a processor nor a device");
    TT_TRY(seal_pci(m));
    TT_TRY(seal_gpus(m));
    TT_TRY(seal_nics(m));
    TT_TRY(seal_links(m));
    clean_texts(m);
    tt_paths_free(m->paths);
    m->paths = NULL;
    tt_cost_cache_free(m->costs);
    m->costs = NULL;
    TT_TRY(tt_cost_cache_create(&m->costs));
    return tt_paths_compute(m, &rules, &m->paths);
}

/* The island of a host that is part of its NVLink fabric (as the GPUs of it at the switch are): a
 * number within the host, -1 without. */
static int fabric_island(const tt_machine *m)
{
    for (int i = 0; i < m->n_nvlinks; i++)
        if (m->nvlinks[i].peer == TT_PEER_SWITCH)
            return m->paths->island[m->nvlinks[i].gpu];
    return -1;
}

static int by_fabric(const void *one, const void *two, void *arg)
{
    const tutti_topo *topo = arg;
    const tt_host *a = &topo->hosts[*(const int32_t *)one],
                  *b = &topo->hosts[*(const int32_t *)two];
    int order = memcmp(a->cluster, b->cluster, sizeof a->cluster);

    if (order == 0)
        order = (a->clique > b->clique) - (a->clique < b->clique);
    return order != 0 ? order : *(const int32_t *)one - *(const int32_t *)two;
}

/* Numbers the islands over all hosts in order of their first GPU. leader[h]: first host of h's
 * fabric. */
static void number_islands(tutti_topo *topo, const int32_t *leader, int32_t *shared)
{
    for (int h = 0; h < topo->n_hosts; h++)
        shared[h] = -1;
    for (int h = 0; h < topo->n_hosts; h++) {
        const tt_machine *m = tt_topo_machine_of(topo, h);
        int join = leader[h] == h ? -1 : fabric_island(m), base = topo->n_islands, used = 0;

        for (int i = 0; i < m->n_gpus; i++) {
            int local = m->paths->island[i];
            bool joined = join >= 0 && shared[leader[h]] >= 0;

            if (joined && local == join) {
                topo->island[topo->gpu_first[h] + (uint32_t)i] = shared[leader[h]];
                continue;
            }
            local -= joined && local > join;
            topo->island[topo->gpu_first[h] + (uint32_t)i] = base + local;
            used = local + 1 > used ? local + 1 : used;
        }
        if (leader[h] == h && fabric_island(m) >= 0)
            shared[h] = base + fabric_island(m);
        topo->n_islands += used;
    }
}

static tutti_status seal_islands(tutti_topo *topo)
{
    size_t n = (size_t)topo->n_hosts;
    int32_t *order, *leader;

    TT_TRY(tt_calloc((size_t)topo->gpu_first[n], sizeof(int32_t), &topo->island));
    TT_TRY(tt_calloc(3 * n, sizeof *order, &order));
    leader = order + n;
    for (int32_t h = 0; h < topo->n_hosts; h++)
        order[h] = h;
    qsort_r(order, n, sizeof *order, by_fabric, topo);
    for (size_t i = 0; i < n; i++)
        leader[order[i]] = i > 0 && tt_topo_same_fabric(topo, order[i - 1], order[i])
                               ? leader[order[i - 1]]
                               : order[i];
    topo->n_islands = 0;
    number_islands(topo, leader, order + 2 * n);
    free(order);
    return TUTTI_OK;
}

tutti_status tt_topo_seal(tutti_topo *topo)
{
    for (int i = 0; i < topo->n_machines; i++)
        TT_TRY(seal_machine(topo->machines[i]));
    free(topo->gpu_first);
    free(topo->nic_first);
    free(topo->island);
    topo->gpu_first = topo->nic_first = NULL;
    topo->island = NULL;
    TT_TRY(tt_calloc((size_t)topo->n_hosts + 1, sizeof(uint32_t), &topo->gpu_first));
    TT_TRY(tt_calloc((size_t)topo->n_hosts + 1, sizeof(uint32_t), &topo->nic_first));
    for (int i = 0; i < topo->n_hosts; i++) {
        const tt_machine *m;

        if (topo->hosts[i].machine < 0 || topo->hosts[i].machine >= topo->n_machines)
            return tt_fail(TUTTI_ERR_CORRUPT, "host %d is of no machine", i);
        m = topo->machines[topo->hosts[i].machine];
        tt_text_clean(topo->hosts[i].name);
        topo->gpu_first[i + 1] = topo->gpu_first[i] + (uint32_t)m->n_gpus;
        topo->nic_first[i + 1] = topo->nic_first[i] + (uint32_t)m->n_nics;
    }
    return seal_islands(topo);
}

/* Appends b's objects to the fused machine, as host number `system`. */
static tutti_status fuse_one(tt_machine *m, const tt_machine *b, int system)
{
    int numa = m->n_numa, pci = m->n_pci, gpus = m->n_gpus, cards = m->n_nics, at;

    for (int i = 0; i < b->n_numa; i++) {
        TT_TRY(tt_machine_add_numa(m, &at));
        m->numa[at] = b->numa[i];
        m->numa[at].system = system;
        m->numa[at].cpus = (tt_cpuset){NULL, 0};
        TT_TRY(tt_cpuset_copy(&b->numa[i].cpus, &m->numa[at].cpus));
    }
    for (int i = 0; i < b->n_pci; i++) {
        TT_TRY(tt_machine_add_pci(m, &at));
        m->pci[at] = b->pci[i];
        m->pci[at].parent += b->pci[i].parent >= 0 ? pci : 0;
        m->pci[at].numa += numa;
    }
    for (int i = 0; i < b->n_gpus; i++) {
        TT_TRY(tt_machine_add_gpu(m, &at));
        m->gpus[at] = b->gpus[i];
        m->gpus[at].pci += b->gpus[i].pci >= 0 ? pci : 0;
        m->gpus[at].numa += numa;
        m->gpus[at].cpus = (tt_cpuset){NULL, 0};
        TT_TRY(tt_cpuset_copy(&b->gpus[i].cpus, &m->gpus[at].cpus));
    }
    for (int i = 0; i < b->n_nics; i++) {
        TT_TRY(tt_machine_add_nic(m, &at));
        m->nics[at] = b->nics[i];
        m->nics[at].pci += b->nics[i].pci >= 0 ? pci : 0;
        m->nics[at].numa += numa;
        m->nics[at].card += cards;
    }
    for (int i = 0; i < b->n_nvlinks; i++) {
        TT_TRY(tt_machine_add_nvlink(m, &at));
        m->nvlinks[at] = b->nvlinks[i];
        m->nvlinks[at].gpu += gpus;
        m->nvlinks[at].peer_gpu += b->nvlinks[i].peer_gpu >= 0 ? gpus : 0;
    }
    return TUTTI_OK;
}

tutti_status tt_machine_fuse(const tutti_topo *topo, const int *hosts, int n,
                             tt_machine **machine_out)
{
    tt_machine *m;
    tutti_status status = TUTTI_OK;

    TT_TRY(tt_calloc(1, sizeof *m, &m));
    for (int i = 0; i < n && status == TUTTI_OK; i++)
        status = fuse_one(m, tt_topo_machine_of(topo, hosts[i]), i);
    if (status == TUTTI_OK)
        status = seal_machine(m);
    if (status != TUTTI_OK)
        goto free_machine;
    *machine_out = m;
    return TUTTI_OK;

free_machine:
    tt_machine_free(m);
    return status;
}
