/* SPDX-License-Identifier: Apache-2.0 */
/* A reduction over several nodes, planned (reduce_plan.c) and carried out (reduce.c). */
#ifndef TT_HOST_REDUCE_H
#define TT_HOST_REDUCE_H

#include "host/host.h"

enum { TT_REDUCTION_ALIGN = 64, TT_REDUCTION_BLOCK = 128 << 10, TT_STAGES_MOST = 64 };

/* Memory that a stage needs for each chunk in it: at[] of a slice's work, `ring` times. */
typedef struct tt_room {
    size_t at, bytes, ring;
} tt_room;

typedef struct tt_reduction {
    tt_run *run;
    const tt_call *call;
    tt_host *host;
    const tt_layout *layout;
    const tt_route *route;
    size_t element, wide, total; /* wide: bytes of a sum over nodes that is not final */
    int slices, mine; /* mine: slices that this rank drives */
    size_t piece, rounds; /* elements of a unit; number */
    size_t lag;
    bool by_rank; /* units are pieces of the ranks' ranges, which lie anywhere */
    bool staged;
    bool reached; /* some plain buffers, by way of the kernel */
    size_t block; /* elements of input summed at once */
    size_t scratch; /* in host->work: a block of each local rank's input that is reached */
    bool whole; /* this rank's input is its node's fragment: sent from where it lies */
    size_t own_bytes; /* of one element in this node's fragments */
    tt_room fragments, spare, received[TT_STAGES_MOST], sums[TT_STAGES_MOST];
    size_t work; /* bytes of one driven slice */
} tt_reduction;

/* A chunk of a slice. */
typedef struct tt_chunk {
    int index, slice; /* index: among the driven slices */
    size_t k;
    size_t begin, n, each; /* elements; each: of a unit */
    const size_t *at; /* elements before each place; NULL: places are alike, and adjacent */
} tt_chunk;

static inline int tt_reduction_driver(const tt_reduction *p, int slice, int node)
{
    return tt_rank_at(p->layout, node, slice);
}

static inline size_t tt_chunk_before(const tt_chunk *c, int place)
{
    return c->at != NULL ? c->at[place] : tt_min_size((size_t)place * c->each, c->n);
}

static inline size_t tt_chunk_between(const tt_chunk *c, int lo, int hi)
{
    return tt_chunk_before(c, hi) - tt_chunk_before(c, lo);
}

/* Whether a local rank gets the results of others' ranges. */
static inline bool tt_reduction_wants(const tt_reduction *p, int rank)
{
    return p->call->kind == TT_ALL_REDUCE || (p->call->kind == TT_REDUCE && p->call->root == rank);
}

static inline bool tt_reduction_plain_in(const tt_reduction *p, int local)
{
    return p->host->peer[local].notice.in.id == 0;
}

static inline bool tt_reduction_plain_out(const tt_reduction *p, int local)
{
    return tt_reduction_wants(p, p->host->ranks[local]) && p->host->peer[local].notice.out.id == 0;
}

static inline size_t tt_reduction_chunk_bytes(const tt_reduction *p)
{
    return (size_t)p->route->units * p->piece * p->element;
}

/* Bytes that an element has on its way. */
static inline size_t tt_reduction_hop_bytes(const tt_reduction *p, const tt_hop *hop)
{
    if (hop->joined)
        return p->wide;
    return hop->send ? p->own_bytes
                     : tt_order_node_bytes(&p->host->order, hop->node, p->call->dtype);
}

/* Chunk k of a slice; index: among the driven slices. Valid until the next one is looked for. */
tt_chunk tt_reduction_chunk(const tt_reduction *p, int slice, int index, size_t k);
/* Elements before a place in the whole vector. */
size_t tt_reduction_at(const tt_reduction *p, const tt_chunk *c, int place);
/* Makes what the call needs ready. */
tutti_status tt_reduction_plan(tt_run *run, tt_reduction *p_out);

#endif
