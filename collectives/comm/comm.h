/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of a communicator, and the seam to the collective backends (host/, nccl/). Above the
 * seam: argument checks, groups, order of issue. Below: how data moves. Backends are listed in
 * collectives/backends.c.
 */
#ifndef TT_COLL_COMM_H
#define TT_COLL_COMM_H

#include "boot/context.h"
#include "tutti/coll.h"
#include "tutti/comm.h"

typedef enum tt_kind {
    TT_ALL_REDUCE,
    TT_REDUCE_SCATTER, /* with counts: the v-variant; without: n per rank */
    TT_ALL_GATHER,
    TT_BROADCAST,
    TT_REDUCE,
    TT_GATHER,
    TT_SCATTER,
    TT_ALL_TO_ALL, /* with counts and recv_counts: the v-variant */
    TT_SEND,
    TT_RECV,
    TT_KIND_COUNT
} tt_kind;
const char *tt_kind_name(tt_kind kind); /* "all_reduce" */

/* One call, arguments checked. */
typedef struct tt_call {
    tt_kind kind;
    tutti_comm *comm;
    const void *in;
    void *out;
    size_t n;
    size_t *counts, *recv_counts; /* owned copies, or NULL */
    tutti_dtype dtype;
    tutti_op op;
    int root; /* or peer */
    tutti_stream stream;
    uint64_t seq; /* this rank's number of the call on this communicator, from 0; sends and receives
                     are numbered apart */
    uint32_t meeting; /* TUTTI_CHECK=1: number of a send or receive among those with its peer */
} tt_call;
void tt_call_text(const tt_call *call, char *buf,
                  size_t cap); /* "all_reduce of 25.0 MiB f32 on comm dp" */
void tt_call_free(tt_call *call); /* what it owns */
static inline bool tt_is_p2p(tt_kind kind)
{
    return kind == TT_SEND || kind == TT_RECV;
}
static inline bool tt_is_reduction(tt_kind kind)
{
    return kind == TT_ALL_REDUCE || kind == TT_REDUCE_SCATTER || kind == TT_REDUCE;
}

typedef struct tt_coll_ops {
    size_t size;
    const char *name;
    /* Collective over the communicator's group; fails on every rank or on none. Fills
     * comm->backend. */
    tutti_status (*create)(tutti_comm *comm);
    void (*destroy)(tutti_comm *comm); /* takes a half-built one; local */
    /*
     * Queues the calls (all on one stream, of one group or alone) in stream order; takes over what
     * they own, whatever the status. Inline: carries them out. Sends and receives among them make
     * progress together.
     */
    tutti_status (*launch)(tt_call *calls, size_t n);
    /*
     * A checked call on the inline stream, outside of groups, of at most comm->quick_n elements:
     * false if it is not one for the short way, then nothing was done. Numbers the call.
     */
    bool (*quick)(tt_call *call, tutti_status *status_out);
    bool any_streams; /* one launch takes calls on several streams (of one context) */
    /* Before a split's communicators are made: collective over `parent`, agreed. `part` has size 0
     * on a rank that joins none. NULL: nothing to prepare. */
    tutti_status (*split)(tutti_comm *parent, const tt_group *part, int color);
    /* Finds out which calls have been carried out (tutti_comm.pending). NULL: they tell. */
    void (*advance)(tutti_ctx *ctx);
    /* tutti_comm_native_begin and _end, arguments checked. NULL: there is nothing to give. */
    tutti_status (*native_begin)(tutti_comm *comm, tutti_stream stream, void **native_out);
    tutti_status (*native_end)(tutti_comm *comm);
    /* Collective, agreed. */
    tutti_status (*mem_alloc)(tutti_comm *comm, size_t bytes, void **ptr_out);
    tutti_status (*mem_register)(tutti_comm *comm, void *ptr, size_t bytes);
    tutti_status (*mem_release)(tutti_comm *comm, void *ptr,
                                bool allocated); /* free or deregister, after pending work */
} tt_coll_ops;

extern const tt_coll_ops tt_coll_host;
extern const tt_coll_ops tt_coll_nccl; /* only in a build with CUDA */
const tt_coll_ops *tt_coll_select(const tt_device_ops *device); /* backends.c */

/* Where the communicator's ranks are. Nodes are numbered by their first rank in this communicator.
 */
typedef struct tt_layout {
    int size, nodes;
    int *node; /* of each rank */
    int *local; /* index of each rank within its node */
    int *node_size; /* of each node */
    int *node_first; /* node n's ranks are node_rank[node_first[n] ... + node_size[n]) */
    int *node_rank;
} tt_layout;

struct tutti_comm {
    tutti_ctx *ctx;
    tt_group group;
    char *name;
    uint32_t flags; /* TUTTI_COMM_... */
    tt_layout layout;
    uint64_t next_seq; /* calls issued, by the issuing thread */
    uint64_t next_p2p; /* sends and receives issued */
    _Atomic uint32_t done_seq; /* calls carried out (low 32 bits): work on several streams keeps the
                                  order of issue */
    _Atomic uint32_t posted_p2p; /* sends and receives handed to the bootstrap (low 32 bits) */
    _Atomic uint32_t pending; /* calls queued on streams and not yet carried out */
    const tt_coll_ops *ops;
    void *backend;
    size_t quick_n; /* calls of fewer elements may be offered to ops->quick; 0: none */
    struct tt_lane *lane; /* of the flight recorder */
    tutti_comm *next; /* in tt_upper.comms */
};

tutti_status tt_comm_create(tutti_ctx *ctx, const tt_group *group, const tutti_comm_opts *opts,
                            tutti_comm **comm_out);

/* Destroys every communicator of the context, the youngest first and the world last. */
void tt_comms_destroy(tutti_ctx *ctx);

/* Waits until this rank's calls on the communicator are carried out. Ends when the context fails.
 */
tutti_status tt_comm_drain(tutti_comm *comm);

/* The collectives layer's part of a context (ctx->upper). */
typedef struct tt_upper {
    tutti_comm *world;
    tutti_comm *comms; /* all, the youngest first; under lock */
    pthread_mutex_t lock;
    struct tt_spare *spare; /* for calls under way */
    struct tt_recorder *recorder; /* the last call of each communicator */
    struct tt_mem_table *mem; /* registered memory of all communicators: host/memory.h */
    struct tt_nccl_ctx *nccl; /* of the NCCL backend: nccl/backend.h */
} tt_upper;

#endif
