/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's process-wide variables: which to set for this job, and which the user has set against it.
 *
 * They hold for all communicators of a process, are read once, and win over what a program puts
 * into a communicator's configuration. So few are set here, each because the machines' description
 * shows a reason, and nothing that the user has set is touched: what it costs by the model is
 * reported. Only what is the same on all hosts is set, since all ranks must have the same block.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "topo/findings.h"
#include "topo/plan_parts.h"

typedef struct block {
    const tt_plan *plan;
    const tt_machine *m; /* of the first host */
    tt_plan_variable *list;
    int n;
} block;

static bool rdma(const tt_nic *nic)
{
    return nic->kind == TT_NIC_IB || nic->kind == TT_NIC_ROCE;
}

static void set(block *b, const char *name, const char *value, const char *why)
{
    if (b->n == TT_PLAN_VARIABLES)
        return;
    tt_plan_variable *v = &b->list[b->n++];
    *v = (tt_plan_variable){.name = name};
    snprintf(v->value, sizeof v->value, "%s", value);
    snprintf(v->why, sizeof v->why, "%s", why);
}

/* Every host calls the same ports the same and gives them the same speed. */
static bool alike(const tt_plan *plan)
{
    const tt_machine *a = tt_plan_machine(plan, 0);
    for (int h = 1; h < plan->hosts; h++) {
        const tt_machine *b = tt_plan_machine(plan, h);
        if (b == a)
            continue;
        if (b->n_nics != a->n_nics)
            return false;
        for (int k = 0; k < a->n_nics; k++) {
            int same = 0;
            while (same < b->n_nics && (strcmp(b->nics[same].name, a->nics[k].name) != 0 ||
                                        b->nics[same].mbps != a->nics[k].mbps))
                same++;
            if (same == b->n_nics)
                return false;
        }
    }
    return true;
}

/* Slow ports among the fast ones (management, storage) would get channels too. */
static void adapters(block *b)
{
    char value[256] = "=";
    size_t at = 1;
    int fast = 0, slow = 0;
    float most = 0;
    for (int k = 0; k < b->m->n_nics; k++)
        if (rdma(&b->m->nics[k]) && b->m->nics[k].gbps > most)
            most = b->m->nics[k].gbps;
    for (int k = 0; k < b->m->n_nics; k++) {
        const tt_nic *nic = &b->m->nics[k];
        if (!rdma(nic) || nic->up == TT_NO)
            continue;
        if (nic->gbps < 0.9f * most || nic->name[0] == '\0') {
            slow++;
            continue;
        }
        if (at < sizeof value)
            at += (size_t)snprintf(value + at, sizeof value - at, "%s%s", fast > 0 ? "," : "",
                                   nic->name);
        fast++;
    }
    if (fast > 0 && slow > 0 && at < sizeof value)
        set(b, "NCCL_IB_HCA", value, "leaves out ports that are slower than these");
}

static bool virtual_name(const char *name)
{
    static const char *const prefix[] = {"docker", "veth",    "cali", "br-",
                                         "virbr",  "flannel", "cni"};
    for (size_t i = 0; i < sizeof prefix / sizeof prefix[0]; i++)
        if (strncmp(name, prefix[i], strlen(prefix[i])) == 0)
            return true;
    return false;
}

/* NCCL itself turns to such interfaces only when it has no other. It must be left one: the rule is
 * for jobs of several hosts, whose other interfaces are known. */
static void interfaces(block *b)
{
    bool found = false, other = false;
    for (int k = 0; k < b->m->n_nics; k++) {
        const tt_nic *nic = &b->m->nics[k];
        const char *name = nic->netdev[0] != '\0' ? nic->netdev : nic->name;
        if (virtual_name(name))
            found = true;
        else if (nic->up != TT_NO && (nic->netdev[0] != '\0' || !rdma(nic)))
            other = true;
    }
    if (found && other && b->plan->hosts > 1)
        set(b, "NCCL_SOCKET_IFNAME", "^lo,docker,veth,cali,br-,virbr,flannel,cni",
            "leaves out interfaces of containers, which reach no other host");
}

static const char *user_value(tt_plan_getenv get, void *arg, const char *name)
{
    const char *value = get(arg, name);
    return value == NULL || value[0] == '\0' ? NULL : value;
}

/* The share of bandwidth that paths lose under other rules, over the pairs of GPUs. */
static tutti_status rules_cost(const tt_machine *m, const tt_path_rules *rules, double *cost_out)
{
    tt_paths *paths;
    double before = 0, after = 0;
    TT_TRY(tt_paths_compute(m, rules, &paths));
    for (int i = 0; i < m->n_gpus * m->n_gpus; i++)
        if (m->paths->gpu_gpu[i].type != TUTTI_PATH_LOC) {
            before += m->paths->gpu_gpu[i].gbps;
            after += paths->gpu_gpu[i].gbps;
        }
    tt_paths_free(paths);
    *cost_out = before > 0 && after < before ? 1 - after / before : 0;
    return TUTTI_OK;
}

typedef struct override {
    const char *name, *value; /* NULL: any */
    const char *effect;
} override;

static const override overrides[] = {
    {"NCCL_SHM_DISABLE", "1", "ranks of a host without peer-to-peer go over the network"},
    {"NCCL_IB_DISABLE", "1", "the RDMA ports are not used, TCP sockets are"},
    {"NCCL_PXN_DISABLE", "1", "GPUs do not use the NIC of a peer"},
    {"NCCL_NVLS_ENABLE", "0", "reductions in the NVSwitch are off"},
    {"NCCL_NET_GDR_LEVEL", "0", "GPUDirect RDMA is off"},
    {"NCCL_NET_GDR_LEVEL", "LOC", "GPUDirect RDMA is off"},
    {"NCCL_ALGO", NULL, "NCCL does not choose the algorithm by size any more"},
    {"NCCL_PROTO", NULL, "NCCL does not choose the protocol by size any more"},
    {"NCCL_GRAPH_FILE", NULL,
     "every communicator reads it, and fails where its GPUs are not all in the file"},
    {"NCCL_MAX_CTAS", NULL, "replaces the number of channels of every communicator"},
    {"NCCL_MIN_CTAS", NULL, "replaces the number of channels of every communicator"},
    {"NCCL_MAX_NCHANNELS", NULL, "replaces the number of channels of every communicator"},
    {"NCCL_CGA_CLUSTER_SIZE", NULL, "replaces the cluster size of every communicator"},
    {"NCCL_CROSS_NIC", "0", "rings stay on one rail"},
    {"NCCL_TOPO_FILE", NULL, "what the file says wins over what the machine says"},
};

static bool matters(const tt_machine *m, const char *name)
{
    int ib = 0, by_peer = 0;
    for (int k = 0; k < m->n_nics; k++)
        ib += rdma(&m->nics[k]);
    for (int i = 0; i < m->n_gpus * m->n_nics; i++)
        by_peer += m->paths->gpu_nic[i].type == TUTTI_PATH_PXN;
    if (strcmp(name, "NCCL_IB_DISABLE") == 0)
        return ib > 0;
    if (strcmp(name, "NCCL_PXN_DISABLE") == 0)
        return by_peer > 0;
    if (strcmp(name, "NCCL_NVLS_ENABLE") == 0)
        return m->n_gpus > 0 && m->gpus[0].sm >= 90;
    return true;
}

static tutti_status report_p2p(const tt_machine *m, tt_plan_getenv get, void *arg, tt_findings *out)
{
    const char *off = user_value(get, arg, "NCCL_P2P_DISABLE");
    tt_path_rules rules = TT_PATH_RULES_INIT;
    double cost;
    if (off == NULL || strcmp(off, "0") == 0 || m->n_gpus < 2)
        return TUTTI_OK;
    rules.p2p_level = TUTTI_PATH_LOC;
    TT_TRY(rules_cost(m, &rules, &cost));
    return tt_findings_add(
        out, "env-overrides", cost,
        "NCCL_P2P_DISABLE=%s: GPUs exchange data through the host's memory, %.0f "
        "%% of the bandwidth between them is lost",
        off, 100 * cost);
}

static tutti_status report(const tt_machine *m, tt_plan_getenv get, void *arg, tt_findings *out)
{
    TT_TRY(report_p2p(m, get, arg, out));
    for (size_t i = 0; i < sizeof overrides / sizeof overrides[0]; i++) {
        const override *o = &overrides[i];
        const char *value = user_value(get, arg, o->name);
        if (value == NULL || (o->value != NULL && strcasecmp(value, o->value) != 0) ||
            !matters(m, o->name))
            continue;
        TT_TRY(tt_findings_add(out, "env-overrides", 0, "%s=%s: %s", o->name, value, o->effect));
    }
    return TUTTI_OK;
}

tutti_status tt_plan_environment(const tt_plan *plan, tt_plan_getenv get, void *arg,
                                 tt_plan_variable list_out[TT_PLAN_VARIABLES], int *n_out,
                                 tt_findings *conflicts)
{
    block b = {.plan = plan, .list = list_out};
    if (plan->topo == NULL) {
        *n_out = 0;
        return TUTTI_OK;
    }
    b.m = tt_plan_machine(plan, 0);
    if (alike(plan)) {
        adapters(&b);
        interfaces(&b);
    }
    for (int i = 0; i < b.n; i++) {
        const char *value = user_value(get, arg, b.list[i].name);
        if (value != NULL)
            snprintf(b.list[i].user, sizeof b.list[i].user, "%s", value);
    }
    if (conflicts != NULL)
        TT_TRY(report(b.m, get, arg, conflicts));
    *n_out = b.n;
    return TUTTI_OK;
}
