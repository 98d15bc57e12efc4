/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of doubles without rounding: a fixed-point number as wide as the range of double, in digits
 * of 32 bits kept in 64, so that adding needs no carry. Digits may be added over ranks as INT64 in
 * any order: the sum of numbers depends on the numbers alone.
 */
#ifndef TT_COMM_EXACT_H
#define TT_COMM_EXACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TT_EXACT_DIGITS = 69, /* bit 0 is 2^-1074; 2^1024 is bit 2098; room for 2^78 terms above */
    TT_EXACT_BAD = TT_EXACT_DIGITS, /* counts terms that are infinite or no number */
    TT_EXACT_WORDS
};

void tt_exact_add(int64_t *sum, double x);

/* Brings the digits back below 2^32: needed at least every 2^30 terms, and before digits of many
 * ranks are added. */
void tt_exact_carry(int64_t *sum);

/* The number, rounded; NaN if a term was not finite. */
double tt_exact_get(const int64_t *sum);

/*
 * Adds the squares of x[0 ... n-1]: summed in double over blocks of TT_EXACT_BLOCK in one fixed
 * order, blocks without rounding. So the sum over an array does not depend on how it is cut, if the
 * cuts are at multiples of the block.
 */
enum { TT_EXACT_BLOCK = 64 };
void tt_exact_squares_f32(int64_t *sum, const float *x, size_t n);
void tt_exact_squares_f64(int64_t *sum, const double *x, size_t n);

#endif
