/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The PCIe tree, NUMA domains, virtual machines, and what the operating system does to them.
 *
 * Speed now is not speed: an idle GPU's link runs slow and comes back under load, so only lanes are
 * compared. Unknown is not off: without root the state of ACS cannot be read, and it is then told
 * as unknown. What a table or a template cannot know is not held against the machine.
 */
#include <stdio.h>

#include "topo/findings_parts.h"

static void check_flat(tt_check *c)
{
    const tt_machine *m = c->m;
    if (m->system.flat == TT_YES)
        tt_found(c, "vm-flat", m->n_nics > 0 ? 0.9 : 0.5,
                 "all %d GPUs%s sit on the root bus, NUMA node -1: a virtual machine without the "
                 "PCIe tree; %s",
                 m->n_gpus, m->n_nics > 0 ? " and NICs" : "",
                 m->n_nics > 0 ? "GPUDirect RDMA will be off (PHB is beyond PXB)"
                               : "peer-to-peer between GPUs will be off");
}

/* The slowest link between a GPU and its NUMA domain, and whose it is. */
static const tt_pci *slowest_above(const tt_machine *m, int gpu)
{
    const tt_pci *worst = NULL;
    for (int p = m->gpus[gpu].pci; p >= 0; p = m->pci[p].parent)
        if (worst == NULL || m->pci[p].gbps < worst->gbps)
            worst = &m->pci[p];
    return worst;
}

/* With NVLink a slow port costs what it takes from the way to the NICs, else from everything. */
static double port_cost(const tt_machine *m, float gbps)
{
    double share = 1;
    if (m->n_nvlinks == 0)
        return gbps < 12 ? 1 - gbps / 12 : 0;
    for (int g = 0; g < m->n_gpus; g++) {
        int nic = tt_paths_nic(m, g, 0);
        float used = nic < 0 ? 0 : m->paths->gpu_nic[g * m->n_nics + nic].gbps;
        if (nic >= 0 && m->nics[nic].gbps > 0 && used < m->nics[nic].gbps * share)
            share = (double)used / m->nics[nic].gbps;
    }
    return 1 - share;
}

static void check_ports(tt_check *c)
{
    const tt_machine *m = c->m;
    tt_some slow = {0}, unknown = {0};
    char text[TT_SOME_TEXT];
    float least = 0;
    for (int g = 0; g < m->n_gpus; g++) {
        const tt_pci *worst = slowest_above(m, g);
        if (m->gpus[g].pci >= 0 && m->pci[m->gpus[g].pci].gts == 0)
            tt_some_add(&unknown, g);
        if (worst == NULL || worst->gts == 0 || worst->gts > 5.0f)
            continue;
        least = slow.n == 0 || worst->gbps < least ? worst->gbps : least;
        tt_some_add(&slow, g);
    }
    if (slow.n > 0)
        tt_found(c, "pcie-virtual-port", port_cost(m, least),
                 "a PCIe port above %s says it runs at 2.5 or 5 GT/s, which no port in use does: "
                 "NCCL counts %.2f GB/s",
                 tt_some_gpus(c, &slow, text), (double)least);
    /* a table has no speeds at all: its reader says so */
    if (unknown.n > 0 && c->topo->format != TT_TOPO_MATRIX)
        tt_found(c, "pcie-unknown", 0,
                 "the PCIe speed of %s is not known: NCCL assumes 12 GB/s (Gen3 x16)",
                 tt_some_gpus(c, &unknown, text));
}

static void check_trained(tt_check *c)
{
    const tt_machine *m = c->m;
    tt_some below = {0};
    char text[TT_SOME_TEXT];
    double worst = 1;
    int at = -1;
    for (int g = 0; g < m->n_gpus; g++) {
        const tt_pci *p = m->gpus[g].pci < 0 ? NULL : &m->pci[m->gpus[g].pci];
        if (p == NULL || p->lanes == 0 || p->lanes_now == 0)
            continue;
        /* speed drops when a GPU is idle; lanes do not come back */
        double share = (double)p->lanes_now / p->lanes;
        if (share >= 1)
            continue;
        tt_some_add(&below, g);
        if (share < worst) {
            worst = share;
            at = g;
        }
    }
    if (at >= 0)
        tt_found(c, "pcie-width", 1 - worst, "PCIe of %s is trained to %d of %d lanes",
                 tt_some_gpus(c, &below, text), m->pci[m->gpus[at].pci].lanes_now,
                 m->pci[m->gpus[at].pci].lanes);
}

static void check_uneven(tt_check *c)
{
    const tt_machine *m = c->m;
    tt_some slower = {0};
    char text[TT_SOME_TEXT];
    float most = 0, least = 0;
    for (int g = 0; g < m->n_gpus; g++)
        if (m->gpus[g].pci >= 0 && m->pci[m->gpus[g].pci].gbps > most)
            most = m->pci[m->gpus[g].pci].gbps;
    for (int g = 0; g < m->n_gpus; g++) {
        float gbps = m->gpus[g].pci < 0 ? most : m->pci[m->gpus[g].pci].gbps;
        if (gbps >= 0.9f * most)
            continue;
        least = slower.n == 0 || gbps < least ? gbps : least;
        tt_some_add(&slower, g);
    }
    if (slower.n > 0)
        tt_found(c, "pcie-uneven", 1 - least / most,
                 "%s %s %.1f GB/s of PCIe where others have %.1f", tt_some_gpus(c, &slower, text),
                 slower.n == 1 ? "has" : "have", (double)least, (double)most);
}

/* None of the processors near the GPU may be used; false also when they are not known. */
static bool out_of_reach(const tt_machine *m, const tt_gpu *gpu)
{
    const tt_numa *numa = &m->numa[gpu->numa];
    bool named = gpu->cpus_from != TT_UNKNOWN;
    const tt_cpuset *cpus = named ? &gpu->cpus : &numa->cpus;
    if (!named && numa->cpus_from == TT_UNKNOWN)
        return false;
    if (tt_cpuset_count(&m->allowed) == 0)
        return tt_cpuset_count(cpus) == 0;
    for (int cpu = -1; (cpu = tt_cpuset_next(cpus, cpu)) >= 0;)
        if (tt_cpuset_has(&m->allowed, cpu))
            return false;
    return true;
}

static void check_numa(tt_check *c)
{
    const tt_machine *m = c->m;
    tt_some unknown = {0}, empty = {0}, differs = {0};
    char text[TT_SOME_TEXT];
    for (int g = 0; g < m->n_gpus; g++) {
        const tt_gpu *gpu = &m->gpus[g];
        int id = m->numa[gpu->numa].id;
        if (id < 0)
            tt_some_add(&unknown, g);
        else if (gpu->affinity_node >= 0 && gpu->affinity_node != id)
            tt_some_add(&differs, g);
        if (out_of_reach(m, gpu))
            tt_some_add(&empty, g);
    }
    if (unknown.n > 0 && m->system.flat != TT_YES)
        tt_found(c, "numa-unknown", 0,
                 "the NUMA node of %s is -1: nobody knows which cores are near",
                 tt_some_gpus(c, &unknown, text));
    if (empty.n > 0)
        tt_found(c, "cpuset-empty", 0.1,
                 "none of the cores near %s may be used by this process: its ranks run on a far "
                 "NUMA domain",
                 tt_some_gpus(c, &empty, text));
    if (differs.n > 0)
        tt_found(c, "numa-differs", 0,
                 "for %s the tool's NUMA affinity (%d) is not the domain of the PCIe tree (%d)",
                 tt_some_gpus(c, &differs, text), m->gpus[differs.at[0]].affinity_node,
                 m->numa[m->gpus[differs.at[0]].numa].id);
}

/* Peer-to-peer over a switch is what ACS turns back. */
static void check_acs(tt_check *c)
{
    const tt_machine *m = c->m;
    bool by_switch = false;
    for (int i = 0; i < m->n_gpus * m->n_gpus; i++)
        by_switch |= m->paths->raw_gpu_gpu[i].type == TUTTI_PATH_PIX ||
                     m->paths->raw_gpu_gpu[i].type == TUTTI_PATH_PXB;
    if (m->system.acs == TT_YES)
        tt_found(c, "acs-on", by_switch ? 0.5 : 0.1,
                 "ACS redirects peer-to-peer traffic to the CPU: between devices under one switch "
                 "it is slow, hangs, or gives wrong data");
    else if (m->system.acs == TT_TRI_UNKNOWN && m->system.iommu == TT_YES && m->n_gpus > 0)
        tt_found(c, "acs-unknown", 0,
                 "IOMMU groups: %d, ACS state unknown (it takes root to read): peer-to-peer%s is "
                 "unverified",
                 m->system.iommu_groups, by_switch ? " under a PCIe switch" : " between devices");
}

/* The two halves of a machine without NVLink between them. */
static void check_halves(tt_check *c)
{
    const tt_machine *m = c->m;
    int32_t group[TT_TOPO_MAX_GPUS];
    int gpus[TT_TOPO_MAX_GPUS], n = 0;
    tt_cost half;
    int groups = tt_paths_groups(m->paths, TUTTI_PATH_PXB, group);
    if (groups < 2 || groups == m->n_gpus || m->n_gpus < 4 || c->busbw <= 0)
        return;
    for (int g = 0; g < m->n_gpus; g++)
        if (group[g] == group[0])
            gpus[n++] = g;
    if (n < 2)
        return;
    c->status = tt_cost_model(m, gpus, n, 1, &half);
    if (c->status != TUTTI_OK)
        return;
    double inside = tt_cost_busbw(&half, TT_COST_ALL_REDUCE, 256 << 20);
    if (inside > 1.3 * c->busbw)
        tt_found(c, "slow-middle", 1 - c->busbw / inside,
                 "the %d GPUs fall into %d parts without a fast link between them: all together "
                 "all-reduce at %.1f GB/s, GPU 0's part alone at %.1f",
                 m->n_gpus, groups, c->busbw, inside);
}

/* NCCL holds at most 256 nodes of XML per rank: its own GPU with all NICs. */
static void check_overflow(tt_check *c)
{
    enum { NCCL_NODES = 256 };
    const tt_machine *m = c->m;
    int nodes = 1 + m->n_numa, chain = 0;
    if (m->n_gpus == 0)
        return;
    for (int k = 0; k < m->n_nics; k++)
        for (int p = m->nics[k].pci, depth = 0; p >= 0; p = m->pci[p].parent, depth++)
            chain += depth == 0 || m->pci[p].kind == TT_PCI_BRIDGE;
    nodes += chain + 2 * m->n_nics;
    for (int l = 0; l < m->n_nvlinks; l++)
        nodes += m->nvlinks[l].gpu == 0;
    if (nodes > NCCL_NODES)
        tt_found(c, "xml-overflow", 1,
                 "a rank's description has about %d XML nodes (%d NICs); NCCL holds %d and stops "
                 "with an internal error",
                 nodes, m->n_nics, NCCL_NODES);
}

void tt_check_pci(tt_check *c)
{
    if (c->m->n_gpus > 0)
        check_flat(c);
    check_ports(c);
    check_trained(c);
    check_uneven(c);
    check_numa(c);
    check_acs(c);
    check_halves(c);
    check_overflow(c);
}
