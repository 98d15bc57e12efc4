/* SPDX-License-Identifier: Apache-2.0 */
/* When a checkpoint is due: all ranks hear of it in the same call of tutti_step. */
#include "ckpt_test.h"

#include <math.h>
#include <unistd.h>

#include "boot/context.h"

static char dir[PATH_CAP];

static int setup(void **state)
{
    (void)state;
    scratch_make(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(dir);
    return 0;
}

/* Steps `n` times and saves when told; *saves_out: how often, *same_out: bits of the steps. */
static void train(tt_rank *r, int n, uint64_t *steps_out)
{
    uint64_t told = 0;
    for (int step = 0; step < n && !r->failed; step++) {
        uint32_t todo = 0;
        if (tutti_step(r->ctx, step, &todo) != TUTTI_OK)
            tt_say(r, "step: %s", tutti_last_error());
        if ((todo & TUTTI_DO_STOP) != 0)
            tt_say(r, "a stop nobody asked for");
        if ((todo & TUTTI_DO_SAVE) == 0)
            continue;
        told |= 1ull << step;
        if (small_save(r, dir, step, NULL) != TUTTI_OK)
            tt_say(r, "save: %s", tutti_last_error());
    }
    *steps_out = told;
}

static uint64_t heard[4];

static void steps_body(tt_rank *r)
{
    tutti_ckpt_schedule_opts opts = TUTTI_CKPT_SCHEDULE_OPTS_INIT;
    opts.every_steps = 5;
    TT_EXPECT_OK(r, tutti_ckpt_schedule(r->ctx, dir, &opts));
    train(r, 32, &heard[r->rank]);
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
}

static void by_steps(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, steps_body, NULL);
    assert_true(heard[0] == heard[1] && heard[1] == heard[2]);
    assert_int_equal(heard[0],
                     1ull << 5 | 1ull << 10 | 1ull << 15 | 1ull << 20 | 1ull << 25 | 1ull << 30);
    assert_int_equal(count_entries(dir, "step-"), 6);
}

static void seconds_body(tt_rank *r)
{
    tutti_ckpt_schedule_opts opts = TUTTI_CKPT_SCHEDULE_OPTS_INIT;
    opts.every_s = 1e-9; /* always */
    TT_EXPECT_OK(r, tutti_ckpt_schedule(r->ctx, dir, &opts));
    train(r, 8, &heard[r->rank]);
    opts.every_s = 1e6; /* never */
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_schedule(r->ctx, dir, &opts));
}

static void by_seconds(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, seconds_body, NULL);
    assert_true(heard[0] == heard[1] && (heard[0] & 2) != 0);
}

static void never_body(tt_rank *r)
{
    TT_EXPECT_OK(r, tutti_ckpt_schedule(r->ctx, dir, NULL)); /* 10 minutes */
    train(r, 20, &heard[r->rank]);
    tutti_ckpt_schedule_opts opts = TUTTI_CKPT_SCHEDULE_OPTS_INIT;
    opts.every_s = -1;
    TT_EXPECT(r, tutti_ckpt_schedule(r->ctx, dir, &opts) == TUTTI_ERR_ARG);
    opts.every_s = NAN;
    TT_EXPECT(r, tutti_ckpt_schedule(r->ctx, dir, &opts) == TUTTI_ERR_ARG);
}

static void by_default(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, never_body, NULL);
    assert_int_equal(heard[0], 0);
}

static void learn_body(tt_rank *r)
{
    tutti_ckpt_schedule_opts opts = TUTTI_CKPT_SCHEDULE_OPTS_INIT;
    opts.automatic = true;
    TT_EXPECT_OK(r, tutti_ckpt_schedule(r->ctx, dir, &opts));
    train(r, 4, &heard[r->rank]);
}

static int failures(void)
{
    char path[PATH_CAP + 16];
    size_t bytes;
    int failed = -1;
    snprintf(path, sizeof path, "%s/.runs", dir);
    char *text = (char *)file_get(path, &bytes);
    text[bytes] = '\0';
    assert_int_equal(sscanf(text, "first %*d failed %d", &failed), 1);
    free(text);
    return failed;
}

static void learnt(void **state)
{
    (void)state;
    char path[PATH_CAP + 16];
    TT_ASSERT_RANKS(2, NULL, learn_body, NULL);
    assert_int_equal(failures(), 0);
    TT_ASSERT_RANKS(2, NULL, learn_body, NULL); /* the first one ended well */
    assert_int_equal(failures(), 0);
    snprintf(path, sizeof path, "%s/.runs", dir);
    static const char cut_off[] = "first 1000 failed 2 under_way 1\n";
    file_put(path, cut_off, sizeof cut_off - 1);
    TT_ASSERT_RANKS(2, NULL, learn_body, NULL);
    assert_int_equal(failures(), 3);
    file_put(path, "nonsense", 8);
    TT_ASSERT_RANKS(2, NULL, learn_body, NULL);
    assert_int_equal(failures(), 0);
}

/* The share of time lost with interval t: saves, and half an interval and a save per failure. */
static double lost(double t, double c, double m)
{
    return m * expm1((t + c) / m) / t;
}

static void interval(void **state)
{
    (void)state;
    assert_true(tutti_ckpt_interval(0, 100) == 0 && tutti_ckpt_interval(1, 0) == 0);
    assert_true(tutti_ckpt_interval(300, 100) == 100);
    static const double cases[][2] = {{1, 10800}, {10, 10800}, {10, 6000}, {60, 3600}};
    for (int i = 0; i < 4; i++) {
        double c = cases[i][0], m = cases[i][1], t = tutti_ckpt_interval(c, m);
        /* within a permille of the least there is */
        for (double other = t / 4; other < 4 * t; other *= 1.01)
            assert_true(lost(t, c, m) < lost(other, c, m) * 1.001);
    }
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {T(by_steps), T(by_seconds), T(by_default), T(learnt),
                                       T(interval)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
