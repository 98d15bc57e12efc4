/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of a communicator: made over a group of ranks (the world, or a part that split made),
 * known to its context until it is destroyed, drained before that.
 *
 * A call on a stream belongs to its communicator until it has been carried out (`pending`); destroy
 * waits for that, bounded, also on a failed context, where every wait of a call ends soon. A
 * communicator whose calls do not end even then is left alone rather than freed under them.
 */
#include "comm/comm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/circle.h"
#include "comm/issue.h"
#include "comm/layout.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "trace/recorder.h"

static const double drain_failed_s = 30; /* for calls to notice that their context is failed */

tutti_comm *tutti_world(const tutti_ctx *ctx)
{
    const tt_upper *upper = ctx == NULL ? NULL : ctx->upper;
    return upper == NULL ? NULL : upper->world;
}

int tutti_rank(const tutti_comm *comm)
{
    return comm == NULL ? -1 : comm->group.rank;
}

int tutti_size(const tutti_comm *comm)
{
    return comm == NULL ? 0 : comm->group.size;
}

const char *tutti_comm_name(const tutti_comm *comm)
{
    return comm == NULL ? "none" : comm->name;
}

static tutti_status name_comm(tutti_comm *comm, const tutti_comm_opts *opts)
{
    char name[32];
    if (opts != NULL && opts->name != NULL)
        return tt_strdup(opts->name, &comm->name);
    snprintf(name, sizeof name, "world.%u", (unsigned)comm->group.id);
    return tt_strdup(name, &comm->name);
}

static tutti_status fill(tutti_comm *comm, const tt_group *group, const tutti_comm_opts *opts)
{
    tutti_ctx *ctx = comm->ctx;
    comm->group = *group;
    comm->group.ctx = ctx;
    comm->group.world = NULL; /* an array of its own */
    comm->flags = opts != NULL ? opts->flags : 0;
    TT_TRY(tt_calloc((size_t)group->size, sizeof(int), &comm->group.world));
    memcpy(comm->group.world, group->world, (size_t)group->size * sizeof(int));
    TT_TRY(name_comm(comm, opts));
    TT_TRY(tt_lane_open(((tt_upper *)ctx->upper)->recorder, comm->name, &comm->lane));
    TT_TRY(tt_layout_create(ctx->place, ctx->node_count, comm->group.world, group->size,
                            &comm->layout));
    comm->ops = tt_coll_select(ctx->dev_ops);
    if (comm->ops == NULL)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "no collectives for the %s backend in this build",
                       ctx->dev_ops->name);
    return TUTTI_OK;
}

static void comm_free(tutti_comm *comm)
{
    if (comm == NULL)
        return;
    if (comm->ops != NULL)
        comm->ops->destroy(comm);
    tt_layout_free(&comm->layout);
    tt_lane_close(comm->lane);
    free(comm->group.world);
    free(comm->name);
    free(comm);
}

static void link_comm(tt_upper *upper, tutti_comm *comm)
{
    pthread_mutex_lock(&upper->lock);
    comm->next = upper->comms;
    upper->comms = comm;
    pthread_mutex_unlock(&upper->lock);
}

static void unlink_comm(tt_upper *upper, tutti_comm *comm)
{
    pthread_mutex_lock(&upper->lock);
    for (tutti_comm **at = &upper->comms; *at != NULL; at = &(*at)->next) {
        if (*at == comm) {
            *at = comm->next;
            break;
        }
    }
    pthread_mutex_unlock(&upper->lock);
}

tutti_status tt_comm_create(tutti_ctx *ctx, const tt_group *group, const tutti_comm_opts *opts,
                            tutti_comm **comm_out)
{
    tt_group members = *group;
    tutti_comm *comm = NULL;
    members.ctx = ctx;
    tutti_status status = tt_calloc(1, sizeof *comm, &comm);
    if (status == TUTTI_OK) {
        comm->ctx = ctx;
        status = fill(comm, group, opts);
    }
    status = tt_agree(&members, "making a communicator", status);
    if (status == TUTTI_OK) {
        memcpy(comm->group.round, members.round, sizeof members.round);
        status = comm->ops->create(comm);
    }
    if (status != TUTTI_OK) {
        comm_free(comm);
        return status;
    }
    link_comm(ctx->upper, comm);
    tt_circle_made(ctx, &comm->group);
    tt_log_debug(TT_COLL, "comm %s: rank %d of %d on %d nodes, over %s", comm->name,
                 comm->group.rank, comm->group.size, comm->layout.nodes, comm->ops->name);
    *comm_out = comm;
    return TUTTI_OK;
}

static uint32_t still_pending(tutti_comm *comm)
{
    if (comm->ops->advance != NULL)
        comm->ops->advance(comm->ctx);
    return atomic_load_explicit(&comm->pending, memory_order_acquire);
}

static bool late_work(void *arg, char *buf, size_t cap)
{
    tutti_comm *comm = arg;
    unsigned pending = atomic_load(&comm->pending);
    snprintf(buf, cap, "%u calls on streams of this rank are not done", pending);
    return pending > 0;
}

tutti_status tt_comm_drain(tutti_comm *comm)
{
    char what[128];
    tt_op_wait wait;
    uint32_t pending = still_pending(comm);
    if (pending == 0)
        return TUTTI_OK;
    snprintf(what, sizeof what, "waiting for the calls on comm %s", comm->name);
    tt_op_wait_begin(&wait, comm->ctx, &comm->ctx->worker_patience, what, late_work, comm);
    while (pending != 0) {
        TT_TRY(tt_op_wait_once(&wait, &comm->pending, pending));
        pending = still_pending(comm);
    }
    return TUTTI_OK;
}

/* Whether nothing of this rank uses the communicator any more. */
static bool drain_anyhow(tutti_comm *comm)
{
    int64_t deadline;
    uint32_t pending;
    if (tt_comm_drain(comm) == TUTTI_OK)
        return true;
    deadline = tt_deadline(drain_failed_s);
    while ((pending = still_pending(comm)) != 0) {
        if (tt_now_ns() > deadline)
            return false;
        tt_futex_wait(&comm->pending, pending, 1000000);
    }
    return true;
}

static void destroy(tutti_comm *comm)
{
    tt_group_forget(comm);
    if (drain_anyhow(comm))
        comm_free(comm);
    else
        tt_log_error(TT_COLL, "comm %s: calls on streams do not end; its memory is left to them",
                     comm->name);
}

void tutti_comm_destroy(tutti_comm *comm)
{
    if (comm == NULL || comm == tutti_world(comm->ctx))
        return;
    unlink_comm(comm->ctx->upper, comm);
    destroy(comm);
}

void tt_comms_destroy(tutti_ctx *ctx)
{
    tt_upper *upper = ctx->upper;
    while (upper != NULL && upper->comms != NULL) {
        tutti_comm *youngest = upper->comms;
        upper->comms = youngest->next;
        destroy(youngest);
    }
}
