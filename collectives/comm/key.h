/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What must be equal on all ranks of a call, as plain words that can be published or sent, and the
 * text of a difference.
 */
#ifndef TT_COMM_KEY_H
#define TT_COMM_KEY_H

#include "comm/comm.h"

typedef struct tt_key {
    uint64_t kind, dtype, op, root, n, counts; /* counts: hash of the array, 0 if there is none */
} tt_key;

tt_key tt_key_of(const tt_call *call);
bool tt_key_equal(const tt_key *a, const tt_key *b);
void tt_key_text(const tt_key *key, char *buf, size_t cap); /* "all_reduce of 8 f32" */

/* MISMATCH: "comm dp: rank 1 called all_reduce of 8 f32, rank 0 all_reduce of 7 f32". Ranks are the
 * communicator's; the text has the world's. */
tutti_status tt_key_mismatch(const tutti_comm *comm, int rank_a, const tt_key *a, int rank_b,
                             const tt_key *b);
/* MISMATCH of an all_to_allv: `from` sends what `to` does not expect. */
tutti_status tt_counts_mismatch(const tutti_comm *comm, int from, uint64_t sent, int to,
                                uint64_t expected);

/* Compares the calls of all ranks of the communicator over the bootstrap (TUTTI_CHECK=1). */
tutti_status tt_key_compare(const tt_call *call);

#endif
