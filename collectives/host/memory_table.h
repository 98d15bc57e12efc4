/* SPDX-License-Identifier: Apache-2.0 */
/* The registrations of one rank, by address and by id. Belongs to memory.c. */
#ifndef TT_HOST_MEMORY_TABLE_H
#define TT_HOST_MEMORY_TABLE_H

#include "device/shm.h"
#include "host/memory.h"

typedef struct tt_mem_table tt_mem_table;

struct tt_mem_reg {
    uint64_t id; /* equal on all ranks */
    uint32_t group; /* id of the communicator's group */
    bool allocated; /* by tutti_alloc, else registered */
    bool *member; /* of each world rank */
    unsigned char *base;
    size_t bytes; /* as asked for */
    tt_shm own;
    tt_shm *peer; /* by local rank; all zero where nothing is mapped */
    int peers;
    _Atomic uint64_t covers; /* 1 + id of the group last seen to lie within */
    tt_mem_table *table; /* where room is reserved or it is in */
    bool listed;
    tt_mem_reg *retired; /* the next in the table's list */
};

/* Makes the context's table if there is none. */
tutti_status tt_mem_table_get(tutti_ctx *ctx, tt_mem_table **table_out);
tt_mem_table *tt_mem_table_of(tt_upper *upper); /* NULL: none was made */

tutti_status tt_mem_table_reserve(tt_mem_table *table, tt_mem_reg *reg);
void tt_mem_table_insert(tt_mem_reg *reg); /* after reserve: cannot fail */
void tt_mem_table_remove(tt_mem_reg *reg);
void tt_mem_table_retire(tt_mem_reg *reg); /* removes it; unmapped and freed with the table */
void tt_mem_reg_free(tt_mem_reg *reg); /* one that is not in the table and has nothing mapped */

bool tt_mem_table_overlaps(tt_mem_table *table, const void *ptr, size_t bytes);
tt_mem_reg *tt_mem_table_at(tutti_ctx *ctx, const void *base); /* begins there; or NULL */
const tt_mem_reg *tt_mem_table_find(tt_mem_table *table, const tt_group *group, const void *ptr,
                                    size_t bytes);
uint64_t tt_mem_table_generation(const tt_mem_table *table); /* changes when an entry goes; not 0 */
/* Where the rank's memory begins here; NULL if it is not mapped. */
unsigned char *tt_mem_table_base(const tt_mem_table *table, const tt_mem_reg *reg, int world_rank);
void *tt_mem_table_resolve(tt_mem_table *table, tt_mem_place place, int world_rank, size_t bytes);

#endif
