/* SPDX-License-Identifier: Apache-2.0 */
/* Many small random calls of thread ranks. t_coll_small [batches [first seed]] */
#include "coll_random.h"

static long batches = 4200; /* of 1 to 4 calls: more than 10,000 */
static uint64_t first_seed = 1;

static void body(tt_rank *r)
{
    random_calls(r, r->arg);
}

static void small_calls(void **state)
{
    static const int ranks[] = {2, 3};
    (void)state;
    for (size_t i = 0; i < sizeof ranks / sizeof ranks[0]; i++) {
        random_world w = {.chunk_bytes = 1024,
                          .seed = first_seed + i,
                          .batches = batches / 2,
                          .inline_only = true,
                          .lane = 2048};
        setenv("TUTTI_CHUNK_BYTES", "1K", 1);
        TT_ASSERT_RANKS(ranks[i], NULL, body, &w);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(small_calls)};
    if (argc > 1)
        batches = strtol(argv[1], NULL, 10);
    if (argc > 2)
        first_seed = strtoull(argv[2], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
