/* SPDX-License-Identifier: Apache-2.0 */
/* How a save begins: while another is being written; replicas that are none. */
#include "ckpt_test.h"

#include <unistd.h>

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
    unsetenv("TUTTI_CHECK");
    return 0;
}

static tutti_status begin(tt_rank *r, int64_t step, uint32_t flags, tutti_ckpt **ck)
{
    tutti_ckpt_begin_opts opts = TUTTI_CKPT_BEGIN_OPTS_INIT;
    opts.flags = flags;
    return tutti_ckpt_begin_with(r->ctx, dir, step, &opts, ck);
}

static tutti_status finish(tt_rank *r, tutti_ckpt *ck, int64_t value)
{
    tutti_tensor t = tensor_1d("x", TUTTI_INT64, 1, 0, 0, &value);
    if (tutti_ckpt_add(ck, &t) != TUTTI_OK)
        tt_say(r, "add: %s", tutti_last_error());
    return tutti_ckpt_commit(ck, (tutti_stream){0}, NULL);
}

/* One look at a save that was just handed over never finds it committed: that takes two. */
static void refuse_body(tt_rank *r)
{
    tutti_ckpt *ck;
    int64_t durable;
    TT_EXPECT_OK(r, small_save(r, dir, 1, NULL));
    TT_EXPECT(r, begin(r, 2, TUTTI_CKPT_BUSY_REFUSE, &ck) == TUTTI_ERR_STATE);
    TT_EXPECT(r, strstr(tutti_last_error(), "the save of step 1 is being written") != NULL);
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, &durable));
    TT_EXPECT(r, durable == 1);
    TT_EXPECT_OK(r, begin(r, 2, TUTTI_CKPT_BUSY_REFUSE, &ck));
    TT_EXPECT_OK(r, finish(r, ck, 2));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, &durable));
    TT_EXPECT(r, durable == 2);
}

static void refused_while_one_runs(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, refuse_body, NULL);
    assert_int_equal(count_entries(dir, ""), 2);
}

static void merge_body(tt_rank *r)
{
    tutti_ckpt *ck = (tutti_ckpt *)dir;
    int64_t durable, step = 2;
    uint32_t todo = 0;
    TT_EXPECT_OK(r, small_save(r, dir, 1, NULL));
    TT_EXPECT_OK(r, begin(r, 2, TUTTI_CKPT_BUSY_MERGE, &ck));
    TT_EXPECT(r, ck == NULL);
    for (; step < 40000 && (todo & TUTTI_DO_SAVE) == 0; step++) {
        TT_EXPECT_OK(r, tutti_step(r->ctx, step, &todo));
        usleep(1000);
    }
    TT_EXPECT(r, (todo & TUTTI_DO_SAVE) != 0); /* in the same call on all ranks, or begin hangs */
    TT_EXPECT_OK(r, begin(r, step, TUTTI_CKPT_BUSY_MERGE, &ck));
    TT_EXPECT(r, ck != NULL);
    TT_EXPECT_OK(r, finish(r, ck, step));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, &durable));
    TT_EXPECT(r, durable == step);
    for (int i = 0; i < 10; i++) { /* it was asked for once */
        TT_EXPECT_OK(r, tutti_step(r->ctx, ++step, &todo));
        TT_EXPECT(r, (todo & TUTTI_DO_SAVE) == 0);
    }
}

static void merged_comes_after(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, merge_body, NULL);
    assert_int_equal(count_entries(dir, "step-"), 2);
}

static void options_body(tt_rank *r)
{
    tutti_ckpt *ck = NULL;
    tutti_ckpt_begin_opts opts = TUTTI_CKPT_BEGIN_OPTS_INIT;
    TT_EXPECT(r, begin(r, 1, TUTTI_CKPT_BUSY_MERGE | TUTTI_CKPT_BUSY_REFUSE, &ck) == TUTTI_ERR_ARG);
    TT_EXPECT(r, begin(r, 1, 1u << 31, &ck) == TUTTI_ERR_ARG);
    opts.size--;
    TT_EXPECT(r, tutti_ckpt_begin_with(r->ctx, dir, 1, &opts, &ck) == TUTTI_ERR_ARG);
    TT_EXPECT(r, begin(r, 1, r->rank == 1 ? TUTTI_CKPT_BUSY_MERGE : 0, &ck) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "rank 1 gives other flags") != NULL);
    TT_EXPECT(r, ck == NULL);
}

static void wrong_options(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, options_body, NULL);
}

/* "w" of 5 MB, more than is hashed at once; `odd` changes a byte of its end. */
static tutti_status save_replica(tt_rank *r, bool odd)
{
    enum { N = 5 << 20 };
    unsigned char *data = calloc(1, N);
    tutti_tensor t = tensor_1d("w", TUTTI_UINT8, N, 0, 0, data);
    tutti_ckpt *ck;
    data[N - 1] = odd;
    tutti_status status = tutti_ckpt_begin(r->ctx, dir, 1, &ck);
    if (status == TUTTI_OK) {
        if (tutti_ckpt_add(ck, &t) != TUTTI_OK)
            tt_say(r, "add: %s", tutti_last_error());
        status = tutti_ckpt_commit(ck, (tutti_stream){0}, NULL);
    }
    if (status == TUTTI_OK)
        status = tutti_ckpt_wait(r->ctx, NULL);
    free(data);
    return status;
}

static void checked_body(tt_rank *r)
{
    TT_EXPECT(r, save_replica(r, r->rank == 2) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "w [0:5242880] is a replica") != NULL);
    TT_EXPECT(r, strstr(tutti_last_error(), "rank 0") != NULL);
    TT_EXPECT(r, strstr(tutti_last_error(), "rank 2") != NULL);
    TT_EXPECT_OK(r, save_replica(r, true));
    TT_EXPECT_OK(r, small_save(r, dir, 2, NULL));
}

static void unchecked_body(tt_rank *r)
{
    TT_EXPECT_OK(r, save_replica(r, r->rank == 2));
}

static void replicas_are_compared(void **state)
{
    (void)state;
    setenv("TUTTI_CHECK", "1", 1);
    TT_ASSERT_RANKS(3, NULL, checked_body, NULL);
    assert_int_equal(count_entries(dir, ""), 2);
    setenv("TUTTI_CHECK", "0", 1);
    TT_ASSERT_RANKS(3, NULL, unchecked_body, NULL);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    const struct CMUnitTest tests[] = {T(refused_while_one_runs), T(merged_comes_after),
                                       T(wrong_options), T(replicas_are_compared)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
