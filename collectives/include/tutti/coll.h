/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives, send/recv and groups.
 *
 * Counts are in elements; any count is allowed, 0 included. Ranks issue the calls on a communicator
 * in the same order with the same count, dtype, op and root (v-variants: the same counts array).
 * Inside a node this is compared on every call, across nodes with TUTTI_CHECK=1; a difference is
 * TUTTI_ERR_MISMATCH on every rank and fails the context. A rank that needs nothing from the others
 * in a small inline call (a broadcast's or scatter's root, all but the root of a reduce or gather)
 * may return before they come; it then finds a difference in its next call that needs them, or when
 * it is eight calls ahead. With TUTTI_CHECK=1 it waits.
 *
 * Over all communicators: ranks that share two of them and call both from one thread do so in the
 * same order. Different threads may be in different communicators at the same time, each used by
 * one thread at a time. With TUTTI_CHECK=1 ranks that wait for each other in different
 * communicators, or in sends and receives, are a MISMATCH too, after about half a second; a
 * communicator is then taken to be called next by the thread that called it last.
 *
 * Buffers may be registered (tutti_alloc, tutti_register) or plain memory (slower); `in` and `out`
 * are either equal as each call says (in place) or do not overlap.
 *
 * On a stream the call returns once the work is queued: buffers belong to the library until the
 * stream has passed it, and a failure shows in tutti_stream_sync, tutti_step and tutti_ctx_error.
 * On the inline stream the call returns when this rank's part is done.
 *
 * Sums (host backend) follow one fixed order: a balanced binary tree over the ranks of a node, then
 * one over the nodes (the left part has the largest power of two below n). For a given layout the
 * result is bitwise the same for every algorithm, chunk size, instruction set and run. A
 * reproducible communicator uses one balanced tree over all its ranks whatever the layout. 16-bit
 * types are summed in fp32.
 *
 * All of them, unless said otherwise:
 * Errors: ARG (nothing was done; where other ranks may wait for the call the context is failed and
 * they are told), UNSUPPORTED (without MPI_THREAD_MULTIPLE, for calls across nodes and send and
 * recv: a host stream, or another thread than the one that called tutti_init), MISMATCH, TIMEOUT,
 * REMOTE.
 * Collective: yes, over comm. Blocks: inline stream host, else no. Stream: ordered on `stream`.
 * Threads: one at a time per communicator, in the same order on all ranks. Graph-capture: allowed
 * (CUDA). After a failure: refused.
 */
#ifndef TUTTI_COLL_H
#define TUTTI_COLL_H

#include "tutti/comm.h"
#include "tutti/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[i] = op over ranks of in[i], i < n. In place: in == out. */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_all_reduce(tutti_comm *comm, const void *in, void *out,
                                                        size_t n, tutti_dtype dtype, tutti_op op,
                                                        tutti_stream stream);

/* in: size*n elements, out: n; rank r gets the reduced elements r*n ... In place: out == in +
 * rank*n elements (the rest of in is left unspecified). */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reduce_scatter(tutti_comm *comm, const void *in,
                                                            void *out, size_t n, tutti_dtype dtype,
                                                            tutti_op op, tutti_stream stream);

/* The same with counts[r] elements for rank r, back to back. `counts` has size entries, equal on
 * all ranks, copied before the call returns. */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reduce_scatterv(tutti_comm *comm, const void *in,
                                                             void *out, const size_t *counts,
                                                             tutti_dtype dtype, tutti_op op,
                                                             tutti_stream stream);

/* in: n elements, out: size*n; rank r's elements at r*n. In place: in == out + rank*n elements. */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_all_gather(tutti_comm *comm, const void *in, void *out,
                                                        size_t n, tutti_dtype dtype,
                                                        tutti_stream stream);

/* The same with counts[r] elements from rank r, back to back. `counts` as in tutti_reduce_scatterv.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_all_gatherv(tutti_comm *comm, const void *in,
                                                         void *out, const size_t *counts,
                                                         tutti_dtype dtype, tutti_stream stream);

/* out on every rank = in of root. `in` is read on root only; `out` may be NULL on root (then in
 * stays the only copy). In place: in == out. */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_broadcast(tutti_comm *comm, const void *in, void *out,
                                                       size_t n, tutti_dtype dtype, int root,
                                                       tutti_stream stream);

/* What tutti_reduce does with the elements. */
typedef struct tutti_reduction {
    tutti_dtype dtype;
    tutti_op op;
} tutti_reduction;

/* out on root = op over ranks of in. `out` is ignored on the others (may be NULL). In place: in ==
 * out. */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reduce(tutti_comm *comm, const void *in, void *out,
                                                    size_t n, tutti_reduction reduction, int root,
                                                    tutti_stream stream);

/* out on root: size*n elements, rank r's at r*n; ignored on the others. In place on root: in == out
 * + root*n elements. */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_gather(tutti_comm *comm, const void *in, void *out,
                                                    size_t n, tutti_dtype dtype, int root,
                                                    tutti_stream stream);

/* in on root: size*n elements; rank r gets those at r*n. `in` is ignored on the others. In place on
 * root: out == in + root*n elements. */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_scatter(tutti_comm *comm, const void *in, void *out,
                                                     size_t n, tutti_dtype dtype, int root,
                                                     tutti_stream stream);

/* in, out: size*n elements; out's part r is rank r's part `rank`. In place: refused. */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_all_to_all(tutti_comm *comm, const void *in, void *out,
                                                        size_t n, tutti_dtype dtype,
                                                        tutti_stream stream);

/*
 * The same with send_counts[r] elements to rank r and recv_counts[r] from it, each back to back.
 * Counts differ between ranks; send_counts[r] here equals recv_counts[here] there (always compared
 * inside a node). Both arrays are copied before the call returns.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_all_to_allv(tutti_comm *comm, const void *in,
                                                         const size_t *send_counts, void *out,
                                                         const size_t *recv_counts,
                                                         tutti_dtype dtype, tutti_stream stream);

/*
 * Point to point: the n-th send to a peer meets its n-th recv from here on this communicator;
 * counts and types must be equal (MISMATCH on the receiver, then on all). A lone send may wait for
 * its recv: exchanges go into a group. peer == own rank only in a group.
 * Collective: no, between the two.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_send(tutti_comm *comm, const void *buf, size_t n,
                                                  tutti_dtype dtype, int peer, tutti_stream stream);
TUTTI_API TUTTI_NODISCARD tutti_status tutti_recv(tutti_comm *comm, void *buf, size_t n,
                                                  tutti_dtype dtype, int peer, tutti_stream stream);

/*
 * Calls between begin and end, of this thread, are carried out together at end: sends and receives
 * make progress at the same time. Groups nest; the outermost end acts. Argument errors are returned
 * by the call itself, and end then drops the whole group and returns the first of them. Calls on
 * host scalars, splits and registration are refused inside a group (STATE); if the group has calls
 * that other ranks may wait for, the context is failed and they are told. Destroying a
 * communicator that the group has calls on drops the group and, where other ranks may wait, fails
 * the context. Errors of end: those of its calls.
 * Collective: as the calls inside. Blocks: end, as the calls inside. Stream: each call's own.
 * Threads: any, one group per thread. Graph-capture: allowed (CUDA). After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_group_begin(void);
TUTTI_API TUTTI_NODISCARD tutti_status tutti_group_end(void);

/*
 * Between begin and end the calling thread may make calls of its own on what the communicator is
 * made of, for a program that moves over piece by piece: *native_out is an ncclComm_t, borrowed
 * (tutti/interop_nccl.h has it typed). The calls go to `stream`, which has been made to follow what
 * the communicator was given before, and what is given to it afterwards follows them. No other call
 * of tutti's is made in between, and every begin that succeeded is followed by its end. Errors:
 * ARG, STATE (in a group), UNSUPPORTED (the host backend, and a single rank without
 * TUTTI_NCCL_ONE). Collective: as the calls inside. Blocks: no. Stream: ordered on `stream`.
 * Threads: one at a time per context, in the same order on all ranks. Graph-capture: allowed
 * (CUDA). After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_comm_native_begin(tutti_comm *comm,
                                                               tutti_stream stream,
                                                               void **native_out);
TUTTI_API TUTTI_NODISCARD tutti_status tutti_comm_native_end(tutti_comm *comm);

/*
 * values[i] = op over ranks, i < n (at most 4096), in place, summed in the fixed order of the
 * communicator. For host scalars: goes over the bootstrap and never touches a stream or the device.
 * Collective: yes, over comm. Blocks: host. Stream: none. Threads: one at a time per communicator.
 * Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_all_reduce_host(tutti_comm *comm, double *values,
                                                             size_t n, tutti_op op);

/*
 * Returns when every rank of comm has called it. Over the bootstrap; does not wait for streams.
 * Collective: yes, over comm. Blocks: host. Stream: none. Threads: one at a time per communicator.
 * Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_barrier(tutti_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
