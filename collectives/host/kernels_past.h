/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of two operands by the line, in f32 and bf16: what large gradients are made of. Results are
 * written past the cache while the operands of the next lines are fetched; those of bf16 also the
 * usual way, which the compiler makes twice as slow. The values are those of kernels_body.h to the
 * bit. Past the cache `out`, and out2 if there is one, are aligned to a line; what is left over at
 * the end is written as usual.
 *
 * bf16: elements of even and of odd index are apart in fp32, so that to widen is one shift or mask.
 * To round, the halves that are kept and those that are cut off are each put into one vector: an
 * element goes up if what is cut off, with the last bit kept as a bit of its own, is more than one
 * half. NaN is looked for once a line. AVX-512's conversion to bf16 was rejected: it flushes
 * subnormals, and with a guard against that it is no faster.
 */
#ifndef TT_HOST_KERNELS_PAST_H
#define TT_HOST_KERNELS_PAST_H

#if defined(__AVX2__)

#include <immintrin.h>

#include "host/kernels_loops.h"

enum { PAST_LINE = 64 };

#if defined(__AVX512F__)
typedef __m512i past_line;

static inline void past_put(void *to, past_line line)
{
    _mm512_stream_si512(to, line);
}

static inline past_line past_f32(const float *a, const float *b, float scale)
{
    __m512 sum = _mm512_add_ps(_mm512_loadu_ps(a), _mm512_loadu_ps(b));
    __m512 value = _mm512_mul_ps(sum, _mm512_set1_ps(scale));
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_castps_si512(_mm512_mask_mov_ps(value, nan, _mm512_set1_ps(__builtin_nanf(""))));
}

static __attribute__((cold, noinline)) past_line past_bf16_nan(__m512 even, __m512 odd,
                                                               past_line line)
{
    const __m512i nan = _mm512_set1_epi32(0x7fc07fc0);
    __mmask16 low = _mm512_cmp_ps_mask(even, even, _CMP_UNORD_Q);
    __mmask16 high = _mm512_cmp_ps_mask(odd, odd, _CMP_UNORD_Q);
    line = _mm512_mask_mov_epi32(line, low, _mm512_mask_mov_epi16(line, 0x55555555, nan));
    return _mm512_mask_mov_epi32(line, high, _mm512_mask_mov_epi16(line, 0xaaaaaaaa, nan));
}

/* fp32 to bf16, the elements of even index in the low halves. */
static inline past_line past_rounded(__m512 even, __m512 odd)
{
    const __m512i e = _mm512_castps_si512(even), o = _mm512_castps_si512(odd);
    __m512i kept = _mm512_mask_mov_epi16(_mm512_srli_epi32(e, 16), 0xaaaaaaaa, o);
    __m512i cut = _mm512_mask_mov_epi16(_mm512_slli_epi32(o, 16), 0x55555555, e);
    __m512i tie = _mm512_or_si512(cut, _mm512_and_si512(kept, _mm512_set1_epi16(1)));
    __mmask32 up = _mm512_cmpgt_epu16_mask(tie, _mm512_set1_epi16((short)0x8000));
    past_line line = _mm512_mask_sub_epi16(kept, up, kept, _mm512_set1_epi16(-1));
    if (__builtin_expect(_mm512_cmp_ps_mask(even, odd, _CMP_UNORD_Q) != 0, 0))
        line = past_bf16_nan(even, odd, line);
    return line;
}

static inline past_line past_bf16(const uint16_t *a, const uint16_t *b, float scale)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b);
    __m512 even = _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                                _mm512_castsi512_ps(_mm512_slli_epi32(y, 16)));
    __m512 odd = _mm512_add_ps(_mm512_castsi512_ps(_mm512_and_si512(x, high)),
                               _mm512_castsi512_ps(_mm512_and_si512(y, high)));
    return past_rounded(_mm512_mul_ps(even, _mm512_set1_ps(scale)),
                        _mm512_mul_ps(odd, _mm512_set1_ps(scale)));
}

static inline void past_put_near(void *to, past_line line)
{
    _mm512_storeu_si512(to, line);
}
#else
typedef struct past_line {
    __m256i low, high;
} past_line;

static inline void past_put(void *to, past_line line)
{
    _mm256_stream_si256((__m256i *)to, line.low);
    _mm256_stream_si256((__m256i *)to + 1, line.high);
}

static inline __m256i past_f32_half_line(const float *a, const float *b, float scale)
{
    __m256 sum = _mm256_add_ps(_mm256_loadu_ps(a), _mm256_loadu_ps(b));
    __m256 value = _mm256_mul_ps(sum, _mm256_set1_ps(scale));
    __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
    return _mm256_castps_si256(_mm256_blendv_ps(value, _mm256_set1_ps(__builtin_nanf("")), nan));
}

static inline past_line past_f32(const float *a, const float *b, float scale)
{
    return (past_line){past_f32_half_line(a, b, scale), past_f32_half_line(a + 8, b + 8, scale)};
}

static __attribute__((cold, noinline)) __m256i past_bf16_nan(__m256 even, __m256 odd, __m256i half)
{
    const __m256i nan = _mm256_set1_epi32(0x7fc07fc0);
    __m256i low = _mm256_castps_si256(_mm256_cmp_ps(even, even, _CMP_UNORD_Q));
    __m256i high = _mm256_castps_si256(_mm256_cmp_ps(odd, odd, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(half, nan, _mm256_blend_epi16(low, high, 0xaa));
}

/* As above. */
static inline __m256i past_rounded(__m256 even, __m256 odd)
{
    const __m256i e = _mm256_castps_si256(even), o = _mm256_castps_si256(odd);
    __m256i kept = _mm256_blend_epi16(_mm256_srli_epi32(e, 16), o, 0xaa);
    __m256i cut = _mm256_blend_epi16(e, _mm256_slli_epi32(o, 16), 0xaa);
    __m256i tie = _mm256_or_si256(cut, _mm256_and_si256(kept, _mm256_set1_epi16(1)));
    __m256i over = _mm256_xor_si256(tie, _mm256_set1_epi16((short)0x8000)); /* tie - 0x8000 */
    __m256i half = _mm256_sub_epi16(kept, _mm256_cmpgt_epi16(over, _mm256_setzero_si256()));
    if (__builtin_expect(_mm256_movemask_ps(_mm256_cmp_ps(even, odd, _CMP_UNORD_Q)) != 0, 0))
        half = past_bf16_nan(even, odd, half);
    return half;
}

static inline __m256i past_bf16_half_line(const uint16_t *a, const uint16_t *b, float scale)
{
    const __m256i high = _mm256_set1_epi32((int)0xffff0000);
    __m256i x = _mm256_loadu_si256((const __m256i *)a);
    __m256i y = _mm256_loadu_si256((const __m256i *)b);
    __m256 even = _mm256_add_ps(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)),
                                _mm256_castsi256_ps(_mm256_slli_epi32(y, 16)));
    __m256 odd = _mm256_add_ps(_mm256_castsi256_ps(_mm256_and_si256(x, high)),
                               _mm256_castsi256_ps(_mm256_and_si256(y, high)));
    return past_rounded(_mm256_mul_ps(even, _mm256_set1_ps(scale)),
                        _mm256_mul_ps(odd, _mm256_set1_ps(scale)));
}

static inline past_line past_bf16(const uint16_t *a, const uint16_t *b, float scale)
{
    return (past_line){past_bf16_half_line(a, b, scale),
                       past_bf16_half_line(a + 16, b + 16, scale)};
}

static inline void past_put_near(void *to, past_line line)
{
    _mm256_storeu_si256((__m256i *)to, line.low);
    _mm256_storeu_si256((__m256i *)to + 1, line.high);
}
#endif

/* Defines a loop that puts lines; rest_loop does what is left over. A scale of 1 costs nothing. */
#define TT_PAST_LOOP(loop, name, type, put, rest_loop)                                             \
    static inline __attribute__((always_inline))                                                   \
    size_t loop##_lines(const tt_loop_args *x, float scale)                                        \
    {                                                                                              \
        const size_t step = PAST_LINE / sizeof(type);                                              \
        const type *a = x->a, *b = x->b;                                                           \
        type *out = x->out, *out2 = x->out2;                                                       \
        size_t i = 0;                                                                              \
        for (; i + step <= x->n; i += step) {                                                      \
            past_line line = past_##name(a + i, b + i, scale);                                     \
            put(out + i, line);                                                                    \
            if (out2 != NULL)                                                                      \
                put(out2 + i, line);                                                               \
        }                                                                                          \
        return i;                                                                                  \
    }                                                                                              \
    static void loop(const tt_loop_args *x)                                                        \
    {                                                                                              \
        const size_t done =                                                                        \
            x->divisor > 1 ? loop##_lines(x, 1 / (float)x->divisor) : loop##_lines(x, 1);          \
        tt_loop_args rest = *x;                                                                    \
        rest.out = (type *)x->out + done;                                                          \
        rest.out2 = x->out2 != NULL ? (type *)x->out2 + done : NULL;                               \
        rest.a = (const type *)x->a + done;                                                        \
        rest.b = (const type *)x->b + done;                                                        \
        rest.n -= done;                                                                            \
        rest_loop(&rest);                                                                          \
    }
TT_PAST_LOOP(past_sum_f32, f32, float, past_put, sum_last_f32)
TT_PAST_LOOP(past_sum_bf16, bf16, uint16_t, past_put, sum_last_bf16)
TT_PAST_LOOP(near_sum_bf16, bf16, uint16_t, past_put_near, sum_last_bf16)

#define TT_PAST_ROW                                                                                \
    {                                                                                              \
        past_sum_f32, past_sum_bf16                                                                \
    }

#define TT_BF16_ROW                                                                                \
    {                                                                                              \
        widen_bf16, narrow_bf16, sum_inner_bf16, near_sum_bf16, sum_wide_last_bf16                 \
    }

#else
#define TT_BF16_ROW TT_HALF_ROW(bf16)
#define TT_PAST_ROW                                                                                \
    {                                                                                              \
        NULL, NULL                                                                                 \
    }
#endif
#endif
