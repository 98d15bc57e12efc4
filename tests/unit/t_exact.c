/* SPDX-License-Identifier: Apache-2.0 */
/* Sums without rounding: against integers, in any order, over ranks. */
#include <math.h>

#include "comm/exact.h"
#include "tt_test.h"

static double random_double(tt_rng *rng, int spread)
{
    double x = (double)(int64_t)tt_rand(rng) * 0x1p-63;
    return ldexp(x, (int)tt_rand_below(rng, (uint64_t)spread) - spread / 2);
}

static void simple_sums(void **state)
{
    int64_t sum[TT_EXACT_WORDS] = {0};

    (void)state;
    assert_true(tt_exact_get(sum) == 0);
    tt_exact_add(sum, 1e300);
    tt_exact_add(sum, 3.5);
    tt_exact_add(sum, 0x1p-1074);
    tt_exact_add(sum, -1e300);
    assert_true(tt_exact_get(sum) == 3.5);
    tt_exact_add(sum, -3.5);
    assert_true(tt_exact_get(sum) == 0x1p-1074);
    tt_exact_add(sum, -0x1p-1074);
    tt_exact_add(sum, -7);
    assert_true(tt_exact_get(sum) == -7);
    tt_exact_add(sum, 7);
    assert_true(tt_exact_get(sum) == 0);
    for (int i = 0; i < 40; i++)
        tt_exact_add(sum, 0x1.fffffffffffffp1023);
    assert_true(isinf(tt_exact_get(sum)));
    tt_exact_add(sum, INFINITY);
    assert_true(isnan(tt_exact_get(sum)));
}

/* Any order, any cut into parts, any moment of carrying: the same digits. */
static void order_does_not_matter(void **state)
{
    enum { N = 4000, PARTS = 5 };
    static double x[N];
    tt_rng rng = {11};

    (void)state;
    for (int round = 0; round < 20; round++) {
        int64_t whole[TT_EXACT_WORDS] = {0}, part[PARTS][TT_EXACT_WORDS] = {{0}};
        int spread = 1 + 100 * round;
        for (int i = 0; i < N; i++)
            tt_exact_add(whole, x[i] = random_double(&rng, spread));
        for (int i = N - 1; i > 0; i--) {
            int k = (int)tt_rand_below(&rng, (uint64_t)i + 1);
            double kept = x[i];
            x[i] = x[k];
            x[k] = kept;
        }
        for (int i = 0; i < N; i++) {
            int64_t *to = part[tt_rand_below(&rng, PARTS)];
            tt_exact_add(to, x[i]);
            if (tt_rand_below(&rng, 50) == 0)
                tt_exact_carry(to);
        }
        for (int p = 1; p < PARTS; p++)
            for (int d = 0; d < TT_EXACT_WORDS; d++)
                part[0][d] += part[p][d];
        double a = tt_exact_get(whole), b = tt_exact_get(part[0]);
        assert_memory_equal(&a, &b, sizeof a);
        tt_exact_carry(whole);
        tt_exact_carry(part[0]);
        assert_memory_equal(whole, part[0], sizeof whole);
    }
}

static void right_to_the_last_bits(void **state)
{
    tt_rng rng = {12};

    (void)state;
    for (int round = 0; round < 200; round++) {
        int64_t sum[TT_EXACT_WORDS] = {0};
        __extension__ __int128 want = 0;
        for (int i = 0; i < 100; i++) {
            int64_t v = (int64_t)tt_rand(&rng) >> (11 + tt_rand_below(&rng, 40));
            tt_exact_add(sum, (double)v);
            want += v;
        }
        assert_true(fabs(tt_exact_get(sum) - (double)want) <= fabs((double)want) * 0x1p-52);
    }
}

static void squares(void **state)
{
    enum { N = 5000 };
    static float x[N];
    static double d[N];
    tt_rng rng = {13};

    (void)state;
    for (size_t n = 0; n < N; n = 2 * n + 1 + tt_rand_below(&rng, 7)) {
        int64_t whole[TT_EXACT_WORDS] = {0}, cut[TT_EXACT_WORDS] = {0}, wide[TT_EXACT_WORDS] = {0};
        long double want = 0;
        for (size_t i = 0; i < n; i++) {
            d[i] = x[i] = (float)random_double(&rng, 60);
            want += (long double)x[i] * (long double)x[i];
        }
        tt_exact_squares_f32(whole, x, n);
        tt_exact_squares_f64(wide, d, n);
        for (size_t at = 0, step; at < n; at += step) { /* at multiples of the block */
            step = TT_EXACT_BLOCK * (1 + tt_rand_below(&rng, 5));
            tt_exact_squares_f32(cut, x + at, n - at < step ? n - at : step);
        }
        tt_exact_carry(cut);
        assert_memory_equal(whole, cut, sizeof whole);
        assert_memory_equal(whole, wide, sizeof whole);
        assert_true(fabsl((long double)tt_exact_get(whole) - want) <= want * 1e-14L);
    }
    int64_t bad[TT_EXACT_WORDS] = {0};
    x[3] = NAN;
    tt_exact_squares_f32(bad, x, 10);
    assert_true(isnan(tt_exact_get(bad)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simple_sums),
        cmocka_unit_test(order_does_not_matter),
        cmocka_unit_test(right_to_the_last_bits),
        cmocka_unit_test(squares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
