/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A steady step allocates nothing, and no thread of the program waits for another one's `ready`:
 * 10,000 parameters in 100 buckets, made ready by 8 threads a rank which complete buckets side by
 * side. Every thread of the process counts for allocations; the feeding ones for locks. Their only
 * other lock is a stream's queue, held for the time of one store, which is printed. The linker puts
 * the counters in front of the real functions (--wrap).
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "reducer/reducer.h"
#include "tt_alloc.h"
#include "tt_locks.h"
#include "tt_test.h"

enum { RANKS = 2, PARAMS = 10000, THREADS = 8, LONGEST = 23, WARM = 3, STEPS = 3, LAYER = 100 };

typedef struct way {
    const char *name;
    uint32_t flags;
    tutti_dtype wire;
    int micros;
    bool own, on_stream; /* gradients in the program's memory, apart; a backward stream */
} way;

typedef struct job {
    tt_rank *r;
    const way *w;
    tutti_reducer *red;
    tutti_stream stream;
    float *memory, norm, loss, mean;
    pthread_barrier_t go, done;
    bool stop, holds;
    _Atomic bool open; /* see hold */
} job;

typedef struct feeder {
    job *j;
    int index;
    tutti_status status;
    pthread_t thread;
} feeder;

static size_t length(int id)
{
    return 1 + (size_t)id % LONGEST;
}

/* Thread t has the ids t, t + THREADS ... from the end, so all of them end a bucket at once. */
static void *feed(void *arg)
{
    feeder *f = arg;

    for (;;) {
        pthread_barrier_wait(&f->j->go);
        if (f->j->stop)
            return NULL;
        tt_alloc_here = true;
        for (int id = PARAMS - 1 - f->index; id >= 0 && f->status == TUTTI_OK; id -= THREADS)
            f->status = tutti_reducer_ready(f->j->red, &id, 1, f->j->stream);
        tt_alloc_here = false;
        pthread_barrier_wait(&f->j->done);
    }
}

static void backward(job *j)
{
    pthread_barrier_wait(&j->go);
    pthread_barrier_wait(&j->done);
}

/* Once streams stand still until a whole step is queued (inline: a micro-step, for the next one
 * waits for its sums): no later step has more queued at a time. */
static void hold(void *arg)
{
    job *j = arg;

    while (!j->open)
        usleep(1000);
}

static void hold_streams(job *j)
{
    if (!j->holds)
        return;
    j->open = false;
    TT_EXPECT_OK(j->r, tutti_stream_call(j->r->ctx, j->red->stream, hold, j));
    if (j->w->on_stream)
        TT_EXPECT_OK(j->r, tutti_stream_call(j->r->ctx, j->stream, hold, j));
}

static void queue_step(job *j)
{
    tt_rank *r = j->r;
    int layer[LAYER];

    if (j->w->on_stream)
        hold_streams(j);
    for (int k = 0; k < j->w->micros; k++) {
        TT_EXPECT_OK(r, tutti_reducer_begin(j->red, k, j->w->micros, j->stream));
        if (!j->w->on_stream)
            hold_streams(j);
        TT_EXPECT_OK(r, tutti_reducer_mean(j->red, &j->mean, 1, j->stream));
        if (k == j->w->micros - 1)
            TT_EXPECT_OK(r, tutti_reducer_scalar(j->red, &j->loss, 1, TUTTI_SUM, j->stream));
        backward(j);
        if (!j->w->on_stream)
            j->open = true;
    }
    TT_EXPECT_OK(r, tutti_reducer_wait(j->red, j->stream));
    TT_EXPECT_OK(r, tutti_reducer_grad_norm(j->red, j->stream, &j->norm));
    TT_EXPECT_OK(r, tutti_reducer_gather(j->red, j->stream));
    for (int id = 0; id < PARAMS; id++) {
        layer[id % LAYER] = id;
        if (id % LAYER == LAYER - 1)
            TT_EXPECT_OK(r, tutti_reducer_param_wait(j->red, layer, LAYER, j->stream));
    }
}

static void step(job *j)
{
    tt_rank *r = j->r;

    j->mean = j->loss = 1;
    queue_step(j);
    j->open = true;
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, j->stream));
    TT_EXPECT(r, j->norm == 0 && j->mean == 1 && j->loss == RANKS);
}

static void open_job(job *j)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tt_rank *r = j->r;
    float *at = j->memory, *parameter = at + (size_t)PARAMS * (LONGEST + 1);

    opts.flags = j->w->flags;
    opts.wire = j->w->wire;
    opts.bucket_bytes = opts.first_bucket_bytes = (size_t)100 * LONGEST / 2 * sizeof(float);
    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, &opts, &j->red));
    for (int id = 0; id < PARAMS; id++, at += j->w->own ? LONGEST + 1 : 0) {
        tutti_param p = TUTTI_PARAM_INIT;
        char name[16];
        snprintf(name, sizeof name, "p%d", id);
        p.name = name;
        p.dtype = TUTTI_FLOAT32;
        p.ndim = 1;
        p.shape[0] = (int64_t)length(id);
        if (j->w->own)
            p.grad = at;
        p.param = parameter;
        parameter += length(id);
        TT_EXPECT_OK(r, tutti_reducer_add(j->red, &p, NULL));
    }
    TT_EXPECT_OK(r, tutti_reducer_commit(j->red));
    if (j->w->on_stream)
        TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "backward", 0, &j->stream));
    tt_locks_watched[r->rank] = &j->red->lock;
}

/* Counted from the first rank's to the last rank's step. */
static void steps(job *j)
{
    for (int s = 0; s < WARM && !j->r->failed; s++) {
        j->holds = s == WARM - 1;
        step(j);
    }
    j->holds = false;
    tt_all_here(j->r);
    if (j->r->rank == 0) {
        tt_locks = tt_locks_contended = tt_locks_watched_contended = tt_allocations = 0;
        tt_alloc_everywhere = true;
    }
    tt_all_here(j->r);
    for (int s = 0; s < STEPS && !j->r->failed; s++)
        step(j);
    tt_all_here(j->r);
    tt_alloc_everywhere = false;
    tt_all_here(j->r);
}

static void run(job *j)
{
    feeder f[THREADS];

    pthread_barrier_init(&j->go, NULL, THREADS + 1);
    pthread_barrier_init(&j->done, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++) {
        f[i] = (feeder){.j = j, .index = i};
        if (pthread_create(&f[i].thread, NULL, feed, &f[i]) != 0)
            abort();
    }
    steps(j);
    j->stop = true;
    pthread_barrier_wait(&j->go);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(f[i].thread, NULL);
        if (f[i].status != TUTTI_OK)
            tt_say(j->r, "ready returned %s", tutti_status_name(f[i].status));
    }
    pthread_barrier_destroy(&j->go);
    pthread_barrier_destroy(&j->done);
}

static void body(tt_rank *r)
{
    job j = {.r = r, .w = r->arg, .open = true};

    j.memory = calloc((size_t)PARAMS * 2 * (LONGEST + 1), sizeof *j.memory);
    if (j.memory == NULL)
        abort();
    open_job(&j);
    if (!r->failed)
        run(&j);
    tt_locks_watched[r->rank] = NULL;
    tutti_reducer_destroy(j.red);
    tutti_stream_destroy(r->ctx, j.stream);
    free(j.memory);
}

static void a_step_allocates_nothing_and_waits_for_no_lock(void **state)
{
    const tutti_dtype as_is = (tutti_dtype)0;
    const uint32_t shard = TUTTI_SHARD_OPTIMIZER;
    const uint32_t same = TUTTI_REDUCER_REPRODUCIBLE | TUTTI_REDUCER_AVERAGE_MICRO;
    const way ways[] = {
        {"plain, inline", 0, as_is, 1, false, false},
        {"plain, own memory, accumulation", 0, as_is, 2, true, true},
        {"zero 1", shard, as_is, 1, false, true},
        {"bf16", 0, TUTTI_BFLOAT16, 1, false, true},
        {"bf16, zero 1, own memory", shard, TUTTI_BFLOAT16, 1, true, true},
        {"reproducible, inline", same, as_is, 2, false, false},
        {"reproducible, zero 1", same | shard, as_is, 2, false, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        way w = ways[i];
        TT_ASSERT_RANKS(RANKS, NULL, body, &w);
        printf("%s: %ld locks a step and rank in `ready`, contended: reducer %ld, queues %ld; "
               "%ld allocations (%d steps)\n",
               w.name, (long)tt_locks / STEPS / RANKS, (long)tt_locks_watched_contended,
               (long)(tt_locks_contended - tt_locks_watched_contended), (long)tt_allocations,
               STEPS);
        assert_int_equal(tt_allocations, 0);
        assert_int_equal(tt_locks_watched_contended, 0);
    }
}

/* Two buckets of one tensor. Thread 0 is held while it issues the first one; thread 1 completes the
 * second one meanwhile. */
typedef struct two {
    tutti_reducer *red;
    _Atomic bool issuing, passed, too_late;
    tutti_status status[2];
    int issued;
} two;

static tutti_status hold_issue(void *arg, const tutti_bucket *b)
{
    two *t = arg;

    t->issued++;
    t->issuing = true;
    for (int ms = 0; !t->passed && !t->too_late; ms++) {
        usleep(1000);
        t->too_late = ms > 60000;
    }
    return tutti_all_reduce(b->comm, b->data, b->data, b->count, b->dtype, TUTTI_AVG, b->stream);
}

static void *second(void *arg)
{
    two *t = arg;
    int id = 0;

    while (!t->issuing)
        usleep(100);
    t->status[1] = tutti_reducer_ready(t->red, &id, 1, (tutti_stream){0});
    t->passed = true;
    return NULL;
}

static void overtaken_body(tt_rank *r)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    two t = {0};
    pthread_t thread;

    opts.bucket_bytes = opts.first_bucket_bytes = 64;
    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, &opts, &t.red));
    for (int id = 0; id < 2; id++) {
        tutti_param p = TUTTI_PARAM_INIT;
        p.name = id == 0 ? "a" : "b";
        p.dtype = TUTTI_FLOAT32;
        p.ndim = 1;
        p.shape[0] = 16;
        TT_EXPECT_OK(r, tutti_reducer_add(t.red, &p, NULL));
    }
    TT_EXPECT_OK(r, tutti_reducer_commit(t.red));
    TT_EXPECT_OK(r, tutti_reducer_hook(t.red, hold_issue, &t));
    TT_EXPECT_OK(r, tutti_reducer_begin(t.red, 0, 1, (tutti_stream){0}));
    if (pthread_create(&thread, NULL, second, &t) != 0)
        abort();
    t.status[0] = tutti_reducer_ready(t.red, &(int){1}, 1, (tutti_stream){0});
    pthread_join(thread, NULL);
    TT_EXPECT(r, t.status[0] == TUTTI_OK && t.status[1] == TUTTI_OK);
    TT_EXPECT(r, !t.too_late && t.issued == 2);
    TT_EXPECT_OK(r, tutti_reducer_wait(t.red, (tutti_stream){0}));
    tutti_reducer_destroy(t.red);
}

static void ready_does_not_wait_for_who_issues(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(RANKS, NULL, overtaken_body, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_allocates_nothing_and_waits_for_no_lock),
        cmocka_unit_test(ready_does_not_wait_for_who_issues),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
