/* SPDX-License-Identifier: Apache-2.0 */
#include "view.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "here.h"

static const char *from_environment(void *arg, const char *name)
{
    (void)arg;
    return getenv(name);
}

static tutti_status find_costs(topo_view *view)
{
    int gpus[TT_TOPO_MAX_GPUS];
    TT_TRY(tt_calloc((size_t)view->topo->n_machines, sizeof *view->cost, &view->cost));
    for (int i = 0; i < TT_TOPO_MAX_GPUS; i++)
        gpus[i] = i;
    for (int m = 0; m < view->topo->n_machines; m++)
        if (view->topo->machines[m]->n_gpus > 1)
            TT_TRY(tt_cost_model(view->topo->machines[m], gpus, view->topo->machines[m]->n_gpus, 1,
                                 &view->cost[m]));
    return TUTTI_OK;
}

static tutti_status make_plan(topo_view *view)
{
    const tutti_topo *topo = view->topo;
    tt_plan_rank *ranks;
    int at = 0;
    TT_TRY(tt_calloc((size_t)view->ranks, sizeof *ranks, &ranks));
    for (int h = 0; h < topo->n_hosts; h++)
        for (int g = 0; g < tt_topo_machine_of(topo, h)->n_gpus; g++)
            ranks[at++] = (tt_plan_rank){h, g};
    tt_plan_input in = {topo, topo->n_hosts, view->ranks, ranks};
    tutti_status status = tt_plan_create(&in, &view->plan);
    free(ranks);
    return status;
}

/* Without a live machine the launcher's mask is not known: all processors that the machine has. */
static tutti_status every_cpu(const tt_machine *m, tt_cpuset *all)
{
    if (tt_cpuset_count(&m->allowed) > 0)
        return tt_cpuset_copy(&m->allowed, all);
    for (int d = 0; d < m->n_numa; d++) {
        tt_cpuset sum = {0};
        TT_TRY(tt_cpuset_or(all, &m->numa[d].cpus, &sum));
        tt_cpuset_free(all);
        *all = sum;
    }
    return TUTTI_OK;
}

static tutti_status bind_host(topo_view *view, int first, const tt_machine *m)
{
    tt_bind_rank local[TT_TOPO_MAX_GPUS];
    tt_cpuset all = {0};
    tutti_status status = every_cpu(m, &all);
    for (int g = 0; g < m->n_gpus; g++)
        local[g] = (tt_bind_rank){g, &all};
    for (int g = 0; g < m->n_gpus && status == TUTTI_OK; g++) {
        view_rank *rank = &view->rank[first + g];
        tt_cpuset cpus = {0};
        status = tt_bind_cpus(m, local, m->n_gpus, g, &cpus, &rank->why);
        if (status == TUTTI_OK)
            tt_cpuset_print_list(&cpus, rank->cpus, sizeof rank->cpus);
        tt_cpuset_free(&cpus);
    }
    tt_cpuset_free(&all);
    return status;
}

static tutti_status seat_ranks(topo_view *view)
{
    int at = 0;
    TT_TRY(tt_calloc((size_t)view->ranks, sizeof *view->rank, &view->rank));
    for (int r = 0; r < view->ranks; r++)
        view->rank[r].seat = tt_plan_seat_of(view->plan, r);
    for (int h = 0; h < view->topo->n_hosts; h++) {
        const tt_machine *m = tt_topo_machine_of(view->topo, h);
        TT_TRY(bind_host(view, at, m));
        at += m->n_gpus;
    }
    return TUTTI_OK;
}

static tutti_status make_order(topo_view *view)
{
    int size[TT_MESH_AXES], *same;
    for (int a = 0; a < view->axes.n; a++)
        size[a] = view->axes.axis[a].size;
    TT_TRY(tt_calloc((size_t)view->ranks, sizeof *same, &same));
    for (int i = 0; i < view->ranks; i++)
        same[i] = i;
    tutti_status status = tt_calloc((size_t)view->ranks, sizeof(int), &view->order);
    if (status == TUTTI_OK)
        status = tt_plan_order(view->plan, same, view->ranks, size, view->axes.n, view->order);
    if (status == TUTTI_OK)
        status = tt_plan_order_cost(view->plan, view->order, view->ranks, size, view->axes.n,
                                    &view->order_us);
    if (status == TUTTI_OK)
        status = tt_plan_order_cost(view->plan, same, view->ranks, size, view->axes.n,
                                    &view->launcher_us);
    free(same);
    return status;
}

static tutti_status make_comms(topo_view *view)
{
    int *members;
    TT_TRY(tt_calloc((size_t)view->ranks, sizeof *members, &members));
    tutti_status status = TUTTI_OK;
    for (int a = 0; a < view->axes.n && status == TUTTI_OK; a++) {
        const tt_axis *axis = &view->axes.axis[a];
        if (axis->size < 2)
            continue;
        view_comm *c = &view->comm[view->n_comms++];
        *c = (view_comm){.axis = axis, .size = axis->size};
        for (int i = 0; i < axis->size; i++) {
            members[i] = view->order[i * axis->stride];
            c->hosts +=
                i == 0 || view->rank[members[i]].seat.host != view->rank[members[i - 1]].seat.host;
        }
        const tt_comm_use use = {axis->name, true};
        status = tt_plan_comm_config(view->plan, members, axis->size, &use, &c->config);
        if (status == TUTTI_OK)
            status = tt_plan_all_reduce_us(view->plan, members, axis->size, VIEW_BYTES, &c->flat_us,
                                           &c->three_us);
    }
    free(members);
    return status;
}

static tutti_status plan_all(topo_view *view, const char *mesh)
{
    char all[32];
    view->ranks = tutti_topo_gpu_count(view->topo);
    if (view->ranks == 0 && mesh != NULL)
        return tt_fail(TUTTI_ERR_ARG, "%s has no GPUs to plan for", view->topo->origin);
    if (view->ranks == 0)
        return TUTTI_OK;
    snprintf(all, sizeof all, "all=%d", view->ranks);
    TT_TRY(tt_mesh_parse(mesh != NULL ? mesh : all, view->ranks, &view->axes));
    TT_TRY(make_plan(view));
    TT_TRY(seat_ranks(view));
    TT_TRY(make_order(view));
    TT_TRY(make_comms(view));
    return tt_plan_environment(view->plan, from_environment, NULL, view->variable,
                               &view->n_variables, &view->findings);
}

tutti_status view_make(const tutti_topo *topo, const char *mesh, topo_view *view)
{
    memset(view, 0, sizeof *view);
    view->topo = topo;
    tutti_status status = find_costs(view);
    const tt_find_also also = what_else(topo);
    if (status == TUTTI_OK)
        status = tt_findings_make(topo, &also, &view->findings);
    if (status == TUTTI_OK)
        status = plan_all(view, mesh);
    tt_findings_sort(&view->findings);
    if (status != TUTTI_OK)
        view_free(view);
    return status;
}

void view_free(topo_view *view)
{
    tt_findings_free(&view->findings);
    tt_plan_destroy(view->plan);
    free(view->order);
    free(view->rank);
    free(view->cost);
}
