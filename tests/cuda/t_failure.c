/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures on the CUDA backend: t_cuda_failure CASE TEXT, the fault being in SIMGPU_FAULT where one
 * is made. Every wait ends, every rank is told, and leaving the job takes bounded time.
 *
 * stuck: both ranks make a call; late: rank 1 does not come; inside: rank 1 alone makes it, and the
 * fault keeps it inside NCCL; init: no communicator comes about.
 */
#include "tt_test.h"

#include "comm/comm.h"
#include "core/clock.h"

enum { N = 1000, RANKS = 2 };
static const char *expected; /* in the error's text */
static int absent = -1; /* the rank that does not make the call */

static tutti_ctx *join(tt_rank *r)
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    opts.threads = r->threads;
    opts.rank = r->rank;
    return tutti_init(&opts, &r->ctx) == TUTTI_OK ? r->ctx : NULL;
}

/* The context fails on every rank, whoever made the call that does not end. */
static void stuck(tt_rank *r)
{
    void *memory = NULL;
    tutti_stream s;
    char text[1024];
    TT_EXPECT(r, join(r) != NULL);
    tutti_comm *world = tutti_world(r->ctx);
    TT_EXPECT_OK(r, tutti_alloc(world, N * sizeof(float), &memory));
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "s", 0, &s));
    tutti_status status = TUTTI_OK;
    if (r->rank != absent)
        status = tutti_all_reduce(world, memory, memory, N, TUTTI_FLOAT32, TUTTI_SUM, s);
    if (status == TUTTI_OK)
        status = tutti_stream_sync(r->ctx, s);
    while (status == TUTTI_OK && r->rank == absent) { /* its own stream is empty */
        tt_sleep_ns(1000000);
        status = tutti_ctx_error(r->ctx, NULL, 0);
    }
    TT_EXPECT(r, status != TUTTI_OK);
    TT_EXPECT(r, tutti_ctx_error(r->ctx, text, sizeof text) != TUTTI_OK);
    if (strstr(text, expected) == NULL)
        tt_say(r, "\"%s\" is not in \"%s\"", expected, text);
    int64_t from = tt_now_ns();
    (void)!tutti_free(world, memory);
    TT_EXPECT(r, tutti_finalize(r->ctx) != TUTTI_OK);
    TT_EXPECT(r, tt_now_ns() - from < 60 * INT64_C(1000000000));
}

/* tutti_init fails alike on all ranks. */
static void refused(tt_rank *r)
{
    TT_EXPECT(r, join(r) == NULL);
    if (strstr(tutti_last_error(), expected) == NULL)
        tt_say(r, "\"%s\" is not in \"%s\"", expected, tutti_last_error());
}

static tt_body body;
static char *which;

static void fails_in_time(void **state)
{
    (void)state;
    assert_string_equal(tt_threads_run(RANKS, NULL, body, which), "");
}

/* A rank of an MPI job. */
static int alone(void)
{
    tt_rank r = {.rank = atoi(getenv("OMPI_COMM_WORLD_RANK")), .size = RANKS, .arg = which};
    body(&r);
    printf("rank %d: %s\n", r.rank, r.failed ? r.message : "told, and left");
    return r.failed;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(fails_in_time)};
    if (argc < 3)
        return 2;
    which = argv[1];
    expected = argv[2];
    if (strcmp(which, "late") == 0 || strcmp(which, "inside") == 0)
        absent = strcmp(which, "late") == 0 ? 1 : 0;
    body = strcmp(which, "init") == 0 ? refused : stuck;
    if (getenv("OMPI_COMM_WORLD_RANK") != NULL)
        return alone();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
