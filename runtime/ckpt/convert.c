/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/convert.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/catalog.h"

static uint16_t load16(const void *at)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return bits;
}

static float from_bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* A float of one or two bytes. Codes below `over` are finite; `over` is what a number beyond them
 * becomes: infinity or, where there is none, NaN. */
typedef struct small {
    int sign, mantissa, bias; /* bit of the sign; bits of the mantissa */
    uint16_t over, nan;
} small;

static const small bf16 = {15, 7, 127, 0x7f80, 0x7fc0}, f16 = {15, 10, 15, 0x7c00, 0x7e00};
static const small e4m3 = {7, 3, 7, 0x7f, 0x7f}, e5m2 = {7, 2, 15, 0x7c, 0x7e};

static const small *small_of(tutti_dtype dtype)
{
    return dtype == TUTTI_FLOAT16       ? &f16
           : dtype == TUTTI_BFLOAT16    ? &bf16
           : dtype == TUTTI_FLOAT8_E4M3 ? &e4m3
                                        : &e5m2;
}

static double widen(uint16_t bits, const small *f)
{
    int code = bits & ((1 << f->sign) - 1);
    int exponent = code >> f->mantissa, mantissa = code & ((1 << f->mantissa) - 1);
    double magnitude = code >= f->over ? (code == f->over && f->over != f->nan ? INFINITY : NAN)
                       : exponent == 0
                           ? ldexp(mantissa, 1 - f->bias - f->mantissa)
                           : ldexp((1 << f->mantissa) + mantissa, exponent - f->bias - f->mantissa);
    return (bits >> f->sign & 1) != 0 ? -magnitude : magnitude;
}

/* Scaled so that the last bit kept is 1, rounded to nearest even, put together. */
static uint16_t narrow(double value, const small *f)
{
    int exponent;
    uint16_t sign = (uint16_t)((signbit(value) ? 1 : 0) << f->sign);
    if (isnan(value))
        return (uint16_t)(sign | f->nan);
    value = fabs(value);
    if (value == 0)
        return sign;
    if (isinf(value))
        return (uint16_t)(sign | f->over);
    frexp(value, &exponent); /* value = 0.1... * 2^exponent */
    int lowest = 1 - f->bias; /* exponent of the smallest normal number */
    int scale = (exponent - 1 > lowest ? exponent - 1 : lowest) - f->mantissa;
    int64_t kept = (int64_t)nearbyint(ldexp(value, -scale)); /* may carry into the next binade */
    int64_t bits = kept + ((int64_t)(scale + f->mantissa - lowest) << f->mantissa);
    return (uint16_t)(sign | (bits < f->over ? bits : f->over));
}

double tt_value(tutti_dtype dtype, const void *at)
{
    union {
        float f32;
        double f64;
        int32_t i32;
        uint32_t u32;
        int64_t i64;
        uint64_t u64;
    } v;
    switch (dtype) {
    case TUTTI_FLOAT16:
        return widen(load16(at), &f16);
    case TUTTI_BFLOAT16:
        return from_bf16(load16(at));
    case TUTTI_FLOAT8_E4M3:
    case TUTTI_FLOAT8_E5M2:
        return widen(*(const uint8_t *)at, small_of(dtype));
    case TUTTI_UINT8:
        return *(const uint8_t *)at;
    case TUTTI_INT8:
        return *(const int8_t *)at;
    default:
        memcpy(&v, at, tutti_dtype_size(dtype));
    }
    return dtype == TUTTI_FLOAT32   ? v.f32
           : dtype == TUTTI_FLOAT64 ? v.f64
           : dtype == TUTTI_INT32   ? v.i32
           : dtype == TUTTI_UINT32  ? v.u32
           : dtype == TUTTI_INT64   ? (double)v.i64
                                    : (double)v.u64;
}

bool tt_convertible(tutti_dtype from, tutti_dtype to)
{
    return from == to || (tt_dtype_is_float(from) && tt_dtype_is_float(to));
}

static void store(tutti_dtype to, void *out, double value)
{
    float single = (float)value;
    uint16_t bits;
    switch (to) {
    case TUTTI_FLOAT64:
        memcpy(out, &value, sizeof value);
        return;
    case TUTTI_FLOAT32:
        memcpy(out, &single, sizeof single);
        return;
    default:
        bits = narrow(value, small_of(to));
        memcpy(out, &bits, tutti_dtype_size(to)); /* little endian: the low byte */
    }
}

void tt_convert(tutti_dtype to, void *out, tutti_dtype from, const void *in, size_t n)
{
    size_t out_size = tutti_dtype_size(to), in_size = tutti_dtype_size(from);
    if (to == from) {
        memcpy(out, in, n * in_size);
        return;
    }
    for (size_t i = 0; i < n; i++)
        store(to, (char *)out + i * out_size, tt_value(from, (const char *)in + i * in_size));
}
