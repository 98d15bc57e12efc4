/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Argument checks of all collectives, in one place. Each kind is described by how many bytes of
 * `in` and `out` this rank's part touches and by where the two may coincide (in place); the checks
 * then follow for all kinds alike: sizes that overflow, NULL with something to read or write,
 * buffers that overlap. A pointer that this rank's part does not use is dropped here, so that
 * nothing below looks at it.
 *
 * Only what one rank can know is checked. That ranks agree is the backend's check (every call,
 * inside a node) and key.c's (checked mode).
 */
#include "comm/issue.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/spare.h"

/* Bytes that this rank touches; in + in_shift == out + out_shift is "in place". */
typedef struct extent {
    size_t in, out;
    size_t in_shift, out_shift;
    bool may_alias;
} extent;

static tutti_status bad(const tt_call *call, const char *what)
{
    return tt_fail(TUTTI_ERR_ARG, "%s on comm %s: %s", tt_kind_name(call->kind), call->comm->name,
                   what);
}

/* Bytes of counts[0 ... ranks-1], each all_n where there is no array. */
static size_t span(const size_t *counts, size_t all_n, int ranks, size_t element)
{
    size_t total = 0;
    if (counts == NULL)
        return all_n * (size_t)ranks * element;
    for (int i = 0; i < ranks; i++)
        total += counts[i];
    return total * element;
}

static extent extent_of(const tt_call *call)
{
    const size_t element = tutti_dtype_size(call->dtype);
    const size_t n = call->n * element;
    const int size = call->comm->group.size, rank = call->comm->group.rank;
    const bool root = call->root == rank;
    const size_t each = call->counts != NULL ? 0 : call->n;
    const size_t mine = call->counts != NULL ? call->counts[rank] * element : n;
    switch (call->kind) {
    case TT_ALL_REDUCE:
        return (extent){n, n, 0, 0, true};
    case TT_REDUCE_SCATTER:
        return (extent){span(call->counts, each, size, element), mine,
                        span(call->counts, each, rank, element), 0, true};
    case TT_ALL_GATHER:
        return (extent){mine, span(call->counts, each, size, element), 0,
                        span(call->counts, each, rank, element), true};
    case TT_BROADCAST:
        return (extent){root ? n : 0, root && call->out == NULL ? 0 : n, 0, 0, true};
    case TT_REDUCE:
        return (extent){n, root ? n : 0, 0, 0, true};
    case TT_GATHER:
        return (extent){n, root ? n * (size_t)size : 0, 0, n * (size_t)rank, true};
    case TT_SCATTER:
        return (extent){root ? n * (size_t)size : 0, n, n * (size_t)rank, 0, true};
    case TT_ALL_TO_ALL:
        return (extent){span(call->counts, each, size, element),
                        span(call->recv_counts, each, size, element), 0, 0, false};
    case TT_SEND:
        return (extent){n, 0, 0, 0, false};
    default:
        return (extent){0, n, 0, 0, false};
    }
}

/* Only pointers that this rank's part uses are left. */
static tutti_status check_memory(const tt_call *call)
{
    tt_device *dev = call->comm->ctx->dev;
    if (dev->ops->usable == NULL)
        return TUTTI_OK;
    if (call->in != NULL && !dev->ops->usable(dev, call->in))
        return bad(call, "`in` is host memory; the CUDA backend works on memory of its device");
    if (call->out != NULL && !dev->ops->usable(dev, call->out))
        return bad(call, "`out` is host memory; the CUDA backend works on memory of its device");
    return TUTTI_OK;
}

static tutti_status check_buffers(tt_call *call)
{
    const extent e = extent_of(call);
    const char *in = call->in, *out = call->out;
    if (e.in == 0)
        call->in = in = NULL;
    if (e.out == 0)
        call->out = NULL, out = NULL;
    if (e.in > 0 && in == NULL)
        return bad(call, "`in` is NULL");
    if (e.out > 0 && out == NULL)
        return bad(call, "`out` is NULL");
    TT_TRY(check_memory(call));
    if (e.in == 0 || e.out == 0)
        return TUTTI_OK;
    if (e.may_alias && (uintptr_t)in + e.in_shift == (uintptr_t)out + e.out_shift)
        return TUTTI_OK;
    if ((uintptr_t)in < (uintptr_t)out + e.out && (uintptr_t)out < (uintptr_t)in + e.in)
        return bad(call, e.may_alias ? "`in` and `out` overlap and are not in place"
                                     : "`in` and `out` overlap; it does not work in place");
    return TUTTI_OK;
}

/* The sum of counts, refused when its bytes overflow. */
static tutti_status check_counts(const tt_call *call, const size_t *counts, size_t *total_out)
{
    const size_t limit = PTRDIFF_MAX / tutti_dtype_size(call->dtype);
    size_t total = 0;
    for (int i = 0; i < call->comm->group.size; i++) {
        if (counts[i] > limit - total)
            return bad(call, "the counts add up to more than memory can hold");
        total += counts[i];
    }
    *total_out = total;
    return TUTTI_OK;
}

static tutti_status copy_counts(const tt_call *call, const size_t *counts, size_t **copy_out)
{
    const tt_upper *upper = call->comm->ctx->upper;
    const size_t bytes = (size_t)call->comm->group.size * sizeof *counts;
    TT_TRY(tt_spare_take(upper->spare, bytes, copy_out));
    memcpy(*copy_out, counts, bytes);
    return TUTTI_OK;
}

static tutti_status take_counts(tt_call *call, const tt_counts *v)
{
    const bool pairwise = call->kind == TT_ALL_TO_ALL;
    size_t total;
    if (v->counts == NULL || (pairwise && v->recv_counts == NULL))
        return bad(call, "the array of counts is NULL");
    TT_TRY(check_counts(call, v->counts, &call->n));
    TT_TRY(copy_counts(call, v->counts, &call->counts));
    if (!pairwise)
        return TUTTI_OK;
    TT_TRY(check_counts(call, v->recv_counts, &total));
    return copy_counts(call, v->recv_counts, &call->recv_counts);
}

static tutti_status check_stream(const tt_call *call)
{
    tutti_ctx *ctx = call->comm->ctx;
    TT_TRY(ctx->dev_ops->stream_check(ctx->dev, call->stream));
    bool leaves_node =
        tt_is_p2p(call->kind) ? call->comm->group.size > 1 : call->comm->layout.nodes > 1;
    if (call->stream.kind == TUTTI_STREAM_HOST && leaves_node && !ctx->boot->any_thread)
        return tt_fail(TUTTI_ERR_UNSUPPORTED,
                       "%s on comm %s: a host stream's messages are sent from its own thread, "
                       "which this MPI does not allow (%s); ask MPI_Init_thread for "
                       "MPI_THREAD_MULTIPLE, let tutti_init initialise MPI, or use the inline "
                       "stream",
                       tt_kind_name(call->kind), call->comm->name, ctx->boot->thread_level);
    return leaves_node ? tt_ctx_check_thread(ctx, tt_kind_name(call->kind)) : TUTTI_OK;
}

static tutti_status check_root(const tt_call *call)
{
    const tt_group *group = &call->comm->group;
    bool p2p = tt_is_p2p(call->kind);
    if (call->root < 0 || call->root >= group->size)
        return tt_fail(TUTTI_ERR_ARG, "%s on comm %s: %s %d is not within 0 ... %d",
                       tt_kind_name(call->kind), call->comm->name, p2p ? "peer" : "root",
                       call->root, group->size - 1);
    if (p2p && call->root == group->rank && !tt_group_open())
        return bad(call, "the peer is this rank itself, which works in a group only");
    return TUTTI_OK;
}

tutti_status tt_call_check(tt_call *call, const tt_counts *v)
{
    tutti_comm *comm = call->comm;
    size_t element = tutti_dtype_size(call->dtype);

    TT_TRY(tt_ctx_check(comm->ctx));
    TT_TRY(tt_dtype_check(call->dtype, tt_kind_name(call->kind), comm->name));
    if (tt_is_reduction(call->kind) && (call->op < TUTTI_SUM || call->op > TUTTI_PROD))
        return tt_fail(TUTTI_ERR_ARG, "%s on comm %s: %d is no reduction operator",
                       tt_kind_name(call->kind), comm->name, (int)call->op);
    TT_TRY(check_root(call));
    if (call->n > (size_t)PTRDIFF_MAX / element / (size_t)comm->group.size)
        return tt_fail(TUTTI_ERR_ARG, "%s on comm %s: %zu elements are more than memory can hold",
                       tt_kind_name(call->kind), comm->name, call->n);
    TT_TRY(check_stream(call));
    if (v != NULL)
        TT_TRY(take_counts(call, v));
    return check_buffers(call);
}
