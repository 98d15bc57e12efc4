/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers for loops that the compiler turns into vector code.
 *
 * HOT compiles a function for AVX-512, for AVX2 and for the baseline; the loader picks one, so the
 * program runs on any x86-64 and is fast on a new one. The sanitizers cannot run code that early.
 */
#ifndef GPT_SIMD_H
#define GPT_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HOT __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HOT
#endif

/*
 * e^x without a call, so that loops around it vectorise: x = k ln 2 + r, a polynomial for e^r, and
 * k put straight into the exponent bits. Relative error below 2e-7; x is clamped to where neither
 * over- nor underflow happens. Adding 1.5 * 2^23 rounds to an integer.
 */
static inline real exp_fast(real x)
{
#ifdef GPT_DOUBLE
    return exp(x);
#else
    const float magic = 12582912.0f;
    float k, r, p, scale;
    int32_t bits;

    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    k = (x * 1.44269504f + magic) - magic;
    r = x - k * 0.693359375f;
    r = r - k * -2.12194440e-4f;
    p = 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    bits = ((int32_t)k + 127) * (1 << 23);
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
#endif
}

#endif
