/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two-level all-reduce: reduce-scatter within the node, all-reduce of each slice between the ranks
 * of equal local index, all-gather within the node. What NCCL's own rings and trees lose to it
 * depends on the machine, so the plan decides (TUTTI_HIERARCHICAL overrules it), per communicator
 * when it is made and per call by size; flat is the default. It needs nodes of equal size.
 *
 * The two communicators that it takes are shared like any other (share.c).
 */
#include <stdlib.h>
#include <string.h>

#include "core/env.h"
#include "core/log.h"
#include "core/mem.h"
#include "nccl/backend.h"
#include "topo/plan.h"

typedef struct tt_hier {
    tt_share *node, *cross;
    int locals, local;
    size_t from_bytes; /* smaller calls stay flat: three steps cost more than they save */
} tt_hier;

/* What the machine's plan says, where its groups are the nodes. */
static tutti_status planned(const tutti_comm *comm, bool *hier_out, size_t *from_bytes_out)
{
    int n = comm->group.size, groups = 0, *group;
    tt_comm_config config;
    TT_TRY(tt_plan_comm_config(comm->ctx->plan, comm->group.world, n, NULL, &config));
    if (config.hier_min_bytes == SIZE_MAX)
        return TUTTI_OK;
    TT_TRY(tt_calloc(2 * (size_t)n, sizeof *group, &group));
    tutti_status status =
        tt_plan_groups(comm->ctx->plan, comm->group.world, n, group, group + n, &groups);
    free(group);
    *hier_out = status == TUTTI_OK && groups == comm->layout.nodes;
    *from_bytes_out = config.hier_min_bytes;
    return status;
}

static tutti_status choose(const tutti_comm *comm, bool *hier_out, size_t *from_bytes_out)
{
    const char *text;
    TT_TRY(tt_env_get_string(TT_ENV_HIERARCHICAL, &text));
    *hier_out = strcmp(text, "1") == 0;
    *from_bytes_out = 0; /* asked for: always */
    if (strcmp(text, "auto") == 0)
        return planned(comm, hier_out, from_bytes_out);
    return TUTTI_OK;
}

static bool even(const tt_layout *at)
{
    for (int node = 1; node < at->nodes; node++)
        if (at->node_size[node] != at->node_size[0])
            return false;
    return at->nodes > 1 && at->node_size[0] > 1;
}

/* The ranks on this rank's node, or those of its local index on all nodes. */
static tutti_status members(const tutti_comm *comm, bool of_node, tt_group *group)
{
    const tt_layout *at = &comm->layout;
    int me = comm->group.rank, n = 0;
    *group = (tt_group){.ctx = comm->ctx};
    group->size = of_node ? at->node_size[at->node[me]] : at->nodes;
    TT_TRY(tt_calloc((size_t)group->size, sizeof(int), &group->world));
    for (int r = 0; r < at->size; r++) {
        if (of_node ? at->node[r] != at->node[me] : at->local[r] != at->local[me])
            continue;
        if (r == me)
            group->rank = n;
        group->world[n++] = comm->group.world[r];
    }
    return TUTTI_OK;
}

static tutti_status make_level(tutti_comm *comm, bool of_node, tt_share **share_out)
{
    const tt_layout *at = &comm->layout;
    int me = comm->group.rank, parts = of_node ? at->nodes : at->node_size[0];
    uint32_t id = 0;
    tt_group group;
    tutti_status status = members(comm, of_node, &group);
    status = tt_agree(&comm->group, "two-level all_reduce", status);
    if (status == TUTTI_OK)
        status = tt_group_new_ids(&comm->group, (uint32_t)parts, &id);
    if (status == TUTTI_OK) {
        group.id = id + (uint32_t)(of_node ? at->node[me] : at->local[me]);
        status = tt_share_get(tt_nccl_of(comm)->nc, &group, comm->name, share_out);
    }
    free(group.world);
    return tt_agree(&comm->group, "two-level all_reduce", status);
}

tutti_status tt_hier_create(tutti_comm *comm)
{
    tt_nccl *own = tt_nccl_of(comm);
    tt_hier *h = NULL;
    bool wanted = false;
    size_t from_bytes = 0;
    tutti_status status = choose(comm, &wanted, &from_bytes);
    if (status == TUTTI_OK)
        status = tt_calloc(1, sizeof *h, &h);
    status = tt_agree(&comm->group, "making a communicator", status);
    if (status != TUTTI_OK || !wanted || !even(&comm->layout) ||
        (comm->flags & TUTTI_COMM_REPRODUCIBLE) != 0) {
        free(h);
        return status;
    }
    own->hier = h;
    h->locals = comm->layout.node_size[0];
    h->local = comm->layout.local[comm->group.rank];
    h->from_bytes = from_bytes;
    TT_TRY(make_level(comm, true, &h->node));
    TT_TRY(make_level(comm, false, &h->cross));
    /* Its steps use communicators that others may use too: their order is kept by events. */
    own->nc->feature.orders_launches = false;
    tt_log_info(TT_COLL, "comm %s: all_reduce in two levels, %d ranks on each of %d nodes",
                comm->name, h->locals, comm->layout.nodes);
    return TUTTI_OK;
}

void tt_hier_destroy(tutti_comm *comm)
{
    tt_nccl *own = tt_nccl_of(comm);
    if (own->hier == NULL)
        return;
    tt_share_drop(own->nc, own->hier->cross);
    tt_share_drop(own->nc, own->hier->node);
    free(own->hier);
    own->hier = NULL;
}

/* An average of integers is rounded once; two levels would do it twice. */
bool tt_hier_takes(const tt_call *call)
{
    const tt_hier *h = tt_nccl_of(call->comm)->hier;
    bool floating = call->dtype == TUTTI_FLOAT32 || call->dtype == TUTTI_FLOAT64 ||
                    call->dtype == TUTTI_BFLOAT16 || call->dtype == TUTTI_FLOAT16;
    return h != NULL && call->kind == TT_ALL_REDUCE && call->n >= (size_t)h->locals &&
           call->n * tutti_dtype_size(call->dtype) >= h->from_bytes &&
           (call->op != TUTTI_AVG || floating);
}

static tutti_status settled(const tt_call *call, ncclResult_t result, ncclComm_t comm,
                            const char *name)
{
    char text[192];
    TT_TRY(tt_nccl_call_status(result, name, call));
    if (result != ncclInProgress)
        return TUTTI_OK;
    tt_call_text(call, text, sizeof text);
    return tt_nccl_settle_inside(tt_nccl_of(call->comm)->nc, comm, text,
                                 call->comm->ctx->timeout_s);
}

tutti_status tt_hier_run(const tt_call *call)
{
    const tt_nccl *own = tt_nccl_of(call->comm);
    const tt_hier *h = own->hier;
    cudaStream_t stream = (cudaStream_t)call->stream.handle;
    ncclRedOp_t op = tt_nccl_op(call->op);
    size_t element = tutti_dtype_size(call->dtype), slice = call->n / (size_t)h->locals;
    size_t main = slice * (size_t)h->locals;
    const char *in = call->in;
    char *out = call->out, *part = out + (size_t)h->local * slice * element;
    ncclDataType_t type;
    if (!tt_nccl_dtype(call->dtype, &type))
        return tt_fail(TUTTI_ERR_INTERNAL, "no NCCL type for %s", tutti_dtype_name(call->dtype));
    if (main < call->n) /* the tail, before `in` is written to in place */
        TT_TRY(settled(
            call,
            TT_INSIDE(own->nc, ncclAllReduce(in + main * element, out + main * element,
                                             call->n - main, type, op, own->share->comm, stream)),
            own->share->comm, "ncclAllReduce"));
    TT_TRY(settled(
        call,
        TT_INSIDE(own->nc, ncclReduceScatter(in, part, slice, type, op, h->node->comm, stream)),
        h->node->comm, "ncclReduceScatter"));
    TT_TRY(settled(
        call,
        TT_INSIDE(own->nc, ncclAllReduce(part, part, slice, type, op, h->cross->comm, stream)),
        h->cross->comm, "ncclAllReduce"));
    return settled(call,
                   TT_INSIDE(own->nc, ncclAllGather(part, out, slice, type, h->node->comm, stream)),
                   h->node->comm, "ncclAllGather");
}
