/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seam for arithmetic on device memory that no collective does: what the reducer needs around
 * its collectives. All of it is queued on a stream; the inline stream does it at once. A backend's
 * table is listed in collectives/backends.c; one that has none yet refuses what needs it.
 */
#ifndef TT_COMM_MATH_H
#define TT_COMM_MATH_H

#include "comm/exact.h"
#include "device/device.h"

/* dst[i] = src[i] * (1 / divisor), rounded to dst's type once; dst may be src if the types are
 * equal. The types are equal, or FLOAT32 and one of 16 bits. */
typedef struct tt_math_cast {
    void *dst;
    const void *src;
    tutti_dtype to, from;
    size_t n;
    int divisor;
} tt_math_cast;

/* Rows of logits of which this rank has the columns first ... first + count - 1. */
typedef struct tt_math_entropy {
    float *logits; /* [rows][count] */
    const int32_t *targets; /* [rows] */
    size_t rows, count;
    int32_t first;
    float *max; /* [rows] */
    float *sums; /* [3][rows]: of the exponentials; the target's exponent; 1 where it was found */
    float *loss; /* [rows] */
} tt_math_entropy;

typedef struct tt_math_ops {
    size_t size;
    /* dst[i] = a[i] + b[i]; dst may be a or b. FLOAT32 and FLOAT64. */
    tutti_status (*add)(tt_device *dev, void *dst, const void *a, const void *b, size_t n,
                        tutti_dtype dtype, tutti_stream stream);
    tutti_status (*cast)(tt_device *dev, const tt_math_cast *cast, tutti_stream stream);
    /* Adds the squares of x to the exact sum (comm/exact.h: the same blocks in the same order). */
    tutti_status (*squares)(tt_device *dev, int64_t *sum, const void *x, size_t n,
                            tutti_dtype dtype, tutti_stream stream);
    /* Adds x[i] to the i-th of n exact sums. */
    tutti_status (*exact_add)(tt_device *dev, int64_t *sums, const float *x, size_t n,
                              tutti_stream stream);
    /* x[i] = the i-th sum / divisor or, with `root`, its square root; rounded to float once more.
     */
    tutti_status (*exact_get)(tt_device *dev, float *x, const int64_t *sums, size_t n,
                              double divisor, bool root, tutti_stream stream);
    /* Cross entropy in three passes: max of each row; logits to exponentials below max, and sums;
     * exponentials to probabilities, and loss. Between them max and sums are reduced over ranks. */
    tutti_status (*entropy_max)(tt_device *dev, const tt_math_entropy *e, tutti_stream stream);
    tutti_status (*entropy_sums)(tt_device *dev, const tt_math_entropy *e, tutti_stream stream);
    tutti_status (*entropy_end)(tt_device *dev, const tt_math_entropy *e, tutti_stream stream);
} tt_math_ops;

extern const tt_math_ops tt_math_host;
extern const tt_math_ops tt_math_cuda; /* only in a build with CUDA */
const tt_math_ops *tt_math_select(const tt_device_ops *device); /* backends.c; NULL: none */

#endif
