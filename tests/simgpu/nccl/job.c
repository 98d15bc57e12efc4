/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs: calls that end only when other ranks have made theirs (init, split, shrink, windows,
 * finalize, and launches that are put off). A blocking communicator waits for its job within the
 * call, or at the end of the group. On a non-blocking one the call says ncclInProgress and the job
 * goes on whenever ncclCommGetAsyncError asks, after a seeded 0 to 3 times of "in progress" more;
 * any other call on the communicator before that is a finding.
 */
#include "sim.h"

#include <stdlib.h>

sn_job *sn_job_new(const char *call, ncclComm_t comm)
{
    sn_job *job = calloc(1, sizeof(*job));
    if (job == NULL)
        sg_fatal("memory", "out of memory for %s", call);
    job->call = call;
    job->comm = comm;
    job->delay = comm->blocking ? 0 : (int)(sg_random("nccl delay") % 4);
    return job;
}

bool sn_job_poll(sn_job *job)
{
    if (!job->poll(job))
        return false;
    if (job->delay > 0) {
        /* Ended, and not to be seen yet: from here on only the count goes down. */
        job->delay--;
        return false;
    }
    return true;
}

typedef struct waiting {
    sn_job *jobs;
} waiting;

static bool all_over(void *arg)
{
    bool over = true;
    for (sn_job *job = ((waiting *)arg)->jobs; job != NULL; job = job->next)
        over = sn_job_poll(job) && over;
    return over;
}

static void explain(void *arg, char *buf, size_t cap)
{
    for (sn_job *job = ((waiting *)arg)->jobs; job != NULL; job = job->next)
        if (!job->poll(job) && job->explain != NULL) {
            job->explain(job, buf, cap);
            return;
        }
}

static void settle(ncclComm_t comm, ncclResult_t result)
{
    comm->job = NULL;
    comm->async = result;
    if (comm->state == SN_STARTING && result == ncclSuccess)
        comm->state = SN_READY;
}

static ncclResult_t finish(sn_job *job)
{
    ncclResult_t result = job->result;
    if (job->made != NULL) {
        settle(job->made, result);
        if (job->comm != job->made && job->comm->job == job)
            settle(job->comm, ncclSuccess);
    } else {
        settle(job->comm, result);
    }
    for (size_t i = 0; i < job->n_comms; i++)
        if (job->comms[i]->job == job)
            settle(job->comms[i], result);
    free(job->comms);
    free(job);
    return result;
}

/* Takes the list of jobs; without the lock. */
ncclResult_t sn_jobs_run(sn_job *jobs)
{
    waiting w = {NULL};
    ncclResult_t result = ncclSuccess;
    sg_lock();
    while (jobs != NULL) {
        sn_job *job = jobs;
        jobs = job->next;
        ncclComm_t told = job->made != NULL ? job->made : job->comm;
        if (job->comm->blocking) {
            job->next = w.jobs;
            w.jobs = job;
            continue;
        }
        job->next = NULL;
        told->job = job;
        told->async = ncclInProgress;
        if (told != job->comm && job->comm->state == SN_READY) {
            /* The parent is in progress as long: its exchange is under way. */
            job->comm->job = job;
            job->comm->async = ncclInProgress;
        }
        result = ncclInProgress;
    }
    sg_unlock();
    if (w.jobs == NULL)
        return result;
    const char *call = w.jobs->call;
    bool done = sg_wait_until(
        &(sg_wait){.done = all_over, .explain = explain, .arg = &w, .call = call, .remote = true});
    sg_lock();
    while (w.jobs != NULL) {
        sn_job *job = w.jobs;
        w.jobs = job->next;
        if (!done)
            job->result =
                sn_error(job->comm, ncclSystemError, "%s: the other ranks have not come", call);
        ncclResult_t one = finish(job);
        result = one != ncclSuccess ? one : result;
    }
    sg_unlock();
    return result;
}

/* Lets what is in progress go on. */
static void advance(ncclComm_t comm)
{
    sn_job *job = comm->job;
    if (job != NULL && sn_job_poll(job))
        finish(job);
}

/* A lost GPU is seen on its own communicators, and by the peers as a remote error. */
static ncclResult_t lost_peer(ncclComm_t comm)
{
    sn_clique *c = comm->clique;
    if (comm->async != ncclSuccess || c == NULL || c->ctl == NULL)
        return comm->async;
    if (sg_device_error(comm->device) != SG_OK)
        return sn_error(comm, ncclUnhandledCudaError, "%s: its GPU has failed", comm->name);
    for (int r = 0; r < c->size; r++) {
        int failed = atomic_load(&c->ctl->member[r].failed);
        bool lost = c->member[r] != NULL && sg_device_error(c->member[r]->device) != SG_OK;
        if (failed != 0 && r == comm->rank)
            return sn_error(comm, (ncclResult_t)failed, "%s: failed on demand (SIMGPU_FAULT)",
                            comm->name);
        if (failed != 0 || lost)
            return sn_error(comm, ncclRemoteError, "%s: rank %d has failed", comm->name, r);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *async)
{
    const char *call = "ncclCommGetAsyncError";
    int error = -1;
    sg_verdict verdict = sg_call(&error, call, "comm=%p", (void *)comm);
    if (verdict == SG_GO)
        sg_poll(call);
    sg_lock();
    ncclResult_t result = sn_comm_check(comm, call);
    if (result == ncclSuccess && async == NULL)
        result = sn_error(comm, ncclInvalidArgument, "%s: the result is NULL", call);
    if (result != ncclSuccess)
        goto unlock;
    if (verdict == SG_FAIL && comm->clique != NULL)
        atomic_store(&comm->clique->ctl->member[comm->rank].failed, error > 0 ? error : 6);
    advance(comm);
    comm->async = lost_peer(comm);
    *async = comm->async;
    if (comm->async != ncclSuccess)
        sg_log("  asyncError=%d", (int)comm->async);
unlock:
    sg_unlock();
    return result;
}
SN_ALIAS(ncclCommGetAsyncError);

ncclResult_t sn_job_submit(sn_job *job)
{
    if (sn_group_depth() > 0)
        return sn_group_job(job);
    return sn_jobs_run(job);
}
