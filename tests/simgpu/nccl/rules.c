/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's rules, checked where a call is made. Some of them NCCL refuses as well; most it answers
 * with a hang or with wrong numbers, so here each breach is a finding that names both sides.
 *
 * Order across communicators: a rank that is in two communicators with another must make their
 * collectives in the same order as that one, whatever the streams. So each stamp carries how many
 * collectives the rank had made on its other communicators, and for those that both ranks are in
 * the numbers must be equal.
 */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one call ---- */

static ncclResult_t refuse(const sn_task *task, const char *id, const char *what)
{
    sg_finding(id, "%s on %s: %s", sn_kind_name(task->kind), task->comm->name, what);
    return sn_error(task->comm, ncclInvalidArgument, "%s: %s", sn_kind_name(task->kind), what);
}

static ncclResult_t buffer_check(const sn_task *task, const void *ptr, size_t bytes,
                                 const char *which)
{
    char text[256], who[96];
    sg_memory mem;
    if (bytes == 0)
        return ncclSuccess;
    snprintf(who, sizeof(who), "%s (%s) on %s", sn_kind_name(task->kind), which, task->comm->name);
    if (!sg_memory_find(ptr, &mem)) {
        snprintf(text, sizeof(text), "%s %p is host memory", which, ptr);
        return refuse(task, "nccl-host-pointer", text);
    }
    if (mem.kind != SG_MEM_DEVICE)
        return ncclSuccess;
    if (mem.device != task->comm->device) {
        snprintf(text, sizeof(text), "%s lies on device %d and the communicator is of device %d",
                 which, mem.device, task->comm->device);
        return refuse(task, "nccl-buffer-device", text);
    }
    if (!sg_check_device_range(ptr, bytes, task->comm->device, who))
        return sn_error(task->comm, ncclInvalidArgument, "%s: out of bounds", who);
    return ncclSuccess;
}

static bool disjoint(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    return a + a_bytes <= b || b + b_bytes <= a;
}

/* In-place forms are exact; any other overlap is undefined. */
static ncclResult_t overlap_check(const sn_task *task)
{
    size_t in = sn_sends(task), out = sn_receives(task);
    const char *a = task->in, *b = task->out;
    if (in == 0 || out == 0 || disjoint(a, in, b, out))
        return ncclSuccess;
    size_t block = task->count * sn_type_size(task->type);
    size_t mine = block * (size_t)task->comm->rank;
    bool exact = false;
    switch (task->kind) {
    case SN_ALL_GATHER:
    case SN_GATHER:
        exact = a == b + mine;
        break;
    case SN_REDUCE_SCATTER:
    case SN_SCATTER:
        exact = b == a + mine;
        break;
    case SN_ALL_TO_ALL:
        break;
    default:
        exact = a == b;
    }
    return exact ? ncclSuccess
                 : refuse(task, "nccl-overlap", "in and out overlap, and not as in-place does");
}

static ncclResult_t state_check(const sn_task *task)
{
    const ncclComm_t comm = task->comm;
    if (comm->job != NULL || comm->state == SN_STARTING)
        return refuse(task, "nccl-in-progress",
                      "the communicator is in progress: ncclCommGetAsyncError has not said "
                      "ncclSuccess yet");
    if (comm->state != SN_READY)
        return refuse(task, "nccl-use-after-destroy", "after ncclCommFinalize or ncclCommRevoke");
    if (sg_current_device() != comm->device) {
        char text[96];
        snprintf(text, sizeof(text), "device %d is current and the communicator is of device %d",
                 sg_current_device(), comm->device);
        return refuse(task, "nccl-wrong-device", text);
    }
    if (sg_stream_device(task->stream) != comm->device)
        return refuse(task, "nccl-stream-device", "the stream is of another device");
    return ncclSuccess;
}

ncclResult_t sn_task_check(const sn_task *task)
{
    bool rooted = task->kind == SN_REDUCE || task->kind == SN_BROADCAST ||
                  task->kind == SN_GATHER || task->kind == SN_SCATTER || sn_is_p2p(task->kind);
    ncclResult_t result = state_check(task);
    if (result != ncclSuccess)
        return result;
    if (rooted && (task->peer < 0 || task->peer >= task->comm->size))
        return refuse(task, "nccl-root", "there is no such rank");
    if (sn_type_size(task->type) == 0)
        return refuse(task, "nccl-type", "there is no such type");
    if (task->type >= ncclFloat8e4m3 &&
        (task->kind == SN_ALL_REDUCE || task->kind == SN_REDUCE || task->kind == SN_REDUCE_SCATTER))
        return refuse(task, "nccl-type", "sums of 8-bit floats are not simulated");
    result = buffer_check(task, task->in, sn_sends(task), "in");
    if (result == ncclSuccess)
        result = buffer_check(task, task->out, sn_receives(task), "out");
    return result == ncclSuccess ? overlap_check(task) : result;
}

/* ---- the calls of a group ---- */

typedef struct span {
    const char *lo, *hi;
    const sn_task *task;
    bool write;
} span;

static int by_address(const void *a, const void *b)
{
    const span *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

/* Calls of one group run at the same time: none may write what another touches. */
void sn_plan_check(const sn_task *tasks, size_t n)
{
    span *spans = malloc(2 * n * sizeof(*spans));
    size_t m = 0;
    if (n < 2 || spans == NULL) {
        free(spans);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const char *in = tasks[i].in, *out = tasks[i].out;
        if (sn_sends(&tasks[i]) > 0)
            spans[m++] = (span){in, in + sn_sends(&tasks[i]), &tasks[i], false};
        if (sn_receives(&tasks[i]) > 0)
            spans[m++] = (span){out, out + sn_receives(&tasks[i]), &tasks[i], true};
    }
    qsort(spans, m, sizeof(*spans), by_address);
    for (size_t i = 0; i < m; i++)
        for (size_t k = i + 1; k < m && spans[k].lo < spans[i].hi; k++) {
            char name[128];
            if (spans[i].task == spans[k].task || (!spans[i].write && !spans[k].write))
                continue;
            sg_finding("nccl-group-race",
                       "%s and %s of one group on %s touch the same bytes, %s: calls of a group "
                       "have no order",
                       sn_kind_name(spans[i].task->kind), sn_kind_name(spans[k].task->kind),
                       tasks[0].comm->name, sg_name_pointer(spans[k].lo, name, sizeof(name)));
            free(spans);
            return;
        }
    free(spans);
}

/* ---- between ranks ---- */

/* Whether two communicators of this process are the same rank's. */
static bool same_rank(const ncclComm_t a, const ncclComm_t b)
{
    const char *shared = getenv("SIMGPU_NCCL_SHARE_GPU");
    return shared != NULL && shared[0] == '1' ? a->root == b->root : a->device == b->device;
}

void sn_stamp_make(const sn_task *task, uint32_t at, uint32_t n, bool captured, sn_stamp *out)
{
    bool p2p = sn_is_p2p(task->kind);
    memset(out, 0, sizeof(*out));
    out->kind = (uint8_t)task->kind;
    out->type = (uint8_t)task->type;
    out->op = (uint8_t)task->op;
    out->root = p2p ? 0 : task->peer;
    out->captured = captured;
    out->count = task->count;
    out->group_at = p2p ? 0 : at;
    out->group_n = p2p ? 0 : n;
    for (ncclComm_t c = sn_comms; c != NULL && out->n_others < SN_OTHERS; c = c->next)
        if (c != task->comm && c->clique != NULL && same_rank(c, task->comm)) {
            out->others[out->n_others].token = c->clique->where.token;
            out->others[out->n_others++].issued = c->issued;
        }
}

typedef struct sides {
    const sn_clique *clique;
    uint64_t seq;
    int rank_a, rank_b;
    const sn_stamp *a, *b;
} sides;

static bool differ(const sides *s, const char *id, const char *what, long long a, long long b)
{
    if (a == b)
        return false;
    sg_finding(id,
               "collective #%llu of comm %d: rank %d calls %s with %s %lld, rank %d calls %s with "
               "%s %lld",
               (unsigned long long)s->seq + 1, s->clique->id, s->rank_a,
               sn_kind_name((sn_kind)s->a->kind), what, a, s->rank_b,
               sn_kind_name((sn_kind)s->b->kind), what, b);
    return true;
}

static bool order_differs(const sides *s)
{
    for (uint32_t i = 0; i < s->a->n_others; i++)
        for (uint32_t k = 0; k < s->b->n_others; k++) {
            if (s->a->others[i].token != s->b->others[k].token ||
                s->a->others[i].issued == s->b->others[k].issued)
                continue;
            sg_finding("nccl-order",
                       "%s #%llu of comm %d: rank %d has made %llu collectives on another "
                       "communicator before it, rank %d %llu: communicators that share ranks must "
                       "be called in one order everywhere, or they wait for each other",
                       sn_kind_name((sn_kind)s->a->kind), (unsigned long long)s->seq + 1,
                       s->clique->id, s->rank_a, (unsigned long long)s->a->others[i].issued,
                       s->rank_b, (unsigned long long)s->b->others[k].issued);
            return true;
        }
    return false;
}

bool sn_stamp_compare(const sn_clique *clique, uint64_t seq, int rank_a, const sn_stamp *a,
                      int rank_b, const sn_stamp *b)
{
    sides s = {clique, seq, rank_a, rank_b, a, b};
    bool p2p = sn_is_p2p((sn_kind)a->kind);
    if (!p2p && a->kind != b->kind) {
        sg_finding("nccl-sequence",
                   "collective #%llu of comm %d is %s on rank %d and %s on rank %d",
                   (unsigned long long)seq + 1, clique->id, sn_kind_name((sn_kind)a->kind), rank_a,
                   sn_kind_name((sn_kind)b->kind), rank_b);
        return false;
    }
    if (differ(&s, "nccl-count", "count", (long long)a->count, (long long)b->count) ||
        differ(&s, "nccl-type", "type", a->type, b->type) ||
        differ(&s, "nccl-op", "op", a->op, b->op) ||
        differ(&s, "nccl-root", "root", a->root, b->root))
        return false;
    /* These are told, and the data can still be moved. */
    if (!order_differs(&s) && !p2p &&
        !differ(&s, "nccl-capture", "graph capture", a->captured, b->captured) &&
        !differ(&s, "nccl-group-parity", "place in its group", a->group_at, b->group_at))
        differ(&s, "nccl-group-parity", "size of its group", a->group_n, b->group_n);
    return true;
}
