/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Test support. tt_ranks_run makes n threads of this process the ranks of a job and runs `body` on
 * each. cmocka's assertions are for the main thread only: a body reports with TT_EXPECT (or by
 * returning false after tt_say), and the main thread asserts with TT_ASSERT_RANKS.
 */
#ifndef TT_TEST_H
#define TT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tutti/tutti.h"

typedef struct tt_rank {
    int rank, size;
    tutti_ctx *ctx; /* NULL where the body makes it itself (tt_threads_run) */
    tutti_comm *comm; /* the world */
    tutti_threads *threads;
    struct tt_meeting *meeting;
    void *arg;
    bool failed;
    char message[1024];
} tt_rank;
typedef void (*tt_body)(tt_rank *r);

/* Records the first failure of a rank. */
void tt_say(tt_rank *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define TT_EXPECT(r, cond)                                                                         \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            tt_say((r), "%s:%d: %s (last error: %s)", __FILE__, __LINE__, #cond,                   \
                   tutti_last_error());                                                            \
            return;                                                                                \
        }                                                                                          \
    } while (0)
#define TT_EXPECT_OK(r, call) TT_EXPECT(r, (call) == TUTTI_OK)

/* n threads, each: tutti_init, body, tutti_finalize (whose failure counts unless the body failed
 * the context on purpose: r->ctx = NULL then). Returns "" or what failed first. */
const char *tt_ranks_run(int n, const char *nodes, tt_body body, void *arg);
/* The same without init and finalize: the body does them with r->threads and r->rank. */
const char *tt_threads_run(int n, const char *nodes, tt_body body, void *arg);
/* The same with `wrap` (may be NULL) called around the body. */
typedef void (*tt_wrap)(tt_rank *r, tt_body body);
const char *tt_threads_wrapped(int n, const char *nodes, tt_body body, void *arg, tt_wrap wrap);

/* Returns when every rank whose body still runs is here. A barrier of the library does not do
 * before a failure on purpose: the news of it may come to a rank that is not quite out of the
 * barrier. */
void tt_all_here(tt_rank *r);

#define TT_ASSERT_RANKS(n, nodes, body, arg)                                                       \
    assert_string_equal(tt_ranks_run((n), (nodes), (body), (arg)), "")

/* Adds n tensors "w0" ... of so many floats; their parameters lie one behind the other at `params`
 * (NULL: there are none). */
tutti_status tt_add_params(tutti_reducer *red, int n, int floats, float *params);
/* A reducer of these, committed; what fails is said, and what there is of it is returned. */
tutti_reducer *tt_make_reducer(tt_rank *r, tutti_comm *comm, const tutti_reducer_opts *opts, int n,
                               int floats, float *params);

/* A small fast generator with a seed, for property tests. */
typedef struct tt_rng {
    uint64_t state;
} tt_rng;
uint64_t tt_rand(tt_rng *rng);
uint64_t tt_rand_below(tt_rng *rng, uint64_t limit);

#endif
