/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `ready` costs: 10,000 parameters made ready one by one by 8 threads at once. Prints the
 * processor time of a call, and proves what keeps it low: but for the call that completes a bucket
 * none takes a mutex or allocates. The linker puts the counter below in front of the real function
 * (--wrap).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "tt_alloc.h"
#include "tt_locks.h"
#include "tt_test.h"

enum { PARAMS = 10000, THREADS = 8, FLOATS = 256, STEPS = 30 };

typedef struct feeder {
    tutti_reducer *red;
    const bool *last; /* completes its bucket: issues */
    tutti_stream stream;
    int from;
    tutti_status status;
    int64_t ns;
    pthread_t thread;
} feeder;

static int64_t cpu_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* All but the first parameter of each bucket, so that no call but the last issues. */
static void *feed(void *arg)
{
    feeder *f = arg;
    int64_t began;

    tt_alloc_here = true;
    began = cpu_ns();
    for (int id = PARAMS - 1 - f->from; id >= 0 && f->status == TUTTI_OK; id -= THREADS)
        if (!f->last[id])
            f->status = tutti_reducer_ready(f->red, &id, 1, f->stream);
    f->ns = cpu_ns() - began;
    tt_alloc_here = false;
    return NULL;
}

static void step(tt_rank *r, tutti_reducer *red, const bool *last, tutti_stream stream,
                 int64_t *ns_out)
{
    feeder f[THREADS];

    *ns_out = 0;
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, stream));
    for (int i = 0; i < THREADS; i++) {
        f[i] = (feeder){.red = red, .last = last, .stream = stream, .from = i};
        TT_EXPECT(r, pthread_create(&f[i].thread, NULL, feed, &f[i]) == 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(f[i].thread, NULL);
        TT_EXPECT(r, f[i].status == TUTTI_OK);
        *ns_out += f[i].ns;
    }
    for (int id = PARAMS - 1; id >= 0; id--)
        if (last[id])
            TT_EXPECT_OK(r, tutti_reducer_ready(red, &id, 1, stream));
    TT_EXPECT_OK(r, tutti_reducer_wait(red, stream));
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, stream));
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void body(tt_rank *r)
{
    static bool last[PARAMS];
    bool on_stream = *(const bool *)r->arg;
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_stream stream = {0};
    tutti_reducer *red;
    int64_t ns[STEPS];
    int calls = 0, per_bucket = 100;

    opts.bucket_bytes = opts.first_bucket_bytes = (size_t)per_bucket * FLOATS * sizeof(float);
    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, &opts, &red));
    TT_EXPECT_OK(r, tt_add_params(red, PARAMS, FLOATS, NULL));
    for (int id = 0; id < PARAMS; id++) {
        last[id] = id % per_bucket == 0;
        calls += !last[id];
    }
    TT_EXPECT_OK(r, tutti_reducer_commit(red));
    if (on_stream)
        TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "backward", 0, &stream));
    for (int s = 0; s < STEPS; s++) {
        step(r, red, last, stream, &ns[s]);
        if (r->failed)
            return;
        if (s == 2) /* streams are known and orders learnt */
            tt_locks = tt_locks_contended = tt_allocations = 0;
    }
    qsort(ns, STEPS, sizeof ns[0], by_value);
    printf("%s: ready %.0f ns of processor time (median of %d steps, %d parameters, %d threads); "
           "%ld locks taken (%ld contended) and %ld allocations in %d steps\n",
           on_stream ? "stream" : "inline", (double)ns[STEPS / 2] / calls, STEPS, PARAMS, THREADS,
           (long)tt_locks, (long)tt_locks_contended, (long)tt_allocations, STEPS - 3);
    TT_EXPECT(r, tt_locks == 0 && tt_locks_contended == 0 && tt_allocations == 0);
    tutti_reducer_destroy(red);
    tutti_stream_destroy(r->ctx, stream);
}

static void ready_takes_no_lock(void **state)
{
    bool on_stream = false;

    (void)state;
    TT_ASSERT_RANKS(1, NULL, body, &on_stream);
    on_stream = true;
    TT_ASSERT_RANKS(1, NULL, body, &on_stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ready_takes_no_lock)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
