/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fp16 loops where the CPU converts (F16C), eight elements at a time; GCC 12 does not vectorise
 * its own _Float16. The conversions equal those of kernels_body.h to the bit, also for subnormals
 * in a program that flushes them to zero.
 */
#ifndef TT_HOST_KERNELS_F16C_H
#define TT_HOST_KERNELS_F16C_H

#if defined(__F16C__)

#include <immintrin.h>

#include "host/kernels_loops.h"

enum { F16C_STEP = 8 };

static inline __m256 f16c_load(const uint16_t *at)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
}

static inline void f16c_store(uint16_t *at, __m256 value)
{
    const __m256 nan = _mm256_set1_ps(__builtin_nanf(""));
    __m256 unordered = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    __m256 one_nan = _mm256_blendv_ps(value, nan, unordered);

    _mm_storeu_si128((__m128i *)at, _mm256_cvtps_ph(one_nan, _MM_FROUND_TO_NEAREST_INT));
}

/* Defines f16c_<name>; <name>_f16 does what is left over. */
#define TT_F16C_LOOP(name, in_type, out_type, statement)                                           \
    static void f16c_##name(const tt_loop_args *x)                                                 \
    {                                                                                              \
        const __m256 scale = _mm256_set1_ps(x->divisor > 1 ? 1 / (float)x->divisor : 1);           \
        const in_type *a = x->a, *b = x->b;                                                        \
        out_type *out = x->out;                                                                    \
        tt_loop_args rest = *x;                                                                    \
        size_t i = 0;                                                                              \
        for (; i + F16C_STEP <= x->n; i += F16C_STEP)                                              \
            statement;                                                                             \
        rest.out = out + i;                                                                        \
        rest.a = a + i;                                                                            \
        rest.b = b != NULL ? b + i : NULL;                                                         \
        rest.n -= i;                                                                               \
        (void)scale;                                                                               \
        name##_f16(&rest);                                                                         \
    }
#define TT_F16C_SUM _mm256_add_ps(f16c_load(a + i), f16c_load(b + i))
#define TT_F16C_WIDE_SUM _mm256_add_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i))
TT_F16C_LOOP(widen, uint16_t, float, _mm256_storeu_ps(out + i, f16c_load(a + i)))
TT_F16C_LOOP(narrow, float, uint16_t,
             f16c_store(out + i, _mm256_mul_ps(_mm256_loadu_ps(a + i), scale)))
TT_F16C_LOOP(sum_inner, uint16_t, float, _mm256_storeu_ps(out + i, TT_F16C_SUM))
TT_F16C_LOOP(sum_last, uint16_t, uint16_t, f16c_store(out + i, _mm256_mul_ps(TT_F16C_SUM, scale)))
TT_F16C_LOOP(sum_wide_last, float, uint16_t,
             f16c_store(out + i, _mm256_mul_ps(TT_F16C_WIDE_SUM, scale)))

#define TT_F16_ROW                                                                                 \
    {                                                                                              \
        f16c_widen, f16c_narrow, f16c_sum_inner, f16c_sum_last, f16c_sum_wide_last                 \
    }

#endif
#endif
