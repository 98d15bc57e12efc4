/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups. A call outside of one is a group of its own. At the end of the outermost group the calls
 * of each communicator become one plan (NCCL: one kernel), the communicators in the order of their
 * first call. Errors of calls within a group are told at its end, and then nothing of it is done.
 *
 * On a non-blocking communicator the end of a group may say ncclInProgress: NCCL then puts the work
 * on the stream from a thread of its own, some time before ncclCommGetAsyncError says ncclSuccess.
 * Here that happens in ncclCommGetAsyncError, for a seeded half of the groups, so that a program
 * that does not ask has its work missing.
 */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct sn_group {
    struct sn_group *next; /* all threads' */
    int depth;
    ncclResult_t error;
    sn_task *tasks;
    size_t n, cap;
    sn_job *jobs, **last_job;
    bool mixed;
} sn_group;

static __thread sn_group *own;
static sn_group *groups;

static sn_group *mine(void)
{
    if (own == NULL) {
        own = calloc(1, sizeof(*own));
        if (own == NULL)
            sg_fatal("memory", "out of memory for a group");
        own->last_job = &own->jobs;
        sg_lock();
        own->next = groups;
        groups = own;
        sg_unlock();
    }
    return own;
}

int sn_group_depth(void)
{
    return own != NULL ? own->depth : 0;
}

ncclResult_t sn_group_job(sn_job *job)
{
    sn_group *g = mine();
    job->next = NULL;
    *g->last_job = job;
    g->last_job = &job->next;
    return job->comm->blocking ? ncclSuccess : ncclInProgress;
}

ncclResult_t ncclGroupStart(void)
{
    int error = -1;
    ncclResult_t result;
    if (sg_noop)
        return ncclSuccess;
    if (sn_stop(sg_call(&error, "ncclGroupStart", " "), &error, "ncclGroupStart", NULL, &result))
        return result;
    mine()->depth++;
    return ncclSuccess;
}
SN_ALIAS(ncclGroupStart);

/* ---- the end ---- */

static ncclResult_t enqueue_all(sn_plan *plans)
{
    ncclResult_t result = ncclSuccess;
    while (plans != NULL) {
        sn_plan *plan = plans;
        plans = plan->next;
        plan->next = NULL;
        ncclResult_t one = sn_plan_enqueue(plan);
        result = result == ncclSuccess ? one : result;
    }
    return result;
}

static bool launch_poll(sn_job *job)
{
    if (job->delay > 0 || job->plans == NULL)
        return true; /* sn_job_poll counts down first: the launch is the last thing */
    sn_plan *plans = job->plans;
    job->plans = NULL;
    job->result = enqueue_all(plans);
    return true;
}

/* All of the group waits, so that its communicators keep their order. */
static ncclResult_t put_off(sn_plan *plans)
{
    size_t n = 0;
    sn_job *job = sn_job_new("a group", plans->comm);
    for (const sn_plan *p = plans; p != NULL; p = p->next)
        n++;
    job->poll = launch_poll;
    job->plans = plans;
    job->comms = malloc(n * sizeof(ncclComm_t));
    if (job->comms == NULL)
        sg_fatal("memory", "out of memory for a group of %zu communicators", n);
    for (sn_plan *p = plans; p != NULL; p = p->next) {
        job->comms[job->n_comms++] = p->comm;
        p->comm->job = job;
        p->comm->async = ncclInProgress;
    }
    return ncclInProgress;
}

static ncclResult_t launch_all(sn_task *tasks, size_t n)
{
    sn_plan *plans = NULL, **last = &plans;
    bool blocking = false;
    sn_task *of_comm = malloc(n * sizeof(*of_comm));
    if (of_comm == NULL)
        sg_fatal("memory", "out of memory for a group of %zu calls", n);
    for (size_t i = 0; i < n; i++) {
        ncclComm_t comm = tasks[i].comm;
        size_t m = 0;
        if (comm == NULL)
            continue; /* taken with an earlier one */
        for (size_t k = i; k < n; k++)
            if (tasks[k].comm == comm) {
                of_comm[m++] = tasks[k];
                tasks[k].comm = NULL;
            }
        *last = sn_plan_make(comm, of_comm, m);
        last = &(*last)->next;
        blocking = blocking || comm->blocking;
    }
    free(of_comm);
    if (!blocking && sg_random("nccl put off") % 2 == 0)
        return put_off(plans);
    return enqueue_all(plans);
}

static ncclResult_t end_of_group(sn_group *g)
{
    ncclResult_t result = g->error;
    sn_job *jobs = g->jobs;
    size_t n = g->n;
    g->jobs = NULL;
    g->last_job = &g->jobs;
    g->n = 0;
    g->error = ncclSuccess;
    if (jobs != NULL && n > 0) {
        sg_finding("nccl-group",
                   "a group that both makes communicators and communicates (%zu calls): NCCL does "
                   "one or the other",
                   n);
        n = 0;
    }
    if (result == ncclSuccess && n > 0) {
        sg_lock();
        result = launch_all(g->tasks, n);
        sg_unlock();
    }
    if (jobs != NULL) {
        ncclResult_t of_jobs = sn_jobs_run(jobs);
        result = result == ncclSuccess ? of_jobs : result;
    }
    return result;
}

ncclResult_t ncclGroupEnd(void)
{
    int error = -1;
    ncclResult_t result;
    if (sg_noop)
        return ncclSuccess;
    sn_group *g = mine();
    sg_verdict verdict = sg_call(&error, "ncclGroupEnd", "depth=%d calls=%zu", g->depth, g->n);
    if (verdict == SG_SKIP)
        return ncclSuccess;
    if (g->depth == 0) {
        sg_finding("nccl-group", "ncclGroupEnd without ncclGroupStart");
        return sn_error(NULL, ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    }
    if (sn_stop(verdict, &error, "ncclGroupEnd", NULL, &result))
        g->error = result;
    if (--g->depth > 0)
        return ncclSuccess;
    return end_of_group(g);
}
SN_ALIAS(ncclGroupEnd);

static void keep(sn_group *g, const sn_task *task)
{
    if (g->n == g->cap) {
        g->cap = g->cap != 0 ? 2 * g->cap : 16;
        g->tasks = realloc(g->tasks, g->cap * sizeof(*g->tasks));
        if (g->tasks == NULL)
            sg_fatal("memory", "out of memory for a group of %zu calls", g->cap);
    }
    g->tasks[g->n++] = *task;
}

ncclResult_t sn_submit(const sn_task *task)
{
    sn_group *g = mine();
    sg_lock();
    ncclResult_t result = sn_task_check(task);
    if (result == ncclSuccess && g->depth == 0) {
        sn_task copy = *task;
        result = launch_all(&copy, 1);
    } else if (result == ncclSuccess) {
        keep(g, task);
    } else if (g->depth > 0 && g->error == ncclSuccess) {
        g->error = result;
    }
    sg_unlock();
    return result;
}

bool sn_group_open(bool tell)
{
    bool open = false;
    for (sn_group *g = groups; g != NULL; g = g->next) {
        open = open || g->depth > 0;
        if (tell && g->depth > 0)
            sg_finding("nccl-group-open",
                       "a group was never closed: ncclGroupStart without ncclGroupEnd, and %zu "
                       "calls in it%s%s were never made",
                       g->n, g->n > 0 ? ", the first of them " : "",
                       g->n > 0 ? sn_kind_name(g->tasks[0].kind) : "");
    }
    return open;
}
