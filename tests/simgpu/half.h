/* SPDX-License-Identifier: Apache-2.0 */
/* 16-bit floats on the host, rounded to nearest even: for the stand-ins and their tests. */
#ifndef SIMGPU_HALF_H
#define SIMGPU_HALF_H

#include <stdint.h>
#include <string.h>

static inline float sg_bf16_to_float(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float f;
    memcpy(&f, &wide, sizeof(f));
    return f;
}

static inline uint16_t sg_float_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u); /* NaN stays one */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float sg_f16_to_float(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, rest = bits & 0x7fffu, wide;
    float f;
    if (rest < 0x400u) { /* subnormal: a multiple of 2^-24 */
        f = (float)rest * (1.0f / 16777216.0f);
        return sign != 0 ? -f : f;
    }
    wide = rest >= 0x7c00u ? 0x7f800000u | (rest & 0x3ffu) << 13 : (rest << 13) + (112u << 23);
    wide |= sign;
    memcpy(&f, &wide, sizeof(f));
    return f;
}

static inline uint16_t sg_float_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return sign | 0x7e00u;
    if (bits >= 0x477ff000u) /* 65520 and above */
        return sign | 0x7c00u;
    if (bits < 0x38800000u) { /* below 2^-14: rounded to a multiple of 2^-24 */
        float magnitude;
        memcpy(&magnitude, &bits, sizeof(magnitude));
        return sign | (uint16_t)((magnitude * 16777216.0f + 8388608.0f) - 8388608.0f);
    }
    bits -= 112u << 23;
    return sign | (uint16_t)((bits + 0xfffu + (bits >> 13 & 1u)) >> 13);
}

#endif
