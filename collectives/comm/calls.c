/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public collectives. Each describes itself as a tt_call and hands it to tt_submit, where all
 * checks and the groups are: nothing here looks at an argument, so that a refused call is treated
 * in one place and no call can be checked less than another. A stream decides nothing here either;
 * the backend carries out what is inline. A tiny all_reduce is offered to the backend's short way
 * at once, for its latency; whatever is unusual about it sends it on the long one. The v-variants
 * pass the caller's arrays beside the call, which owns copies once it is accepted.
 */
#include "comm/issue.h"

/* A sum that needs no more than these checks, of arguments that are right. */
static bool is_tiny_sum(const tt_call *call)
{
    enum { TINY = 8 }; /* elements: of the smallest type, and still few of the largest */
    const tutti_comm *comm = call->comm;
    const uintptr_t in = (uintptr_t)call->in, out = (uintptr_t)call->out;
    const size_t bytes = call->n * tutti_dtype_size(call->dtype);
    return comm != NULL && call->n - 1 < TINY && call->n < comm->quick_n && bytes > 0 &&
           call->dtype <= TUTTI_UINT64 && in != 0 && out != 0 &&
           (in == out || in >= out + bytes || out >= in + bytes) && call->op >= TUTTI_SUM &&
           call->op <= TUTTI_PROD && call->stream.kind == TUTTI_STREAM_INLINE && !tt_group_open() &&
           atomic_load_explicit(&comm->ctx->failed, memory_order_acquire) == TUTTI_OK;
}

tutti_status tutti_all_reduce(tutti_comm *comm, const void *in, void *out, size_t n,
                              tutti_dtype dtype, tutti_op op, tutti_stream stream)
{
    tt_call call = {.kind = TT_ALL_REDUCE,
                    .comm = comm,
                    .in = in,
                    .out = out,
                    .n = n,
                    .dtype = dtype,
                    .op = op,
                    .stream = stream};
    tutti_status status;
    if (is_tiny_sum(&call) && comm->ops->quick(&call, &status))
        return status;
    return tt_submit(&call, NULL);
}

tutti_status tutti_reduce_scatter(tutti_comm *comm, const void *in, void *out, size_t n,
                                  tutti_dtype dtype, tutti_op op, tutti_stream stream)
{
    tt_call call = {.kind = TT_REDUCE_SCATTER,
                    .comm = comm,
                    .in = in,
                    .out = out,
                    .n = n,
                    .dtype = dtype,
                    .op = op,
                    .stream = stream};
    return tt_submit(&call, NULL);
}

tutti_status tutti_reduce_scatterv(tutti_comm *comm, const void *in, void *out,
                                   const size_t *counts, tutti_dtype dtype, tutti_op op,
                                   tutti_stream stream)
{
    tt_call call = {.kind = TT_REDUCE_SCATTER,
                    .comm = comm,
                    .in = in,
                    .out = out,
                    .dtype = dtype,
                    .op = op,
                    .stream = stream};
    return tt_submit(&call, &(tt_counts){counts, NULL});
}

tutti_status tutti_all_gather(tutti_comm *comm, const void *in, void *out, size_t n,
                              tutti_dtype dtype, tutti_stream stream)
{
    tt_call call = {.kind = TT_ALL_GATHER,
                    .comm = comm,
                    .in = in,
                    .out = out,
                    .n = n,
                    .dtype = dtype,
                    .stream = stream};
    return tt_submit(&call, NULL);
}

tutti_status tutti_all_gatherv(tutti_comm *comm, const void *in, void *out, const size_t *counts,
                               tutti_dtype dtype, tutti_stream stream)
{
    tt_call call = {.kind = TT_ALL_GATHER,
                    .comm = comm,
                    .in = in,
                    .out = out,
                    .dtype = dtype,
                    .stream = stream};
    return tt_submit(&call, &(tt_counts){counts, NULL});
}

tutti_status tutti_broadcast(tutti_comm *comm, const void *in, void *out, size_t n,
                             tutti_dtype dtype, int root, tutti_stream stream)
{
    tt_call call = {.kind = TT_BROADCAST,
                    .comm = comm,
                    .in = in,
                    .out = out,
                    .n = n,
                    .dtype = dtype,
                    .root = root,
                    .stream = stream};
    return tt_submit(&call, NULL);
}

tutti_status tutti_reduce(tutti_comm *comm, const void *in, void *out, size_t n,
                          tutti_reduction reduction, int root, tutti_stream stream)
{
    tt_call call = {.kind = TT_REDUCE,
                    .comm = comm,
                    .in = in,
                    .out = out,
                    .n = n,
                    .dtype = reduction.dtype,
                    .op = reduction.op,
                    .root = root,
                    .stream = stream};
    return tt_submit(&call, NULL);
}

tutti_status tutti_gather(tutti_comm *comm, const void *in, void *out, size_t n, tutti_dtype dtype,
                          int root, tutti_stream stream)
{
    tt_call call = {.kind = TT_GATHER,
                    .comm = comm,
                    .in = in,
                    .out = out,
                    .n = n,
                    .dtype = dtype,
                    .root = root,
                    .stream = stream};
    return tt_submit(&call, NULL);
}

tutti_status tutti_scatter(tutti_comm *comm, const void *in, void *out, size_t n, tutti_dtype dtype,
                           int root, tutti_stream stream)
{
    tt_call call = {.kind = TT_SCATTER,
                    .comm = comm,
                    .in = in,
                    .out = out,
                    .n = n,
                    .dtype = dtype,
                    .root = root,
                    .stream = stream};
    return tt_submit(&call, NULL);
}

tutti_status tutti_all_to_all(tutti_comm *comm, const void *in, void *out, size_t n,
                              tutti_dtype dtype, tutti_stream stream)
{
    tt_call call = {.kind = TT_ALL_TO_ALL,
                    .comm = comm,
                    .in = in,
                    .out = out,
                    .n = n,
                    .dtype = dtype,
                    .stream = stream};
    return tt_submit(&call, NULL);
}

tutti_status tutti_all_to_allv(tutti_comm *comm, const void *in, const size_t *send_counts,
                               void *out, const size_t *recv_counts, tutti_dtype dtype,
                               tutti_stream stream)
{
    tt_call call = {.kind = TT_ALL_TO_ALL,
                    .comm = comm,
                    .in = in,
                    .out = out,
                    .dtype = dtype,
                    .stream = stream};
    return tt_submit(&call, &(tt_counts){send_counts, recv_counts});
}

tutti_status tutti_send(tutti_comm *comm, const void *buf, size_t n, tutti_dtype dtype, int peer,
                        tutti_stream stream)
{
    tt_call call = {.kind = TT_SEND,
                    .comm = comm,
                    .in = buf,
                    .n = n,
                    .dtype = dtype,
                    .root = peer,
                    .stream = stream};
    return tt_submit(&call, NULL);
}

tutti_status tutti_recv(tutti_comm *comm, void *buf, size_t n, tutti_dtype dtype, int peer,
                        tutti_stream stream)
{
    tt_call call = {.kind = TT_RECV,
                    .comm = comm,
                    .out = buf,
                    .n = n,
                    .dtype = dtype,
                    .root = peer,
                    .stream = stream};
    return tt_submit(&call, NULL);
}

tutti_status tutti_comm_native_begin(tutti_comm *comm, tutti_stream stream, void **native_out)
{
    if (comm == NULL || native_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "native_begin: %s is NULL",
                       comm == NULL ? "the communicator" : "native_out");
    TT_TRY(tt_ctx_check(comm->ctx));
    TT_TRY(tt_group_forbid("native_begin"));
    TT_TRY(comm->ctx->dev_ops->stream_check(comm->ctx->dev, stream));
    if (comm->ops->native_begin == NULL)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "native_begin: comm %s is made of nothing but tutti",
                       comm->name);
    return comm->ops->native_begin(comm, stream, native_out);
}

tutti_status tutti_comm_native_end(tutti_comm *comm)
{
    if (comm == NULL || comm->ops->native_end == NULL)
        return tt_fail(TUTTI_ERR_STATE, "native_end without native_begin");
    return comm->ops->native_end(comm);
}
