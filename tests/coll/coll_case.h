/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One collective call as data: made (by hand or from a seed, the same on all ranks), issued, and
 * checked bit for bit afterwards. Buffers come from a lane: a piece of registered and one of plain
 * memory, with painted borders.
 */
#ifndef COLL_CASE_H
#define COLL_CASE_H

#include "coll_ref.h"
#include "comm/comm.h"

enum { LANES = 4 };

typedef enum case_memory { MEM_PLAIN, MEM_REGISTERED, MEM_MIXED } case_memory;

typedef struct coll_case {
    tt_kind kind; /* TT_SEND: a group of sends and receives between all ranks */
    bool v;
    tutti_dtype dtype;
    tutti_op op;
    size_t n;
    int root; /* TT_SEND: distance to the peer */
    bool in_place, out_null;
    case_memory memory;
    int shift; /* bytes by which pointers are off alignment */
    ref_values values;
    uint64_t seed;
} coll_case;

typedef struct lane {
    unsigned char *registered, *plain; /* where the backend wants them */
    unsigned char *shadow; /* host memory: what is put there, and what comes back */
    size_t bytes; /* of each */
} lane;

/* This rank's lanes, registered over the world. Collective. */
bool lanes_create(tt_rank *r, size_t bytes, lane lanes[LANES]);
void lanes_destroy(tt_rank *r, lane lanes[LANES]);

/* A case that fits a lane. */
coll_case case_random(tt_rng *rng, const team *t, size_t lane_bytes, size_t chunk_bytes);
void case_text(const coll_case *c, const team *t, char *buf, size_t cap);

/* Fills the buffers and issues the call. On GPUs sums that follow no order are made of exact
 * values, and pointers are aligned to their elements. */
tutti_status case_issue(const coll_case *c, const team *t, const lane *l, tutti_stream stream);
/* After it is done: compares; false has told what differs. */
bool case_check(tt_rank *r, const coll_case *c, const team *t, const lane *l);

#endif
