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

static double from_f16(uint16_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double magnitude = exponent == 0    ? ldexp(mantissa, -24)
                       : exponent == 31 ? (mantissa == 0 ? INFINITY : NAN)
                                        : ldexp(1024 + mantissa, exponent - 25);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

/* A double to a float of 16 bits with so many bits of mantissa and such a bias: scaled so that the
 * last bit kept is 1, rounded to nearest even, put together. */
static uint16_t narrow(double value, int mantissa_bits, int bias)
{
    int exponent, top = (1 << (15 - mantissa_bits)) - 1;
    uint16_t sign = signbit(value) ? 0x8000 : 0;
    if (isnan(value))
        return (uint16_t)(sign | top << mantissa_bits | 1 << (mantissa_bits - 1));
    value = fabs(value);
    if (value == 0)
        return sign;
    if (isinf(value))
        return (uint16_t)(sign | top << mantissa_bits);
    frexp(value, &exponent); /* value = 0.1... * 2^exponent */
    int lowest = 1 - bias; /* exponent of the smallest normal number */
    int scale = (exponent - 1 > lowest ? exponent - 1 : lowest) - mantissa_bits;
    int64_t kept = (int64_t)nearbyint(ldexp(value, -scale)); /* may carry into the next binade */
    int64_t bits = kept + ((int64_t)(scale + mantissa_bits - lowest) << mantissa_bits);
    int64_t infinite = (int64_t)top << mantissa_bits;
    return (uint16_t)(sign | (bits < infinite ? bits : infinite));
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
        return from_f16(load16(at));
    case TUTTI_BFLOAT16:
        return from_bf16(load16(at));
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
    uint16_t half;
    switch (to) {
    case TUTTI_FLOAT64:
        memcpy(out, &value, sizeof value);
        return;
    case TUTTI_FLOAT32:
        memcpy(out, &single, sizeof single);
        return;
    case TUTTI_BFLOAT16:
        half = narrow(value, 7, 127);
        break;
    default:
        half = narrow(value, 10, 15);
    }
    memcpy(out, &half, sizeof half);
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
