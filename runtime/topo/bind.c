/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A launcher that gave the ranks of a host different processors knew what it did, and is left
 * alone, except that a rank with a GPU is still narrowed to what of its processors is near the GPU.
 * Where all have the same set, ranks without GPUs are dealt out over the NUMA domains in blocks of
 * neighbours: local ranks talk most to their neighbours. A domain is never split: within it the
 * kernel schedules better than a fixed core would.
 */
#include "topo/bind.h"

static bool launcher_bound(const tt_bind_rank *ranks, int n)
{
    for (int i = 1; i < n; i++)
        if (!tt_cpuset_equal(ranks[i].mask, ranks[0].mask))
            return true;
    return false;
}

const char *tt_bind_text(tt_bind_why why)
{
    switch (why) {
    case TT_BIND_GPU:
        return "the GPU's NUMA domain";
    case TT_BIND_SHARE:
        return "its share of the NUMA domains";
    case TT_BIND_LAUNCHER:
        return "as the launcher bound it";
    case TT_BIND_EMPTY:
        return "as it was: none of the processors near the GPU may be used";
    default:
        return "as it was";
    }
}

static tutti_status near_gpu(const tt_machine *m, const tt_bind_rank *rank, tt_cpuset *cpus,
                             tt_bind_why *why)
{
    const tt_gpu *gpu = &m->gpus[rank->gpu];
    const tt_numa *numa = &m->numa[gpu->numa];
    const tt_cpuset *wanted = numa->cpus_from != TT_UNKNOWN ? &numa->cpus : &gpu->cpus;
    if (numa->cpus_from == TT_UNKNOWN && gpu->cpus_from == TT_UNKNOWN)
        return TUTTI_OK;
    TT_TRY(tt_cpuset_and(wanted, rank->mask, cpus));
    *why = tt_cpuset_count(cpus) == 0 ? TT_BIND_EMPTY : TT_BIND_GPU;
    return TUTTI_OK;
}

/* Domains [first, end) of those that the mask touches. */
static tutti_status take_domains(const tt_machine *m, const tt_cpuset *mask, int first, int end,
                                 tt_cpuset *cpus)
{
    int at = 0;
    for (int d = 0; d < m->n_numa; d++) {
        tt_cpuset part = {0}, all = {0};
        TT_TRY(tt_cpuset_and(&m->numa[d].cpus, mask, &part));
        bool touches = tt_cpuset_count(&part) > 0;
        tutti_status status = TUTTI_OK;
        if (touches && at >= first && at < end) {
            status = tt_cpuset_or(cpus, &part, &all);
            if (status == TUTTI_OK) {
                tt_cpuset_free(cpus);
                *cpus = all;
            }
        }
        at += touches;
        tt_cpuset_free(&part);
        TT_TRY(status);
    }
    return TUTTI_OK;
}

static int count_domains(const tt_machine *m, const tt_cpuset *mask)
{
    int count = 0;
    for (int d = 0; d < m->n_numa; d++)
        for (int cpu = -1; (cpu = tt_cpuset_next(&m->numa[d].cpus, cpu)) >= 0;)
            if (tt_cpuset_has(mask, cpu)) {
                count++;
                break;
            }
    return count;
}

static tutti_status share(const tt_machine *m, const tt_bind_rank *ranks, int n, int me,
                          tt_cpuset *cpus, tt_bind_why *why)
{
    int domains = count_domains(m, ranks[me].mask);
    if (domains < 2 || n < 2)
        return TUTTI_OK;
    int first = (int)((long long)me * domains / n), end = (int)((me + 1LL) * domains / n);
    TT_TRY(take_domains(m, ranks[me].mask, first, end > first ? end : first + 1, cpus));
    *why = TT_BIND_SHARE;
    return TUTTI_OK;
}

tutti_status tt_bind_cpus(const tt_machine *machine, const tt_bind_rank *ranks, int n, int me,
                          tt_cpuset *cpus_out, tt_bind_why *why_out)
{
    tt_cpuset cpus = {0};
    tt_bind_why why = TT_BIND_NOTHING;
    tutti_status status = TUTTI_OK;
    if (ranks[me].gpu >= 0)
        status = near_gpu(machine, &ranks[me], &cpus, &why);
    else if (launcher_bound(ranks, n))
        why = TT_BIND_LAUNCHER;
    else
        status = share(machine, ranks, n, me, &cpus, &why);
    if (status == TUTTI_OK && tt_cpuset_count(&cpus) == 0) {
        tt_cpuset_free(&cpus);
        status = tt_cpuset_copy(ranks[me].mask, &cpus);
    }
    if (status != TUTTI_OK) {
        tt_cpuset_free(&cpus);
        return status;
    }
    *cpus_out = cpus;
    *why_out = why;
    return TUTTI_OK;
}
