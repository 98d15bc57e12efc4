/* SPDX-License-Identifier: Apache-2.0 */
/* Where the host collectives change their way, by size: one table, which the environment overrides.
 */
#ifndef TT_HOST_TUNE_H
#define TT_HOST_TUNE_H

#include "core/status.h"

typedef struct tt_tune {
    size_t small_bytes; /* input of any memory that travels with the call */
    size_t carry_bytes; /* input of plain memory that does */
    size_t slot_bytes; /* of plain memory and messages under way, per slot */
    size_t nt_bytes; /* outputs from here on are written past the cache */
} tt_tune;

/* For a node of `locals` ranks; chunk_bytes: TUTTI_CHUNK_BYTES. */
tutti_status tt_tune_find(int locals, size_t chunk_bytes, size_t slots, tt_tune *out);

#endif
