/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every kind with every type, operator, kind of memory, in place and not, at the sizes where
 * something changes; and what holds between runs: the same bits on every layout (reproducible), and
 * whatever the memory, the size of a piece and the stream (normal).
 */
#include "coll_case.h"
#include "core/hash.h"
#include "tt_memory.h"

enum { LANE = 16384, CHUNK = 1024 };

static bool few; /* every third of the sizes: for simulated GPUs, where a call costs more */

static bool run_case(tt_rank *r, const coll_case *c, const team *t, const lane *l)
{
    tutti_stream s;
    tutti_status status = tt_first_stream(r->ctx, &s);
    if (status == TUTTI_OK)
        status = case_issue(c, t, l, s);
    if (status == TUTTI_OK)
        status = tutti_stream_sync(r->ctx, s);
    tutti_stream_destroy(r->ctx, s);
    if (status == TUTTI_OK)
        return case_check(r, c, t, l);
    tt_say(r, "%s", tutti_last_error());
    return false;
}

static bool run_sizes(tt_rank *r, coll_case c, const team *t, const lane *l)
{
    const size_t element = tutti_dtype_size(c.dtype), piece = CHUNK / element,
                 size = (size_t)t->size;
    const size_t sizes[] = {0, 1, size - 1, size, size + 1, piece / size, piece - 1, piece + 1};
    const size_t room = (LANE / 2 - 512) / element / size;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i += few ? 3 : 1) {
        c.n = sizes[i] < room ? sizes[i] : room;
        c.seed += 7;
        c.memory = (case_memory)(c.seed / 7 % 3);
        c.in_place = c.seed / 21 % 2 == 0;
        c.shift = c.seed / 42 % 2 == 0 ? 0 : 1 + (int)(c.seed % 60);
        c.root = (int)(c.seed % size);
        if (!run_case(r, &c, t, l))
            return false;
    }
    return true;
}

static bool run_kinds(tt_rank *r, const team *t, const lane *l)
{
    coll_case c = {.seed = 1};
    for (c.kind = TT_ALL_REDUCE; c.kind < TT_RECV; c.kind++) {
        bool has_v =
            c.kind == TT_REDUCE_SCATTER || c.kind == TT_ALL_GATHER || c.kind == TT_ALL_TO_ALL;
        int ops = tt_is_reduction(c.kind) ? TUTTI_PROD : 1;
        for (c.dtype = TUTTI_FLOAT32; c.dtype <= TUTTI_UINT64; c.dtype++)
            for (c.op = TUTTI_SUM; (int)c.op <= ops; c.op++)
                for (int v = 0; v <= has_v; v++) {
                    c.v = v == 1;
                    c.values = c.op == TUTTI_PROD ? REF_PRODUCT : REF_ROUGH;
                    if (!run_sizes(r, c, t, l))
                        return false;
                    c.seed += 101;
                }
    }
    return true;
}

static void make_team(tt_rank *r, const char *nodes, bool reproducible, team *t)
{
    tutti_comm_opts opts = TUTTI_COMM_OPTS_INIT;
    *t = (team){.size = r->size, .rank = r->rank, .reproducible = reproducible};
    opts.flags = reproducible ? TUTTI_COMM_REPRODUCIBLE : 0;
    opts.name = "team";
    ref_nodes(nodes, r->size, t->node);
    for (int i = 0; i < r->size; i++)
        t->world[i] = i;
    TT_EXPECT_OK(r, tutti_comm_split(r->comm, 0, 0, &opts, &t->comm));
    TT_EXPECT(r, strcmp(tutti_comm_name(t->comm), "team") == 0);
}

static void kinds_body(tt_rank *r)
{
    lane lanes[LANES];
    if (!lanes_create(r, LANE, lanes))
        return;
    for (int reproducible = 0; reproducible < 2; reproducible++) {
        team t;
        make_team(r, r->arg, reproducible == 1, &t);
        if (r->failed || !run_kinds(r, &t, &lanes[0]))
            tutti_abort(r->ctx, 1, r->message);
        tutti_comm_destroy(t.comm);
    }
    lanes_destroy(r, lanes);
}

static void all_kinds(void **state)
{
    static char uneven[] = "3,1";
    (void)state;
    setenv("TUTTI_CHUNK_BYTES", "1K", 1);
    TT_ASSERT_RANKS(3, NULL, kinds_body, NULL);
    TT_ASSERT_RANKS(4, uneven, kinds_body, uneven);
}

/* What one run computes: the hash of an all_reduce of values whose order matters. */
typedef struct one_run {
    const char *nodes;
    bool reproducible, stream;
    case_memory memory;
    uint64_t hash;
} one_run;

static void hash_body(tt_rank *r)
{
    one_run *run = r->arg;
    lane lanes[LANES];
    team t;
    tutti_stream s;
    coll_case c = {.kind = TT_ALL_REDUCE,
                   .dtype = TUTTI_BFLOAT16,
                   .op = TUTTI_AVG,
                   .n = 3001,
                   .memory = run->memory,
                   .values = REF_ROUGH,
                   .seed = 5};
    if (!lanes_create(r, LANE, lanes))
        return;
    make_team(r, run->nodes, run->reproducible, &t);
    TT_EXPECT_OK(r, run->stream ? tutti_stream_create(r->ctx, "s", 0, &s)
                                : tt_first_stream(r->ctx, &s));
    TT_EXPECT_OK(r, case_issue(&c, &t, &lanes[0], s));
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, s));
    case_check(r, &c, &t, &lanes[0]);
    if (r->rank == 0)
        run->hash = tt_hash64(lanes[0].shadow + LANE / 2, LANE / 2, 0);
    tutti_stream_destroy(r->ctx, s);
    tutti_comm_destroy(t.comm);
    lanes_destroy(r, lanes);
}

static uint64_t hash_of(const char *chunk, one_run run)
{
    setenv("TUTTI_CHUNK_BYTES", chunk, 1);
    TT_ASSERT_RANKS(8, run.nodes, hash_body, &run);
    return run.hash;
}

static void same_bits(void **state)
{
    static const char *const layouts[] = {"8", "2x4", "4x2", "5,3", "1,6,1", "8x1"};
    uint64_t one = hash_of("256K", (one_run){.nodes = "8", .reproducible = true});
    (void)state;
    for (int i = 1; i < 6; i++)
        assert_true(one == hash_of("1K", (one_run){.nodes = layouts[i], .reproducible = true}));
    one = hash_of("256K", (one_run){.nodes = "5,3"});
    assert_true(one == hash_of("256K", (one_run){.nodes = "5,3", .memory = MEM_REGISTERED}));
    assert_true(one == hash_of("64", (one_run){.nodes = "5,3", .stream = true}));
    assert_true(
        one ==
        hash_of("3000", (one_run){.nodes = "5,3", .memory = MEM_REGISTERED, .stream = true}));
    assert_true(one != hash_of("3000", (one_run){.nodes = "4x2"})); /* the order does matter */
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_kinds), cmocka_unit_test(same_bits)};
    const struct CMUnitTest on_gpus[] = {cmocka_unit_test(all_kinds)};

    few = argc > 1 && strcmp(argv[1], "few") == 0;
    if (few) /* the order of NCCL's sums is its own: no bits to compare */
        return cmocka_run_group_tests(on_gpus, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
