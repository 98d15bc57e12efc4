/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The context's inside: what the layers above the bootstrap share. tutti_init (collectives/init.c)
 * makes it with tt_context_create, then adds the world communicator.
 */
#ifndef TT_BOOT_CONTEXT_H
#define TT_BOOT_CONTEXT_H

#include <pthread.h>
#include <stdatomic.h>

#include "boot/boot.h"
#include "boot/exchange.h"
#include "core/thread.h"
#include "device/device.h"

#define TT_HOST_MAX 64

/* One rank's place, known to all. */
typedef struct tt_place {
    int node; /* nodes are numbered by their first rank */
    int local_rank; /* among the ranks of its node, in world order */
    char host[TT_HOST_MAX];
    uint64_t pid;
} tt_place;

/* Called on every rank at tutti_step (step >= 0), tutti_ckpt_wait (-1) and tutti_finalize (-2, not
 * on a failed context), in order of registration, collectively. */
typedef tutti_status (*tt_step_hook)(struct tutti_ctx *ctx, void *arg, int64_t step);
/* Called at tutti_finalize after the step hooks; frees arg. */
typedef void (*tt_ctx_free_fn)(void *arg);

/* Where this rank was last seen: "in all_reduce 118 on comm dp for 30.1 s". Any thread. */
typedef void (*tt_last_seen_fn)(const struct tutti_ctx *ctx, char *buf, size_t cap);

typedef struct tt_progress
    tt_progress; /* progress.c: the progress thread, step agreement, watch channel */
typedef struct tt_hooks tt_hooks; /* context.c */
typedef struct tt_live tt_live; /* live.h */
typedef struct tt_circles tt_circles; /* circle.h */

struct tutti_ctx {
    tt_boot *boot;
    const tt_device_ops *dev_ops;
    tt_device *dev;
    tt_group world;
    tt_place *place; /* of every world rank */
    int node_count, local_size;
    uint32_t flags; /* TUTTI_INIT_... */

    /* settings, read once */
    double timeout_s, warn_after_s;
    bool check;
    size_t chunk_bytes, ckpt_block_bytes;
    tt_patience caller_patience; /* of a caller that blocks in a collective */
    tt_patience
        worker_patience; /* of a stream's worker: gives the core to the computation at once */

    /* failure: first one wins */
    _Atomic int failed; /* a tutti_status */
    pthread_mutex_t fail_lock;
    char fail_text[TT_ERROR_TEXT_MAX];

    _Atomic int64_t quiet_until_ns; /* tutti_expect_quiet, of any rank */
    _Atomic uint32_t next_group_id;
    _Atomic int64_t last_step; /* of tutti_step, for messages */
    _Atomic(const char *) exchange; /* the name of the blocking exchange this rank is in, or NULL */
    _Atomic int64_t exchange_since_ns;

    tt_progress *progress;
    tt_circles *circles; /* NULL: not in checked mode */
    tt_hooks *hooks;
    struct {
        pthread_mutex_t lock;
        tt_live *newest;
    } live; /* live.h */
    struct tt_plan *plan; /* topo/plan.h; made by tutti_init, behind the device */
    void *planning; /* what the plan is of (collectives/comm/planning.c) */
    void *upper; /* the collectives layer's part (collectives/comm.h) */
};

tutti_status tt_context_create(const tutti_init_opts *opts,
                               tutti_ctx **ctx_out); /* collective; fails on all ranks or on none */
void tt_context_destroy(tutti_ctx *ctx); /* after the layers above are gone */

/* OK, or the context's failure, recorded as this thread's last error. Cheap. */
tutti_status tt_ctx_check(tutti_ctx *ctx);

/* Marks the context failed (the first failure wins), with this thread's last error as text, and
 * tells the other ranks. Returns `status`. */
tutti_status tt_ctx_fail(tutti_ctx *ctx, tutti_status status);
#ifdef __clang_analyzer__
#define tt_ctx_fail(ctx, status) ((void)tt_ctx_fail(ctx, status), (status))
#endif

/* OK, or UNSUPPORTED in a thread that may not send messages: where MPI offers less than
 * MPI_THREAD_MULTIPLE, only the one that made the context does, which hears of failures too. */
tutti_status tt_ctx_check_thread(const tutti_ctx *ctx, const char *what);

/* Whether this thread is a worker of the context's streams. */
bool tt_ctx_on_worker(const tutti_ctx *ctx);

/* Lets messages move where there is no progress thread. Cheap where there is one. */
void tt_ctx_poll(tutti_ctx *ctx);

/* Who tells the other ranks where this one was last seen, when one of them has waited too long.
 * NULL takes it back; on return it runs in no thread any more. */
void tt_ctx_set_last_seen(tutti_ctx *ctx, tt_last_seen_fn last_seen);

/* abort.c: ends the process, saying why, when it is not called off within `seconds` (0: never). For
 * calls of other libraries that cannot be given up. begin may return NULL, end takes it. */
typedef struct tt_guard tt_guard;
tt_guard *tt_guard_begin(double seconds, int exit_code, const char *why);
void tt_guard_end(tt_guard *guard);

/* What the layer above looks after in each pass of the progress part: never blocks, makes no
 * exchange. NULL takes it back; on return it runs in no thread any more. */
typedef void (*tt_watch_fn)(tutti_ctx *ctx);
void tt_ctx_set_watch(tutti_ctx *ctx, tt_watch_fn watch);
/* From within a watch: asks all ranks where they are. False: answers are awaited, ask again in a
 * later pass. True: buf is "; rank 5 (node-b) was last in ..." of those that are elsewhere. */
bool tt_ctx_ask(tutti_ctx *ctx, char *buf, size_t cap);

/* What this rank is in besides collectives, a literal; NULL: nothing. */
void tt_ctx_is_in(tutti_ctx *ctx, const char *what);

/* Hooks are found by key so that a layer registers once: returns the arg of an earlier
 * registration, or NULL. */
void *tt_ctx_hook_find(tutti_ctx *ctx, const char *key);
tutti_status tt_ctx_hook_add(tutti_ctx *ctx, const char *key, tt_step_hook run,
                             tt_ctx_free_fn free_fn, void *arg);
tutti_status tt_ctx_hooks_run(tutti_ctx *ctx, int64_t step);

/* The next exchange of tutti_step carries the wish: TUTTI_DO_SAVE, on all ranks in the same call.
 */
void tt_step_want_save(tutti_ctx *ctx);

/* "rank 5 (node-b, local rank 1)" into a buffer; returns it. */
const char *tt_ctx_rank_name(const tutti_ctx *ctx, int world_rank, char *buf, size_t cap);

/*
 * One bounded wait for something that other ranks bring about: gives up when the context fails or
 * the deadline passes. tt_op_wait_once returns OK to go on waiting. `late` is asked for the text of
 * who is late ("rank 5 (node b) has not arrived"), for the warning and for the error; it may return
 * false ("nobody: it just ended").
 */
typedef bool (*tt_late_fn)(void *arg, char *buf, size_t cap);
typedef struct tt_op_wait {
    tutti_ctx *ctx;
    const char *what; /* "all_reduce of 25 MiB on comm dp" */
    tt_late_fn late;
    void *late_arg;
    tt_wait wait;
    bool warned;
} tt_op_wait;
void tt_op_wait_begin(tt_op_wait *w, tutti_ctx *ctx, const tt_patience *patience, const char *what,
                      tt_late_fn late, void *late_arg);
tutti_status tt_op_wait_once(tt_op_wait *w, _Atomic uint32_t *word, uint32_t seen);

/* Waits for a request of the bootstrap. */
tutti_status tt_req_wait(tutti_ctx *ctx, tt_req *req, const tt_patience *patience, const char *what,
                         size_t *bytes_out);

#endif
