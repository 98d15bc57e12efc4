/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums of two operands whose results are written past the cache, line by line, while the operands
 * of the next lines are fetched: what large gradients are made of. The values are those of
 * kernels_body.h to the bit. `out`, and out2 if there is one, are aligned to a line; what is left
 * over at the end is written as usual.
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

static inline __m512 past_wide(const uint16_t *half)
{
    __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)half));
    return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
}

static inline __m256i past_half(const uint16_t *a, const uint16_t *b, float scale)
{
    __m512 value = _mm512_mul_ps(_mm512_add_ps(past_wide(a), past_wide(b)), _mm512_set1_ps(scale));
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(
        _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd), 16);
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0)));
}

static inline past_line past_bf16(const uint16_t *a, const uint16_t *b, float scale)
{
    __m512i low = _mm512_castsi256_si512(past_half(a, b, scale));
    return _mm512_inserti64x4(low, past_half(a + 16, b + 16, scale), 1);
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

static inline __m256 past_wide(const uint16_t *half)
{
    __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)half));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
}

/* Eight results, one in the low half of each 32 bits. */
static inline __m256i past_eight(const uint16_t *a, const uint16_t *b, float scale)
{
    __m256 value = _mm256_mul_ps(_mm256_add_ps(past_wide(a), past_wide(b)), _mm256_set1_ps(scale));
    __m256i bits = _mm256_castps_si256(value);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(
        _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan);
}

static inline __m256i past_sixteen(const uint16_t *a, const uint16_t *b, float scale)
{
    __m256i packed = _mm256_packus_epi32(past_eight(a, b, scale), past_eight(a + 8, b + 8, scale));
    return _mm256_permute4x64_epi64(packed, 0xd8); /* packus works on halves */
}

static inline past_line past_bf16(const uint16_t *a, const uint16_t *b, float scale)
{
    return (past_line){past_sixteen(a, b, scale), past_sixteen(a + 16, b + 16, scale)};
}
#endif

/* Defines past_sum_<name>; `rest` does what is left over. */
#define TT_PAST_LOOP(name, type, rest_loop)                                                        \
    static void past_sum_##name(const tt_loop_args *x)                                             \
    {                                                                                              \
        const float scale = x->divisor > 1 ? 1 / (float)x->divisor : 1;                            \
        const size_t step = PAST_LINE / sizeof(type);                                              \
        const type *a = x->a, *b = x->b;                                                           \
        type *out = x->out, *out2 = x->out2;                                                       \
        tt_loop_args rest = *x;                                                                    \
        size_t i = 0;                                                                              \
        for (; i + step <= x->n; i += step) {                                                      \
            past_line line = past_##name(a + i, b + i, scale);                                     \
            past_put(out + i, line);                                                               \
            if (out2 != NULL)                                                                      \
                past_put(out2 + i, line);                                                          \
        }                                                                                          \
        rest.out = out + i;                                                                        \
        rest.out2 = out2 != NULL ? out2 + i : NULL;                                                \
        rest.a = a + i;                                                                            \
        rest.b = b + i;                                                                            \
        rest.n -= i;                                                                               \
        rest_loop(&rest);                                                                          \
    }
TT_PAST_LOOP(f32, float, sum_last_f32)
TT_PAST_LOOP(bf16, uint16_t, sum_last_bf16)

#define TT_PAST_ROW                                                                                \
    {                                                                                              \
        past_sum_f32, past_sum_bf16                                                                \
    }

#else
#define TT_PAST_ROW                                                                                \
    {                                                                                              \
        NULL, NULL                                                                                 \
    }
#endif
#endif
