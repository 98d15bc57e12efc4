/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that the ranks of a node share: tutti_alloc and tutti_register on the host backend. Each
 * rank of a context keeps a table of what it registered; for every registration it has mapped the
 * memory of the peers on its node. Ranks name a place to each other by {registration, offset},
 * because buffers may lie at different offsets and addresses on different ranks.
 *
 * The table (tt_upper.mem) is made with the first registration and goes with the context.
 */
#ifndef TT_HOST_MEMORY_H
#define TT_HOST_MEMORY_H

#include "comm/comm.h"

typedef struct tt_mem_reg tt_mem_reg;

/* The slots of tt_coll_ops. Collective over comm, agreed: fail on every rank or on none. */
tutti_status tt_mem_alloc(tutti_comm *comm, size_t bytes, void **ptr_out);
tutti_status tt_mem_register(tutti_comm *comm, void *ptr, size_t bytes);
tutti_status tt_mem_release(tutti_comm *comm, void *ptr, bool allocated);

/*
 * The registration that holds [ptr, ptr + bytes) and is known to all members of comm; NULL if there
 * is none. Any thread. Valid until it is released, which waits for the work pending on its
 * communicator.
 */
const tt_mem_reg *tt_mem_find(tt_upper *upper, tutti_comm *comm, const void *ptr, size_t bytes);

/*
 * The same for a caller that asks again and again about the same memory: what was found is kept in
 * the hint, which begins all zero and belongs to one communicator, and good until a registration
 * goes. No lock is taken then.
 */
typedef struct tt_mem_hint {
    uint64_t generation;
    const tt_mem_reg *reg;
    uint64_t id;
    uintptr_t base;
    size_t bytes;
} tt_mem_hint;
const tt_mem_reg *tt_mem_find_again(tt_upper *upper, tutti_comm *comm, const void *ptr,
                                    size_t bytes, tt_mem_hint *hint);

/* A place in registered memory as other ranks understand it. id 0 is none. */
typedef struct tt_mem_place {
    uint64_t id, offset;
} tt_mem_place;
tt_mem_place tt_mem_describe(const tt_mem_reg *reg, const void *ptr);

/*
 * Where [offset, offset + bytes) of world_rank's memory in registration `id` lies in this process;
 * NULL if there is no such registration, the rank is not on this node or the range is outside. Any
 * thread.
 */
void *tt_mem_resolve(tt_upper *upper, tt_mem_place place, int world_rank, size_t bytes);
void *tt_mem_resolve_again(tt_upper *upper, tt_mem_place place, int world_rank, size_t bytes,
                           const tt_mem_hint *hint); /* of this rank's own buffer */

#endif
