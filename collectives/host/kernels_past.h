/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of two operands by the line, in f32 and bf16: what large gradients are made of. Results are
 * written past the cache while the operands of the next lines are fetched; those of bf16 also the
 * usual way, which the compiler makes twice as slow. AVX-512's conversion to bf16 is not used,
 * since it flushes subnormals. The values are those of kernels_body.h to the bit. Past the cache
 * `out`, and out2 if there is one, are aligned to a line; what is left over at the end is written
 * as usual.
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

/* fp32 to bf16 in the high halves, the low ones are left as they come. */
static inline __m512i past_rounded(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(up, nan, _mm512_set1_epi32(0x7fc00000));
}

/* Elements of even and of odd index apart: to widen is then one shift or mask, and to pack one
 * blend. */
static inline past_line past_bf16(const uint16_t *a, const uint16_t *b, float scale)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    __m512i x = _mm512_loadu_si512(a), y = _mm512_loadu_si512(b);
    __m512 even = _mm512_add_ps(_mm512_castsi512_ps(_mm512_slli_epi32(x, 16)),
                                _mm512_castsi512_ps(_mm512_slli_epi32(y, 16)));
    __m512 odd = _mm512_add_ps(_mm512_castsi512_ps(_mm512_and_si512(x, high)),
                               _mm512_castsi512_ps(_mm512_and_si512(y, high)));
    __m512i low = _mm512_srli_epi32(past_rounded(_mm512_mul_ps(even, _mm512_set1_ps(scale))), 16);
    return _mm512_mask_mov_epi16(low, 0xaaaaaaaa,
                                 past_rounded(_mm512_mul_ps(odd, _mm512_set1_ps(scale))));
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

/* As above. */
static inline __m256i past_rounded(__m256 value)
{
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc00000), nan);
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
    __m256i low = _mm256_srli_epi32(past_rounded(_mm256_mul_ps(even, _mm256_set1_ps(scale))), 16);
    return _mm256_blend_epi16(low, past_rounded(_mm256_mul_ps(odd, _mm256_set1_ps(scale))), 0xaa);
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

/* Defines a loop that puts lines; rest_loop does what is left over. */
#define TT_PAST_LOOP(loop, name, type, put, rest_loop)                                             \
    static void loop(const tt_loop_args *x)                                                        \
    {                                                                                              \
        const float scale = x->divisor > 1 ? 1 / (float)x->divisor : 1;                            \
        const size_t step = PAST_LINE / sizeof(type);                                              \
        const type *a = x->a, *b = x->b;                                                           \
        type *out = x->out, *out2 = x->out2;                                                       \
        tt_loop_args rest = *x;                                                                    \
        size_t i = 0;                                                                              \
        for (; i + step <= x->n; i += step) {                                                      \
            past_line line = past_##name(a + i, b + i, scale);                                     \
            put(out + i, line);                                                                    \
            if (out2 != NULL)                                                                      \
                put(out2 + i, line);                                                               \
        }                                                                                          \
        rest.out = out + i;                                                                        \
        rest.out2 = out2 != NULL ? out2 + i : NULL;                                                \
        rest.a = a + i;                                                                            \
        rest.b = b + i;                                                                            \
        rest.n -= i;                                                                               \
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
