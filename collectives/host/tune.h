/* SPDX-License-Identifier: Apache-2.0 */
/* Where the host collectives change their way, by size: one table, which the environment overrides.
 */
#ifndef TT_HOST_TUNE_H
#define TT_HOST_TUNE_H

#include "core/status.h"
#include "host/route.h"

typedef struct tt_tune {
    size_t small_bytes; /* input of any memory that travels with the call */
    size_t carry_bytes; /* input of plain memory that does */
    size_t reached_bytes; /* the same where ranks reach each other's plain memory */
    size_t slot_bytes; /* of plain memory and messages under way, per slot */
    size_t unit; /* TUTTI_CHUNK_BYTES */
    size_t nt_bytes; /* outputs from here on are written past the cache */
    tt_way way; /* between nodes; TT_WAYS: by size and number of nodes */
    size_t leader_bytes; /* up to here one rank of a node speaks for all */
    size_t node_chunk; /* bytes of a slice that pass the stages as one; 0: by way */
    size_t lag; /* chunks in a stage between nodes; 0: by way */
} tt_tune;

/* A reduction between nodes, as all ranks know it. */
typedef struct tt_between {
    int nodes, locals; /* locals: of the largest node */
    size_t bytes;
    bool slots; /* chunks may have to pass the slots */
    bool narrow; /* 16-bit elements, whose sums over several nodes take 32 */
    bool pairs; /* the order allows other ways than the direct one */
} tt_between;

/* How it is carried out. */
typedef struct tt_message {
    tt_way way;
    bool leader;
    size_t chunk_bytes; /* of all slices together */
    size_t lag;
} tt_message;
tt_message tt_tune_message(const tt_tune *tune, const tt_between *between);

/* For a node of `locals` ranks; chunk_bytes: TUTTI_CHUNK_BYTES. */
tutti_status tt_tune_find(int locals, size_t chunk_bytes, size_t slots, tt_tune *out);

#endif
