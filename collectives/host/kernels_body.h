/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loops in portable C, for the compiler to vectorise. A file that includes this names the table
 * (TT_LOOPS) and is compiled for one instruction set. Nothing here may depend on that: operations
 * are exact or rounded once as IEEE 754 says (no contraction, no reassociation), and minimum,
 * maximum and NaN are spelled out.
 *
 * 16-bit floating-point types are converted by integer operations, because a conversion instruction
 * is not in every set (kernels_f16c.h uses it where it is). They assume round to nearest; the fp16
 * subnormals are made from normal numbers, so a program that flushes subnormals to zero gets them
 * right too.
 */
#ifndef TT_HOST_KERNELS_BODY_H
#define TT_HOST_KERNELS_BODY_H

#include <string.h>

#include "host/kernels_loops.h"

#ifndef TT_LOOPS
#define TT_LOOPS tt_loops_plain
#define TT_LOOPS_NAME "plain"
#endif

/* out may be a or b: never one element for another's. */
#if defined(__clang__)
#define TT_EACH(x)                                                                                 \
    _Pragma("clang loop vectorize(assume_safety)") for (size_t i = 0, n = (x)->n; i < n; i++)
#else
#define TT_EACH(x) _Pragma("GCC ivdep") for (size_t i = 0, n = (x)->n; i < n; i++)
#endif

#define TT_ANYWHERE __attribute__((aligned(1), may_alias))
typedef float f32 TT_ANYWHERE;
typedef double f64 TT_ANYWHERE;
typedef uint8_t u8 TT_ANYWHERE;
typedef int8_t i8 TT_ANYWHERE;
typedef uint16_t u16 TT_ANYWHERE;
typedef uint32_t u32 TT_ANYWHERE;
typedef int32_t i32 TT_ANYWHERE;
typedef uint64_t u64 TT_ANYWHERE;
typedef int64_t i64 TT_ANYWHERE;

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float of_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float from_bf16(uint16_t half)
{
    return of_bits((uint32_t)half << 16);
}

static inline uint16_t to_bf16(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fc0 : rounded);
}

static inline float from_f16(uint16_t half)
{
    const uint32_t rebias = (uint32_t)(127 - 15) << 23;
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t magnitude = (uint32_t)(half & 0x7fff) << 13;
    uint32_t normal = magnitude + rebias;
    uint32_t special = normal + rebias;
    /* 2^-14 * (1 + m) - 2^-14 */
    uint32_t subnormal = bits_of(of_bits(normal + (1u << 23)) - 0x1p-14f);
    uint32_t result = magnitude >= 0x0f800000 ? special : normal;
    result = magnitude < 0x00800000 ? subnormal : result;
    result = magnitude > 0x0f800000 ? result | 0x00400000 : result; /* a NaN becomes quiet */
    return of_bits(sign | result);
}

static inline uint16_t to_f16(float value)
{
    uint32_t bits = bits_of(value);
    uint32_t sign = (bits >> 16) & 0x8000;
    uint32_t magnitude = bits & 0x7fffffff;
    uint32_t normal = (magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13;
    /* 0.5 has the unit in the last place that the smallest fp16 subnormal is */
    uint32_t subnormal = bits_of(of_bits(magnitude) + 0.5f) - 0x3f000000;
    uint32_t result = magnitude < 0x38800000 ? subnormal : normal;
    result = magnitude >= 0x477ff000 ? 0x7c00 : result; /* 65520 rounds to infinity */
    return (uint16_t)(magnitude > 0x7f800000 ? 0x7e00 : sign | result);
}

#define TT_FLOAT_FUNCTIONS(T, type, nan)                                                           \
    static inline type sum_##T(type a, type b)                                                     \
    {                                                                                              \
        return a + b;                                                                              \
    }                                                                                              \
    static inline type prod_##T(type a, type b)                                                    \
    {                                                                                              \
        return a * b;                                                                              \
    }                                                                                              \
    static inline type max_##T(type a, type b)                                                     \
    {                                                                                              \
        type larger = a > b ? a : b; /* b if one is NaN */                                         \
        return a != a ? a : larger;                                                                \
    }                                                                                              \
    static inline type min_##T(type a, type b)                                                     \
    {                                                                                              \
        type smaller = a < b ? a : b;                                                              \
        return a != a ? a : smaller;                                                               \
    }                                                                                              \
    static inline type scale_##T(int divisor)                                                      \
    {                                                                                              \
        return divisor > 1 ? 1 / (type)divisor : 1;                                                \
    }                                                                                              \
    static inline type final_##T(type value, type scale)                                           \
    {                                                                                              \
        type scaled = value * scale;                                                               \
        return scaled == scaled ? scaled : nan;                                                    \
    }
TT_FLOAT_FUNCTIONS(f32, float, __builtin_nanf(""))
TT_FLOAT_FUNCTIONS(f64, double, __builtin_nan(""))

#define TT_INT_FUNCTIONS(T, type, wrapping)                                                        \
    static inline type sum_##T(type a, type b)                                                     \
    {                                                                                              \
        return (type)((wrapping)a + (wrapping)b);                                                  \
    }                                                                                              \
    static inline type prod_##T(type a, type b)                                                    \
    {                                                                                              \
        return (type)((wrapping)a * (wrapping)b);                                                  \
    }                                                                                              \
    static inline type max_##T(type a, type b)                                                     \
    {                                                                                              \
        return a > b ? a : b;                                                                      \
    }                                                                                              \
    static inline type min_##T(type a, type b)                                                     \
    {                                                                                              \
        return a < b ? a : b;                                                                      \
    }
TT_INT_FUNCTIONS(u8, uint8_t, uint32_t)
TT_INT_FUNCTIONS(i8, int8_t, uint32_t)
TT_INT_FUNCTIONS(u32, uint32_t, uint32_t)
TT_INT_FUNCTIONS(i32, int32_t, uint32_t)
TT_INT_FUNCTIONS(u64, uint64_t, uint64_t)
TT_INT_FUNCTIONS(i64, int64_t, uint64_t)

#define TT_INNER(T, fn)                                                                            \
    static void fn##_inner_##T(const tt_loop_args *x)                                              \
    {                                                                                              \
        const T *a = x->a, *b = x->b;                                                              \
        T *out = x->out;                                                                           \
        TT_EACH(x) out[i] = fn##_##T(a[i], b[i]);                                                  \
    }
#define TT_FLOAT_LAST(T, fn)                                                                       \
    static void fn##_last_##T(const tt_loop_args *x)                                               \
    {                                                                                              \
        const T scale = scale_##T(x->divisor), *a = x->a, *b = x->b;                               \
        T *out = x->out, *out2 = x->out2;                                                          \
        if (out2 == NULL)                                                                          \
            TT_EACH(x) out[i] = final_##T(fn##_##T(a[i], b[i]), scale);                            \
        else                                                                                       \
            TT_EACH(x) out2[i] = out[i] = final_##T(fn##_##T(a[i], b[i]), scale);                  \
    }
#define TT_FLOAT_DIVIDE(T)                                                                         \
    static void divide_##T(const tt_loop_args *x)                                                  \
    {                                                                                              \
        const T scale = scale_##T(x->divisor), *a = x->a;                                          \
        T *out = x->out;                                                                           \
        TT_EACH(x) out[i] = final_##T(a[i], scale);                                                \
    }
/* Integers: few programs average them, so dividing is a pass of its own. */
#define TT_INT_LAST(T, fn)                                                                         \
    static void fn##_last_##T(const tt_loop_args *x)                                               \
    {                                                                                              \
        tt_loop_args sum = {x->out, x->out, NULL, x->n, x->divisor, NULL};                         \
        fn##_inner_##T(x);                                                                         \
        if (x->divisor > 1)                                                                        \
            divide_##T(&sum);                                                                      \
    }
#define TT_INT_DIVIDE(T, wide)                                                                     \
    static void divide_##T(const tt_loop_args *x)                                                  \
    {                                                                                              \
        const wide divisor = x->divisor > 1 ? (wide)x->divisor : 1;                                \
        const T *a = x->a;                                                                         \
        T *out = x->out;                                                                           \
        TT_EACH(x) out[i] = (T)(a[i] / divisor);                                                   \
    }

#define TT_FOUR(M, T) M(T, sum) M(T, prod) M(T, max) M(T, min)
#define TT_FLOAT_LOOPS(T) TT_FOUR(TT_INNER, T) TT_FOUR(TT_FLOAT_LAST, T) TT_FLOAT_DIVIDE(T)
#define TT_INT_LOOPS(T, wide) TT_FOUR(TT_INNER, T) TT_INT_DIVIDE(T, wide) TT_FOUR(TT_INT_LAST, T)
TT_FLOAT_LOOPS(f32)
TT_FLOAT_LOOPS(f64)
TT_INT_LOOPS(u8, uint32_t)
TT_INT_LOOPS(i8, int32_t)
TT_INT_LOOPS(u32, uint32_t)
TT_INT_LOOPS(i32, int32_t)
TT_INT_LOOPS(u64, uint64_t)
TT_INT_LOOPS(i64, int64_t)

#define TT_HALF_LOOPS(H)                                                                           \
    static void widen_##H(const tt_loop_args *x)                                                   \
    {                                                                                              \
        const u16 *a = x->a;                                                                       \
        f32 *out = x->out;                                                                         \
        TT_EACH(x) out[i] = from_##H(a[i]);                                                        \
    }                                                                                              \
    static void narrow_##H(const tt_loop_args *x)                                                  \
    {                                                                                              \
        const f32 scale = scale_f32(x->divisor), *a = x->a;                                        \
        u16 *out = x->out;                                                                         \
        TT_EACH(x) out[i] = to_##H(a[i] * scale);                                                  \
    }                                                                                              \
    static void sum_inner_##H(const tt_loop_args *x)                                               \
    {                                                                                              \
        const u16 *a = x->a, *b = x->b;                                                            \
        f32 *out = x->out;                                                                         \
        TT_EACH(x) out[i] = from_##H(a[i]) + from_##H(b[i]);                                       \
    }                                                                                              \
    static void sum_last_##H(const tt_loop_args *x)                                                \
    {                                                                                              \
        const f32 scale = scale_f32(x->divisor);                                                   \
        const u16 *a = x->a, *b = x->b;                                                            \
        u16 *out = x->out, *out2 = x->out2;                                                        \
        if (out2 == NULL)                                                                          \
            TT_EACH(x) out[i] = to_##H((from_##H(a[i]) + from_##H(b[i])) * scale);                 \
        else                                                                                       \
            TT_EACH(x) out2[i] = out[i] = to_##H((from_##H(a[i]) + from_##H(b[i])) * scale);       \
    }                                                                                              \
    static void sum_wide_last_##H(const tt_loop_args *x)                                           \
    {                                                                                              \
        const f32 scale = scale_f32(x->divisor), *a = x->a, *b = x->b;                             \
        u16 *out = x->out;                                                                         \
        TT_EACH(x) out[i] = to_##H((a[i] + b[i]) * scale);                                         \
    }
TT_HALF_LOOPS(bf16)
TT_HALF_LOOPS(f16)

#define TT_ROW(T, when)                                                                            \
    {                                                                                              \
        sum_##when##_##T, prod_##when##_##T, max_##when##_##T, min_##when##_##T                    \
    }
#define TT_ROWS(when)                                                                              \
    {                                                                                              \
        [TT_ACC_F32] = TT_ROW(f32, when), [TT_ACC_F64] = TT_ROW(f64, when),                        \
        [TT_ACC_U8] = TT_ROW(u8, when), [TT_ACC_I8] = TT_ROW(i8, when),                            \
        [TT_ACC_I32] = TT_ROW(i32, when), [TT_ACC_U32] = TT_ROW(u32, when),                        \
        [TT_ACC_I64] = TT_ROW(i64, when), [TT_ACC_U64] = TT_ROW(u64, when),                        \
    }
#define TT_HALF_ROW(H)                                                                             \
    {                                                                                              \
        widen_##H, narrow_##H, sum_inner_##H, sum_last_##H, sum_wide_last_##H                      \
    }

#include "host/kernels_f16c.h"
#include "host/kernels_past.h"
#ifndef TT_F16_ROW
#define TT_F16_ROW TT_HALF_ROW(f16)
#endif

extern const tt_loops TT_LOOPS;
const tt_loops TT_LOOPS = {
    .name = TT_LOOPS_NAME,
    .inner = TT_ROWS(inner),
    .last = TT_ROWS(last),
    .divide =
        {
            [TT_ACC_F32] = divide_f32,
            [TT_ACC_F64] = divide_f64,
            [TT_ACC_U8] = divide_u8,
            [TT_ACC_I8] = divide_i8,
            [TT_ACC_I32] = divide_i32,
            [TT_ACC_U32] = divide_u32,
            [TT_ACC_I64] = divide_i64,
            [TT_ACC_U64] = divide_u64,
        },
    .past = TT_PAST_ROW,
    .half = {[TT_HALF_BF16] = TT_BF16_ROW, [TT_HALF_F16] = TT_F16_ROW},
};

#endif
