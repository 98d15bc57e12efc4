/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of two 16-bit types, rounded once: every instruction set against plain C, which t_kernels.c
 * compares with an independent reference.
 */
#include "tt_test.h"

#include "host/kernels_loops.h"

/* Every 16-bit value, plus one of each exponent from its own down to where it is lost, and plus
 * every value that is special: all ways to round, near the cache and past it, as fp32 and scaled.
 */
static void sums_of_every_half(void **state)
{
    enum { N = 65536, SHIFTS = 12 };
    static const uint16_t special[] = {
        0,      0x8000, 0x7f80, 0xff80, 0x7c00, 0xfc00, 0x7fc1, 0xffff, 0x7e01, 0x7f81, 1,
        0x8001, 0x7f,   0x80,   0x8080, 0x3ff,  0x400,  0x7bff, 0x7f7f, 0xff7f, 0x3f80, 0x3c00};
    enum { ROUNDS = SHIFTS + sizeof special / sizeof *special };
    static uint16_t a[N], b[N], expected_half[N], out[2][N] __attribute__((aligned(64)));
    static float wide[2][N];
    const tt_operand in[2] = {{a, false}, {b, false}};
    size_t n_loops;
    const tt_loops *const *loops = tt_loops_here(&n_loops);
    tt_rng rng = {4};
    tt_tree tree;

    (void)state;
    assert_int_equal(tt_tree_balanced(0, 2, &tree), TUTTI_OK);
    for (size_t t = 0; t < 4 * (size_t)ROUNDS; t++) {
        const tt_half kind = t % 2 == 0 ? TT_HALF_BF16 : TT_HALF_F16;
        const size_t round = t / 4;
        const int mantissa = kind == TT_HALF_BF16 ? 7 : 10, divisor = t / 2 % 2 == 0 ? 1 : 3;
        const tt_half_loops *plain = &loops[0]->half[kind];
        for (size_t i = 0; i < N; i++) {
            const unsigned less = (unsigned)round << mantissa, size = (unsigned)i & 0x7fff;
            const unsigned near = (size < less ? 0 : size - less) ^ (tt_rand(&rng) & 0x7f);
            a[i] = (uint16_t)i;
            b[i] = (uint16_t)(round < SHIFTS ? near | (tt_rand(&rng) & 0x8000)
                                             : special[round - SHIFTS]);
        }
        plain->sum_inner(&(tt_loop_args){wide[0], a, b, N, 1, NULL});
        plain->narrow(&(tt_loop_args){expected_half, wide[0], NULL, N, divisor, NULL});
        for (size_t i = 0; i < n_loops; i++) {
            const tt_reduce_job job = {
                &tree,     in,     N,      kind == TT_HALF_BF16 ? TUTTI_BFLOAT16 : TUTTI_FLOAT16,
                TUTTI_SUM, out[0], out[1], false,
                divisor};
            loops[i]->half[kind].sum_last(&(tt_loop_args){out[0], a, b, N, divisor, NULL});
            assert_memory_equal(out[0], expected_half, sizeof expected_half);
            loops[i]->half[kind].sum_inner(&(tt_loop_args){wide[1], a, b, N, 1, NULL});
            loops[i]->half[kind].narrow(&(tt_loop_args){out[1], wide[1], NULL, N, divisor, NULL});
            assert_memory_equal(out[1], expected_half, sizeof expected_half);
            if (tt_reduce_past_with(loops[i], &job)) {
                tt_copy_past_cache_end();
                assert_memory_equal(out[0], expected_half, sizeof expected_half);
                assert_memory_equal(out[1], expected_half, sizeof expected_half);
            }
        }
    }
    tt_tree_free(&tree);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_every_half),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
