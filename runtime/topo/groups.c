/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-reduce in three steps, or at once.
 *
 * Three steps (reduce-scatter in groups that are well joined inside, all-reduce over the members of
 * equal index, all-gather) send less over the slow links between groups, but cost three launches.
 * Which is faster needs numbers: on eight H100 with a NIC each one step wins at nearly every size,
 * on GPUs under two PCIe switches three do. So both are computed, the flat one by NCCL's model for
 * all GPUs, the other as the sum of its steps, in which the all-reduces over equal indices run at
 * the same time and share NICs, or the link between the groups.
 *
 * The estimate needs every host to be the same piece of the same machine; else the answer is "not
 * known", and the decision flat.
 */
#include <stdint.h>
#include <stdlib.h>

#include "core/mem.h"
#include "topo/cost.h"
#include "topo/plan_parts.h"

typedef struct keyed {
    int key, at; /* at: position among the members; of a group: of its first member */
} keyed;

static int by_key(const void *a, const void *b)
{
    const keyed *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->at - y->at;
}

static int by_at(const void *a, const void *b)
{
    const keyed *x = a, *y = b;
    return x->at - y->at;
}

/* PCIe switches stand in for islands where no two members share one. */
static bool islands_are_single(const tt_plan *plan, const int *ranks, int n, keyed *sorted)
{
    for (int i = 0; i < n; i++)
        sorted[i] = (keyed){plan->seat[ranks[i]].island, i};
    qsort(sorted, (size_t)n, sizeof *sorted, by_key);
    for (int i = 1; i < n; i++)
        if (sorted[i].key == sorted[i - 1].key)
            return false;
    return plan->topo != NULL;
}

static tutti_status switch_keys(const tt_plan *plan, const int *ranks, int n, keyed *keys)
{
    int32_t group[TT_TOPO_MAX_GPUS];
    const tt_machine *last = NULL;
    for (int i = 0; i < n; i++) {
        const tt_plan_seat *seat = &plan->seat[ranks[i]];
        const tt_machine *m = tt_plan_machine(plan, seat->host);
        if (m != last)
            tt_paths_groups(m->paths, TUTTI_PATH_PXB, group);
        last = m;
        int at = seat->gpu >= 0 ? group[seat->gpu] : 0;
        keys[i] = (keyed){seat->host * TT_TOPO_MAX_GPUS + at, i};
    }
    return TUTTI_OK;
}

/* From sorted keys to groups numbered by their first member; 0 unless all have one size > 1. */
static int number_groups(keyed *sorted, int n, keyed *first, int *group, int *index)
{
    int groups = 0, size = 0;
    bool even = true;
    for (int i = 0, end; i < n; i = end) {
        for (end = i; end < n && sorted[end].key == sorted[i].key; end++) {
            group[sorted[end].at] = groups;
            index[sorted[end].at] = end - i;
        }
        even = even && (groups == 0 || end - i == size);
        size = end - i;
        first[groups] = (keyed){groups, sorted[i].at};
        groups++;
    }
    if (!even || size < 2 || groups < 2)
        return 0;
    qsort(first, (size_t)groups, sizeof *first, by_at);
    for (int g = 0; g < groups; g++)
        sorted[first[g].key].at = g; /* sorted is spent: it holds the new numbers now */
    for (int i = 0; i < n; i++)
        group[i] = sorted[group[i]].at;
    return groups;
}

static tutti_status check_ranks(const tt_plan *plan, const int *ranks, int n)
{
    if (n < 1)
        return tt_fail(TUTTI_ERR_ARG, "plan: %d ranks", n);
    for (int i = 0; i < n; i++)
        if (ranks[i] < 0 || ranks[i] >= plan->ranks)
            return tt_fail(TUTTI_ERR_ARG, "plan: rank %d of %d", ranks[i], plan->ranks);
    return TUTTI_OK;
}

tutti_status tt_plan_groups(const tt_plan *plan, const int *ranks, int n, int *group_out,
                            int *index_out, int *groups_out)
{
    keyed *sorted, *first = NULL;
    TT_TRY(check_ranks(plan, ranks, n));
    TT_TRY(tt_calloc((size_t)n, sizeof *sorted, &sorted));
    tutti_status status = tt_calloc((size_t)n, sizeof *first, &first);
    if (status == TUTTI_OK && islands_are_single(plan, ranks, n, sorted)) {
        status = switch_keys(plan, ranks, n, sorted);
        qsort(sorted, (size_t)n, sizeof *sorted, by_key);
    }
    if (status == TUTTI_OK)
        *groups_out = number_groups(sorted, n, first, group_out, index_out);
    free(first);
    free(sorted);
    return status;
}

/* The same GPUs of the same machine on every host that takes part. */
typedef struct pattern {
    const tt_machine *machine;
    int hosts, gpus; /* gpus: of each host */
    int gpu[TT_TOPO_MAX_GPUS]; /* of the first host, in member order */
} pattern;

static bool same_gpus(const tt_plan *plan, const keyed *sorted, const int *ranks, const pattern *p,
                      int from)
{
    for (int i = 0; i < p->gpus; i++)
        if (plan->seat[ranks[sorted[from + i].at]].gpu != p->gpu[i])
            return false;
    return true;
}

/* NVLink between hosts: the searches know one host only. */
static bool joined_hosts(const tt_plan *plan, const keyed *sorted, const pattern *p)
{
    for (int h = 1; h < p->hosts; h++)
        if (plan->domain[sorted[h * p->gpus].key] == plan->domain[sorted[0].key])
            return true;
    return false;
}

static bool find_pattern(const tt_plan *plan, const int *ranks, int n, keyed *sorted, pattern *p)
{
    if (plan->topo == NULL)
        return false;
    for (int i = 0; i < n; i++) {
        if (plan->seat[ranks[i]].gpu < 0)
            return false;
        sorted[i] = (keyed){plan->seat[ranks[i]].host, i};
    }
    qsort(sorted, (size_t)n, sizeof *sorted, by_key);
    p->machine = tt_plan_machine(plan, sorted[0].key);
    p->gpus = 0;
    while (p->gpus < n && p->gpus < TT_TOPO_MAX_GPUS && sorted[p->gpus].key == sorted[0].key) {
        p->gpu[p->gpus] = plan->seat[ranks[sorted[p->gpus].at]].gpu;
        p->gpus++;
    }
    if (n % p->gpus != 0)
        return false;
    p->hosts = n / p->gpus;
    for (int i = 0; i < n; i += p->gpus)
        if (sorted[i].key != sorted[i + p->gpus - 1].key ||
            (i > 0 && sorted[i].key == sorted[i - 1].key) ||
            tt_plan_machine(plan, sorted[i].key) != p->machine ||
            !same_gpus(plan, sorted, ranks, p, i))
            return false;
    return !joined_hosts(plan, sorted, p);
}

static void share(tt_lanes *lanes, double sharers)
{
    lanes->gbps_intra = (float)(lanes->gbps_intra / sharers);
    lanes->gbps_inter = (float)(lanes->gbps_inter / sharers);
}

static int distinct_nics(const tt_machine *m, const int *gpu, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        int nic = tt_paths_nic(m, gpu[i], 0), k = 0;
        while (k < i && tt_paths_nic(m, gpu[k], 0) != nic)
            k++;
        count += k == i;
    }
    return count;
}

/* GPUs of group 0 on the first host, and the members of index 0 there. */
typedef struct slices {
    int inner[TT_TOPO_MAX_GPUS], outer[TT_TOPO_MAX_GPUS];
    int n_inner, n_outer;
} slices;

static void slice(const tt_plan *plan, const int *ranks, int n, const int *group, const int *index,
                  slices *s)
{
    int host = plan->seat[ranks[0]].host;
    s->n_inner = s->n_outer = 0;
    for (int i = 0; i < n; i++) {
        const tt_plan_seat *seat = &plan->seat[ranks[i]];
        if (seat->host != host)
            continue;
        if (group[i] == group[0])
            s->inner[s->n_inner++] = seat->gpu;
        if (index[i] == index[0])
            s->outer[s->n_outer++] = seat->gpu;
    }
}

/* The models of the two ways; valid[1] false: three steps are not possible. */
typedef struct ways {
    tt_cost flat, inner, outer;
    bool known, three;
    int group_size;
} ways;

static tutti_status three_steps(const tt_plan *plan, const int *ranks, int n, const pattern *p,
                                ways *w)
{
    slices s;
    int groups, *group, *index;
    TT_TRY(tt_calloc(2 * (size_t)n, sizeof *group, &group));
    index = group + n;
    tutti_status status = tt_plan_groups(plan, ranks, n, group, index, &groups);
    if (status != TUTTI_OK || groups == 0)
        goto free_group;
    slice(plan, ranks, n, group, index, &s);
    w->group_size = n / groups;
    if (s.n_inner != w->group_size)
        goto free_group; /* it spans hosts */
    status = tt_cost_model(p->machine, s.inner, s.n_inner, 1, &w->inner);
    if (status == TUTTI_OK)
        status = tt_cost_model(p->machine, s.outer, s.n_outer, p->hosts, &w->outer);
    if (status != TUTTI_OK)
        goto free_group;
    double sharers = w->group_size;
    if (p->hosts > 1) {
        int all = distinct_nics(p->machine, p->gpu, p->gpus);
        sharers *= (double)distinct_nics(p->machine, s.outer, s.n_outer) / all;
    }
    share(&w->outer.ring, sharers < 1 ? 1 : sharers);
    share(&w->outer.tree, sharers < 1 ? 1 : sharers);
    w->outer.nvls.channels = 0;
    w->three = true;
free_group:
    free(group);
    return status;
}

static tutti_status find_ways(const tt_plan *plan, const int *ranks, int n, ways *w)
{
    pattern p;
    keyed *sorted;
    *w = (ways){.known = false};
    TT_TRY(check_ranks(plan, ranks, n));
    TT_TRY(tt_calloc((size_t)n, sizeof *sorted, &sorted));
    bool same = n > 1 && find_pattern(plan, ranks, n, sorted, &p);
    free(sorted);
    if (!same)
        return TUTTI_OK;
    TT_TRY(tt_cost_model(p.machine, p.gpu, p.gpus, p.hosts, &w->flat));
    w->known = true;
    return three_steps(plan, ranks, n, &p, w);
}

static double three_us(const ways *w, double bytes)
{
    return tt_cost_of(&w->inner, TT_COST_REDUCE_SCATTER, bytes).us +
           tt_cost_of(&w->outer, TT_COST_ALL_REDUCE, bytes / w->group_size).us +
           tt_cost_of(&w->inner, TT_COST_ALL_GATHER, bytes).us;
}

tutti_status tt_plan_all_reduce_us(const tt_plan *plan, const int *ranks, int n, double bytes,
                                   double *flat_us_out, double *three_us_out)
{
    ways w;
    TT_TRY(find_ways(plan, ranks, n, &w));
    *flat_us_out = w.known ? tt_cost_of(&w.flat, TT_COST_ALL_REDUCE, bytes).us : 0;
    *three_us_out = w.three ? three_us(&w, bytes) : 0;
    return TUTTI_OK;
}

/* On one host without groups there is nothing to weigh, and the searches cost a tenth of a second.
 */
static tutti_status is_choice(const tt_plan *plan, const int *ranks, int n, bool *choice_out)
{
    int groups = 0, *group;
    bool one_host = true;
    for (int i = 1; i < n; i++)
        one_host = one_host && plan->seat[ranks[i]].host == plan->seat[ranks[0]].host;
    *choice_out = true;
    if (!one_host)
        return TUTTI_OK;
    TT_TRY(tt_calloc(2 * (size_t)n, sizeof *group, &group));
    tutti_status status = tt_plan_groups(plan, ranks, n, group, group + n, &groups);
    free(group);
    *choice_out = groups > 0;
    return status;
}

tutti_status tt_plan_three_steps_from(const tt_plan *plan, const int *ranks, int n,
                                      tt_three_steps *out)
{
    enum { SMALLEST = 16, LARGEST = 30 };
    ways w;
    bool choice;
    TT_TRY(check_ranks(plan, ranks, n));
    TT_TRY(is_choice(plan, ranks, n, &choice));
    *out = (tt_three_steps){.min_bytes = SIZE_MAX};
    if (!choice)
        return TUTTI_OK;
    TT_TRY(find_ways(plan, ranks, n, &w));
    if (w.known)
        out->lanes = w.flat.ring;
    out->known = w.known;
    for (int log2 = LARGEST; w.three && log2 >= SMALLEST; log2--) {
        double bytes = (double)(UINT64_C(1) << log2);
        double flat = tt_cost_of(&w.flat, TT_COST_ALL_REDUCE, bytes).us,
               three = three_us(&w, bytes);
        if (three >= 0.95 * flat) /* not for a gain that the model's errors could undo */
            break;
        out->min_bytes = (size_t)1 << log2;
        out->flat_us = flat;
        out->three_us = three;
    }
    return TUTTI_OK;
}
