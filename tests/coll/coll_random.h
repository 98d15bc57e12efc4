/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small collectives at random: kinds, types, operators, sizes, memory, streams, groups, over the
 * world and over parts of it that share nodes in odd ways. Every result is compared bit for bit
 * with the reference, so equal results over algorithms, chunk sizes, streams and layouts follow.
 */
#ifndef COLL_RANDOM_H
#define COLL_RANDOM_H

#include "tt_test.h"

typedef struct random_world {
    const char *nodes; /* as TUTTI_NODES; NULL: one node */
    size_t chunk_bytes; /* TUTTI_CHUNK_BYTES, for sizes near it */
    uint64_t seed;
    long batches; /* of up to 4 calls */
    bool inline_only; /* no streams */
    size_t lane; /* bytes of the largest buffer; 0: 64 KiB */
} random_world;

/* Ends the process with the case's text if a result is wrong. */
void random_calls(tt_rank *r, const random_world *w);

/* Under mpirun, before tutti_init: makes this process a rank of the node that `nodes` says. */
void random_play_node(const char *nodes);

#endif
