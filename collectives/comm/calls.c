/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public collectives. Each describes itself as a tt_call and hands it to tt_submit, where all
 * checks and the groups are: nothing here looks at an argument, so that a refused call is treated
 * in one place and no call can be checked less than another. A stream decides nothing here either;
 * the backend carries out what is inline. One kind of call is tried on a short way first, for its
 * latency: a tiny all_reduce; whatever is unusual about it sends it on the long one. The v-variants
 * pass the caller's arrays beside the call, which owns copies once it is accepted.
 */
#include "comm/issue.h"

tutti_status tutti_all_reduce(tutti_comm *comm, const void *in, void *out, size_t n,
                              tutti_dtype dtype, tutti_op op, tutti_stream stream)
{
    tutti_status status;
    if (comm != NULL && n - 1 < comm->quick_n && stream.kind == TUTTI_STREAM_INLINE &&
        !tt_group_open() &&
        comm->ops->quick(comm, in, out, n, (tutti_reduction){dtype, op}, &status))
        return status;
    tt_call call = {.kind = TT_ALL_REDUCE,
                    .comm = comm,
                    .in = in,
                    .out = out,
                    .n = n,
                    .dtype = dtype,
                    .op = op,
                    .stream = stream};
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
