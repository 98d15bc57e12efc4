/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/exact.h"

#include "comm/exact_body.h"

enum { LANES = 8 };

void tt_exact_add(int64_t *sum, double x)
{
    int64_t digit[3];
    unsigned first;

    if (!tt_exact_digits(x, digit, &first)) {
        sum[TT_EXACT_BAD]++;
        return;
    }
    for (int i = 0; i < 3; i++)
        sum[first + (unsigned)i] += digit[i];
}

void tt_exact_carry(int64_t *sum)
{
    tt_exact_carry_digits(sum);
}

double tt_exact_get(const int64_t *sum)
{
    return tt_exact_value(sum);
}

static double sum_lanes(const double *lane)
{
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) +
           ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

static double block_f32(const float *x, size_t n)
{
    double lane[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
        for (size_t k = 0; k < LANES; k++)
            lane[k] += (double)x[i + k] * (double)x[i + k];
    for (; i < n; i++)
        lane[i % LANES] += (double)x[i] * (double)x[i];
    return sum_lanes(lane);
}

static double block_f64(const double *x, size_t n)
{
    double lane[LANES] = {0};

    for (size_t i = 0; i < n; i++)
        lane[i % LANES] += x[i] * x[i];
    return sum_lanes(lane);
}

void tt_exact_squares_f32(int64_t *sum, const float *x, size_t n)
{
    for (size_t at = 0; at < n; at += TT_EXACT_BLOCK)
        tt_exact_add(sum, block_f32(x + at, n - at < TT_EXACT_BLOCK ? n - at : TT_EXACT_BLOCK));
    tt_exact_carry(sum);
}

void tt_exact_squares_f64(int64_t *sum, const double *x, size_t n)
{
    for (size_t at = 0; at < n; at += TT_EXACT_BLOCK)
        tt_exact_add(sum, block_f64(x + at, n - at < TT_EXACT_BLOCK ? n - at : TT_EXACT_BLOCK));
    tt_exact_carry(sum);
}
