/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a communicator: made by an id, by a split or a shrink; finalised, destroyed, aborted.
 *
 * A split is an exchange over the parent in which everybody gives colour, key and a control block
 * that could become the child's; the first of each colour's ranks decides which is taken. From
 * there a child is joined like any other clique.
 */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool fail(sn_job *job, ncclResult_t result)
{
    job->result = result;
    return true;
}

/* ---- joining ---- */

static bool same_gpu_twice(ncclComm_t comm)
{
    sn_clique *c = comm->clique;
    const char *shared = getenv("SIMGPU_NCCL_SHARE_GPU");
    if (shared != NULL && shared[0] == '1')
        return false;
    for (int a = 0; a < c->size; a++)
        for (int b = 0; b < a; b++)
            if (memcmp(c->ctl->member[a].uuid, c->ctl->member[b].uuid, 16) == 0) {
                sn_error(comm, ncclInvalidUsage,
                         "Duplicate GPU detected : rank %d and rank %d both on %s", b, a,
                         sg_device(comm->device)->name);
                return true;
            }
    return false;
}

static bool join_poll(sn_job *job)
{
    ncclComm_t comm = job->made;
    if (comm->clique == NULL)
        return true; /* the join failed: result says how */
    if (!sn_clique_poll(comm->clique))
        return false;
    return fail(job, same_gpu_twice(comm) ? ncclInvalidUsage : ncclSuccess);
}

static void join_explain(sn_job *job, char *buf, size_t cap)
{
    ncclComm_t comm = job->made;
    size_t used = 0;
    if (comm == NULL || comm->clique == NULL) {
        snprintf(buf, cap, "%s: ranks of %s have not called it", job->call, job->comm->name);
        return;
    }
    used = (size_t)snprintf(buf, cap, "%s of %s: has not come: rank", job->call, comm->name);
    for (int r = 0; r < comm->size && used < cap; r++)
        if (atomic_load(&comm->clique->ctl->member[r].present) != 2)
            used += (size_t)snprintf(buf + used, cap - used, " %d", r);
}

static ncclResult_t join(sn_job *job, ncclComm_t comm)
{
    job->made = comm;
    job->poll = join_poll;
    job->explain = join_explain;
    job->result = sn_clique_join(&job->where, comm->size, comm->rank, comm, &comm->clique);
    if (job->result == ncclSuccess)
        sn_comm_rename(comm);
    return job->result;
}

typedef struct init_args {
    const char *call;
    int size, rank;
    const ncclUniqueId *id;
    ncclConfig_t *config;
    ncclComm_t *out;
} init_args;

static ncclResult_t init_job(const init_args *a, sn_job **job_out)
{
    ncclConfig_t config;
    ncclResult_t result = sn_config_read(a->config, NULL, &config);
    if (result != ncclSuccess)
        return result;
    if (a->out == NULL || a->size < 1 || a->size > SN_RANKS || a->rank < 0 || a->rank >= a->size) {
        sg_finding("nccl-rank", "%s: rank %d of %d", a->call, a->rank, a->size);
        return sn_error(NULL, ncclInvalidArgument, "%s: rank %d of %d", a->call, a->rank, a->size);
    }
    if (sg_device(sg_current_device()) == NULL)
        return sn_error(NULL, ncclUnhandledCudaError, "%s: no CUDA device", a->call);
    ncclComm_t comm = sn_comm_new(a->size, a->rank, &config, NULL);
    sn_job *job = sn_job_new(a->call, comm);
    memcpy(&job->where, a->id->internal, sizeof(job->where));
    result = join(job, comm);
    if (result != ncclSuccess) {
        comm->state = SN_DESTROYED;
        free(job);
        return result;
    }
    sg_log("  %s device=%d", comm->name, comm->device);
    *a->out = comm;
    *job_out = job;
    return ncclSuccess;
}

static ncclResult_t init_rank(const init_args *a)
{
    sn_job *job = NULL;
    int error = -1;
    ncclResult_t result;
    sg_verdict verdict = sg_call(&error, a->call, "nranks=%d rank=%d device=%d", a->size, a->rank,
                                 sg_current_device());
    if (sn_stop(verdict, &error, a->call, NULL, &result))
        return result;
    sg_lock();
    result = init_job(a, &job);
    sg_unlock();
    return result == ncclSuccess ? sn_job_submit(job) : result;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    return init_rank(&(init_args){"ncclCommInitRankConfig", nranks, rank, &id, config, comm});
}
SN_ALIAS(ncclCommInitRankConfig);

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
    return init_rank(&(init_args){"ncclCommInitRank", nranks, rank, &id, NULL, comm});
}
SN_ALIAS(ncclCommInitRank);

ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int n_ids,
                                      ncclUniqueId *ids, ncclConfig_t *config)
{
    ncclResult_t result;
    if (!sn_since(22304, "ncclCommInitRankScalable", &result))
        return result;
    if (n_ids < 1 || n_ids > nranks || ids == NULL)
        return sn_error(NULL, ncclInvalidArgument, "ncclCommInitRankScalable: %d ids", n_ids);
    return init_rank(&(init_args){"ncclCommInitRankScalable", nranks, rank, &ids[0], config, comm});
}
SN_ALIAS(ncclCommInitRankScalable);

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
    ncclUniqueId id;
    int before = sg_current_device();
    if (comms == NULL || n < 1 || n > sg_visible_count())
        return sn_error(NULL, ncclInvalidArgument, "ncclCommInitAll: %d devices", n);
    ncclResult_t result = ncclGetUniqueId(&id);
    if (result == ncclSuccess)
        result = ncclGroupStart();
    if (result != ncclSuccess)
        return result;
    for (int r = 0; r < n; r++) {
        sg_set_device(sg_device_base() + (devices != NULL ? devices[r] : r));
        init_rank(&(init_args){"ncclCommInitAll", n, r, &id, NULL, &comms[r]});
    }
    sg_set_device(before);
    return ncclGroupEnd();
}
SN_ALIAS(ncclCommInitAll);

/* ---- split ---- */

typedef struct split_record {
    int32_t colour, key;
    sn_token where;
} split_record;

/* This rank's place among its colour's ranks, by key and then by parent's rank. */
static int place(const sn_job *job, const split_record *mine, int *size_out, int *first_out)
{
    ncclComm_t parent = job->comm;
    int rank = 0, size = 0, first = -1, first_key = 0;
    for (int r = 0; r < parent->size; r++) {
        const split_record *other = sn_xchg_get(parent, job->seq, r);
        if (other->colour != mine->colour)
            continue;
        size++;
        rank += other->key < mine->key || (other->key == mine->key && r < parent->rank);
        if (first < 0 || other->key < first_key) {
            first = r;
            first_key = other->key;
        }
    }
    *size_out = size;
    *first_out = first;
    return rank;
}

static bool split_poll(sn_job *job)
{
    ncclComm_t parent = job->comm, comm = job->made;
    if (parent->clique == NULL)
        return fail(job, ncclInvalidUsage);
    if (!sn_xchg_done(parent, job->seq))
        return false;
    if (comm == NULL)
        return fail(job, ncclSuccess); /* no colour */
    int first;
    split_record mine = *(const split_record *)sn_xchg_get(parent, job->seq, parent->rank);
    comm->rank = place(job, &mine, &comm->size, &first);
    const split_record *leader = sn_xchg_get(parent, job->seq, first);
    job->where = leader->where;
    job->where.number =
        sn_mix(sn_mix(parent->clique->where.number, job->seq), (uint64_t)(uint32_t)mine.colour);
    if (first != parent->rank)
        sn_token_drop(&mine.where);
    join(job, comm);
    if (job->result == ncclSuccess)
        sg_log("  %s of %s size=%d", comm->name, parent->name, comm->size);
    return join_poll(job);
}

static ncclResult_t split_job(ncclComm_t parent, int colour, int key, ncclComm_t *out,
                              ncclConfig_t *given, sn_job **job_out)
{
    ncclConfig_t config;
    ncclResult_t result = sn_config_read(given, &parent->config, &config);
    if (result != ncclSuccess)
        return result;
    if (out == NULL || colour < NCCL_SPLIT_NOCOLOR) {
        sg_finding("nccl-split", "ncclCommSplit of %s with colour %d", parent->name, colour);
        return sn_error(parent, ncclInvalidArgument, "ncclCommSplit: colour %d", colour);
    }
    split_record record = {.colour = colour, .key = key};
    if (colour != NCCL_SPLIT_NOCOLOR && !sn_token_make(0, &record.where))
        return sn_error(parent, ncclSystemError, "ncclCommSplit: no shared memory");
    sn_job *job = sn_job_new("ncclCommSplit", parent);
    job->poll = split_poll;
    job->explain = join_explain;
    *out = NULL;
    if (colour != NCCL_SPLIT_NOCOLOR)
        *out = job->made = sn_comm_new(1, 0, &config, parent);
    job->seq = sn_xchg_post(parent, SN_XCHG_SPLIT, &record, sizeof(record));
    *job_out = job;
    return ncclSuccess;
}

/* Ready for a call that all ranks make together. */
static ncclResult_t parent_check(ncclComm_t parent, const char *call)
{
    ncclResult_t result = sn_comm_check(parent, call);
    if (result == ncclSuccess && (parent->state == SN_STARTING || parent->job != NULL)) {
        sg_finding("nccl-in-progress", "%s of %s, which is in progress still", call, parent->name);
        result = sn_error(parent, ncclInvalidUsage, "%s: in progress", call);
    }
    if (result == ncclSuccess && parent->state == SN_FINALIZED) {
        sg_finding("nccl-use-after-destroy", "%s of %s after ncclCommFinalize", call, parent->name);
        result = sn_error(parent, ncclInvalidUsage, "%s: finalized", call);
    }
    return result;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int colour, int key, ncclComm_t *out,
                           ncclConfig_t *config)
{
    const char *call = "ncclCommSplit";
    int error = -1;
    sn_job *job = NULL;
    ncclResult_t result;
    sg_verdict verdict =
        sg_call(&error, call, "comm=%p color=%d key=%d", (void *)parent, colour, key);
    if (sn_stop(verdict, &error, call, parent, &result))
        return result;
    if (!sn_since(21803, call, &result))
        return result;
    sg_lock();
    result = parent_check(parent, call);
    if (result == ncclSuccess)
        result = split_job(parent, colour, key, out, config, &job);
    sg_unlock();
    return result == ncclSuccess ? sn_job_submit(job) : result;
}
SN_ALIAS(ncclCommSplit);

/* ---- shrink ---- */

static bool excluded(const sn_job *job, int rank)
{
    for (int i = 0; i < job->n_exclude; i++)
        if (job->exclude[i] == rank)
            return true;
    return false;
}

static bool shrink_poll(sn_job *job)
{
    ncclComm_t parent = job->comm;
    uint64_t seq = parent->shrinks;
    if (parent->clique == NULL)
        return fail(job, ncclInvalidUsage);
    sn_xrec(*records)[SN_XCHGS] = parent->clique->ctl->shrink;
    int first = -1, rank = 0, size = 0;
    for (int r = 0; r < parent->size; r++) {
        if (excluded(job, r))
            continue;
        if (atomic_load(&records[r][seq % SN_XCHGS].seq) < seq)
            return false;
        first = first < 0 ? r : first;
        rank += r < parent->rank;
        size++;
    }
    sn_token mine;
    memcpy(&mine, records[parent->rank][seq % SN_XCHGS].data, sizeof(mine));
    memcpy(&job->where, records[first][seq % SN_XCHGS].data, sizeof(job->where));
    job->where.number = sn_mix(sn_mix(parent->clique->where.number, 0x5u), seq);
    if (first != parent->rank)
        sn_token_drop(&mine);
    job->made->rank = rank;
    job->made->size = size;
    join(job, job->made);
    return join_poll(job);
}

static ncclResult_t shrink_job(ncclComm_t parent, ncclConfig_t *given, ncclComm_t *out, sn_job *job)
{
    ncclConfig_t config;
    sn_token token;
    ncclResult_t result = sn_config_read(given, &parent->config, &config);
    if (result != ncclSuccess)
        return result;
    if (out == NULL || excluded(job, parent->rank)) {
        sg_finding("nccl-shrink", "ncclCommShrink of %s: an excluded rank calls it too",
                   parent->name);
        return sn_error(parent, ncclInvalidArgument, "ncclCommShrink: excluded");
    }
    if (!sn_token_make(0, &token))
        return sn_error(parent, ncclSystemError, "ncclCommShrink: no shared memory");
    uint64_t seq = ++parent->shrinks;
    sn_xrec *record = &parent->clique->ctl->shrink[parent->rank][seq % SN_XCHGS];
    memcpy(record->data, &token, sizeof(token));
    atomic_store(&record->seq, seq);
    job->poll = shrink_poll;
    job->explain = join_explain;
    *out = job->made = sn_comm_new(1, 0, &config, parent);
    if (job->flags & NCCL_SHRINK_ABORT)
        atomic_store(&parent->clique->ctl->member[parent->rank].gone, 1);
    sg_changed();
    return ncclSuccess;
}

ncclResult_t ncclCommShrink(ncclComm_t parent, int *exclude, int n, ncclComm_t *out,
                            ncclConfig_t *config, int flags)
{
    const char *call = "ncclCommShrink";
    int error = -1;
    ncclResult_t result;
    sg_verdict verdict =
        sg_call(&error, call, "comm=%p exclude=%d flags=%d", (void *)parent, n, flags);
    if (sn_stop(verdict, &error, call, parent, &result))
        return result;
    if (!sn_since(22703, call, &result))
        return result;
    sg_lock();
    sn_job *job = NULL;
    result = parent_check(parent, call);
    if (result == ncclSuccess && (exclude == NULL || n < 1 || n >= parent->size))
        result = sn_error(parent, ncclInvalidArgument, "%s: %d ranks to leave out", call, n);
    if (result == ncclSuccess) {
        job = sn_job_new(call, parent);
        job->n_exclude = n;
        job->flags = flags;
        memcpy(job->exclude, exclude, (size_t)n * sizeof(int));
        result = shrink_job(parent, config, out, job);
        if (result != ncclSuccess)
            free(job);
    }
    sg_unlock();
    return result == ncclSuccess ? sn_job_submit(job) : result;
}
SN_ALIAS(ncclCommShrink);
