/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context: one rank's membership in a job. It owns the bootstrap, the device, the streams and,
 * through them, everything else. Several contexts may live in one process; a context has no hidden
 * globals.
 */
#ifndef TUTTI_CONTEXT_H
#define TUTTI_CONTEXT_H

#include "tutti/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tutti_ctx tutti_ctx;
typedef struct tutti_threads tutti_threads;

typedef enum tutti_backend {
    TUTTI_BACKEND_AUTO = 0,
    TUTTI_BACKEND_HOST = 1,
    TUTTI_BACKEND_CUDA = 2
} tutti_backend;
typedef enum tutti_bootstrap {
    TUTTI_BOOT_AUTO = 0,
    TUTTI_BOOT_MPI = 1,
    TUTTI_BOOT_THREADS = 2
} tutti_bootstrap;

/* Zero in any field means its default; begin with TUTTI_INIT_OPTS_INIT. */
typedef struct tutti_init_opts {
    size_t size; /* sizeof(tutti_init_opts) */
    tutti_bootstrap boot; /* AUTO: threads when `threads` is set, else MPI */
    tutti_backend backend; /* AUTO: TUTTI_BACKEND, else CUDA where it works, else host */
    const void *mpi_comm; /* the caller's MPI_Comm *, set by tutti/interop_mpi.h; NULL:
                             MPI_COMM_WORLD, initialised if need be */
    tutti_threads
        *threads; /* the group of threads that this thread is a rank of; NULL: not a thread rank */
    int rank; /* with `threads`: this thread's rank, 0 ... n-1 */
    uint32_t flags; /* TUTTI_INIT_... */
} tutti_init_opts;
#define TUTTI_INIT_OPTS_INIT                                                                       \
    {                                                                                              \
        sizeof(tutti_init_opts), TUTTI_BOOT_AUTO, TUTTI_BACKEND_AUTO, NULL, NULL, 0, 0             \
    }

enum {
    TUTTI_INIT_REPRODUCIBLE =
        1u << 0, /* the world communicator sums in one tree over all ranks, whatever the layout */
    TUTTI_INIT_NO_SIGNALS =
        1u << 1 /* leave SIGTERM, SIGUSR1 and SIGUSR2 alone; tutti_request_stop() remains */
};

/*
 * Joins the job. NULL opts means all defaults. In order: environment, bootstrap, rank 0's TUTTI_*
 * and NCCL_* variables to ranks that lack them, parity check, identity, device choice, world
 * communicator (docs/architecture.md). Every rank returns the same status; a rank that fails still
 * takes part, and one that never comes is named after TUTTI_INIT_TIMEOUT. On return the calling
 * thread's CUDA device is set (CUDA backend). Errors: ARG, UNSUPPORTED, TIMEOUT, MISMATCH, REMOTE,
 * DEVICE, MPI, NO_MEMORY.
 * Collective: yes, over the job. Blocks: host. Stream: none. Threads: one per rank; with MPI
 * initialised below MPI_THREAD_MULTIPLE the thread that initialised MPI. Graph-capture: refused.
 * After a failure: a new context may be made.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_init(const tutti_init_opts *opts, tutti_ctx **ctx_out);

/*
 * Leaves the job: drains saves, destroys what is left (children first), finalizes MPI only if
 * tutti_init began it. The context is gone whatever the status, but for one: within work on one of
 * its own streams the call is refused (STATE). NULL is TUTTI_OK. Errors: STATE, the context's first
 * failure.
 * Collective: yes, over the job (local on a failed context). Blocks: host. Stream: drains all.
 * Threads: the one that called tutti_init. Graph-capture: refused. After a failure: allowed,
 * bounded.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_finalize(tutti_ctx *ctx);

/*
 * A group of n thread ranks in this process (1 ... 1024): each thread passes it and its rank to
 * tutti_init. TUTTI_NODES=2x4 makes them look like 2 nodes of 4. Destroy it after every rank has
 * finalized; destroy takes NULL. Errors: ARG, NO_MEMORY.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_threads_create(int n, tutti_threads **threads_out);
TUTTI_API void tutti_threads_destroy(tutti_threads *threads);

/*
 * Where this rank is: its index among the ranks of its node and their number; its node's index
 * (nodes are numbered by their first rank) and their number; its CUDA ordinal, -1 on the host
 * backend. Of NULL: -1, numbers 0.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API int tutti_local_rank(const tutti_ctx *ctx);
TUTTI_API int tutti_local_size(const tutti_ctx *ctx);
TUTTI_API int tutti_node(const tutti_ctx *ctx);
TUTTI_API int tutti_node_count(const tutti_ctx *ctx);
TUTTI_API int tutti_device(const tutti_ctx *ctx);

/* What tutti_step reports: what all ranks agreed to do now. */
enum { TUTTI_DO_SAVE = 1u << 0, TUTTI_DO_STOP = 1u << 1 };

/*
 * The boundary after step number `step` (counting from 0, the same on all ranks). Reports what all
 * ranks agreed one call earlier, so it waits only for ranks more than a step behind: TUTTI_DO_SAVE
 * | TUTTI_DO_STOP after any rank was told to stop (SIGTERM, SIGUSR1, SIGUSR2, tutti_request_stop);
 * TUTTI_DO_SAVE alone when a checkpoint is due (tutti_ckpt_schedule).
 * Finished checkpoints are committed here. Call it in evaluation and sampling loops too, with the
 * same step number. Where MPI offers less than MPI_THREAD_MULTIPLE there is no progress thread:
 * then it costs one barrier, and says so once. Errors: TIMEOUT, MISMATCH (step numbers differ),
 * MISSING, REMOTE, and those of an asynchronous save that failed (CORRUPT, IO, NO_SPACE), the same
 * on all ranks.
 * Collective: yes, over the job. Blocks: host, for the agreement of the previous call. Stream:
 * none. Threads: the one that called tutti_init. Graph-capture: refused. After a failure: returns
 * the first failure.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_step(tutti_ctx *ctx, int64_t step, uint32_t *todo_out);

/*
 * Asks all ranks to save and stop at the next agreed step, as SIGTERM would.
 * Collective: no. Blocks: no. Stream: none. Threads: any; async-signal-safe. Graph-capture:
 * allowed. After a failure: no effect.
 */
TUTTI_API void tutti_request_stop(tutti_ctx *ctx);

/*
 * Announces that this rank will be busy outside tutti for up to `seconds` (rank 0 samples text):
 * deadlines of the calls that come next are moved by that much, on every rank as it learns of it.
 * Values below 0 or above 86400 are clamped.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * no effect.
 */
TUTTI_API void tutti_expect_quiet(tutti_ctx *ctx, double seconds);

/*
 * The first failure that any thread of this rank saw or any rank told; TUTTI_OK while there is
 * none. Copies its text to buf (at most cap bytes with the terminating zero; buf may be NULL).
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API tutti_status tutti_ctx_error(tutti_ctx *ctx, char *buf, size_t cap);

/*
 * Ends the job on all ranks in bounded time: prints `why`, tells the other ranks, and exits this
 * process (under the threads bootstrap the whole process) with exit_code; 0 is turned into 1. ctx
 * may be NULL. Under MPI a bare exit() before tutti_finalize does the same.
 * Collective: no. Blocks: for at most a few seconds. Stream: none. Threads: any. Graph-capture:
 * allowed. After a failure: allowed.
 */
TUTTI_API TUTTI_NORETURN void tutti_abort(tutti_ctx *ctx, int exit_code, const char *why);

/* Runs a call that returns a status and aborts the job when it fails. For programs that have
 * nothing better to do. */
#define TUTTI_MUST(ctx, call)                                                                      \
    do {                                                                                           \
        if ((call) != TUTTI_OK)                                                                    \
            tutti_abort((ctx), 1, #call);                                                          \
    } while (0)

#ifdef __cplusplus
}
#endif
#endif
