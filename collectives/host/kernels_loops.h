/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops below tt_reduce: element-wise, without order. Each instruction set has a table of the
 * same loops, compiled from kernels_body.h with other flags; what they compute is the same to the
 * bit. Inner loops combine two values; last loops also apply the divisor and turn every NaN into
 * the one that results show.
 */
#ifndef TT_HOST_KERNELS_LOOPS_H
#define TT_HOST_KERNELS_LOOPS_H

#include "host/kernels.h"

typedef struct tt_loop_args {
    void *out; /* may be exactly a or b if the elements have one size */
    const void *a, *b;
    size_t n;
    int divisor;
    void *out2; /* last loops of f32 and f64, and sum_last of bf16: gets the same if not NULL */
} tt_loop_args;
typedef void (*tt_loop)(const tt_loop_args *x);

typedef enum tt_fn { TT_FN_SUM, TT_FN_PROD, TT_FN_MAX, TT_FN_MIN, TT_FN_COUNT } tt_fn;
typedef enum tt_acc {
    TT_ACC_F32, /* of fp32 and of the 16-bit types */
    TT_ACC_F64,
    TT_ACC_U8,
    TT_ACC_I8,
    TT_ACC_I32,
    TT_ACC_U32,
    TT_ACC_I64,
    TT_ACC_U64,
    TT_ACC_COUNT
} tt_acc;
typedef enum tt_half { TT_HALF_BF16, TT_HALF_F16, TT_HALF_COUNT, TT_HALF_NONE = -1 } tt_half;

/* h: 16 bits, w: fp32. */
typedef struct tt_half_loops {
    tt_loop widen; /* w = h */
    tt_loop narrow; /* h = w, last */
    tt_loop sum_inner; /* w = h + h */
    tt_loop sum_last; /* h = h + h */
    tt_loop sum_wide_last; /* h = w + w */
} tt_half_loops;

/* Sums of two whose results, aligned to a line, are written past the cache; NULL: there is none. */
typedef struct tt_past_loops {
    tt_loop f32, bf16;
} tt_past_loops;

typedef struct tt_loops {
    const char *name;
    tt_loop inner[TT_ACC_COUNT][TT_FN_COUNT];
    tt_loop last[TT_ACC_COUNT][TT_FN_COUNT];
    tt_loop divide[TT_ACC_COUNT]; /* out = a, last */
    tt_half_loops half[TT_HALF_COUNT];
    tt_past_loops past;
} tt_loops;

/* The tables that this CPU can run, slowest first; *n_out of them. */
const tt_loops *const *tt_loops_here(size_t *n_out);

/* tt_reduce with a given table; tt_reduce_past_cache likewise. */
bool tt_reduce_past_with(const tt_loops *loops, const tt_reduce_job *job);
void tt_reduce_with(const tt_loops *loops, const tt_reduce_job *job);

#endif
