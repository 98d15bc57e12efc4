/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random numbers as a function of their position: no state to carry, save or share. What a run
 * draws depends on (seed, what it is for, index) alone, whatever the number of ranks and wherever a
 * run was interrupted.
 */
#ifndef GPT_RANDOM_H
#define GPT_RANDOM_H

#include <stdint.h>

/* splitmix64's finalizer. */
static inline uint64_t random_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* 64 random bits for index `b` of stream `a` under a seed. */
static inline uint64_t random_at(uint64_t seed, uint64_t a, uint64_t b)
{
    uint64_t x = random_mix(seed + 0x9e3779b97f4a7c15u);

    x = random_mix(x ^ (a + 0x9e3779b97f4a7c15u));
    return random_mix(x ^ (b + 0x9e3779b97f4a7c15u));
}

/* In (0, 1). */
static inline double random_unit(uint64_t bits)
{
    return ((double)(bits >> 11) + 0.5) / 9007199254740992.0;
}

#endif
