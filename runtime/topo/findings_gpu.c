/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The GPUs themselves: what they are, who else uses them, how they are numbered.
 *
 * Health is NVML's word of the moment and is looked at only where NVML spoke. Numbers are compared
 * because every tool has its own: NVML and nvidia-smi count by bus, CUDA by speed, and a rank that
 * takes "GPU 3" from one to the other trains on the wrong one.
 */
#include <stdio.h>
#include <string.h>

#include "topo/findings_parts.h"

static void check_mig(tt_check *c)
{
    const tt_machine *m = c->m;
    tt_some mig = {0}, twice = {0};
    char text[TT_SOME_TEXT];
    for (int g = 0; g < m->n_gpus; g++) {
        if (m->gpus[g].mig == TT_YES)
            tt_some_add(&mig, g);
        for (int h = 0; h < g; h++)
            if (tt_gpu_busid(m, g) != TT_BUSID_NONE && tt_gpu_busid(m, g) == tt_gpu_busid(m, h)) {
                tt_some_add(&twice, g);
                break;
            }
    }
    if (mig.n > 0)
        tt_found(c, "mig", 1,
                 "MIG is on for %s: slices have no peer-to-peer and no NVLink, and two of one GPU "
                 "form no NCCL communicator (\"Duplicate GPU detected\")",
                 tt_some_gpus(c, &mig, text));
    if (twice.n > 0 && mig.n == 0)
        tt_found(c, "duplicate-gpu", 1,
                 "the bus id of %s is that of an earlier one: NCCL refuses two ranks on one GPU",
                 tt_some_gpus(c, &twice, text));
}

static void check_kinds(tt_check *c)
{
    const tt_machine *m = c->m;
    tt_some older = {0}, unknown = {0}, virtual_gpu = {0};
    char text[TT_SOME_TEXT];
    int newest = 0, oldest = 1000;
    for (int g = 0; g < m->n_gpus; g++)
        newest = m->gpus[g].sm > newest ? m->gpus[g].sm : newest;
    for (int g = 0; g < m->n_gpus; g++) {
        const tt_gpu *gpu = &m->gpus[g];
        if (gpu->sm == 0)
            tt_some_add(&unknown, g);
        else if (gpu->sm < newest)
            tt_some_add(&older, g);
        if (gpu->sm > 0 && gpu->sm < oldest)
            oldest = gpu->sm;
        if (gpu->health.vgpu == TT_YES)
            tt_some_add(&virtual_gpu, g);
    }
    if (older.n > 0)
        tt_found(
            c, "gpu-mixed", 0.2,
            "%s %s of an older architecture (sm_%d beside sm_%d): the slowest sets the pace, and "
            "NCCL leaves its LL128 protocol out below sm_90",
            tt_some_gpus(c, &older, text), older.n == 1 ? "is" : "are", oldest, newest);
    if (unknown.n > 0)
        tt_found(c, "gpu-unknown", 0,
                 "the architecture of %s is not known: NVLink is counted as of sm_80",
                 tt_some_gpus(c, &unknown, text));
    if (virtual_gpu.n > 0)
        tt_found(c, "vgpu", 0.5, "%s %s a virtual GPU: no peer-to-peer, no NVLink",
                 tt_some_gpus(c, &virtual_gpu, text), virtual_gpu.n == 1 ? "is" : "are");
}

static void check_health(tt_check *c)
{
    /* NVML's bits: idle and an application's own clocks are no trouble */
    enum { HARMLESS = 0x1 | 0x2 };
    const tt_machine *m = c->m;
    tt_some busy = {0}, throttled = {0}, pending = {0}, failed = {0};
    char text[TT_SOME_TEXT];
    for (int g = 0; g < m->n_gpus; g++) {
        const tt_gpu_health *h = &m->gpus[g].health;
        if (h->from == TT_UNKNOWN)
            continue;
        if (h->processes > 0)
            tt_some_add(&busy, g);
        if ((h->throttle & ~(uint64_t)HARMLESS) != 0)
            tt_some_add(&throttled, g);
        if (h->remap_pending == TT_YES)
            tt_some_add(&pending, g);
        if (h->remap_failed == TT_YES)
            tt_some_add(&failed, g);
    }
    if (busy.n > 0)
        tt_found(c, "gpu-busy", 0.3, "another process works on %s", tt_some_gpus(c, &busy, text));
    if (throttled.n > 0)
        tt_found(c, "gpu-throttled", 0.2,
                 "%s %s clocks held down (reasons 0x%llx): its ranks come last in every step",
                 tt_some_gpus(c, &throttled, text), throttled.n == 1 ? "has its" : "have their",
                 (unsigned long long)m->gpus[throttled.at[0]].health.throttle);
    if (pending.n > 0)
        tt_found(c, "row-remap-pending", 0, "%s: memory rows wait to be remapped",
                 tt_some_gpus(c, &pending, text));
    if (failed.n > 0)
        tt_found(c, "row-remap-failed", 0, "%s: memory rows could not be remapped",
                 tt_some_gpus(c, &failed, text));
}

static void check_hidden_from_cuda(tt_check *c)
{
    tt_some hidden = {0};
    char text[TT_SOME_TEXT];
    for (int g = 0; g < c->m->n_gpus; g++)
        if (c->m->gpus[g].cuda < 0)
            tt_some_add(&hidden, g);
    if (hidden.n > 0)
        tt_found(c, "gpus-hidden", 0, "CUDA does not show %s to this process",
                 tt_some_gpus(c, &hidden, text));
}

static void check_visible(tt_check *c)
{
    const tt_machine *m = c->m;
    int hidden = m->system.dgpu_nodes - m->n_gpus;
    if (m->system.nvml == TT_NO && m->system.dgpu_nodes > 0) {
        tt_found(
            c, "no-driver", 1,
            "%d NVIDIA GPUs are on the bus, but the driver's library (libnvidia-ml.so.1) cannot "
            "be loaded",
            m->system.dgpu_nodes);
        return;
    }
    if (hidden > 0 && m->n_gpus == 1)
        tt_found(
            c, "one-gpu-visible", 0.9,
            "of %d GPUs on the bus one is visible: where each rank is given its own, NCCL finds "
            "no peer to peer between them in separate containers",
            m->system.dgpu_nodes);
    else if (hidden > 0 && m->n_gpus > 0)
        tt_found(c, "gpus-hidden", 0, "%d of %d GPUs on the bus are visible here", m->n_gpus,
                 m->system.dgpu_nodes);
    else if (m->system.cuda == TT_YES)
        check_hidden_from_cuda(c);
}

static void check_numbers(tt_check *c)
{
    const tt_machine *m = c->m;
    const tt_gpu *moved = NULL;
    int most = -1;
    for (int g = 0; g < m->n_gpus; g++) {
        const tt_gpu *gpu = &m->gpus[g];
        if (gpu->cuda >= 0 && gpu->dev >= 0 && gpu->cuda != gpu->dev &&
            (moved == NULL || gpu->cuda < moved->cuda))
            moved = gpu;
        most = gpu->dev > most ? gpu->dev : most;
    }
    if (moved != NULL)
        tt_found(c, "cuda-order", 0,
                 "CUDA numbers GPUs otherwise than nvidia-smi: its device %d is nvidia-smi's %d",
                 moved->cuda, moved->dev);
    if (most >= m->n_gpus && m->n_gpus > 0)
        tt_found(c, "gpu-gap", 0,
                 "%d GPUs are described, but their numbers go up to %d: some are missing",
                 m->n_gpus, most);
}

static void check_cut_affinity(tt_check *c)
{
    tt_some cut = {0};
    char text[TT_SOME_TEXT];
    for (int g = 0; g < c->m->n_gpus; g++) {
        const tt_gpu *gpu = &c->m->gpus[g];
        const tt_numa *numa = &c->m->numa[gpu->numa];
        int here = tt_cpuset_count(&gpu->cpus);
        if (gpu->cpus_from != TT_UNKNOWN && numa->cpus_from != TT_UNKNOWN && here > 0 &&
            here < tt_cpuset_count(&numa->cpus))
            tt_some_add(&cut, g);
    }
    if (cut.n > 0)
        tt_found(c, "cpuset-cut", 0,
                 "the cores near %s are cut to those this job was given: %d of the domain's %d",
                 tt_some_gpus(c, &cut, text), tt_cpuset_count(&c->m->gpus[cut.at[0]].cpus),
                 tt_cpuset_count(&c->m->numa[c->m->gpus[cut.at[0]].numa].cpus));
}

static void check_memory_nodes(tt_check *c)
{
    tt_some own = {0};
    char text[TT_SOME_TEXT];
    for (int g = 0; g < c->m->n_gpus; g++)
        if (c->m->gpus[g].memory_node >= 0)
            tt_some_add(&own, g);
    if (own.n > 0)
        tt_found(c, "memory-node", 0,
                 "the memory of %s is a NUMA node of its own (%d) without cores: never bind host "
                 "memory to it by number",
                 tt_some_gpus(c, &own, text), c->m->gpus[own.at[0]].memory_node);
}

void tt_check_gpu(tt_check *c)
{
    if (c->topo->is_template)
        tt_found(
            c, "template", 0,
            "%s is a vendor's template: GPUs and NICs are PCI functions in it, which NCCL fills "
            "in on the machine",
            c->topo->origin);
    check_mig(c);
    check_kinds(c);
    check_health(c);
    check_visible(c);
    check_numbers(c);
    check_cut_affinity(c);
    check_memory_nodes(c);
}
