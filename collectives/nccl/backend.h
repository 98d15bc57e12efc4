/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the NCCL backend. A context has one tt_nccl_ctx; each NCCL communicator is a tt_share,
 * which all communicators of equal membership use; a tutti communicator's own part is tt_nccl.
 *
 * Locks: `lock` is held while anything is issued to NCCL, so that a process (a rank) issues in one
 * order and no thread is inside NCCL when another aborts. Whoever holds it says what it calls
 * (tt_inside): one that does not come back is found by the abort thread. `ring_lock` guards the
 * ring of launches; it is taken inside `lock`, never the other way round.
 */
#ifndef TT_NCCL_BACKEND_H
#define TT_NCCL_BACKEND_H

#include <pthread.h>

#include "comm/comm.h"
#include "device/cuda_device.h"
#include "nccl/feature.h"

enum { TT_RING = 1024, TT_STREAMS_MAX = 16 };

/* A point of a stream behind a launch, for the launch that comes next on another stream. */
typedef struct tt_point {
    tt_event *event; /* borrowed from the ring, or `captured` */
    tt_event *captured; /* owned; points within a capture */
    tutti_stream stream;
    uint64_t capture; /* it belongs to this capture; 0: none */
    bool set;
} tt_point;

/* One NCCL communicator, or, of one rank, none. */
typedef struct tt_share tt_share;
struct tt_share {
    ncclComm_t comm; /* NULL: a single rank */
    char name[64]; /* of the communicator that it was made for */
    uint64_t id; /* equal on all its ranks */
    int refs;
    int size, rank;
    int *world; /* world ranks, in order */
    tt_point last;
    _Atomic uint32_t inflight; /* launches in the ring */
    bool finalizing;
    bool aborted; /* by the abort thread, which may have it still */
    tt_share *next;
};

/* A launch whose end is not yet known. */
typedef struct tt_launch {
    tt_event *event; /* made with the slot's first use, kept */
    tutti_comm *comm;
    tt_share *share;
    const char *kind;
    uint64_t seq, n;
} tt_launch;

typedef struct tt_registration tt_registration;
typedef struct tt_abort tt_abort;

/*
 * What the holder of `lock` is doing, for the abort thread, which reads it without. Written at each
 * call of NCCL: a turn that stands still is a call that has not returned. The communicator's name
 * is copied, for nothing that the holder owns may be looked at.
 */
enum { TT_NAME_WORDS = 4 };
typedef struct tt_inside {
    _Atomic uint64_t turn;
    _Atomic(const char *) call; /* "ncclAllReduce(...)", static; NULL: nobody is inside */
    _Atomic(const char *) doing; /* "all_reduce", static */
    _Atomic uint64_t seq; /* its number; UINT64_MAX: it has none */
    _Atomic uint64_t name[TT_NAME_WORDS];
    _Atomic double limit_s; /* 0: none */
} tt_inside;

typedef struct tt_nccl_ctx {
    tutti_ctx *ctx;
    tt_nccl_feature feature;
    pthread_mutex_t lock;
    tt_share *shares, *retired;
    tt_point last; /* of the launch before, whatever its communicator */
    tt_event *join[TT_STREAMS_MAX]; /* of groups on several streams; made when first needed */
    tutti_comm *native; /* between native_begin and native_end */
    tutti_stream native_stream;
    int native_device; /* current before */
    _Atomic bool closed; /* aborted or being taken down: nothing is issued any more */
    tt_inside inside;

    pthread_mutex_t ring_lock;
    tt_launch ring[TT_RING];
    uint64_t head, tail; /* launches begun; those known to have ended */
    int64_t tail_since_ns; /* since when the oldest one is the oldest */
    bool warned, asked;

    tt_registration *registrations; /* under lock */
    tt_abort *abort; /* the thread that aborts */
} tt_nccl_ctx;

/* A tutti communicator's part. */
typedef struct tt_nccl {
    tt_nccl_ctx *nc;
    tt_share *share;
    void *scratch; /* reproducible sums: parts of all ranks; else NULL */
    size_t scratch_bytes;
    struct tt_hier *hier; /* two-level all-reduce; NULL: flat */
} tt_nccl;

static inline tt_nccl *tt_nccl_of(const tutti_comm *comm)
{
    return comm->backend;
}

/* The context's part; NULL before the world communicator is made. */
tt_nccl_ctx *tt_nccl_ctx_of(const tutti_ctx *ctx);

/* abort.c: takes and gives back `lock`. doing: static text; limit_s as in tt_inside. */
typedef struct tt_doing {
    const char *doing;
    const char *comm; /* a name */
    uint64_t seq;
    double limit_s;
} tt_doing;
void tt_nccl_enter(tt_nccl_ctx *nc, const tt_doing *what);
bool tt_nccl_try_enter(tt_nccl_ctx *nc, const tt_doing *what); /* false: somebody is inside */
void tt_nccl_leave(tt_nccl_ctx *nc);
/* The holder of the lock makes this call now. */
static inline void tt_nccl_at(tt_nccl_ctx *nc, const char *call)
{
    uint64_t turn = atomic_load_explicit(&nc->inside.turn, memory_order_relaxed);
    atomic_store_explicit(&nc->inside.call, call, memory_order_relaxed);
    atomic_store_explicit(&nc->inside.turn, turn + 1, memory_order_release);
}
#define TT_INSIDE(nc, nccl_call) (tt_nccl_at((nc), #nccl_call), (nccl_call))

/* error.c: OK for ncclSuccess, else a failure that names call and `what`. */
tutti_status tt_nccl_status(ncclResult_t result, ncclComm_t comm, const char *call,
                            const char *what);
/* The same about one call: names its communicator, operation and rank. */
tutti_status tt_nccl_call_status(ncclResult_t result, const char *call, const tt_call *which);

/* share.c */
tutti_status tt_share_get(tt_nccl_ctx *nc, tt_group *group, const char *name, tt_share **share_out);
void tt_share_drop(tt_nccl_ctx *nc, tt_share *share); /* takes NULL */
tutti_status tt_nccl_split(tutti_comm *parent, const tt_group *part, int color);
/* Waits until NCCL has done in the background what it has begun. limit_s <= 0: no limit. */
tutti_status tt_nccl_settle(tt_nccl_ctx *nc, ncclComm_t comm, const char *what, double limit_s);
tutti_status tt_nccl_settle_inside(tt_nccl_ctx *nc, ncclComm_t comm, const char *what,
                                   double limit_s); /* under lock */
void tt_share_retire_step(tt_nccl_ctx *nc); /* under lock; ends finalizing ones that are done */
void tt_share_free(tt_share *share);

/* launch.c */
tutti_status tt_nccl_launch(tt_call *calls, size_t n);
/* The slots for calls of the program's own; `lock` is held from begin to end. */
tutti_status tt_nccl_native_begin(tutti_comm *comm, tutti_stream stream, void **native_out);
tutti_status tt_nccl_native_end(tutti_comm *comm);
/* calls.c; under lock: one call, within an NCCL group where tt_call_needs_group says so. */
bool tt_call_needs_group(const tt_call *call);
tutti_status tt_call_enqueue(const tt_call *call, ncclResult_t *result_inout);
tutti_status tt_call_local(tt_call *calls, size_t n, size_t at); /* of a single rank */
bool tt_nccl_dtype(tutti_dtype dtype, ncclDataType_t *out);
ncclRedOp_t tt_nccl_op(tutti_op op);

/* composite.c; under lock: calls made of several NCCL operations one after another. */
bool tt_call_is_composite(const tt_call *call);
tutti_status tt_call_composite(const tt_call *call);
tutti_status tt_composite_prepare(tutti_comm *comm); /* local: memory of a new communicator */
void tt_composite_free(tutti_comm *comm);

/* hier.c */
tutti_status tt_hier_create(tutti_comm *comm); /* collective; nothing where the plan is flat */
void tt_hier_destroy(tutti_comm *comm);
bool tt_hier_takes(const tt_call *call);
tutti_status tt_hier_run(const tt_call *call);

/* ring.c */
tutti_status tt_point_follow(tt_nccl_ctx *nc, const tt_point *point, tutti_stream stream,
                             uint64_t capture);
tutti_status tt_ring_add(tt_nccl_ctx *nc, const tt_call *call, uint64_t capture);
void tt_ring_advance(tutti_ctx *ctx); /* any thread */
tutti_status tt_ring_drain_share(tt_nccl_ctx *nc, tt_share *share);
bool tt_ring_oldest(tt_nccl_ctx *nc, int64_t *since_out, char *what, size_t cap);
void tt_ring_free(tt_nccl_ctx *nc);

/* watch.c */
void tt_nccl_watch(tutti_ctx *ctx); /* in each pass of the progress part */

/* abort.c */
tutti_status tt_nccl_abort_start(tt_nccl_ctx *nc); /* the thread */
void tt_nccl_abort_all(tt_nccl_ctx *nc); /* asks it to; any thread; only the first time counts */
void tt_nccl_abort_more(tt_nccl_ctx *nc); /* what has been listed since */
bool tt_nccl_abort_wait(tt_nccl_ctx *nc, double seconds); /* false: it has not ended */
/* Ends the thread. False: it does not end, and goes on using what is left to it. */
bool tt_nccl_abort_end(tt_nccl_ctx *nc);

/* memory.c: slots of tt_coll_ops */
tutti_status tt_nccl_mem_alloc(tutti_comm *comm, size_t bytes, void **ptr_out);
tutti_status tt_nccl_mem_register(tutti_comm *comm, void *ptr, size_t bytes);
tutti_status tt_nccl_mem_release(tutti_comm *comm, void *ptr, bool allocated);
void tt_nccl_mem_forget(tt_nccl_ctx *nc); /* what was left registered */

#endif
