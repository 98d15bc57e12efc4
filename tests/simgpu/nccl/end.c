/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a communicator: finalize, destroy, revoke, abort, and what is left at exit. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>

/* Everybody has read what this rank gave: its memory may go. A rank that is gone reads no more. */
static bool all_read(ncclComm_t comm)
{
    sn_clique *c = comm->clique;
    if (c->local)
        return true;
    const sn_member *me = &c->ctl->member[comm->rank];
    for (int r = 0; r < c->size; r++) {
        const sn_member *m = &c->ctl->member[r];
        if (atomic_load(&m->gone) != 0 || r == comm->rank)
            continue;
        if (atomic_load(&m->read) < atomic_load(&me->started))
            return false;
        if (atomic_load(&c->ctl->received[comm->rank][r]) <
            atomic_load(&c->ctl->sent[comm->rank][r]))
            return false;
    }
    return true;
}

static bool quiet(sn_job *job)
{
    job->result = ncclSuccess;
    return job->comm->clique == NULL || (job->comm->plans == 0 && all_read(job->comm));
}

static void quiet_explain(sn_job *job, char *buf, size_t cap)
{
    snprintf(buf, cap, "%s: work on %s has not ended (%zu launches)", job->call, job->comm->name,
             job->comm->plans);
}

static ncclResult_t ready_to_end(ncclComm_t comm, const char *call)
{
    ncclResult_t result = sn_comm_check(comm, call);
    if (result == ncclSuccess && sn_group_depth() > 0) {
        sg_finding("nccl-group", "%s of %s within a group", call, comm->name);
        result = sn_error(comm, ncclInvalidUsage, "%s: within a group", call);
    }
    return result;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    const char *call = "ncclCommFinalize";
    int error = -1;
    ncclResult_t result;
    if (sn_stop(sg_call(&error, call, "comm=%p", (void *)comm), &error, call, comm, &result))
        return result;
    sg_lock();
    sn_job *job = NULL;
    result = ready_to_end(comm, call);
    if (result == ncclSuccess && comm->state != SN_READY) {
        sg_finding("nccl-finalize", "ncclCommFinalize of %s, which is %s", comm->name,
                   comm->state == SN_FINALIZED ? "finalized already"
                                               : "not ready (or was revoked)");
        result = sn_error(comm, ncclInvalidUsage, "%s: not ready", call);
    }
    if (result == ncclSuccess) {
        comm->state = SN_FINALIZED;
        job = sn_job_new(call, comm);
        job->poll = quiet;
        job->explain = quiet_explain;
    }
    sg_unlock();
    return result == ncclSuccess ? sn_job_submit(job) : result;
}
SN_ALIAS(ncclCommFinalize);

static void forget(ncclComm_t comm, sn_state state)
{
    comm->state = state;
    sn_clique *c = comm->clique;
    comm->clique = NULL;
    while (comm->registrations != NULL) {
        sn_registration *reg = comm->registrations;
        comm->registrations = reg->next;
        free(reg);
    }
    while (comm->premuls != NULL) {
        sn_premul *op = comm->premuls;
        comm->premuls = op->next;
        free(op);
    }
    if (c != NULL)
        sn_clique_leave(c, comm->rank);
    sg_changed();
}

static bool read_by_all(void *arg)
{
    return all_read(arg);
}

static void read_explain(void *arg, char *buf, size_t cap)
{
    snprintf(buf, cap, "ncclCommDestroy of %s: ranks have not read the last of its data",
             ((ncclComm_t)arg)->name);
}

/* What a communicator must be free of. NCCL would wait, or free what a stream still uses. */
static void destroy_check(ncclComm_t comm)
{
    if (comm->plans > 0)
        sg_finding("nccl-destroy-pending",
                   "ncclCommDestroy of %s with %zu launches that have not ended: wait for the "
                   "stream, or call ncclCommFinalize, first",
                   comm->name, comm->plans);
    if (comm->captured > 0)
        sg_finding("nccl-destroy-captured",
                   "ncclCommDestroy of %s while %zu of its calls stand in CUDA graphs: destroy the "
                   "graphs first",
                   comm->name, comm->captured);
    if (comm->job != NULL)
        sg_finding("nccl-in-progress", "ncclCommDestroy of %s while %s is in progress", comm->name,
                   comm->job->call);
    sn_registrations_at_destroy(comm);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    const char *call = "ncclCommDestroy";
    int error = -1;
    ncclResult_t result;
    if (comm == NULL)
        return ncclSuccess;
    if (sn_stop(sg_call(&error, call, "comm=%p", (void *)comm), &error, call, comm, &result))
        return result;
    sg_lock();
    result = ready_to_end(comm, call);
    bool wait = false;
    if (result == ncclSuccess) {
        destroy_check(comm);
        wait = comm->clique != NULL && comm->plans == 0;
    }
    sg_unlock();
    if (wait)
        sg_wait_until(&(sg_wait){.done = read_by_all,
                                 .explain = read_explain,
                                 .arg = comm,
                                 .call = call,
                                 .remote = true});
    if (result != ncclSuccess)
        return result;
    sg_lock();
    forget(comm, SN_DESTROYED);
    sg_unlock();
    return ncclSuccess;
}
SN_ALIAS(ncclCommDestroy);

/* What was put off for other communicators as well is put on their streams now. */
static void drop_job(ncclComm_t comm)
{
    sn_job *job = comm->job;
    if (job == NULL)
        return;
    comm->job = NULL;
    if (job->n_comms > 1) {
        job->delay = 0;
        job->poll(job);
    }
    for (size_t i = 0; i < job->n_comms; i++) {
        job->comms[i]->job = NULL;
        job->comms[i]->async = ncclSuccess;
    }
    if (job->made != NULL)
        job->made->job = NULL;
    job->comm->job = NULL;
    sn_plan_drop(job->plans);
    free(job->comms);
    free(job);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    const char *call = "ncclCommAbort";
    int error = -1;
    ncclResult_t result;
    if (comm == NULL)
        return ncclSuccess;
    if (sn_stop(sg_call(&error, call, "comm=%p", (void *)comm), &error, call, comm, &result))
        return result;
    sg_lock();
    result = sn_comm_check(comm, call);
    if (result == ncclSuccess) {
        sg_fault_release(comm->device);
        if (comm->clique != NULL)
            atomic_store(&comm->clique->ctl->member[comm->rank].gone, 1);
        drop_job(comm);
        forget(comm, SN_ABORTED);
    }
    sg_unlock();
    return result;
}
SN_ALIAS(ncclCommAbort);

ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags)
{
    const char *call = "ncclCommRevoke";
    int error = -1;
    ncclResult_t result;
    if (sn_stop(sg_call(&error, call, "comm=%p", (void *)comm), &error, call, comm, &result))
        return result;
    if (!sn_since(22807, call, &result))
        return result;
    sg_lock();
    result = sn_comm_check(comm, call);
    if (result == ncclSuccess && flags != 0)
        result = sn_error(comm, ncclInvalidArgument, "%s: flags %d", call, flags);
    if (result == ncclSuccess) {
        atomic_store(&comm->clique->ctl->member[comm->rank].gone, 1);
        drop_job(comm);
        comm->state = SN_REVOKED;
        comm->async = ncclSuccess;
        sg_changed();
    }
    sg_unlock();
    return result;
}
SN_ALIAS(ncclCommRevoke);

static void at_exit(void)
{
    (void)sn_group_open(true);
    for (ncclComm_t comm = sn_comms; comm != NULL; comm = comm->next)
        if (comm->state < SN_DESTROYED)
            sg_finding("nccl-comm-leak", "%s was never destroyed", comm->name);
}

__attribute__((constructor)) static void start(void)
{
    sg_at_exit(at_exit);
    sg_at_deadlock(sn_group_open);
}
