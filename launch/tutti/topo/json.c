/* SPDX-License-Identifier: Apache-2.0 */
/* The page for programs; docs/topology.md documents it. Lists are in NCCL's order. */
#include <jansson.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "view.h"

/* Three decimals: the files compared with have no more, and floats would show their tail. */
static json_t *real(double value)
{
    return json_real(round(value * 1000) / 1000);
}

static json_t *text_or_null(const char *text)
{
    return text[0] != '\0' ? json_string(text) : json_null();
}

static json_t *busid_of(const tt_machine *m, int pci)
{
    char text[TT_BUSID_TEXT];
    if (pci < 0 || m->pci[pci].busid == TT_BUSID_NONE)
        return json_null();
    return json_string(tt_busid_print(m->pci[pci].busid, text));
}

static bool same_ends(const tt_nvlink *a, const tt_nvlink *b)
{
    return a->gpu == b->gpu && a->peer == b->peer && a->peer_gpu == b->peer_gpu;
}

static bool first_to_peer(const tt_machine *m, int l)
{
    for (int k = 0; k < l; k++)
        if (same_ends(&m->nvlinks[k], &m->nvlinks[l]))
            return false;
    return true;
}

/* One entry for each peer: some readers know the switches apart, others do not. */
static json_t *links_json(const tt_machine *m, int first)
{
    const tt_nvlink *link = &m->nvlinks[first];
    double gbps = 0;
    int count = 0;
    for (int k = first; k < m->n_nvlinks; k++)
        if (same_ends(&m->nvlinks[k], link)) {
            count += (int)m->nvlinks[k].count;
            gbps += (double)m->nvlinks[k].gbps;
        }
    return json_pack("{s:o, s:i, s:o}", "peer",
                     link->peer_gpu >= 0 ? json_integer(link->peer_gpu) : json_string("switch"),
                     "count", count, "gbps", real(gbps));
}

static json_t *gpu_json(const tt_machine *m, int g)
{
    const tt_gpu *gpu = &m->gpus[g];
    json_t *nics = json_array(), *links = json_array();
    for (int i = 0; i < m->paths->n_local[g]; i++)
        json_array_append_new(nics, json_integer(m->paths->nics[g * m->n_nics + i]));
    for (int l = 0; l < m->n_nvlinks; l++)
        if (m->nvlinks[l].gpu == g && first_to_peer(m, l))
            json_array_append_new(links, links_json(m, l));
    return json_pack("{s:i, s:o, s:i, s:o, s:i, s:i, s:o, s:o, s:I, s:o, s:o, s:o}", "index", g,
                     "busid", busid_of(m, gpu->pci), "dev", (int)gpu->dev, "cuda",
                     gpu->cuda >= 0 ? json_integer(gpu->cuda) : json_null(), "sm", (int)gpu->sm,
                     "numa", gpu->numa >= 0 ? m->numa[gpu->numa].id : -1, "name",
                     text_or_null(gpu->name), "uuid", text_or_null(gpu->uuid), "memory",
                     (json_int_t)gpu->memory, "pcie_gbps",
                     gpu->pci >= 0 ? real((double)m->pci[gpu->pci].gbps) : json_null(), "nvlinks",
                     links, "nics", nics);
}

static json_t *nic_json(const tt_machine *m, int k)
{
    static const char *const kind[] = {"unknown", "ethernet", "infiniband", "roce", "efa"};
    const tt_nic *nic = &m->nics[k];
    return json_pack("{s:i, s:o, s:o, s:i, s:i, s:i, s:I, s:o, s:s}", "index", k, "name",
                     text_or_null(nic->name), "busid", busid_of(m, nic->pci), "dev", (int)nic->dev,
                     "port", (int)nic->port, "numa", nic->numa >= 0 ? m->numa[nic->numa].id : -1,
                     "mbps", (json_int_t)nic->mbps, "gbps", real((double)nic->gbps), "kind",
                     kind[nic->kind]);
}

static json_t *path_json(const tt_path *path)
{
    return json_pack("{s:s, s:o, s:i}", "type", tt_path_name((tutti_path_type)path->type), "gbps",
                     real((double)path->gbps), "hops", (int)path->hops);
}

static json_t *paths_json(const tt_path *paths, int rows, int columns)
{
    json_t *all = json_array();
    for (int i = 0; i < rows; i++) {
        json_t *row = json_array();
        for (int k = 0; k < columns; k++)
            json_array_append_new(row, path_json(&paths[i * columns + k]));
        json_array_append_new(all, row);
    }
    return all;
}

static json_t *lanes_json(const tt_lanes *lanes)
{
    if (lanes->channels == 0)
        return json_null();
    return json_pack("{s:i, s:o, s:s}", "channels", lanes->channels, "gbps",
                     real((double)lanes->gbps_intra), "type",
                     tt_path_name((tutti_path_type)lanes->type_intra));
}

static json_t *estimate_json(const tt_cost *cost)
{
    if (cost->local < 2)
        return json_null();
    tt_cost_time time = tt_cost_of(cost, TT_COST_ALL_REDUCE, VIEW_BYTES);
    return json_pack("{s:o, s:o, s:o, s:{s:i, s:o, s:s, s:s, s:o}}", "ring",
                     lanes_json(&cost->ring), "tree", lanes_json(&cost->tree), "nvls",
                     lanes_json(&cost->nvls), "all_reduce", "bytes", (int)VIEW_BYTES, "us",
                     real(time.us), "algorithm", tt_algo_name(time.algo), "protocol",
                     tt_proto_name(time.proto), "bus_gbps",
                     real(tt_cost_busbw(cost, TT_COST_ALL_REDUCE, VIEW_BYTES)));
}

static json_t *numa_json(const tt_machine *m)
{
    json_t *all = json_array();
    char cpus[512];
    for (int d = 0; d < m->n_numa; d++) {
        tt_cpuset_print_list(&m->numa[d].cpus, cpus, sizeof cpus);
        json_array_append_new(all, json_pack("{s:i, s:s}", "id", m->numa[d].id, "cpus", cpus));
    }
    return all;
}

static json_t *islands_json(const tt_machine *m)
{
    json_t *all = json_array();
    for (int i = 0; i < m->paths->n_islands; i++) {
        json_t *island = json_array();
        for (int g = 0; g < m->n_gpus; g++)
            if (m->paths->island[g] == i)
                json_array_append_new(island, json_integer(g));
        json_array_append_new(all, island);
    }
    return all;
}

static json_t *machine_json(const topo_view *view, int machine)
{
    const tt_machine *m = view->topo->machines[machine];
    json_t *gpus = json_array(), *nics = json_array();
    for (int g = 0; g < m->n_gpus; g++)
        json_array_append_new(gpus, gpu_json(m, g));
    for (int k = 0; k < m->n_nics; k++)
        json_array_append_new(nics, nic_json(m, k));
    return json_pack("{s:o, s:o, s:o, s:{s:o, s:o}, s:o, s:o}", "numa", numa_json(m), "gpus", gpus,
                     "nics", nics, "paths", "gpu_gpu",
                     paths_json(m->paths->gpu_gpu, m->n_gpus, m->n_gpus), "gpu_nic",
                     paths_json(m->paths->gpu_nic, m->n_gpus, m->n_nics), "islands",
                     islands_json(m), "estimate", estimate_json(&view->cost[machine]));
}

static json_t *hosts_json(const topo_view *view)
{
    json_t *all = json_array();
    for (int h = 0; h < view->topo->n_hosts; h++)
        json_array_append_new(all, json_pack("{s:o, s:i}", "name",
                                             text_or_null(view->topo->hosts[h].name), "machine",
                                             (int)view->topo->hosts[h].machine));
    return all;
}

static json_t *findings_json(const tt_findings *list)
{
    json_t *all = json_array();
    for (size_t i = 0; i < list->n; i++) {
        const tt_finding *f = &list->list[i];
        json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:o, s:s}", "id", f->id, "severity",
                                             tt_severity_name(f->severity), "text", f->text, "cost",
                                             real(f->cost), "action", f->action));
    }
    return all;
}

static json_t *rank_json(const topo_view *view, int rank)
{
    const view_rank *r = &view->rank[rank];
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:s, s:s}", "rank", rank, "host", r->seat.host,
                     "gpu", r->seat.gpu, "island", r->seat.island, "nic", r->seat.nic, "rail",
                     r->seat.rail, "cpus", r->cpus, "cpus_why", tt_bind_text(r->why));
}

static json_t *positive(int value)
{
    return value > 0 ? json_integer(value) : json_null();
}

static json_t *comm_json(const view_comm *c)
{
    const tt_comm_config *k = &c->config;
    json_t *config = json_pack(
        "{s:o, s:o, s:o, s:o, s:b, s:o}", "minCTAs", positive(k->min_ctas), "maxCTAs",
        positive(k->max_ctas), "cgaClusterSize",
        k->cga_cluster_size >= 0 ? json_integer(k->cga_cluster_size) : json_null(), "nvlsCTAs",
        positive(k->nvls_ctas), "splitShare", k->split_share, "commName", text_or_null(k->name));
    return json_pack(
        "{s:s, s:i, s:i, s:o, s:o, s:o, s:o, s:s}", "axis", c->axis->name, "size", c->size, "hosts",
        c->hosts, "all_reduce_us", c->flat_us > 0 ? real(c->flat_us) : json_null(),
        "three_steps_us", c->three_us > 0 ? real(c->three_us) : json_null(), "three_steps_from",
        k->hier_min_bytes != SIZE_MAX ? json_integer((json_int_t)k->hier_min_bytes) : json_null(),
        "config", config, "why", k->why);
}

static json_t *plan_json(const topo_view *view)
{
    if (view->plan == NULL)
        return json_null();
    json_t *axes = json_array(), *order = json_array(), *ranks = json_array(),
           *comms = json_array(), *variables = json_array();
    for (int a = 0; a < view->axes.n; a++)
        json_array_append_new(axes, json_pack("{s:s, s:i}", "name", view->axes.axis[a].name, "size",
                                              view->axes.axis[a].size));
    for (int i = 0; i < view->ranks; i++) {
        json_array_append_new(order, json_integer(view->order[i]));
        json_array_append_new(ranks, rank_json(view, i));
    }
    for (int i = 0; i < view->n_comms; i++)
        json_array_append_new(comms, comm_json(&view->comm[i]));
    for (int i = 0; i < view->n_variables; i++)
        json_array_append_new(
            variables, json_pack("{s:s, s:s, s:s, s:o}", "name", view->variable[i].name, "value",
                                 view->variable[i].value, "why", view->variable[i].why, "user",
                                 text_or_null(view->variable[i].user)));
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "mesh", axes, "order", order, "step_us",
                     real(view->order_us), "step_us_by_rank", real(view->launcher_us), "ranks",
                     ranks, "communicators", comms, "environment", variables);
}

tutti_status json_print(const topo_view *view, FILE *out)
{
    const tutti_topo *topo = view->topo;
    json_t *notes = json_array();
    for (int i = 0; i < topo->n_notes; i++)
        json_array_append_new(notes, json_string(topo->notes[i].text));
    json_t *all =
        json_pack("{s:i, s:s, s:s, s:o, s:o, s:o, s:o}", "schema", 1, "origin", topo->origin,
                  "format", tt_topo_format_name(topo->format), "hosts", hosts_json(view), "notes",
                  notes, "findings", findings_json(&view->findings), "plan", plan_json(view));
    json_t *first = topo->n_machines > 0 ? machine_json(view, 0) : json_object();
    int failed = all == NULL || json_object_update(all, first) != 0;
    json_decref(first);
    if (!failed && topo->n_machines > 1) {
        json_t *machines = json_array();
        for (int m = 0; m < topo->n_machines; m++)
            json_array_append_new(machines, machine_json(view, m));
        failed = json_object_set_new(all, "machines", machines) != 0;
    }
    if (!failed)
        failed = json_dumpf(all, out, JSON_INDENT(1) | JSON_REAL_PRECISION(7)) != 0 ||
                 fputc('\n', out) == EOF;
    json_decref(all);
    return failed ? tt_fail(TUTTI_ERR_NO_MEMORY, "topology as JSON: not written") : TUTTI_OK;
}
