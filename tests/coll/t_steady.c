/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In a steady state collectives of a node allocate nothing: inline, on streams, with counts and in
 * groups, by way of the kernel and through slots.
 */
#include <pthread.h>

#include "tt_alloc.h"
#include "tt_test.h"

enum { RANKS = 3, N = 6000, WARM = 30, TURNS = 200 /* of five calls or more each */ };

static pthread_barrier_t together;

typedef struct room {
    float *plain, *shared;
    tutti_stream stream[2]; /* inline, and one with a worker */
} room;

static tutti_status group(tt_rank *r, const room *m, tutti_stream stream)
{
    enum { CALLS = 20 };
    tutti_status status = tutti_group_begin();
    for (size_t i = 0; i < CALLS && status == TUTTI_OK; i++)
        status = tutti_all_reduce(r->comm, m->plain + 100 * i, m->plain + 100 * i, 20 * i,
                                  TUTTI_FLOAT32, TUTTI_MAX, stream);
    tutti_status end = tutti_group_end();
    return status == TUTTI_OK ? end : status;
}

static void turn(tt_rank *r, const room *m, tutti_stream stream)
{
    const size_t counts[RANKS] = {N / 3, 0, N / 4}, each[RANKS] = {9, 9, 9};
    const tutti_dtype f32 = TUTTI_FLOAT32;
    TT_EXPECT_OK(r, tutti_all_reduce(r->comm, m->plain, m->plain, N, f32, TUTTI_MAX, stream));
    TT_EXPECT_OK(r, tutti_all_reduce(r->comm, m->shared, m->plain, N, f32, TUTTI_MAX, stream));
    TT_EXPECT_OK(r, tutti_all_gatherv(r->comm, m->plain, m->shared, counts, f32, stream));
    TT_EXPECT_OK(r, tutti_all_to_allv(r->comm, m->plain, each, m->shared, each, f32, stream));
    TT_EXPECT_OK(r, tutti_broadcast(r->comm, m->plain, m->plain, N, f32, 1, stream));
    TT_EXPECT_OK(r, group(r, m, stream));
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, stream));
}

static void set_up(tt_rank *r, room *m)
{
    TT_EXPECT_OK(r, tutti_alloc(r->comm, N * sizeof(float), (void **)&m->shared));
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "s", 0, &m->stream[1]));
    m->plain = calloc(N, sizeof(float));
    TT_EXPECT(r, m->plain != NULL);
}

static void turns(tt_rank *r, const room *m, int n)
{
    for (int i = 0; i < n && !r->failed; i++)
        turn(r, m, m->stream[i % 2]);
}

/* A rank that fails still comes to the barriers. */
static void body(tt_rank *r)
{
    room m = {0};
    set_up(r, &m);
    turns(r, &m, WARM);
    pthread_barrier_wait(&together);
    tt_alloc_everywhere = true;
    pthread_barrier_wait(&together);
    turns(r, &m, TURNS);
    pthread_barrier_wait(&together);
    tt_alloc_everywhere = false;
    pthread_barrier_wait(&together);
    tutti_stream_destroy(r->ctx, m.stream[1]);
    free(m.plain);
}

static void allocate_nothing(void **state)
{
    (void)state;
    setenv("TUTTI_CHUNK_BYTES", "4K", 1);
    for (int cma = 0; cma < 2; cma++) {
        setenv("TUTTI_CMA", cma == 1 ? "1" : "0", 1);
        tt_allocations = 0;
        pthread_barrier_init(&together, NULL, RANKS);
        TT_ASSERT_RANKS(RANKS, NULL, body, NULL);
        pthread_barrier_destroy(&together);
        assert_int_equal(tt_allocations, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(allocate_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
