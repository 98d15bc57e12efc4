/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seats: which GPU, island, NIC and rail each rank has.
 *
 * Islands are the topo's; ranks without a GPU have their host for one. Everything per machine (its
 * wires) is made once per distinct machine, so that a thousand equal hosts cost what one does, and
 * everything per rank is linear or sorted.
 *
 * The NIC is the one that NCCL's channel 0 would take. A rail is a NIC's number on its host: NICs
 * of equal number are on one switch in a rail-wired network, whichever GPU they are near.
 */
#include "topo/plan.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/plan_parts.h"

static tutti_status check_input(const tt_plan_input *in)
{
    if (in->hosts < 1 || in->ranks < 1)
        return tt_fail(TUTTI_ERR_ARG, "plan: %d hosts, %d ranks", in->hosts, in->ranks);
    if (in->topo != NULL && in->topo->n_hosts != in->hosts)
        return tt_fail(TUTTI_ERR_ARG, "plan: %d hosts, but the topology has %d", in->hosts,
                       in->topo->n_hosts);
    for (int i = 0; i < in->ranks; i++) {
        const tt_plan_rank *r = &in->rank[i];
        if (r->host < 0 || r->host >= in->hosts)
            return tt_fail(TUTTI_ERR_ARG, "plan: rank %d is on host %d of %d", i, r->host,
                           in->hosts);
        if (r->gpu < 0)
            continue;
        int gpus = in->topo == NULL ? 0 : tt_topo_machine_of(in->topo, r->host)->n_gpus;
        if (r->gpu >= gpus)
            return tt_fail(TUTTI_ERR_ARG, "plan: rank %d has GPU %d of the %d of host %d", i,
                           r->gpu, gpus, r->host);
    }
    return TUTTI_OK;
}

/* A counting sort: ranks stay in their order within a host. */
static void sort_by_host(tt_plan *plan, const tt_plan_input *in)
{
    for (int i = 0; i < in->ranks; i++)
        plan->host_first[in->rank[i].host + 1]++;
    for (int h = 0; h < in->hosts; h++)
        plan->host_first[h + 1] += plan->host_first[h];
    for (int i = in->ranks - 1; i >= 0; i--)
        plan->by_host[--plan->host_first[in->rank[i].host + 1]] = i;
    /* filling from the back left each host's entry at its own beginning, one place too high */
    for (int h = 0; h < in->hosts; h++)
        plan->host_first[h] = plan->host_first[h + 1];
    plan->host_first[in->hosts] = in->ranks;
}

static int by_fabric(const void *a, const void *b, void *arg)
{
    const tutti_topo *topo = arg;
    int x = *(const int *)a, y = *(const int *)b;
    const tt_host *p = &topo->hosts[x], *q = &topo->hosts[y];
    int d = memcmp(p->cluster, q->cluster, sizeof p->cluster);
    if (d != 0)
        return d;
    if (p->clique != q->clique)
        return p->clique < q->clique ? -1 : 1;
    return x - y;
}

static tutti_status find_domains(tt_plan *plan)
{
    int *sorted, hosts = plan->hosts;
    for (int h = 0; h < hosts; h++)
        plan->domain[h] = h;
    if (plan->topo == NULL)
        return TUTTI_OK;
    TT_TRY(tt_calloc((size_t)hosts, sizeof *sorted, &sorted));
    for (int h = 0; h < hosts; h++)
        sorted[h] = h;
    qsort_r(sorted, (size_t)hosts, sizeof *sorted, by_fabric, (void *)(size_t)plan->topo);
    for (int i = 1; i < hosts; i++)
        if (tt_topo_same_fabric(plan->topo, sorted[i - 1], sorted[i]))
            plan->domain[sorted[i]] = plan->domain[sorted[i - 1]];
    free(sorted);
    return TUTTI_OK;
}

static void seat_on_gpu(const tt_plan *plan, tt_plan_seat *seat)
{
    const tt_machine *m = tt_plan_machine(plan, seat->host);
    const tt_gpu *gpu = &m->gpus[seat->gpu];
    seat->numa = gpu->numa;
    seat->island = plan->topo->island[plan->topo->gpu_first[seat->host] + (uint32_t)seat->gpu];
    seat->nic = tt_paths_nic(m, seat->gpu, 0);
    if (seat->nic >= 0)
        seat->rail = m->nics[seat->nic].dev >= 0 ? m->nics[seat->nic].dev : seat->nic;
}

static void seat_ranks(tt_plan *plan, const tt_plan_input *in)
{
    for (int h = 0; h < plan->hosts; h++)
        for (int k = plan->host_first[h]; k < plan->host_first[h + 1]; k++) {
            int rank = plan->by_host[k];
            tt_plan_seat seat = {.host = h,
                                 .gpu = in->rank[rank].gpu < 0 ? -1 : in->rank[rank].gpu,
                                 .local = k - plan->host_first[h],
                                 .island = plan->topo == NULL ? h : plan->topo->n_islands + h,
                                 .nic = -1,
                                 .rail = -1,
                                 .numa = -1};
            if (seat.gpu >= 0)
                seat_on_gpu(plan, &seat);
            plan->seat[rank] = seat;
        }
}

static tutti_status make_fabrics(tt_plan *plan)
{
    if (plan->topo == NULL)
        return TUTTI_OK;
    TT_TRY(tt_calloc((size_t)plan->topo->n_machines, sizeof *plan->fabric, &plan->fabric));
    for (int m = 0; m < plan->topo->n_machines; m++)
        TT_TRY(tt_fabric_create(plan->topo->machines[m], &plan->fabric[m]));
    return TUTTI_OK;
}

static tutti_status allocate(tt_plan *plan)
{
    size_t hosts = (size_t)plan->hosts, ranks = (size_t)plan->ranks;
    TT_TRY(tt_calloc(ranks, sizeof *plan->seat, &plan->seat));
    TT_TRY(tt_calloc(hosts + 1, sizeof(int), &plan->host_first));
    TT_TRY(tt_calloc(hosts, sizeof(int), &plan->domain));
    return tt_calloc(ranks, sizeof(int), &plan->by_host);
}

tutti_status tt_plan_create(const tt_plan_input *in, tt_plan **plan_out)
{
    tt_plan *plan = NULL;
    TT_TRY(check_input(in));
    TT_TRY(tt_calloc(1, sizeof *plan, &plan));
    plan->topo = in->topo;
    plan->hosts = in->hosts;
    plan->ranks = in->ranks;
    tutti_status status = allocate(plan);
    if (status == TUTTI_OK)
        status = find_domains(plan);
    if (status == TUTTI_OK)
        status = make_fabrics(plan);
    if (status != TUTTI_OK)
        goto destroy_plan;
    sort_by_host(plan, in);
    seat_ranks(plan, in);
    *plan_out = plan;
    return TUTTI_OK;
destroy_plan:
    tt_plan_destroy(plan);
    return status;
}

void tt_plan_destroy(tt_plan *plan)
{
    if (plan == NULL)
        return;
    for (int m = 0; plan->fabric != NULL && m < plan->topo->n_machines; m++)
        tt_fabric_destroy(plan->fabric[m]);
    free(plan->fabric);
    free(plan->domain);
    free(plan->by_host);
    free(plan->host_first);
    free(plan->seat);
    free(plan);
}

int tt_plan_ranks(const tt_plan *plan)
{
    return plan->ranks;
}

int tt_plan_hosts(const tt_plan *plan)
{
    return plan->hosts;
}

tt_plan_seat tt_plan_seat_of(const tt_plan *plan, int rank)
{
    return plan->seat[rank];
}
