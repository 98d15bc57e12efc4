/* SPDX-License-Identifier: Apache-2.0 */
/* Averages against a reference, in every way of feeding and layout; abandoned steps; figures.
 * t_reducer_average RANKS [NODES]: the averages only, on that layout. */
#include "scenario.h"

#include <time.h>

typedef struct layout {
    int ranks;
    const char *nodes;
} layout;

static const layout layouts[] = {
    {1, NULL},  {2, NULL},  {3, NULL},  {4, NULL},    {8, NULL},
    {2, "2x1"}, {3, "1,2"}, {4, "2x2"}, {8, "3,1,4"},
};
enum { LAYOUTS = sizeof layouts / sizeof layouts[0] };

static void averages_are_exact(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 36; seed++) {
        const layout *l = &layouts[seed % LAYOUTS];
        scenario s = {.seed = seed,
                      .order_seed = seed,
                      .feed = (feeding)(seed / LAYOUTS % FEED_COUNT),
                      .steps = 4};
        TT_ASSERT_RANKS(l->ranks, l->nodes, scenario_run, &s);
        for (int r = 1; r < l->ranks; r++)
            assert_int_equal(s.hash[r], s.hash[0]);
    }
}

static layout only;

static void averages_on_one_layout(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 2 * FEED_COUNT; seed++) {
        scenario s = {
            .seed = seed, .order_seed = seed, .feed = (feeding)(seed % FEED_COUNT), .steps = 3};
        TT_ASSERT_RANKS(only.ranks, only.nodes, scenario_run, &s);
        for (int r = 1; r < only.ranks; r++)
            assert_int_equal(s.hash[r], s.hash[0]);
    }
}

static void checked_mode_agrees_every_step(void **state)
{
    scenario s = {.seed = 5, .order_seed = 5, .feed = FEED_STREAM, .steps = 4};
    (void)state;

    setenv("TUTTI_CHECK", "1", 1);
    TT_ASSERT_RANKS(4, "2x2", scenario_run, &s);
    unsetenv("TUTTI_CHECK");
}

static void two_runs_are_bitwise_equal(void **state)
{
    (void)state;
    for (uint64_t seed = 100; seed < 106; seed++) {
        const layout *l = &layouts[3 + seed % (LAYOUTS - 3)];
        scenario a = {.seed = seed, .order_seed = 1, .steps = 3, .fractions = true};
        scenario b = {.seed = seed, .order_seed = 2, .steps = 3, .fractions = true};
        b.feed = FEED_STREAMS;
        TT_ASSERT_RANKS(l->ranks, l->nodes, scenario_run, &a);
        TT_ASSERT_RANKS(l->ranks, l->nodes, scenario_run, &b);
        assert_int_equal(a.hash[0], b.hash[0]);
    }
}

enum { TENSORS = 6, FLOATS = 1000 };

/* A reducer of TENSORS tensors, one to a bucket. */
static void make(tt_rank *r, tutti_reducer **red_out)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;

    opts.bucket_bytes = FLOATS * sizeof(float);
    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, &opts, red_out));
    TT_EXPECT_OK(r, tt_add_params(*red_out, TENSORS, FLOATS, NULL));
    TT_EXPECT_OK(r, tutti_reducer_commit(*red_out));
}

static void fill(tutti_reducer *red, int id, float x)
{
    float *grad = tutti_reducer_grad(red, id);
    for (int i = 0; i < FLOATS; i++)
        grad[i] = x;
}

static void good_step(tt_rank *r, tutti_reducer *red)
{
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, (tutti_stream){0}));
    for (int id = TENSORS - 1; id >= 0; id--) {
        fill(red, id, (float)(id + r->rank));
        TT_EXPECT_OK(r, tutti_reducer_ready(red, &id, 1, (tutti_stream){0}));
    }
    TT_EXPECT_OK(r, tutti_reducer_wait(red, (tutti_stream){0}));
    for (int id = 0; id < TENSORS; id++)
        TT_EXPECT(r, ((float *)tutti_reducer_grad(red, id))[FLOATS - 1] ==
                         (float)(id * r->size + r->size * (r->size - 1) / 2) *
                             (1.0f / (float)r->size));
}

/* Ranks stop at different places: rank r has made (r + round) % (TENSORS + 1) gradients ready. */
static void abandon_body(tt_rank *r)
{
    tutti_reducer *red = NULL;
    float loss[2] = {1, 2};

    make(r, &red);
    for (int round = 0; round < 2 * TENSORS && !r->failed; round++) {
        int ready = (r->rank + round) % (TENSORS + 1), micros = 1 + round % 2;
        for (int micro = 0; micro < micros; micro++) {
            TT_EXPECT_OK(r, tutti_reducer_begin(red, micro, micros, (tutti_stream){0}));
            if (micro == micros - 1 && ready == TENSORS)
                TT_EXPECT_OK(r, tutti_reducer_scalar(red, loss, 2, TUTTI_SUM, (tutti_stream){0}));
            for (int id = TENSORS - 1; id >= TENSORS - ready; id--)
                TT_EXPECT_OK(r, tutti_reducer_ready(red, &id, 1, (tutti_stream){0}));
            if (ready < TENSORS)
                break; /* perhaps in the first micro-step already */
        }
        TT_EXPECT_OK(r, tutti_reducer_abandon(red));
        TT_EXPECT(r, tutti_reducer_abandon(red) == TUTTI_ERR_STATE);
        good_step(r, red);
    }
    tutti_reducer_destroy(red);
}

static void an_abandoned_step_leaves_nothing(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(1, NULL, abandon_body, NULL);
    TT_ASSERT_RANKS(3, NULL, abandon_body, NULL);
    TT_ASSERT_RANKS(4, "2x2", abandon_body, NULL);
}

static _Atomic int waiting; /* streams that are about to wait for rank 0's gradients */

static void tell(void *arg)
{
    (void)arg;
    waiting++;
}

static void nap(void)
{
    struct timespec t = {0, 1000000};
    nanosleep(&t, NULL);
}

/* Until all the others wait, and a while more. */
static void come_late(void *arg)
{
    const tt_rank *r = arg;
    for (int naps = 0; naps < 50; naps += waiting == r->size - 1)
        nap();
}

static void stats_body(tt_rank *r)
{
    tutti_reducer *red = NULL;
    tutti_reducer_stats stats = {.size = sizeof stats};
    tutti_bucket_stats bucket[TENSORS];
    tutti_stream stream;
    double sum = 0;

    make(r, &red);
    TT_EXPECT(r, tutti_reducer_stats_get(red, &stats) == TUTTI_ERR_STATE);
    TT_EXPECT(r, tutti_reducer_bucket_stats(red, NULL, 0) == 0);
    good_step(r, red);
    good_step(r, red);
    TT_EXPECT_OK(r, tutti_reducer_stats_get(red, &stats));
    TT_EXPECT(r, stats.steps == 2 && stats.buckets == TENSORS);
    TT_EXPECT(r, stats.bytes >= TENSORS * FLOATS * sizeof(float));
    TT_EXPECT(r, stats.exposed_s >= 0 && stats.first_ready_s > 0);
    TT_EXPECT(r, tutti_reducer_bucket_stats(red, bucket, TENSORS) == TENSORS);
    for (int i = 0; i < TENSORS; i++) {
        TT_EXPECT(r, bucket[i].comm_s > 0 && bucket[i].bytes == FLOATS * sizeof(float));
        TT_EXPECT(r, i == 0 || bucket[i].issued_s >= bucket[i - 1].issued_s);
        sum += bucket[i].comm_s;
    }
    TT_EXPECT(r, sum > 0.999 * stats.comm_s && sum < 1.001 * stats.comm_s);
    TT_EXPECT(r, bucket[TENSORS - 1].comm_s == stats.last_bucket_s);

    /* On a stream: rank 0's gradients come late, every other rank's stream is held up by them. */
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "main", 0, &stream));
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, stream));
    if (r->rank == 0)
        TT_EXPECT_OK(r, tutti_stream_call(r->ctx, stream, come_late, r));
    for (int id = 0; id < TENSORS; id++)
        TT_EXPECT_OK(r, tutti_reducer_ready(red, &id, 1, stream));
    if (r->rank != 0)
        TT_EXPECT_OK(r, tutti_stream_call(r->ctx, stream, tell, NULL));
    TT_EXPECT_OK(r, tutti_reducer_wait(red, stream));
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, stream));
    TT_EXPECT_OK(r, tutti_reducer_stats_get(red, &stats));
    TT_EXPECT(r, stats.steps == 3);
    TT_EXPECT(r, r->rank == 0 || stats.exposed_s > 0.005);
    tutti_stream_destroy(r->ctx, stream);
    tutti_reducer_destroy(red);
}

static void figures_are_plausible(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, stats_body, NULL);
    waiting = 0;
    TT_ASSERT_RANKS(4, "2x2", stats_body, NULL);
}

enum { AHEAD = 6 };

typedef struct ahead {
    tt_rank *r;
    tutti_reducer *red;
    int step;
    bool wrong;
} ahead;

static void late_backward(void *arg)
{
    ahead *a = arg;
    for (int naps = 0; naps < 20; naps++)
        nap();
    for (int id = 0; id < TENSORS; id++) {
        float *grad = tutti_reducer_grad(a->red, id);
        for (int i = 0; i < FLOATS; i++)
            grad[i] += (float)(a->r->rank + a->step);
    }
}

static void look(void *arg)
{
    ahead *a = arg;
    float want = (float)(a->r->size * (a->r->size - 1) / 2 + a->r->size * a->step) *
                 (1.0f / (float)a->r->size);
    for (int id = 0; id < TENSORS; id++)
        a->wrong = a->wrong || ((float *)tutti_reducer_grad(a->red, id))[id] != want;
}

/* The host queues several steps before the first has passed. */
static void ahead_body(tt_rank *r)
{
    tutti_reducer *red = NULL;
    tutti_reducer_stats stats = {.size = sizeof stats};
    tutti_stream stream;
    ahead a[AHEAD];

    make(r, &red);
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "main", 0, &stream));
    good_step(r, red); /* the first wait blocks */
    for (int step = 0; step < AHEAD; step++) {
        a[step] = (ahead){r, red, step, false};
        TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, stream));
        TT_EXPECT_OK(r, tutti_stream_call(r->ctx, stream, late_backward, &a[step]));
        for (int id = 0; id < TENSORS; id++)
            TT_EXPECT_OK(r, tutti_reducer_ready(red, &id, 1, stream));
        TT_EXPECT_OK(r, tutti_reducer_wait(red, stream));
        TT_EXPECT_OK(r, tutti_stream_call(r->ctx, stream, look, &a[step]));
        TT_EXPECT_OK(r, tutti_reducer_stats_get(red, &stats));
        TT_EXPECT(r, stats.steps >= 1 && stats.steps <= step + 2);
    }
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, stream));
    for (int step = 0; step < AHEAD; step++)
        TT_EXPECT(r, !a[step].wrong);
    TT_EXPECT_OK(r, tutti_reducer_stats_get(red, &stats));
    TT_EXPECT(r, stats.steps == AHEAD + 1);
    tutti_stream_destroy(r->ctx, stream);
    tutti_reducer_destroy(red);
}

static void the_host_may_run_ahead(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, ahead_body, NULL);
    TT_ASSERT_RANKS(4, "2x2", ahead_body, NULL);
}

/* Two reducers at once, and the program's own collectives between begin and wait. */
static void mixed_body(tt_rank *r)
{
    tutti_reducer *red[2] = {NULL, NULL};
    float own = 1;

    make(r, &red[0]);
    make(r, &red[1]);
    for (int step = 0; step < 3; step++) {
        TT_EXPECT_OK(r, tutti_reducer_begin(red[0], 0, 1, (tutti_stream){0}));
        TT_EXPECT_OK(r, tutti_reducer_begin(red[1], 0, 1, (tutti_stream){0}));
        for (int id = 0; id < TENSORS; id++) {
            fill(red[0], id, 1);
            fill(red[1], id, (float)r->rank);
            TT_EXPECT_OK(r, tutti_reducer_ready(red[r->rank % 2], &id, 1, (tutti_stream){0}));
            TT_EXPECT_OK(r, tutti_reducer_ready(red[1 - r->rank % 2], &id, 1, (tutti_stream){0}));
            own = 1;
            TT_EXPECT_OK(r, tutti_all_reduce(r->comm, &own, &own, 1, TUTTI_FLOAT32, TUTTI_SUM,
                                             (tutti_stream){0}));
            TT_EXPECT(r, own == (float)r->size);
        }
        TT_EXPECT_OK(r, tutti_reducer_wait(red[1], (tutti_stream){0}));
        TT_EXPECT_OK(r, tutti_reducer_wait(red[0], (tutti_stream){0}));
        TT_EXPECT(r, *(float *)tutti_reducer_grad(red[0], 2) == 1);
    }
    tutti_reducer_destroy(red[1]); /* the other is left for tutti_finalize */
}

static void reducers_do_not_meet(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(4, NULL, mixed_body, NULL);
    TT_ASSERT_RANKS(4, "2x2", mixed_body, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest one[] = {cmocka_unit_test(averages_on_one_layout)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(averages_are_exact),
        cmocka_unit_test(checked_mode_agrees_every_step),
        cmocka_unit_test(two_runs_are_bitwise_equal),
        cmocka_unit_test(an_abandoned_step_leaves_nothing),
        cmocka_unit_test(figures_are_plausible),
        cmocka_unit_test(the_host_may_run_ahead),
        cmocka_unit_test(reducers_do_not_meet),
    };
    if (argc > 1) {
        only = (layout){(int)strtol(argv[1], NULL, 10), argc > 2 ? argv[2] : NULL};
        return cmocka_run_group_tests(one, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
