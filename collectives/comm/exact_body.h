/* SPDX-License-Identifier: Apache-2.0 */
/* Exact sums (comm/exact.h), for the host and for GPUs: TT_EXACT_FN is `static inline` with what
 * the compiler needs in front. */
#ifndef TT_COMM_EXACT_BODY_H
#define TT_COMM_EXACT_BODY_H

#include <math.h>
#include <stdint.h>

#include "comm/exact.h"

#ifndef TT_EXACT_FN
#define TT_EXACT_FN static inline
#endif

/* A finite number as three digits behind digit *first_out; false if it is not finite. */
TT_EXACT_FN bool tt_exact_digits(double x, int64_t digit_out[3], unsigned *first_out)
{
    union {
        double value;
        uint64_t bits;
    } pun;
    uint64_t m, low, high;
    unsigned exponent, shift;
    int64_t sign;

    pun.value = x;
    exponent = (unsigned)(pun.bits >> 52) & 0x7ffu;
    m = pun.bits & ((UINT64_C(1) << 52) - 1);
    if (exponent == 0x7ff)
        return false;
    if (exponent > 0)
        m |= UINT64_C(1) << 52;
    else
        exponent = 1;
    *first_out = (exponent - 1) / 32;
    shift = (exponent - 1) % 32;
    low = (m & 0xffffffff) << shift;
    high = (m >> 32) << shift;
    sign = (pun.bits >> 63) != 0 ? -1 : 1;
    digit_out[0] = sign * (int64_t)(low & 0xffffffff);
    digit_out[1] = sign * (int64_t)((low >> 32) + (high & 0xffffffff));
    digit_out[2] = sign * (int64_t)(high >> 32);
    return true;
}

TT_EXACT_FN void tt_exact_carry_digits(int64_t *sum)
{
    for (int i = 0; i + 1 < TT_EXACT_DIGITS; i++) {
        int64_t rest = sum[i] & 0xffffffff;
        sum[i + 1] += (sum[i] - rest) / (INT64_C(1) << 32);
        sum[i] = rest;
    }
}

TT_EXACT_FN double tt_exact_value(const int64_t *sum)
{
    int64_t digit[TT_EXACT_WORDS];
    double value = 0, sign = 1;
    int top = TT_EXACT_DIGITS - 1;

    if (sum[TT_EXACT_BAD] != 0)
        return (double)NAN;
    for (int i = 0; i < TT_EXACT_WORDS; i++)
        digit[i] = sum[i];
    tt_exact_carry_digits(digit);
    if (digit[top] < 0) {
        sign = -1;
        for (int i = 0; i < TT_EXACT_DIGITS; i++)
            digit[i] = -digit[i];
        tt_exact_carry_digits(digit);
    }
    while (top > 0 && digit[top] == 0)
        top--;
    for (int i = top > 3 ? top - 3 : 0; i <= top; i++)
        value += ldexp((double)digit[i], 32 * i - 1074);
    return sign * value;
}

#endif
