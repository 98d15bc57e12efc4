/* SPDX-License-Identifier: Apache-2.0 */
#include "with_boot.h"

#include "core/clock.h"

static const int sizes[] = {1, 2, 3, 4, 7, 8, 16};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* Every rank can tell what every other brought in a round. */
static size_t blob_size(uint64_t seed, int round, int rank)
{
    tt_rng rng = {seed + (uint64_t)round * 1000 + (uint64_t)rank};
    static const size_t kinds[] = {0, 1, 100, 1000, 1001, 5000, 70000};
    size_t limit = kinds[tt_rand_below(&rng, sizeof kinds / sizeof kinds[0])];
    return limit == 0 ? 0 : tt_rand_below(&rng, limit + 1);
}

static unsigned char blob_byte(int round, int rank, size_t at)
{
    return (unsigned char)(at * 7 + (size_t)round * 13 + (size_t)rank * 31);
}

static bool blob_right(const tt_blobs *blobs, uint64_t seed, int round, int rank)
{
    const unsigned char *data = tt_blob(blobs, rank);
    size_t bytes = tt_blob_bytes(blobs, rank);
    if (bytes != blob_size(seed, round, rank))
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (data[i] != blob_byte(round, rank, i))
            return false;
    return true;
}

static void gather_rounds(tt_rank *r)
{
    uint64_t seed = *(uint64_t *)r->arg;
    unsigned char *mine = malloc(70001);
    for (int round = 0; round < 12; round++) {
        size_t bytes = blob_size(seed, round, r->rank);
        tt_blobs all;
        for (size_t i = 0; i < bytes; i++)
            mine[i] = blob_byte(round, r->rank, i);
        tutti_status status = tt_all_gather_blobs(&r->ctx->world, "test", mine, bytes, &all);
        if (status != TUTTI_OK) {
            tt_say(r, "round %d: %s", round, tutti_last_error());
            break;
        }
        for (int k = 0; k < r->size; k++)
            if (all.n != r->size || !blob_right(&all, seed, round, k))
                tt_say(r, "round %d: wrong blob of rank %d", round, k);
        tt_blobs_free(&all);
    }
    free(mine);
}

static void gathers_random_blobs(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < SIZES; i++) {
        uint64_t seed = 77 + i;
        on_ranks(sizes[i], NULL, gather_rounds, &seed);
    }
}

static void broadcast_from_all(tt_rank *r)
{
    for (int root = 0; root < r->size; root++) {
        size_t bytes = root % 3 == 0 ? 0 : (size_t)root * 3000;
        unsigned char *mine = calloc(1, bytes + 1);
        tt_buf got = {0};
        memset(mine, r->rank + 1, bytes);
        tutti_status status = tt_bcast_blob(&r->ctx->world, "bcast", root, mine, bytes, &got);
        bool right = status == TUTTI_OK && got.size == bytes;
        for (size_t i = 0; right && i < bytes; i++)
            right = got.data[i] == root + 1;
        free(mine);
        tt_buf_free(&got);
        TT_EXPECT(r, right);
    }
}

static void broadcasts_from_every_root(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++)
        on_ranks(sizes[i], NULL, broadcast_from_all, NULL);
}

static void agree_with_failures(tt_rank *r)
{
    tt_group *world = &r->ctx->world;
    char want[64];
    TT_EXPECT_OK(r, tt_agree(world, "all well", TUTTI_OK));
    for (int bad = 0; bad < r->size; bad++) {
        /* the lowest status wins, its rank is named */
        tutti_status mine = TUTTI_OK;
        if (r->rank == bad)
            mine = tt_fail(TUTTI_ERR_NO_MEMORY, "no room on %d", bad);
        else if (r->rank == (bad + 1) % r->size)
            mine = tt_fail(TUTTI_ERR_ARG, "odd argument");
        TT_EXPECT(r, tt_agree(world, "one fails", mine) == TUTTI_ERR_NO_MEMORY);
        snprintf(want, sizeof want, "rank %d ", bad);
        TT_EXPECT(r, r->size == 1 || strstr(tutti_last_error(), want) == tutti_last_error());
        snprintf(want, sizeof want, "no room on %d", bad);
        TT_EXPECT(r, strstr(tutti_last_error(), want) != NULL);
    }
    TT_EXPECT_OK(r, tutti_ctx_error(r->ctx, NULL, 0));
}

static void agreements_name_the_worst(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZES; i++)
        on_ranks(sizes[i], NULL, agree_with_failures, NULL);
}

static void fixed_sizes_differ(tt_rank *r)
{
    uint64_t mine = (uint64_t)r->rank, all[16];
    TT_EXPECT_OK(r, tt_all_gather_fixed(&r->ctx->world, "equal", &mine, sizeof mine, all));
    for (int i = 0; i < r->size; i++)
        TT_EXPECT(r, all[i] == (uint64_t)i);
    tutti_status status =
        tt_all_gather_fixed(&r->ctx->world, "unequal", &mine, r->rank == 2 ? 4 : 8, all);
    TT_EXPECT(r, status == TUTTI_ERR_MISMATCH);
    TT_EXPECT(r, strstr(tutti_last_error(), "rank 2 4") != NULL);
    TT_EXPECT(r, tutti_ctx_error(r->ctx, NULL, 0) == TUTTI_ERR_MISMATCH);
    r->ctx = NULL;
}

static void different_calls(tt_rank *r)
{
    tutti_status status = r->rank == 1 ? tt_agree(&r->ctx->world, "saving", TUTTI_OK)
                                       : tt_barrier(&r->ctx->world, "loading");
    TT_EXPECT(r, status == TUTTI_ERR_MISMATCH);
    TT_EXPECT(r, strstr(tutti_last_error(), "saving") != NULL);
    TT_EXPECT(r, strstr(tutti_last_error(), "loading") != NULL);
    r->ctx = NULL;
}

static void mismatches_fail_everywhere(void **state)
{
    (void)state;
    on_ranks(4, NULL, fixed_sizes_differ, NULL);
    on_ranks(3, NULL, different_calls, NULL);
}

static void group_ids(tt_rank *r)
{
    uint32_t first, second;
    TT_EXPECT_OK(r, tt_group_new_ids(&r->ctx->world, 3, &first));
    TT_EXPECT_OK(r, tt_group_new_ids(&r->ctx->world, 1, &second));
    TT_EXPECT(r, first >= 1 && second == first + 3);
}

static void ids_do_not_repeat(void **state)
{
    (void)state;
    on_ranks(5, NULL, group_ids, NULL);
}

static _Atomic int finished;

static void absent_ranks(tt_rank *r)
{
    const int *absent = r->arg; /* ends with -1 */
    for (int i = 0; absent[i] >= 0; i++)
        if (r->rank == absent[i]) {
            while (atomic_load(&finished) < 6)
                tt_sleep_ns(1000000);
            r->ctx = NULL;
            return;
        }
    char text[TT_ERROR_TEXT_MAX];
    tutti_status status = tt_barrier(&r->ctx->world, "meeting");
    atomic_fetch_add(&finished, 1);
    TT_EXPECT(r, status == TUTTI_ERR_TIMEOUT);
    /* another rank may have said it first: "rank 6 (...): meeting: rank 4 ... not arrived ..." */
    const char *from = strstr(tutti_last_error(), "meeting: ");
    TT_EXPECT(r, from != NULL && strstr(from, " not arrived") != NULL);
    snprintf(text, sizeof text, "%.*s", (int)(strstr(from, " not arrived") - from), from);
    for (int i = 0; i < r->size; i++) {
        char want[32];
        bool missing = false;
        for (int k = 0; absent[k] >= 0; k++)
            missing = missing || absent[k] == i;
        snprintf(want, sizeof want, "rank %d (", i);
        TT_EXPECT(r, (strstr(text, want) != NULL) == missing);
    }
    r->ctx = NULL;
}

static void missing_ranks_are_named(void **state)
{
    int inner_and_leaf[] = {4, 7, -1};
    (void)state;
    setenv("TUTTI_TIMEOUT", "5", 1);
    setenv("TUTTI_LOG", "error", 1);
    on_ranks(8, NULL, absent_ranks, inner_and_leaf);
    unsetenv("TUTTI_LOG");
    unsetenv("TUTTI_TIMEOUT");
}

/* One comes when another has just given up. */
static void too_late(tt_rank *r)
{
    while (r->rank == 2 && atomic_load(&finished) == 0)
        tt_sleep_ns(1000000);
    tutti_status status = tt_barrier(&r->ctx->world, "meeting");
    const char *text = tutti_last_error();
    atomic_fetch_add(&finished, 1);
    r->ctx = NULL;
    TT_EXPECT(r, status == TUTTI_ERR_TIMEOUT);
    TT_EXPECT(r,
              strstr(text, "rank 2 (") != NULL || strstr(text, "this rank came too late") != NULL);
}

static void late_ranks_are_named(void **state)
{
    (void)state;
    setenv("TUTTI_TIMEOUT", "5", 1);
    setenv("TUTTI_LOG", "error", 1);
    atomic_store(&finished, 0);
    on_ranks(4, NULL, too_late, NULL);
    unsetenv("TUTTI_LOG");
    unsetenv("TUTTI_TIMEOUT");
}

/* One has skipped an exchange, so the numbers differ before any record is complete. */
static void skipped(tt_rank *r)
{
    int odd = *(const int *)r->arg;
    bool is_odd = r->rank == odd;
    char want[32];
    if (!is_odd)
        r->ctx->world.round[TT_CH_CONTROL]++;
    tutti_status status = tt_barrier(&r->ctx->world, is_odd ? "leaving" : "meeting");
    r->ctx = NULL;
    TT_EXPECT(r, status == TUTTI_ERR_MISMATCH);
    TT_EXPECT(r, strstr(tutti_last_error(), " in leaving") != NULL);
    TT_EXPECT(r, strstr(tutti_last_error(), " in meeting") != NULL);
    snprintf(want, sizeof want, "rank %d (", odd);
    TT_EXPECT(r, strstr(tutti_last_error(), want) != NULL);
}

static void other_calls_are_named(void **state)
{
    (void)state;
    for (int odd = 0; odd < 3; odd++)
        on_ranks(3, NULL, skipped, &odd);
}

static void absent_root(tt_rank *r)
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tutti_ctx *ctx = NULL;
    if (r->rank == 0)
        return;
    opts.threads = r->threads;
    opts.rank = r->rank;
    TT_EXPECT(r, tt_context_create(&opts, &ctx) == TUTTI_ERR_TIMEOUT);
    TT_EXPECT(r, ctx == NULL);
    TT_EXPECT(r, strstr(tutti_last_error(), "rank 0 has not arrived") != NULL);
}

static void init_names_who_never_came(void **state)
{
    (void)state;
    setenv("TUTTI_INIT_TIMEOUT", "5", 1);
    assert_string_equal(tt_threads_run(3, NULL, absent_root, NULL), "");
    unsetenv("TUTTI_INIT_TIMEOUT");
}

static void places(tt_rank *r)
{
    static const int node[] = {0, 0, 0, 1, 2, 2, 2, 2}, local[] = {0, 1, 2, 0, 0, 1, 2, 3};
    static const int on_node[] = {3, 1, 4};
    TT_EXPECT(r, tutti_node(r->ctx) == node[r->rank] && tutti_node_count(r->ctx) == 3);
    TT_EXPECT(r, tutti_local_rank(r->ctx) == local[r->rank]);
    TT_EXPECT(r, tutti_local_size(r->ctx) == on_node[node[r->rank]]);
    TT_EXPECT(r, tutti_device(r->ctx) == -1);
}

static void fake_nodes_are_nodes(void **state)
{
    static const char *const bad[] = {"2x3", "0x8", "2x", "x", "3,1,5", "8,0", "-8", "4,4x", "8,"};
    tutti_threads *threads = NULL;
    (void)state;
    on_ranks(8, "3,1,4", places, NULL);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        setenv("TUTTI_NODES", bad[i], 1);
        assert_int_equal(tutti_threads_create(8, &threads), TUTTI_ERR_ARG);
        assert_non_null(strstr(tutti_last_error(), bad[i]));
    }
    unsetenv("TUTTI_NODES");
    assert_int_equal(tutti_threads_create(0, &threads), TUTTI_ERR_ARG);
    assert_int_equal(tutti_threads_create(1025, &threads), TUTTI_ERR_ARG);
    assert_null(threads);
    tutti_threads_destroy(NULL);
}

static void bad_environment(tt_rank *r)
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tutti_ctx *ctx = NULL;
    opts.threads = r->threads;
    opts.rank = r->rank;
    opts.flags = r->rank == 1 ? 0x8000 : 0;
    TT_EXPECT(r, tt_context_create(&opts, &ctx) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "rank 1: tutti_init: unknown bits") != NULL);
    opts.flags = TUTTI_INIT_NO_SIGNALS; /* the same threads may try again */
    TT_EXPECT_OK(r, tt_context_create(&opts, &ctx));
    TT_EXPECT_OK(r, tt_barrier(&ctx->world, "after all"));
    tt_context_destroy(ctx);
}

static void different_modes(tt_rank *r)
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tutti_ctx *ctx = NULL;
    opts.threads = r->threads;
    opts.rank = r->rank;
    opts.flags = r->rank == 2 ? TUTTI_INIT_REPRODUCIBLE : 0;
    TT_EXPECT(r, tt_context_create(&opts, &ctx) == TUTTI_ERR_MISMATCH);
    TT_EXPECT(r, strstr(tutti_last_error(), "local rank 2) has the reproducible mode on, rank 0 "
                                            "off") != NULL);
}

static const char *const bad_settings[][2] = {{"TUTTI_CKPT_BLOCK_BYTES", "1"},
                                              {"TUTTI_CKPT_BLOCK_BYTES", "5000"},
                                              {"TUTTI_CKPT_BLOCK_BYTES", "2G"},
                                              {"TUTTI_CHUNK_BYTES", "2G"},
                                              {"TUTTI_SPIN_US", "2000000"}};

static void no_context(tt_rank *r)
{
    size_t which = *(const size_t *)r->arg;
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tutti_ctx *ctx = NULL;
    opts.threads = r->threads;
    opts.rank = r->rank;
    TT_EXPECT(r, tt_context_create(&opts, &ctx) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), bad_settings[which][0]) != NULL);
}

/* At init, not where the value is first needed: a save may come an hour later. */
static void settings_are_checked_at_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof bad_settings / sizeof bad_settings[0]; i++) {
        setenv(bad_settings[i][0], bad_settings[i][1], 1);
        assert_string_equal(tt_threads_run(2, NULL, no_context, &i), "");
        unsetenv(bad_settings[i][0]);
    }
}

static void bad_options_fail_on_all(void **state)
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tutti_ctx *ctx = NULL;
    (void)state;
    assert_string_equal(tt_threads_run(4, NULL, bad_environment, NULL), "");
    assert_string_equal(tt_threads_run(3, NULL, different_modes, NULL), "");
    opts.size = 8;
    assert_int_equal(tt_context_create(&opts, &ctx), TUTTI_ERR_ARG);
    opts = (tutti_init_opts)TUTTI_INIT_OPTS_INIT;
    opts.boot = TUTTI_BOOT_THREADS;
    assert_int_equal(tt_context_create(&opts, &ctx), TUTTI_ERR_ARG);
    assert_null(ctx);
}

/* Messages of two channels, of any source, longer than the room, and given up. */
static void point_to_point(tt_rank *r)
{
    tt_boot *boot = r->ctx->boot;
    enum { BIG = 100000 };
    unsigned char *big = calloc(1, BIG);
    char small[8] = "";
    tt_req req[2] = {{0}};
    size_t bytes = 0;
    bool done = false;
    memset(big, r->rank == 0 ? 9 : 0, BIG);
    if (r->rank == 0) {
        TT_EXPECT_OK(r, boot->ops->isend(boot, TT_CH_DATA, 1, 5, big, BIG, &req[0]));
        TT_EXPECT_OK(r, boot->ops->isend(boot, TT_CH_P2P, 1, 5, "p2p", 4, &req[1]));
        TT_EXPECT_OK(r, tt_req_wait(r->ctx, &req[1], &r->ctx->caller_patience, "p2p", NULL));
        TT_EXPECT_OK(r, tt_req_wait(r->ctx, &req[0], &r->ctx->caller_patience, "data", NULL));
        TT_EXPECT_OK(r, boot->ops->isend(boot, TT_CH_P2P, 1, 6, big, BIG, &req[0]));
        boot->ops->cancel(boot, &req[0]); /* nobody received it */
        TT_EXPECT_OK(r, boot->ops->isend(boot, TT_CH_P2P, 1, 7, big, 64, &req[0]));
    } else {
        tt_wait wait;
        int source = -1;
        TT_EXPECT_OK(r, boot->ops->irecv(boot, TT_CH_P2P, TT_ANY, 5, small, 8, &req[0]));
        tt_wait_begin(&wait, &r->ctx->caller_patience);
        while (!done) {
            TT_EXPECT_OK(r, boot->ops->test(boot, &req[0], &done, &bytes, &source));
            if (!done)
                tt_wait_once(&wait, NULL, 0);
        }
        TT_EXPECT(r, bytes == 4 && source == 0 && strcmp(small, "p2p") == 0);
        TT_EXPECT_OK(r, boot->ops->irecv(boot, TT_CH_DATA, 0, 5, big, BIG, &req[1]));
        TT_EXPECT_OK(r, tt_req_wait(r->ctx, &req[1], &r->ctx->caller_patience, "data", &bytes));
        TT_EXPECT(r, bytes == BIG && big[0] == 9 && big[BIG - 1] == 9);
        TT_EXPECT_OK(r, boot->ops->irecv(boot, TT_CH_P2P, 0, 7, small, 8, &req[0]));
        TT_EXPECT(r, tt_req_wait(r->ctx, &req[0], &r->ctx->caller_patience, "long", NULL) ==
                         TUTTI_ERR_MISMATCH);
        TT_EXPECT_OK(r, boot->ops->irecv(boot, TT_CH_P2P, 0, 99, small, 8, &req[0]));
        boot->ops->cancel(boot, &req[0]);
    }
    free(big);
}

static void messages_go_their_ways(void **state)
{
    (void)state;
    on_ranks(2, NULL, point_to_point, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathers_random_blobs),
        cmocka_unit_test(broadcasts_from_every_root),
        cmocka_unit_test(agreements_name_the_worst),
        cmocka_unit_test(mismatches_fail_everywhere),
        cmocka_unit_test(ids_do_not_repeat),
        cmocka_unit_test(messages_go_their_ways),
        cmocka_unit_test(fake_nodes_are_nodes),
        cmocka_unit_test(bad_options_fail_on_all),
        cmocka_unit_test(settings_are_checked_at_once),
        cmocka_unit_test(missing_ranks_are_named),
        cmocka_unit_test(late_ranks_are_named),
        cmocka_unit_test(other_calls_are_named),
        cmocka_unit_test(init_names_who_never_came),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
