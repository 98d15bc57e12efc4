/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipeline parallelism: the layers of a model are dealt to the ranks of a communicator (its stages,
 * rank 0 first), and the micro-batches of a step flow through them, activations forward and their
 * gradients backward.
 *
 * A schedule is data: the steps of every rank, made by tutti_pipe_steps, to be looked at, drawn,
 * changed and checked (tutti_pipe_check). tutti_pipe_run carries the library's own out: it calls
 * the program's function for every forward and backward pass and moves what lies between.
 *
 * Every schedule is made in slots: in a slot a stage does at most one pass, and all transfers of a
 * slot are issued together, as one group, by both ends. So ranks meet slot after slot, and no order
 * of sends and receives can deadlock, however the transport serialises them.
 *
 * 1F1B (Narayanan et al., 2021): a stage does as many forward passes as there are stages behind it,
 * then a forward and a backward pass in turn, so that stage s holds at most stages - s
 * micro-batches. Interleaved (the same): `chunks` > 1 deals each rank that many separate parts of
 * the model, so that the pipeline fills chunks times faster. With TUTTI_PIPE_OVERLAP a transfer has
 * a slot of its own beside the next pass: nothing waits for it, for up to twice the micro-batches
 * in flight.
 */
#ifndef TUTTI_PIPELINE_H
#define TUTTI_PIPELINE_H

#include "tutti/comm.h"
#include "tutti/stream.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TUTTI_PIPE_OVERLAP = 1u << 0 };

/* What a schedule depends on. Begin with TUTTI_PIPE_SHAPE_INIT. */
typedef struct tutti_pipe_shape {
    size_t size; /* sizeof(tutti_pipe_shape) */
    int stages; /* ranks of the pipeline, 1 ... 1024 */
    int micros; /* micro-batches of a step, 1 ... 65536 */
    int chunks; /* parts of the model on each rank, 0 or 1: one; more: micros must be a multiple of
                   stages */
    uint32_t flags; /* TUTTI_PIPE_OVERLAP */
} tutti_pipe_shape;
#define TUTTI_PIPE_SHAPE_INIT                                                                      \
    {                                                                                              \
        sizeof(tutti_pipe_shape), 0, 0, 0, 0                                                       \
    }

typedef enum tutti_pipe_kind {
    TUTTI_PIPE_FORWARD = 1,
    TUTTI_PIPE_BACKWARD = 2,
    TUTTI_PIPE_SEND = 3,
    TUTTI_PIPE_RECV = 4
} tutti_pipe_kind;

/* One step of one rank. Transfers that follow each other with the same slot form one group. */
typedef struct tutti_pipe_step {
    tutti_pipe_kind kind;
    int slot; /* from 0; the same on both ends of a transfer */
    int micro, chunk; /* SEND and RECV: of the pass that will read what is moved */
    int peer; /* SEND and RECV: the other rank; else -1 */
    bool gradient; /* SEND and RECV: moves a gradient backward, else an activation forward */
} tutti_pipe_step;

/*
 * The steps of one stage, in order: the first `cap` of them into `steps` (NULL with cap 0), and how
 * many there are. Errors: ARG, NO_MEMORY.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_pipe_steps(const tutti_pipe_shape *shape, int stage,
                                                        tutti_pipe_step *steps, size_t cap,
                                                        size_t *count_out);

/*
 * Checks steps of all stages (steps[s] has counts[s] of them), the library's or changed ones, as if
 * every transfer waited for its other end: every pass of every micro-batch and chunk is there once,
 * after what it needs; transfers meet; nobody waits for ever. Errors: ARG, STATE (what is wrong, in
 * words: a pass twice or before its input, or the ranks that wait and for whom), NO_MEMORY.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_pipe_check(const tutti_pipe_shape *shape,
                                                        const tutti_pipe_step *const *steps,
                                                        const size_t *counts);

typedef struct tutti_pipe tutti_pipe;

/* Zero in any field means its default; begin with TUTTI_PIPE_OPTS_INIT. */
typedef struct tutti_pipe_opts {
    size_t size; /* sizeof(tutti_pipe_opts) */
    int micros, chunks; /* as in tutti_pipe_shape */
    size_t bytes; /* of one micro-batch's activation between stages; its gradient has as many */
    uint32_t flags; /* TUTTI_PIPE_OVERLAP */
} tutti_pipe_opts;
#define TUTTI_PIPE_OPTS_INIT                                                                       \
    {                                                                                              \
        sizeof(tutti_pipe_opts), 0, 0, 0, 0                                                        \
    }

/* One pass, for the program to carry out. The memory is the pipeline's. */
typedef struct tutti_pipe_pass {
    tutti_pipe_kind kind; /* FORWARD or BACKWARD */
    int micro, chunk;
    bool first, last; /* of the whole model: no input from, no output to another stage */
    int cache; /* 0 ... tutti_pipe_in_flight - 1: this micro-batch's alone from its forward to its
                  backward pass, for what the program keeps in between */
    const void *in; /* the activation that came in; NULL on the first part; valid in both passes */
    void *out; /* FORWARD: the activation to make; NULL on the last part */
    const void *d_out; /* BACKWARD: the gradient of `out`; NULL on the last part */
    void *d_in; /* BACKWARD: the gradient of `in` to make; NULL on the first part */
} tutti_pipe_pass;

/* Queues the pass on `stream` (inline: carries it out). */
typedef tutti_status (*tutti_pipe_fn)(void *arg, const tutti_pipe_pass *pass, tutti_stream stream);

/*
 * A pipeline over the communicator's ranks, with memory for what moves: bytes x (micro-batches in
 * flight + a few). The communicator is the pipeline's while a run is under way. Errors: ARG,
 * MISMATCH (ranks gave different options), NO_MEMORY, UNSUPPORTED (a communicator over nodes
 * without MPI_THREAD_MULTIPLE from another thread than the one that called tutti_init), TIMEOUT,
 * REMOTE. Collective: yes, over comm. Blocks: host. Stream: none. Threads: one at a time per
 * communicator. Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_pipe_create(tutti_comm *comm,
                                                         const tutti_pipe_opts *opts,
                                                         tutti_pipe **pipe_out);

/*
 * Frees it after its pending work; NULL is ignored. Before its communicator.
 * Collective: yes, over comm. Blocks: host. Stream: none. Threads: one. Graph-capture: refused.
 * After a failure: local.
 */
TUTTI_API void tutti_pipe_destroy(tutti_pipe *pipe);

/*
 * The most micro-batches whose forward pass is done on this rank and whose backward pass is not,
 * over all chunks: how often the program keeps a pass's intermediate results. 0 of NULL.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API int tutti_pipe_in_flight(const tutti_pipe *pipe);

/*
 * One step: every pass of every micro-batch on this rank, in the schedule's order, each queued on
 * `stream` by fn(arg, ...) after what it needs has come. Transfers run on a stream of the
 * pipeline's. A status other than OK of fn ends the run and fails the context, since other stages
 * wait. Errors: ARG, STATE (inside a group), those of send and recv, fn's.
 * Collective: yes, over comm. Blocks: inline stream host, else no. Stream: ordered on `stream`.
 * Threads: one at a time per communicator. Graph-capture: allowed (CUDA). After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_pipe_run(tutti_pipe *pipe, tutti_pipe_fn fn, void *arg,
                                                      tutti_stream stream);

#ifdef __cplusplus
}
#endif
#endif
