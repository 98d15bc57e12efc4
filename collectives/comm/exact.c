/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/exact.h"

#include <math.h>
#include <string.h>

enum { LANES = 8 };

void tt_exact_add(int64_t *sum, double x)
{
    uint64_t bits, m, low, high;
    unsigned exponent, shift;
    int64_t sign, *at;

    memcpy(&bits, &x, sizeof bits);
    exponent = bits >> 52 & 0x7ff;
    m = bits & ((UINT64_C(1) << 52) - 1);
    if (exponent == 0x7ff) {
        sum[TT_EXACT_BAD]++;
        return;
    }
    if (exponent > 0)
        m |= UINT64_C(1) << 52;
    else
        exponent = 1;
    at = sum + (exponent - 1) / 32;
    shift = (exponent - 1) % 32;
    low = (m & 0xffffffff) << shift;
    high = (m >> 32) << shift;
    sign = (bits >> 63) != 0 ? -1 : 1;
    at[0] += sign * (int64_t)(low & 0xffffffff);
    at[1] += sign * (int64_t)((low >> 32) + (high & 0xffffffff));
    at[2] += sign * (int64_t)(high >> 32);
}

void tt_exact_carry(int64_t *sum)
{
    for (int i = 0; i + 1 < TT_EXACT_DIGITS; i++) {
        int64_t rest = sum[i] & 0xffffffff;
        sum[i + 1] += (sum[i] - rest) / (INT64_C(1) << 32);
        sum[i] = rest;
    }
}

double tt_exact_get(const int64_t *sum)
{
    int64_t digit[TT_EXACT_WORDS];
    double value = 0, sign = 1;
    int top = TT_EXACT_DIGITS - 1;

    if (sum[TT_EXACT_BAD] != 0)
        return NAN;
    memcpy(digit, sum, sizeof digit);
    tt_exact_carry(digit);
    if (digit[top] < 0) {
        sign = -1;
        for (int i = 0; i < TT_EXACT_DIGITS; i++)
            digit[i] = -digit[i];
        tt_exact_carry(digit);
    }
    while (top > 0 && digit[top] == 0)
        top--;
    for (int i = top > 3 ? top - 3 : 0; i <= top; i++)
        value += ldexp((double)digit[i], 32 * i - 1074);
    return sign * value;
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
