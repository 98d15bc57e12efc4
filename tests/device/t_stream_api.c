/* SPDX-License-Identifier: Apache-2.0 */
/* The public stream calls, on contexts. */
#include "tt_test.h"

#include <stdatomic.h>
#include <unistd.h>

#include "boot/context.h"

static const tutti_stream no_stream;

static void count(void *arg)
{
    ++*(int *)arg;
}

static void count_later(void *arg)
{
    usleep(20000);
    ++*(int *)arg;
}

static void ordinary_use(tt_rank *r)
{
    tutti_stream a = no_stream, b = no_stream;
    int n = 0;

    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "a", 0, &a));
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, NULL, -1, &b));
    TT_EXPECT(r, a.kind == TUTTI_STREAM_HOST && a.handle != b.handle);
    TT_EXPECT_OK(r, tutti_stream_call(r->ctx, a, count_later, &n));
    TT_EXPECT_OK(r, tutti_stream_wait(r->ctx, b, a));
    TT_EXPECT_OK(r, tutti_stream_call(r->ctx, b, count, &n));
    TT_EXPECT_OK(r, tutti_stream_wait(r->ctx, no_stream, b)); /* blocks the caller */
    TT_EXPECT(r, n == 2);
    TT_EXPECT_OK(r, tutti_stream_wait(r->ctx, a, no_stream));
    TT_EXPECT_OK(r, tutti_stream_call(r->ctx, no_stream, count, &n));
    TT_EXPECT(r, n == 3);
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, no_stream));
    TT_EXPECT_OK(r, tutti_stream_call(r->ctx, a, count_later, &n));
    tutti_stream_destroy(r->ctx, a); /* finishes it */
    TT_EXPECT(r, n == 4);
    tutti_stream_destroy(r->ctx, no_stream);
    TT_EXPECT_OK(r, tutti_stream_call(r->ctx, b, count_later, r->arg)); /* finalize finishes it */
}

static void streams_in_a_context(void **state)
{
    int late = 0;
    (void)state;
    TT_ASSERT_RANKS(1, NULL, ordinary_use, &late);
    assert_int_equal(late, 1);
}

/* What one rank hands to another; ranks must not use it. */
static tutti_stream theirs;

static void strange_arguments(tt_rank *r)
{
    tutti_stream s = no_stream, gone = no_stream, cuda = {&s, TUTTI_STREAM_CUDA};
    tutti_stream strange[3];
    int n = 0;

    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "s", 0, &s));
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "gone", 0, &gone));
    tutti_stream_destroy(r->ctx, gone);
    if (r->rank == 0)
        theirs = s;
    TT_EXPECT_OK(r, tutti_barrier(r->comm));
    if (r->rank == 1) {
        memcpy(strange, (tutti_stream[]){theirs, gone, cuda}, sizeof strange);
        for (int i = 0; i < 3; i++) {
            TT_EXPECT(r, tutti_stream_call(r->ctx, strange[i], count, &n) == TUTTI_ERR_ARG);
            TT_EXPECT(r, tutti_stream_sync(r->ctx, strange[i]) == TUTTI_ERR_ARG);
            TT_EXPECT(r, tutti_stream_wait(r->ctx, strange[i], s) == TUTTI_ERR_ARG);
            TT_EXPECT(r, tutti_stream_wait(r->ctx, s, strange[i]) == TUTTI_ERR_ARG);
            tutti_stream_destroy(r->ctx, strange[i]);
        }
        TT_EXPECT(r, n == 0);
    }
    TT_EXPECT(r, tutti_stream_call(r->ctx, s, NULL, &n) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_stream_create(r->ctx, "x", 0, NULL) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_stream_create(NULL, "x", 0, &gone) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_stream_sync(NULL, s) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_stream_wait(NULL, s, s) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_stream_call(NULL, s, count, &n) == TUTTI_ERR_ARG);
    tutti_stream_destroy(NULL, s);
    TT_EXPECT_OK(r, tutti_barrier(r->comm));
    TT_EXPECT_OK(r, tutti_stream_call(r->ctx, s, count, &n)); /* all that did no harm */
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, s));
    TT_EXPECT(r, n == 1);
}

static void strange_arguments_are_refused(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, strange_arguments, NULL);
}

/* A collective on a stream whose peer never comes: the failure is in every later call. */
static void failing(tt_rank *r)
{
    tutti_ctx *ctx = r->ctx;
    tutti_stream s = no_stream, other = no_stream;
    _Atomic bool *issued = r->arg;
    float x = 1;
    int n = 0;

    TT_EXPECT_OK(r, tutti_stream_create(ctx, "s", 0, &s));
    TT_EXPECT_OK(r, tutti_stream_create(ctx, "other", 0, &other));
    if (r->rank == 0)
        TT_EXPECT_OK(r, tutti_all_reduce(r->comm, &x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, s));
    TT_EXPECT_OK(r, tutti_stream_call(ctx, s, count, &n));
    if (r->rank == 0)
        atomic_store(issued, true);
    while (!atomic_load(issued))
        usleep(1000);
    if (r->rank == 1)
        tt_ctx_fail(ctx, tt_fail(TUTTI_ERR_IO, "the dog ate rank 1's data"));
    TT_EXPECT(r, tutti_stream_sync(ctx, s) != TUTTI_OK);
    TT_EXPECT(r, strstr(tutti_last_error(), "the dog ate") != NULL);
    TT_EXPECT(r, n == 1); /* the program's work ran all the same */
    TT_EXPECT(r, tutti_stream_sync(ctx, other) != TUTTI_OK);
    TT_EXPECT(r, tutti_ctx_error(ctx, NULL, 0) != TUTTI_OK);
    TT_EXPECT_OK(r, tutti_stream_call(ctx, other, count, &n));
    tutti_stream_destroy(ctx, other);
    TT_EXPECT(r, n == 2);
    r->ctx = NULL;
}

static void a_failure_reaches_every_sync(void **state)
{
    _Atomic bool issued = false;
    (void)state;
    TT_ASSERT_RANKS(2, NULL, failing, &issued);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_in_a_context),
        cmocka_unit_test(strange_arguments_are_refused),
        cmocka_unit_test(a_failure_reaches_every_sync),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
