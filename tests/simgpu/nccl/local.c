/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rounds: the calls of a clique whose ranks are all in this process, met by number. A collective's
 * round has a place for each rank, a message's has two. The round fires when the streams of all
 * have come to it; the data moves then, at once, and the engine's order is drawn as NCCL gives it
 * and no further: all-reduce, reduce-scatter, all-gather and all-to-all order each rank after all
 * others; reduce and gather only the root after the others; broadcast and scatter only the others
 * after the root; a receive after its send.
 *
 * A round that has not fired when one of its ranks aborts never does, even if that rank's stream
 * had come to it: the others wait until they abort too, as they would on a GPU.
 */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct place {
    sn_task *task;
    sg_op *op;
    int rank;
    bool issued, arrived;
    sn_stamp stamp;
} place;

typedef struct sn_round {
    struct sn_round *next;
    sn_clique *clique;
    bool p2p;
    int from, to; /* of a message */
    uint64_t seq;
    int n, arrived, released;
    bool fired, broken; /* broken: the ranks' calls do not fit, nothing is moved */
    place at[];
} sn_round;

static int index_of(const sn_task *task)
{
    if (sn_is_p2p(task->kind))
        return task->kind == SN_RECV;
    return task->comm->rank;
}

static sn_round *round_of(sn_clique *c, const sn_task *task)
{
    sn_round **list = &c->rounds[task->seq % SN_ROUNDS];
    bool p2p = sn_is_p2p(task->kind);
    int me = task->comm->rank;
    int from = task->kind == SN_SEND ? me : task->peer,
        to = task->kind == SN_SEND ? task->peer : me;
    for (sn_round *r = *list; r != NULL; r = r->next)
        if (r->seq == task->seq && r->p2p == p2p && (!p2p || (r->from == from && r->to == to)))
            return r;
    int n = p2p ? 2 : c->size;
    sn_round *r = calloc(1, sizeof(*r) + (size_t)n * sizeof(r->at[0]));
    if (r == NULL)
        sg_fatal("memory", "out of memory for a round");
    r->clique = c;
    r->p2p = p2p;
    r->from = from;
    r->to = to;
    r->seq = task->seq;
    r->n = n;
    r->next = *list;
    *list = r;
    return r;
}

void sn_local_issue(sn_task *task, const sn_stamp *stamp)
{
    sn_round *r = round_of(task->comm->clique, task);
    place *mine = &r->at[index_of(task)];
    task->round = r;
    mine->task = task;
    mine->rank = task->comm->rank;
    mine->issued = true;
    mine->stamp = *stamp;
    for (int i = 0; i < r->n && !r->broken; i++)
        if (r->at[i].issued && &r->at[i] != mine)
            r->broken = !sn_stamp_compare(r->clique, r->seq, r->at[i].rank, &r->at[i].stamp,
                                          mine->rank, stamp);
}

/* ---- firing ---- */

static void move(sn_round *r)
{
    const void *in[SN_RANKS] = {NULL};
    void *first = NULL;
    for (int i = 0; i < r->n; i++) {
        const sn_task *task = r->at[i].task;
        size_t bytes = sn_sends(task);
        void *copy = bytes > 0 ? malloc(bytes) : NULL;
        if (bytes > 0 && copy == NULL)
            sg_fatal("memory", "out of memory for %zu bytes of %s", bytes,
                     sn_kind_name(task->kind));
        if (copy != NULL)
            sn_prepare(task, copy);
        in[i] = copy;
    }
    for (int i = 0; i < r->n; i++) {
        const sn_task *task = r->at[i].task;
        size_t bytes = sn_receives(task);
        if (bytes == 0)
            continue;
        void *out = sg_view(task->out);
        if (first != NULL)
            memcpy(out, first, bytes);
        else
            sn_compute(task, i, in, out);
        if (task->kind == SN_ALL_REDUCE)
            first = out; /* every rank gets the same bits */
    }
    for (int i = 0; i < r->n; i++)
        free((void *)in[i]);
}

static void join(const sn_round *r, int later, int earlier)
{
    if (r->at[later].op != r->at[earlier].op)
        sg_op_join(r->at[later].op, r->at[earlier].op);
}

static void order(const sn_round *r)
{
    sn_kind kind = r->at[0].task->kind;
    int root = r->at[0].task->peer;
    for (int i = 0; i < r->n; i++)
        switch (kind) {
        case SN_REDUCE:
        case SN_GATHER:
            join(r, root, i);
            break;
        case SN_BROADCAST:
        case SN_SCATTER:
            join(r, i, root);
            break;
        case SN_SEND: /* place 0 sends, place 1 receives */
        case SN_RECV:
            join(r, 1, 0);
            break;
        default:
            for (int k = 0; k < r->n; k++)
                join(r, i, k);
        }
}

static void fire(sn_round *r)
{
    r->fired = true;
    if (r->broken)
        return;
    if (r->p2p) {
        const sn_task *send = r->at[0].task, *recv = r->at[1].task;
        if (sn_sends(send) > 0)
            memcpy(sg_view(recv->out), sg_view(send->in), sn_sends(send));
    } else {
        move(r);
    }
    order(r);
    sg_changed();
}

/* Aborted, revoked or destroyed since its stream came here; its operation may stand there still. */
static bool anybody_left(const sn_round *r)
{
    for (int i = 0; i < r->n; i++) {
        const ncclComm_t comm = r->at[i].task->comm;
        if (comm->clique == NULL || atomic_load(&r->clique->ctl->member[r->at[i].rank].gone) != 0)
            return true;
    }
    return false;
}

bool sn_local_try(sn_task *task, sg_op *op)
{
    sn_round *r = task->round;
    place *mine = &r->at[index_of(task)];
    if (!mine->arrived) {
        mine->arrived = true;
        mine->op = op;
        r->arrived++;
        if (r->arrived == r->n && !anybody_left(r))
            fire(r);
    }
    return r->fired;
}

void sn_local_release(sn_task *task)
{
    sn_round *r = task->round;
    if (r == NULL)
        return;
    task->round = NULL;
    place *mine = &r->at[index_of(task)];
    mine->task = NULL;
    mine->op = NULL;
    if (mine->arrived && !r->fired)
        r->arrived = -SN_RANKS; /* never */
    if (++r->released < r->n)
        return;
    sn_round **at = &r->clique->rounds[r->seq % SN_ROUNDS];
    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    free(r);
}

void sn_local_explain(const sn_task *task, char *buf, size_t cap)
{
    const sn_round *r = task->round;
    size_t used = 0;
    if (cap > 0)
        buf[0] = '\0';
    for (int i = 0; i < r->n && used < cap; i++) {
        if (r->at[i].arrived)
            continue;
        int rank = !r->p2p ? i : i == 0 ? r->from : r->to;
        used += (size_t)snprintf(buf + used, cap - used,
                                 r->at[i].issued
                                     ? "%srank %d has called %s #%llu of comm %d, and its stream "
                                       "has not come to it"
                                     : "%srank %d has not called %s #%llu of comm %d",
                                 used > 0 ? "; " : "", rank,
                                 sn_kind_name(!r->p2p  ? task->kind
                                              : i == 0 ? SN_SEND
                                                       : SN_RECV),
                                 (unsigned long long)r->seq + 1, r->clique->id);
    }
}
