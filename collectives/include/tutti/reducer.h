/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradient reducer: averages gradients over a communicator while the backward pass still runs.
 *
 * The program describes its parameters (add), fixes the plan (commit), and in each step says which
 * gradients are final on this rank (ready). Gradients are collected into buckets; a bucket's
 * all-reduce is issued inside the `ready` that completes it, on the reducer's own stream, behind
 * the producers' streams. wait(stream) makes a stream wait for all of them.
 *
 *   begin(micro 0 of n) ... ready ... begin(micro 1 of n) ... ready ... wait -> optimizer -> gather
 *
 * The optimizer loops over pieces. With TUTTI_SHARD_OPTIMIZER each rank gets the averages of its
 * own part of every bucket only, updates that part of the parameters, and `gather` sends the parts
 * to the others while the program goes on (param_wait before a parameter is used again). Without it
 * the pieces are the whole tensors, and gather and param_wait do nothing: a program needs no second
 * way.
 *
 * Membership and addresses of buckets are fixed at commit; learning (after the first step) only
 * changes the order in which they are issued, the same on all ranks. One rank's calls on a reducer
 * come from one thread, except `ready` and `absent`, which may come from several at once while no
 * other communicator is used between begin and wait.
 */
#ifndef TUTTI_REDUCER_H
#define TUTTI_REDUCER_H

#include "tutti/ckpt.h"
#include "tutti/coll.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TUTTI_MAX_DIMS 8

typedef struct tutti_reducer tutti_reducer;

enum {
    TUTTI_PARAM_UNCOUNTED = 1u << 0 /* left out of the norm: another rank of norm_comm has it too */
};

/* One parameter tensor. Begin with TUTTI_PARAM_INIT. */
typedef struct tutti_param {
    size_t size; /* sizeof(tutti_param) */
    const char *name; /* unique within the reducer, copied */
    tutti_dtype dtype; /* a floating-point type */
    int ndim; /* 0 ... TUTTI_MAX_DIMS */
    int64_t shape[TUTTI_MAX_DIMS]; /* row major */
    void *grad; /* the gradient's memory; NULL: the reducer allocates it (tutti_reducer_grad after
                   commit) */
    void *param; /* the parameter's memory, broadcast at commit and compared by tutti_reducer_check;
                    NULL: neither */
    uint32_t group; /* the program's tag (learning-rate group ...), handed back in pieces */
    uint32_t flags; /* TUTTI_PARAM_... */
    int tied; /* 1 + the id of an earlier parameter of equal type and shape whose gradient and
                 memory this one shares (grad and param NULL): both are made ready, it is reduced
                 once */
    int64_t whole[TUTTI_MAX_DIMS]; /* the tensor that this one is a box of, in checkpoints of model-
                                      parallel programs; all zero: it is whole itself */
    int64_t offset[TUTTI_MAX_DIMS]; /* of the box within `whole` */
} tutti_param;
#define TUTTI_PARAM_INIT                                                                           \
    {                                                                                              \
        sizeof(tutti_param), NULL, (tutti_dtype)0, 0, {0}, NULL, NULL, 0, 0, 0, {0},               \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

enum {
    /* Sum in one balanced tree over the micro-steps of all ranks, whatever the layout: first over
     * those of a rank, then over ranks. See tutti_reducer_begin. */
    TUTTI_REDUCER_REPRODUCIBLE = 1u << 0,
    /* commit compares parameter hashes instead of broadcasting */
    TUTTI_REDUCER_COMPARE_PARAMS = 1u << 1,
    /* ZeRO-1: gradients are scattered, each rank updates its pieces, gather brings them together */
    TUTTI_SHARD_OPTIMIZER = 1u << 2,
    /* averages are over micro-steps too, not sums of them: backward passes need not scale by 1/n */
    TUTTI_REDUCER_AVERAGE_MICRO = 1u << 3,
    /* parameters not made ready count as absent; wait finds out which were used by no rank at all
     * (tutti_reducer_used), for which it blocks the host in every step */
    TUTTI_REDUCER_FIND_UNUSED = 1u << 4,
    /* ranks may run out of samples at different steps: tutti_reducer_join. The first begin of every
     * step blocks the host until all ranks are there */
    TUTTI_REDUCER_UNEVEN = 1u << 5,
    /* with UNEVEN: averages are over the ranks that have not joined, not over all */
    TUTTI_REDUCER_AVERAGE_PRESENT = 1u << 6
};

/* Zero in any field means its default; begin with TUTTI_REDUCER_OPTS_INIT. */
typedef struct tutti_reducer_opts {
    size_t size; /* sizeof(tutti_reducer_opts) */
    uint32_t flags; /* TUTTI_REDUCER_... */
    size_t bucket_bytes; /* cap of a bucket; default TUTTI_BUCKET_BYTES, else chosen at commit from
                            the measured speed of all-reduce, 1 to 25 MiB */
    size_t first_bucket_bytes; /* cap of the first bucket issued; default 1 MiB */
    const char *name; /* appears in messages, copied; NULL: "reducer" */
    tutti_dtype wire; /* BFLOAT16 or FLOAT16: how fp32 gradients travel; sums are formed in fp32.
                         Not with TUTTI_REDUCER_REPRODUCIBLE */
    tutti_comm
        *norm_comm; /* model parallelism: the ranks that together hold the whole model and all
                       its replicas, over which the norm is taken; NULL: the reducer's ranks */
} tutti_reducer_opts;
#define TUTTI_REDUCER_OPTS_INIT                                                                    \
    {                                                                                              \
        sizeof(tutti_reducer_opts), 0, 0, 0, NULL, (tutti_dtype)0, NULL                            \
    }

/*
 * An empty reducer over the ranks of comm, whose duplicate it uses: its calls have an order of
 * their own. opts may be NULL, equal on all ranks. Errors: ARG, MISMATCH, NO_MEMORY, TIMEOUT,
 * REMOTE.
 * Collective: yes, over comm. Blocks: host. Stream: makes its own. Threads: one. Graph-capture:
 * refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_create(tutti_comm *comm,
                                                            const tutti_reducer_opts *opts,
                                                            tutti_reducer **red_out);

/*
 * Waits for pending work, then destroys it with the gradients it allocated. NULL is ignored.
 * Collective: yes, over comm. Blocks: host. Stream: drains its own. Threads: one. Graph-capture:
 * refused. After a failure: allowed.
 */
TUTTI_API void tutti_reducer_destroy(tutti_reducer *red);

/*
 * Adds a parameter, in forward order, the same on all ranks; ids count from 0. Errors: ARG (type,
 * shape, name taken), STATE (after commit), NO_MEMORY.
 * Collective: no, but every rank adds the same. Blocks: no. Stream: none. Threads: one.
 * Graph-capture: refused. After a failure: allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_add(tutti_reducer *red,
                                                         const tutti_param *param, int *id_out);

/*
 * Fixes the plan: compares the parameter lists of all ranks (a difference is shown by name),
 * allocates gradients, then broadcasts parameters from the communicator's first rank, or compares
 * them. Errors: ARG (no parameter), STATE, MISMATCH, NO_MEMORY, TIMEOUT, REMOTE.
 * Collective: yes, over comm. Blocks: host. Stream: none. Threads: one. Graph-capture: refused.
 * After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_commit(tutti_reducer *red);

/*
 * Where parameter id's gradient lives; NULL before commit or for no such id. Constant from commit
 * on; a view of its bucket when the reducer allocated it.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API void *tutti_reducer_grad(const tutti_reducer *red, int id);

/* A contiguous part of a bucket, handed to a hook. */
typedef struct tutti_bucket {
    size_t size; /* sizeof(tutti_bucket) */
    int index, part; /* the bucket's number and the part's within it: the same on all ranks */
    void *data;
    size_t count;
    tutti_dtype dtype;
    int divisor; /* the average is the sum over ranks divided by this */
    tutti_comm *comm; /* the reducer's own */
    tutti_stream stream; /* the reducer's own; behind it the gradients are there */
} tutti_bucket;
typedef tutti_status (*tutti_bucket_hook)(void *arg, const tutti_bucket *bucket);

/*
 * Has `hook` reduce gradients in place of the library (NULL: the library again): it is called for
 * every part of a bucket when the bucket is issued, and queues on bucket->stream what leaves the
 * average in bucket->data (with TUTTI_SHARD_OPTIMIZER at least this rank's part of it), by the
 * collectives of bucket->comm. It may not call the reducer. A failure fails the context. Errors:
 * ARG (with a wire type), STATE (before commit, or within a step). Collective: no, but every rank
 * sets the same. Blocks: no. Stream: none. Threads: one. Graph-capture: refused. After a failure:
 * allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_hook(tutti_reducer *red,
                                                          tutti_bucket_hook hook, void *arg);

/*
 * Begins micro-step `micro` of `n` (0 <= micro < n, n the same on all ranks). Micro 0 zeroes all
 * gradients in stream order, so backward passes accumulate; producers on other streams wait for
 * `stream` first.
 *
 * A reproducible reducer accumulates itself: gradients are zeroed before every micro-step, and
 * ready adds them to at most log2(n) partial sums, in memory of its own that the first step makes
 * (which blocks). n is a power of two, gradients are FLOAT32 or FLOAT64. If every micro-step works
 * on equally many samples, wherever it runs, averages are bitwise the same for 1, 2, 4 ... ranks.
 *
 * Errors: ARG (also: n is no power of two on a reproducible reducer), STATE (the last step was not
 * waited for or abandoned, micro out of order, or gradients of the last micro-step not made ready:
 * named), NO_MEMORY, TIMEOUT, REMOTE.
 * Collective: logically, over comm. Blocks: no (inline: while zeroing). Stream: ordered. Threads:
 * one. Graph-capture: allowed. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_begin(tutti_reducer *red, int micro, int n,
                                                           tutti_stream stream);

/*
 * The gradients ids[0 ... n-1] of this micro-step are final after the work now on `stream`. Call it
 * for every parameter in every micro-step, once. In the last micro-step a bucket is issued inside
 * the call that completes it, in the agreed order, or by another thread's call that issues at that
 * moment: none waits for the other. Errors: ARG (no such id), STATE (ready twice: named; outside
 * begin and wait).
 * Collective: logically, over comm. Blocks: no. Stream: behind `stream`. Threads: several at once,
 * see above. Graph-capture: allowed. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_ready(tutti_reducer *red, const int *ids,
                                                           size_t n, tutti_stream stream);

/*
 * In place of ready: these parameters were not used in this micro-step on this rank, which
 * contributes what earlier micro-steps gave (zeros if none). Errors and rules as ready; `stream`
 * follows the work of the earlier micro-steps.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_absent(tutti_reducer *red, const int *ids,
                                                            size_t n, tutti_stream stream);

/*
 * All-reduces n float scalars (losses, counts; at most 64 per step) at values in place, in an
 * operation of their own beside the last bucket; valid after wait. Call it in the last micro-step
 * before the last ready, on every rank alike, after the work now on `stream`. Errors: ARG, STATE.
 * Collective: logically, over comm. Blocks: no. Stream: behind `stream`. Threads: one.
 * Graph-capture: allowed. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_scalar(tutti_reducer *red, float *values,
                                                            size_t n, tutti_op op,
                                                            tutti_stream stream);

/*
 * The mean of n float scalars (losses; at most 64) over all micro-steps and ranks: give this
 * micro-step's values in every micro-step, before its last ready. They are read in stream order.
 * The sums are exact, so the means do not depend on how micro-steps are shared out to ranks. After
 * wait `values` of the last micro-step hold the means. Errors: ARG, STATE.
 * Collective: logically, over comm. Blocks: no. Stream: behind `stream`. Threads: one.
 * Graph-capture: allowed. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_mean(tutti_reducer *red, float *values,
                                                          size_t n, tutti_stream stream);

/*
 * Work given to `stream` from now on sees the averaged gradients (inline: returns when they are
 * there). If gradients are missing, their buckets are still issued, filled with NaN, so that no
 * rank hangs: this call returns MISSING and names the parameters here, and tutti_step returns it on
 * all ranks. The first wait after commit (with TUTTI_CHECK=1 every wait) also compares what the
 * ranks did in the step (micro-steps, scalars) and agrees on the order of buckets: it blocks the
 * host until all ranks are there. Ranks at different numbers of micro-steps are found in every
 * step: on the host before a gradient is averaged, on GPUs by wait or begin once the step has
 * passed there (not if it is captured). Errors: STATE (not in the last micro-step), MISSING,
 * MISMATCH, TIMEOUT, REMOTE. Collective: logically, over comm. Blocks: inline or first host, else
 * no. Stream: `stream` waits. Threads: one. Graph-capture: allowed. After a failure: returns it.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_wait(tutti_reducer *red, tutti_stream stream);

/*
 * Drops this step's gradients on all ranks (a bad batch, say): what was issued is waited for, the
 * next call is begin(0, n). Errors: STATE (no step; or, with UNEVEN, a rank has joined), TIMEOUT,
 * REMOTE.
 * Collective: yes, over comm. Blocks: host. Stream: drains its own. Threads: one. Graph-capture:
 * refused. After a failure: returns it.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_abandon(tutti_reducer *red);

/*
 * With TUTTI_REDUCER_FIND_UNUSED: whether any rank made parameter id ready in the last finished
 * step; an optimizer may leave one that is not as it is. True without the flag. Collective: no.
 * Blocks: no. Stream: none. Threads: one. Graph-capture: allowed. After a failure: allowed.
 */
TUTTI_API bool tutti_reducer_used(const tutti_reducer *red, int id);

/*
 * With TUTTI_REDUCER_UNEVEN: this rank has no more samples. It takes part in the other ranks' steps
 * with gradients of zero until all have joined, and then returns on all of them. After each such
 * step, when `stream` has passed its gradients, update(arg) does what the program does after wait:
 * norm, optimizer, gather, tutti_step. So parameters stay equal, and shards up to date. Means are
 * those of the ranks present; tutti_reducer_scalar is refused by an UNEVEN reducer. Errors: ARG,
 * STATE (within a step), TIMEOUT, REMOTE, and the first of update's own.
 * Collective: yes, over comm. Blocks: host. Stream: `stream` waits. Threads: one. Graph-capture:
 * refused. After a failure: returns it.
 */
typedef tutti_status (*tutti_join_fn)(void *arg);
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_join(tutti_reducer *red, tutti_stream stream,
                                                          tutti_join_fn update, void *arg);

/*
 * Compares parameter hashes over the ranks; MISMATCH names the first parameters that differ and the
 * ranks. Call it between steps, with no work pending on parameters.
 * Collective: yes, over comm. Blocks: host. Stream: none. Threads: one. Graph-capture: refused.
 * After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_check(tutti_reducer *red);

/*
 * Writes the norm (root of the sum of squares) of all averaged gradients to *norm, on every rank
 * the same bits, in stream order. It is what clipping needs; NaN if any gradient anywhere is not
 * finite, so that all ranks skip the same step (loss scaling). Squares are added without rounding
 * (blocks of 64 elements in double), thus the norm is the same with and without
 * TUTTI_SHARD_OPTIMIZER, for any plan of buckets. It takes one all-reduce of 560 bytes; none if the
 * reducer neither shards nor has a norm_comm. Call it after wait. Errors: ARG, STATE, UNSUPPORTED.
 * Collective: logically, over norm_comm. Blocks: inline host, else no. Stream: ordered. Threads:
 * one. Graph-capture: allowed. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_grad_norm(tutti_reducer *red,
                                                               tutti_stream stream, float *norm);

/* What the optimizer loops over: elements [tensor_offset, tensor_offset + count) of parameter id.
 */
typedef struct tutti_piece {
    int id;
    uint32_t group;
    int64_t tensor_offset, count;
    int64_t state_offset; /* where the piece's optimizer state begins, in elements */
    void *grad, *param; /* at tensor_offset; param is NULL if the tensor gave none */
} tutti_piece;

/*
 * The pieces that this rank updates, borrowed and constant from commit on, in order of id: one per
 * tensor, or with TUTTI_SHARD_OPTIMIZER those within this rank's part of each bucket.
 * tutti_reducer_shard_count is the number of elements of optimizer state to allocate, with padding:
 * the same on every rank. Pieces returns their number; 0 before commit.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API size_t tutti_reducer_pieces(const tutti_reducer *red, const tutti_piece **pieces_out);
TUTTI_API size_t tutti_reducer_shard_count(const tutti_reducer *red);

/*
 * After the optimizer on `stream`: starts to gather all parameters on the reducer's own stream, in
 * forward order, so that the next forward pass can begin while the rest is on its way. Nothing to
 * do without TUTTI_SHARD_OPTIMIZER. Errors: STATE (within a step, or before the first), TIMEOUT,
 * REMOTE.
 * Collective: logically, over comm. Blocks: no. Stream: behind `stream`. Threads: one.
 * Graph-capture: allowed. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_gather(tutti_reducer *red,
                                                            tutti_stream stream);

/*
 * Work given to `stream` from now on sees the gathered parameters ids[0 ... n-1] (inline: returns
 * when they are there). ids NULL: all of them, before a checkpoint say. Errors: ARG, TIMEOUT,
 * REMOTE.
 * Collective: no. Blocks: inline host, else no. Stream: `stream` waits. Threads: one.
 * Graph-capture: allowed. After a failure: returns it.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_param_wait(tutti_reducer *red, const int *ids,
                                                                size_t n, tutti_stream stream);

/*
 * Adds optimizer state to a checkpoint: for every parameter a tensor of its shape (of `whole`, if
 * given), whose values are state[] as pieces lay it out. `name` names them, with '%' for the
 * parameter's name: "adam_m/%". So what was saved with any number of ranks, sharded or not, is the
 * same and loads everywhere. Errors: ARG, STATE (before commit), NO_MEMORY.
 * Collective: no, but every rank adds the same. Blocks: no. Stream: none. Threads: one.
 * Graph-capture: refused. After a failure: allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_add_state(tutti_ckpt *ck,
                                                            const tutti_reducer *red,
                                                            const char *name, const void *state,
                                                            tutti_dtype dtype);

/*
 * Reads it back into state[]. Errors, the same on all ranks: as tutti_ckpt_read.
 * Collective: yes, over the job. Blocks: host. Stream: ordered. Threads: the one that called
 * tutti_init. Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_ckpt_read_state(tutti_ckpt_reader *rd,
                                                             const tutti_reducer *red,
                                                             const char *name, void *state,
                                                             tutti_dtype dtype,
                                                             tutti_stream stream);

/* Times of the last finished step, seconds on this rank; fill `size` before the call. */
typedef struct tutti_reducer_stats {
    size_t size; /* sizeof(tutti_reducer_stats) */
    int64_t steps; /* finished steps since commit */
    int buckets; /* buckets of the plan */
    size_t bytes; /* gradient bytes all-reduced per step, with the gaps between tensors */
    double
        comm_s; /* sum over buckets of the time their all-reduce ran on the communication stream */
    double exposed_s; /* time that wait blocked the caller, or delayed its stream: communication not
                         hidden by computation */
    double first_ready_s; /* from begin of the last micro-step to the first bucket's issue */
    double last_bucket_s; /* the part of comm_s of the bucket issued last */
    double overlap; /* 1 - exposed_s / comm_s, at least 0: the part that computation hid */
    double param_exposed_s; /* time that inline param_waits have blocked since the last gather */
    size_t bucket_bytes; /* cap of a bucket, given or chosen */
    size_t state_count; /* tutti_reducer_shard_count */
    size_t padding; /* of these, elements that belong to no parameter of this rank */
    size_t partial_bytes; /* of sums over micro-steps (TUTTI_REDUCER_REPRODUCIBLE) */
} tutti_reducer_stats;

/*
 * Fills *stats_out for the last step whose wait has passed (inline: the last wait). Errors: ARG,
 * STATE (no step finished).
 * Collective: no. Blocks: no. Stream: none. Threads: one. Graph-capture: refused. After a failure:
 * allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_reducer_stats_get(const tutti_reducer *red,
                                                               tutti_reducer_stats *stats_out);

/*
 * Per bucket, in the order of issue of the last finished step: its bytes, when it was issued
 * (seconds after begin of the last micro-step) and how long its all-reduce ran.
 */
typedef struct tutti_bucket_stats {
    size_t bytes;
    double issued_s, comm_s;
} tutti_bucket_stats;

/*
 * Copies at most cap entries to out (may be NULL with cap 0) and returns the number of buckets; 0
 * before the first finished step.
 * Collective: no. Blocks: no. Stream: none. Threads: one. Graph-capture: refused. After a failure:
 * allowed.
 */
TUTTI_API size_t tutti_reducer_bucket_stats(const tutti_reducer *red, tutti_bucket_stats *out,
                                            size_t cap);

#ifdef __cplusplus
}
#endif
#endif
