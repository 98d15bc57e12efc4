/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_test.h"

uint64_t tt_rand(tt_rng *rng)
{
    uint64_t z = (rng->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint64_t tt_rand_below(tt_rng *rng, uint64_t limit)
{
    return tt_rand(rng) % limit;
}
