/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: what one group brings onto one communicator, as one operation of the engine. It runs on
 * the stream of the first call; further streams of the group are joined before and after it, as
 * NCCL does.
 *
 * Numbers are given at launch, so each launch of a graph that holds a plan takes part in the order
 * of collectives like any other call (sn_plan_again). A plan is over when all its tasks are; a task
 * is over when its round has fired (local.c), or when this rank has read what it needs (remote.c).
 * Abort and revoke end a plan at once, with nothing moved.
 */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static sn_plan *live; /* launched and not over: for registrations */

static sn_plan *plan_alloc(ncclComm_t comm, const sn_task *tasks, size_t n)
{
    sn_plan *plan = calloc(1, sizeof(*plan));
    sn_task *copy = malloc(n * sizeof(*copy));
    if (plan == NULL || copy == NULL)
        sg_fatal("memory", "out of memory for a launch of %zu calls", n);
    memcpy(copy, tasks, n * sizeof(*copy));
    plan->comm = comm;
    plan->tasks = copy;
    plan->n = n;
    return plan;
}

sn_plan *sn_plan_make(ncclComm_t comm, const sn_task *tasks, size_t n)
{
    sn_plan_check(tasks, n);
    return plan_alloc(comm, tasks, n);
}

/* ---- issue: numbers and stamps ---- */

static uint64_t next_number(sn_task *task)
{
    ncclComm_t comm = task->comm;
    if (task->kind == SN_SEND)
        return comm->sent[task->peer]++;
    if (task->kind == SN_RECV)
        return comm->received[task->peer]++;
    return comm->issued++;
}

static void issue(sn_plan *plan)
{
    sn_clique *c = plan->comm->clique;
    uint32_t n = 0, at = 0;
    for (size_t i = 0; i < plan->n; i++)
        n += !sn_is_p2p(plan->tasks[i].kind);
    for (size_t i = 0; i < plan->n; i++) {
        sn_task *task = &plan->tasks[i];
        sn_stamp stamp;
        sn_stamp_make(task, at, n, plan->captured, &stamp);
        at += !sn_is_p2p(task->kind);
        task->seq = next_number(task);
        if (c->local)
            sn_local_issue(task, &stamp);
        else
            sn_remote_issue(task, &stamp);
    }
    plan->launched = true;
    plan->comm->plans++;
    plan->next = live;
    plan->prev = &live;
    if (live != NULL)
        live->prev = &plan->next;
    live = plan;
    sg_changed();
}

/* ---- running ---- */

static bool over(const sn_plan *plan)
{
    const ncclComm_t comm = plan->comm;
    return comm->clique == NULL || comm->state == SN_REVOKED ||
           atomic_load(&comm->clique->ctl->member[comm->rank].gone) != 0;
}

static sg_step plan_run(void *arg, sg_op *op)
{
    sn_plan *plan = arg;
    if (over(plan))
        return SG_DONE;
    plan->op = op;
    if (!plan->started) {
        plan->started = true;
        sg_changed();
    }
    if (plan->doomed)
        return SG_BLOCKED;
    bool done = true;
    for (size_t i = 0; i < plan->n; i++) {
        sn_task *task = &plan->tasks[i];
        if (!task->done)
            task->done = plan->comm->clique->local ? sn_local_try(task, op) : sn_remote_try(task);
        done = done && task->done;
    }
    return done ? SG_DONE : SG_BLOCKED;
}

static void plan_explain(void *arg, char *buf, size_t cap)
{
    const sn_plan *plan = arg;
    if (over(plan))
        return;
    for (size_t i = 0; i < plan->n; i++) {
        const sn_task *task = &plan->tasks[i];
        if (task->done)
            continue;
        if (plan->doomed)
            snprintf(buf, cap, "%s failed on demand (SIMGPU_FAULT)", sn_kind_name(task->kind));
        else if (plan->comm->clique->local)
            sn_local_explain(task, buf, cap);
        else
            sn_remote_explain(task, buf, cap);
        return;
    }
}

static void plan_release(void *arg)
{
    sn_plan *plan = arg;
    if (plan->launched) {
        *plan->prev = plan->next;
        if (plan->next != NULL)
            plan->next->prev = plan->prev;
        plan->comm->plans--;
        for (size_t i = 0; i < plan->n; i++)
            sn_local_release(&plan->tasks[i]);
        sg_changed();
    } else if (plan->captured) {
        plan->comm->captured--;
    }
    free(plan->tasks);
    free(plan);
}

void sn_plan_drop(sn_plan *plans)
{
    while (plans != NULL) {
        sn_plan *plan = plans;
        plans = plan->next;
        plan_release(plan);
    }
}

/* A launch of a graph that holds this plan. */
static void *plan_again(void *arg)
{
    sn_plan *recorded = arg;
    sn_plan *plan = plan_alloc(recorded->comm, recorded->tasks, recorded->n);
    plan->captured = true;
    plan->doomed = recorded->comm->clique == NULL;
    if (recorded->comm->state >= SN_DESTROYED)
        sg_finding("nccl-use-after-destroy", "a graph with %s is launched after %s was destroyed",
                   sn_kind_name(plan->tasks[0].kind), recorded->comm->name);
    else
        issue(plan);
    return plan;
}

/* ---- enqueueing ---- */

static size_t add_range(sg_range *ranges, size_t n, const void *ptr, size_t bytes, bool write)
{
    if (bytes > 0)
        ranges[n++] = (sg_range){.ptr = ptr, .bytes = bytes, .write = write};
    return n;
}

static size_t plan_ranges(const sn_plan *plan, sg_range *ranges)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->n; i++) {
        const sn_task *task = &plan->tasks[i];
        bool in_place = task->in == task->out && sn_sends(task) <= sn_receives(task);
        if (!in_place)
            n = add_range(ranges, n, task->in, sn_sends(task), false);
        n = add_range(ranges, n, task->out, sn_receives(task), true);
        if (task->scalar_on_device)
            n = add_range(ranges, n, task->scalar_ptr, sn_type_size(task->type), false);
    }
    return n;
}

/* The plan's streams, each once, the first one first. */
static size_t streams_of(const sn_plan *plan, sg_stream **streams)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->n; i++) {
        size_t k = 0;
        while (k < n && streams[k] != plan->tasks[i].stream)
            k++;
        if (k == n)
            streams[n++] = plan->tasks[i].stream;
    }
    return n;
}

/* Makes `later` wait for what is on `earlier` now. */
static int follow(sg_stream *later, sg_stream *earlier)
{
    sg_mark *mark = sg_mark_record(earlier, "ncclGroupEnd");
    int error = sg_stream_wait_mark(later, mark, "ncclGroupEnd");
    sg_mark_release(mark);
    return error;
}

static int join_streams(sg_stream *const *streams, size_t n, bool before)
{
    for (size_t i = 1; i < n; i++) {
        int error = before ? follow(streams[0], streams[i]) : follow(streams[i], streams[0]);
        if (error != SG_OK)
            return error;
    }
    return SG_OK;
}

/* SIMGPU_FAULT=ncclKernel:N=error,CODE: the N-th launch never ends, and the communicator says so.
 */
static void doom(sn_plan *plan)
{
    int error = -1;
    if (sg_call(&error, "ncclKernel", "%s calls=%zu", plan->comm->name, plan->n) != SG_FAIL)
        return;
    plan->doomed = true;
    atomic_store(&plan->comm->clique->ctl->member[plan->comm->rank].failed, error > 0 ? error : 6);
}

ncclResult_t sn_plan_enqueue(sn_plan *plan)
{
    ncclComm_t comm = plan->comm;
    const sn_task *first = &plan->tasks[0];
    char label[128];
    snprintf(label, sizeof(label), "%s #%llu%s of %s", sn_kind_name(first->kind),
             (unsigned long long)(sn_is_p2p(first->kind) ? comm->sent[first->peer] : comm->issued) +
                 1,
             plan->n > 1 ? " and others of a group" : "", comm->name);
    sg_range *ranges = malloc(3 * plan->n * sizeof(*ranges));
    sg_stream **streams = malloc(plan->n * sizeof(sg_stream *));
    if (ranges == NULL || streams == NULL)
        sg_fatal("memory", "out of memory for %zu ranges", 3 * plan->n);
    size_t n_streams = streams_of(plan, streams);
    int status;
    plan->captured = sg_capture_id(first->stream, &status) != 0;
    if (!plan->captured)
        doom(plan);
    int error = join_streams(streams, n_streams, true);
    if (error == SG_OK) {
        if (plan->captured)
            comm->captured++;
        else
            issue(plan);
        error = sg_enqueue(first->stream, &(sg_op_desc){
                                              .label = label,
                                              .site = first->site,
                                              .ranges = ranges,
                                              .n_ranges = plan_ranges(plan, ranges),
                                              .run = plan_run,
                                              .arg = plan,
                                              .release = plan_release,
                                              .again = plan_again,
                                              .explain = plan_explain,
                                              .flags = comm->clique->local ? 0 : SG_OP_REMOTE,
                                          });
        if (error != SG_OK)
            plan_release(plan);
        else
            error = join_streams(streams, n_streams, false); /* the plan may be over and gone */
    }
    free(streams);
    free(ranges);
    if (error != SG_OK)
        return sn_error(comm, ncclUnhandledCudaError, "%s: Cuda failure %d", label, error);
    return ncclSuccess;
}

bool sn_plans_touch(const sn_registration *reg)
{
    for (const sn_plan *plan = live; plan != NULL; plan = plan->next)
        for (size_t i = 0; plan->comm == reg->comm && i < plan->n; i++) {
            const sn_task *task = &plan->tasks[i];
            const char *in = task->in, *out = task->out;
            bool reads =
                sn_sends(task) > 0 && in < reg->ptr + reg->bytes && in + sn_sends(task) > reg->ptr;
            bool writes = sn_receives(task) > 0 && out < reg->ptr + reg->bytes &&
                          out + sn_receives(task) > reg->ptr;
            if (reads || writes)
                return true;
        }
    return false;
}
