/* SPDX-License-Identifier: Apache-2.0 */
#include "topo/plan.h"

#include <stdlib.h>

#include "core/mem.h"
#include "topo/plan_parts.h"

static tutti_status check_input(const tt_plan_input *in)
{
    if (in->hosts < 1 || in->ranks < 1)
        return tt_fail(TUTTI_ERR_ARG, "plan: %d hosts, %d ranks", in->hosts, in->ranks);
    for (int i = 0; i < in->ranks; i++)
        if (in->rank[i].host < 0 || in->rank[i].host >= in->hosts)
            return tt_fail(TUTTI_ERR_ARG, "plan: rank %d is on host %d of %d", i, in->rank[i].host,
                           in->hosts);
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

static void seat_ranks(tt_plan *plan, const tt_plan_input *in)
{
    for (int h = 0; h < plan->hosts; h++)
        for (int k = plan->host_first[h]; k < plan->host_first[h + 1]; k++) {
            int rank = plan->by_host[k];
            plan->seat[rank] = (tt_plan_seat){.host = h,
                                              .gpu = in->rank[rank].gpu,
                                              .local = k - plan->host_first[h],
                                              .island = h,
                                              .nic = -1,
                                              .rail = -1,
                                              .numa = -1};
        }
}

tutti_status tt_plan_create(const tt_plan_input *in, tt_plan **plan_out)
{
    tt_plan *plan = NULL;
    TT_TRY(check_input(in));
    TT_TRY(tt_calloc(1, sizeof *plan, &plan));
    plan->topo = in->topo;
    plan->hosts = in->hosts;
    plan->ranks = in->ranks;
    tutti_status status = tt_calloc((size_t)in->ranks, sizeof *plan->seat, &plan->seat);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)in->hosts + 1, sizeof(int), &plan->host_first);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)in->ranks, sizeof(int), &plan->by_host);
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
