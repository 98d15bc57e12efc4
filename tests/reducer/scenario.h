/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A random training job made from a seed: parameters, dtypes, buckets, micro-steps, absent
 * gradients, scalars, and on each rank an order of its own in which gradients become ready. Every
 * averaged gradient and scalar is compared with a reference, exactly.
 */
#ifndef REDUCER_SCENARIO_H
#define REDUCER_SCENARIO_H

#include "tt_test.h"

typedef enum feeding {
    FEED_INLINE, /* the caller's thread */
    FEED_STREAM, /* one stream */
    FEED_STREAMS, /* three streams, shared out anew in each step */
    FEED_THREADS, /* three threads that call ready at once */
    FEED_COUNT
} feeding;

typedef struct scenario {
    uint64_t seed;
    uint64_t order_seed; /* of the orders in which gradients become ready */
    feeding feed;
    int steps;
    bool fractions; /* values that round: only the hash is of use */
    uint64_t hash[16]; /* of everything reduced, per rank */
} scenario;

/* A tt_body; r->arg is the scenario. */
void scenario_run(tt_rank *r);

#endif
