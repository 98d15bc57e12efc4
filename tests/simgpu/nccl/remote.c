/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of a clique whose ranks are in several processes. A rank writes what it gives into its own
 * shared data, publishes where it lies, and is over when it has read what it needs from the others;
 * counters in the control block tell how far each has come. Of SN_WINDOW rounds (and messages per
 * pair) the data can lie there at a time; a rank that is further ahead waits, as on a GPU whose
 * buffers are full. A send ends when its receive has read it.
 *
 * Stamps are published when a call is made, so calls that do not fit are named even if no stream
 * ever comes to them.
 */
#include "sim.h"

#include <stdio.h>
#include <string.h>

static sn_member *member(const sn_task *task)
{
    return &task->comm->clique->ctl->member[task->comm->rank];
}

static void compare_with_others(const sn_task *task)
{
    sn_clique *c = task->comm->clique;
    int me = task->comm->rank;
    const sn_stamp *mine = &c->ctl->stamp[me][task->seq % SN_STAMPS];
    for (int r = 0; r < c->size; r++) {
        uint64_t theirs = atomic_load(&c->ctl->member[r].issued);
        if (r == me || theirs <= task->seq || theirs - task->seq >= SN_STAMPS / 2)
            continue;
        sn_stamp copy = c->ctl->stamp[r][task->seq % SN_STAMPS];
        if (atomic_load(&c->ctl->member[r].issued) - task->seq < SN_STAMPS &&
            !sn_stamp_compare(c, task->seq, me, mine, r, &copy))
            return;
    }
}

void sn_remote_issue(sn_task *task, const sn_stamp *stamp)
{
    if (sn_is_p2p(task->kind))
        return;
    sn_clique *c = task->comm->clique;
    c->ctl->stamp[task->comm->rank][task->seq % SN_STAMPS] = *stamp;
    atomic_store(&member(task)->issued, task->seq + 1);
    compare_with_others(task);
}

/* ---- this rank's data ---- */

/* All that lies there was read: start again from the beginning. */
static bool data_idle(ncclComm_t comm)
{
    sn_control *ctl = comm->clique->ctl;
    int me = comm->rank;
    for (int r = 0; r < comm->size; r++)
        if (atomic_load(&ctl->member[r].read) < atomic_load(&ctl->member[me].started) ||
            atomic_load(&ctl->received[me][r]) < atomic_load(&ctl->sent[me][r]))
            return false;
    return true;
}

static bool put(const sn_task *task, size_t bytes, sn_data *out)
{
    ncclComm_t comm = task->comm;
    if (bytes > SN_DATA_BYTES)
        sg_fatal("nccl-size", "%s of %zu bytes between processes: more than %d are not simulated",
                 sn_kind_name(task->kind), bytes, SN_DATA_BYTES);
    if (data_idle(comm))
        comm->data_head = 0;
    if (comm->data_head + bytes > SN_DATA_BYTES)
        return false;
    *out = (sn_data){comm->data_head, bytes};
    if (bytes == 0)
        return true;
    char *at = sn_clique_data(comm->clique, comm->rank);
    if (at == NULL)
        sg_fatal("memory", "no shared memory for the data of %s", comm->name);
    sn_prepare(task, at + comm->data_head);
    comm->data_head += (bytes + 63) & ~(size_t)63;
    return true;
}

static const char *get(const sn_task *task, int rank, const sn_data *data)
{
    if (data->bytes == 0)
        return NULL;
    const char *at = sn_clique_data(task->comm->clique, rank);
    if (at == NULL) {
        sn_error(task->comm, ncclRemoteError, "the data of rank %d is gone", rank);
        return NULL;
    }
    return at + data->offset;
}

/* ---- collectives ---- */

static bool publish(sn_task *task)
{
    sn_control *ctl = task->comm->clique->ctl;
    if (atomic_load(&member(task)->started) != task->seq)
        return false; /* an earlier one of the group waits for room */
    for (int r = 0; r < task->comm->size; r++)
        if (atomic_load(&ctl->member[r].read) + SN_WINDOW <= task->seq)
            return false;
    sn_data data;
    if (!put(task, sn_sends(task), &data))
        return false;
    ctl->data[task->comm->rank][task->seq % SN_WINDOW] = data;
    atomic_store(&member(task)->started, task->seq + 1);
    return true;
}

static bool collective(sn_task *task)
{
    sn_clique *c = task->comm->clique;
    const void *in[SN_RANKS] = {NULL};
    if (!task->published)
        task->published = publish(task);
    if (!task->published || atomic_load(&member(task)->read) != task->seq)
        return false;
    for (int r = 0; r < c->size; r++)
        if (atomic_load(&c->ctl->member[r].started) <= task->seq)
            return false;
    for (int r = 0; r < c->size; r++) {
        const sn_data *data = &c->ctl->data[r][task->seq % SN_WINDOW];
        in[r] = get(task, r, data);
    }
    compare_with_others(task);
    if (sn_receives(task) > 0)
        sn_compute(task, task->comm->rank, in, sg_view(task->out));
    atomic_store(&member(task)->read, task->seq + 1);
    return true;
}

/* ---- messages ---- */

static bool send(sn_task *task)
{
    sn_control *ctl = task->comm->clique->ctl;
    int me = task->comm->rank, to = task->peer;
    if (!task->published) {
        sn_message *m = &ctl->message[me][to][task->seq % SN_WINDOW];
        if (atomic_load(&ctl->sent[me][to]) != task->seq ||
            atomic_load(&ctl->received[me][to]) + SN_WINDOW <= task->seq ||
            !put(task, sn_sends(task), &m->data))
            return false;
        m->count = task->count;
        m->type = (int32_t)task->type;
        atomic_store(&ctl->sent[me][to], task->seq + 1);
        task->published = true;
    }
    return atomic_load(&ctl->received[me][to]) > task->seq;
}

static bool receive(sn_task *task)
{
    sn_control *ctl = task->comm->clique->ctl;
    int me = task->comm->rank, from = task->peer;
    if (atomic_load(&ctl->received[from][me]) != task->seq ||
        atomic_load(&ctl->sent[from][me]) <= task->seq)
        return false;
    const sn_message *m = &ctl->message[from][me][task->seq % SN_WINDOW];
    if (m->count != task->count || m->type != (int32_t)task->type)
        sg_finding("nccl-count",
                   "message #%llu of comm %d: rank %d sends %llu of %s, rank %d receives %zu of %s",
                   (unsigned long long)task->seq + 1, task->comm->clique->id, from,
                   (unsigned long long)m->count, sn_type_name((ncclDataType_t)m->type), me,
                   task->count, sn_type_name(task->type));
    else if (m->data.bytes > 0) {
        const char *data = get(task, from, &m->data);
        if (data != NULL)
            memcpy(sg_view(task->out), data, m->data.bytes);
    }
    atomic_store(&ctl->received[from][me], task->seq + 1);
    return true;
}

bool sn_remote_try(sn_task *task)
{
    if (task->kind == SN_SEND)
        return send(task);
    if (task->kind == SN_RECV)
        return receive(task);
    return collective(task);
}

void sn_remote_explain(const sn_task *task, char *buf, size_t cap)
{
    const sn_clique *c = task->comm->clique;
    unsigned long long number = (unsigned long long)task->seq + 1;
    if (sn_is_p2p(task->kind)) {
        snprintf(buf, cap, "rank %d has not come to its side of message #%llu of comm %d",
                 task->peer, number, c->id);
        return;
    }
    size_t used = 0;
    buf[0] = '\0';
    for (int r = 0; r < c->size && used < cap; r++) {
        const sn_member *m = &c->ctl->member[r];
        if (atomic_load(&m->started) > task->seq)
            continue;
        bool called = atomic_load(&m->issued) > task->seq;
        used += (size_t)snprintf(buf + used, cap - used, "%srank %d %s #%llu of comm %d",
                                 used > 0 ? "; " : "", r,
                                 called ? "has called, and its stream has not come to, collective"
                                        : "has not called collective",
                                 number, c->id);
    }
}
