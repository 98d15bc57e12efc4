/* SPDX-License-Identifier: Apache-2.0 */
/* Random calls of thread ranks. t_coll_random [batches of each layout [first seed [ranks
 * [nodes]]]]: with ranks, on that one layout only. */
#include "coll_random.h"

typedef struct layout_case {
    int ranks;
    const char *nodes, *chunk;
    int way; /* between nodes */
} layout_case;
enum { AUTO, DIRECT, HALVING, DOUBLING, WAYS };
static const char *const ways[WAYS] = {"auto", "direct", "halving", "doubling"};

static const layout_case layouts[] = {
    {1, NULL, "256K", AUTO},         {2, NULL, "4K", AUTO},       {2, "1,1", "1K", DIRECT},
    {3, NULL, "100", AUTO},          {3, "2,1", "4K", AUTO},      {4, NULL, "2K", AUTO},
    {4, "2x2", "1K", AUTO},          {4, "3,1", "4K", HALVING},   {4, "4x1", "512", HALVING},
    {7, NULL, "4K", AUTO},           {7, "3,1,3", "8K", HALVING}, {8, "2x4", "4K", DOUBLING},
    {8, "2,2,1,2,1", "2K", HALVING}, {16, NULL, "8K", AUTO},      {16, "4x4", "16K", DOUBLING},
    {16, "7,1,8", "4K", DIRECT},
};

/* Sizes at which the collectives change their way, and instruction sets: layouts take turns. */
static const char *const switches[][5] = {
    {"0", "0", "0", "auto", "1"},     {"64", "64", "64", "plain", "0"},
    {"64", "16K", "64", "auto", "1"}, {"8K", "32K", "1K", "avx2", "0"},
    {"64", "64", "1G", "auto", "0"},
};

static long batches = 28; /* of each of the layouts: about 1000 calls in all */
static uint64_t first_seed = 1;
static layout_case only = {0, NULL, "4K", AUTO};

static void body(tt_rank *r)
{
    random_calls(r, r->arg);
}

static void choose_switches(uint64_t turn)
{
    static const char *const names[] = {"TUTTI_SMALL_BYTES", "TUTTI_CARRY_BYTES", "TUTTI_NT_BYTES",
                                        "TUTTI_SIMD", "TUTTI_CMA"};
    const char *const *value = switches[turn % (sizeof switches / sizeof switches[0])];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        setenv(names[i], value[i], 1);
}

/* How nodes exchange sums: another way with every first seed. */
static void choose_way(const layout_case *at, uint64_t turn)
{
    static const char *const lags[] = {"0", "1", "3"}, *const leaders[] = {"1", "0"};
    setenv("TUTTI_NODE_WAY", ways[((uint64_t)at->way + first_seed - 1) % WAYS], 1);
    setenv("TUTTI_NODE_LAG", lags[turn % 3], 1);
    setenv("TUTTI_LEADER_BYTES", leaders[turn % 2], 1);
}

static void random_layouts(void **state)
{
    (void)state;
    size_t n = only.ranks > 0 ? 1 : sizeof layouts / sizeof layouts[0];
    for (size_t i = 0; i < n; i++) {
        const layout_case *at = only.ranks > 0 ? &only : &layouts[i];
        char *unit;
        random_world w = {.nodes = at->nodes,
                          .chunk_bytes = strtoul(at->chunk, &unit, 10),
                          .seed = first_seed + i,
                          .batches = batches};
        if (*unit == 'K')
            w.chunk_bytes *= 1024;
        setenv("TUTTI_CHUNK_BYTES", at->chunk, 1);
        choose_switches(first_seed - 1 + i);
        choose_way(at, first_seed - 1 + i);
        TT_ASSERT_RANKS(at->ranks, at->nodes, body, &w);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(random_layouts)};
    if (argc > 1)
        batches = strtol(argv[1], NULL, 10);
    if (argc > 2)
        first_seed = strtoull(argv[2], NULL, 10);
    if (argc > 3)
        only.ranks = (int)strtol(argv[3], NULL, 10);
    if (argc > 4)
        only.nodes = argv[4];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
