/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a program can do wrong with a reducer on a device, ranks being threads: every rank gets a
 * status and a text that says what and where, and nobody hangs. It runs on the host backend too.
 */
#include "boot/context.h"
#include "core/clock.h"
#include "tt_test.h"

enum { TENSORS = 4, FLOATS = 300, RANKS = 2 };

typedef struct job {
    tt_rank *r;
    tutti_reducer *red;
    tutti_stream stream;
} job;

static bool says(const char *what)
{
    return strstr(tutti_last_error(), what) != NULL;
}

static void open_job(job *j, tt_rank *r)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;

    *j = (job){.r = r};
    if (getenv("SIMGPU_MACHINE") != NULL)
        TT_EXPECT(r, tutti_device(r->ctx) >= 0); /* it is CUDA that is tried */
    opts.bucket_bytes = opts.first_bucket_bytes = FLOATS * sizeof(float);
    opts.name = "grads";
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "main", 0, &j->stream));
    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, &opts, &j->red));
    TT_EXPECT_OK(r, tt_add_params(j->red, TENSORS, FLOATS, NULL));
    TT_EXPECT_OK(r, tutti_reducer_commit(j->red));
}

static void close_job(job *j)
{
    tutti_reducer_destroy(j->red);
    tutti_stream_destroy(j->r->ctx, j->stream);
}

/* n micro-steps; `left_out` is not made ready in the last one (-1: all are). */
static tutti_status step(job *j, int n, int left_out)
{
    tutti_status status = TUTTI_OK;

    for (int micro = 0; micro < n && status == TUTTI_OK; micro++) {
        status = tutti_reducer_begin(j->red, micro, n, j->stream);
        for (int id = TENSORS - 1; id >= 0 && status == TUTTI_OK; id--)
            if (id != left_out || micro != n - 1)
                status = tutti_reducer_ready(j->red, &id, 1, j->stream);
    }
    return status == TUTTI_OK ? tutti_reducer_wait(j->red, j->stream) : status;
}

static void good_steps(job *j, int n)
{
    for (int i = 0; i < n; i++)
        TT_EXPECT_OK(j->r, step(j, 1, -1));
    TT_EXPECT_OK(j->r, tutti_stream_sync(j->r->ctx, j->stream));
}

/* Refused calls change nothing: the step goes on, and so does the next. */
static void refused_body(tt_rank *r)
{
    const tutti_stream strange[] = {
        {NULL, 77}, {NULL, TUTTI_STREAM_HOST}, {NULL, TUTTI_STREAM_CUDA}};
    const int three = 3, rest[] = {0, 1, 2};
    job j;

    open_job(&j, r);
    if (r->failed)
        return;
    TT_EXPECT(r, tutti_reducer_ready(j.red, &three, 1, j.stream) == TUTTI_ERR_STATE);
    TT_EXPECT_OK(r, tutti_reducer_begin(j.red, 0, 1, j.stream));
    TT_EXPECT_OK(r, tutti_reducer_ready(j.red, &three, 1, j.stream));
    TT_EXPECT(r, tutti_reducer_ready(j.red, &three, 1, j.stream) == TUTTI_ERR_STATE);
    TT_EXPECT(r, says("\"w3\"") && says("twice"));
    for (int i = 0; i < 2 + (tutti_device(r->ctx) < 0); i++) { /* the null stream is CUDA's */
        TT_EXPECT(r, tutti_reducer_ready(j.red, rest, 3, strange[i]) == TUTTI_ERR_ARG);
        TT_EXPECT(r, says("stream"));
    }
    TT_EXPECT_OK(r, tutti_reducer_ready(j.red, rest, 3, j.stream));
    TT_EXPECT_OK(r, tutti_reducer_wait(j.red, j.stream));
    TT_EXPECT(r, tutti_reducer_ready(j.red, &three, 1, j.stream) == TUTTI_ERR_STATE);
    TT_EXPECT(r, says("ready of \"w3\" outside begin and wait"));
    good_steps(&j, 1);
    close_job(&j);
}

static void refused_calls_change_nothing(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(RANKS, NULL, refused_body, NULL);
}

static tutti_status steps_until_failed(tt_rank *r)
{
    tutti_status status = TUTTI_OK;
    uint32_t todo;

    for (int i = 0; i < 120000 && status == TUTTI_OK; i++) {
        status = tutti_step(r->ctx, i, &todo);
        tt_sleep_ns(1000000);
    }
    return status;
}

/* With as many good steps done as the rank's argument says, all ranks here. */
static bool open_and_step(job *j, tt_rank *r)
{
    open_job(j, r);
    if (!r->failed)
        good_steps(j, *(const int *)r->arg);
    if (r->failed)
        return false;
    tt_all_here(r);
    return true;
}

static void missing_body(tt_rank *r)
{
    tutti_status status;
    char text[1024];
    job j;

    if (!open_and_step(&j, r))
        return;
    status = step(&j, 1, r->rank == 1 ? 2 : -1);
    TT_EXPECT(r, r->rank != 1 || (status == TUTTI_ERR_MISSING && says("\"w2\"")));
    if (status == TUTTI_OK)
        status = steps_until_failed(r);
    TT_EXPECT(r, status == TUTTI_ERR_MISSING || status == TUTTI_ERR_REMOTE);
    TT_EXPECT(r, tutti_ctx_error(r->ctx, text, sizeof text) == status);
    TT_EXPECT(r,
              strstr(text, "\"w2\"") != NULL && (r->rank == 1 || strstr(text, "rank 1") != NULL));
    close_job(&j);
    r->ctx = NULL; /* failed on purpose */
}

static void a_gradient_never_ready_is_named_everywhere(void **state)
{
    (void)state;
    for (int good = 0; good < 3; good += 2)
        TT_ASSERT_RANKS(RANKS, NULL, missing_body, &good);
}

/* Rank 1 takes two micro-steps where rank 0 takes one, and both go on as if nothing was. */
static void micros_body(tt_rank *r)
{
    tutti_status status = TUTTI_OK;
    char text[1024];
    job j;

    if (!open_and_step(&j, r))
        return;
    status = step(&j, 1 + r->rank, -1);
    if (status == TUTTI_OK)
        status = tutti_stream_sync(r->ctx, j.stream);
    if (status == TUTTI_OK)
        status = step(&j, 1, -1);
    TT_EXPECT(r, status == TUTTI_ERR_MISMATCH || status == TUTTI_ERR_REMOTE);
    TT_EXPECT(r, tutti_ctx_error(r->ctx, text, sizeof text) != TUTTI_OK);
    TT_EXPECT(r, strstr(text, "number of micro-steps") != NULL);
    TT_EXPECT(r, strstr(text, "2 on rank 1, 1 on rank 0") != NULL);
    close_job(&j);
    r->ctx = NULL; /* failed on purpose */
}

static void different_micro_steps_are_found_in_any_step(void **state)
{
    (void)state;
    for (int good = 0; good <= 6; good += 3)
        TT_ASSERT_RANKS(RANKS, NULL, micros_body, &good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_calls_change_nothing),
        cmocka_unit_test(a_gradient_never_ready_is_named_everywhere),
        cmocka_unit_test(different_micro_steps_are_found_in_any_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
