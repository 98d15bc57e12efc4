/* SPDX-License-Identifier: Apache-2.0 */
#include "core/hash.h"

#define XXH_STATIC_LINKING_ONLY /* the state's size */

/* The distribution builds the library for the oldest x86-64; with this header the widest vectors of
 * the processor are used, at two to three times the rate. */
#if TUTTI_HAVE_XXH_DISPATCH
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

uint64_t tt_hash64(const void *data, size_t bytes, uint64_t seed)
{
    return XXH3_64bits_withSeed(data, bytes, seed);
}

tt_hash128 tt_hash128_of(const void *data, size_t bytes)
{
    XXH128_hash_t hash = XXH3_128bits(data, bytes);
    return (tt_hash128){hash.low64, hash.high64};
}

_Static_assert(sizeof(XXH3_state_t) <= sizeof(tt_hasher) &&
                   _Alignof(XXH3_state_t) <= _Alignof(tt_hasher),
               "a hasher holds xxHash's state");

void tt_hasher_begin(tt_hasher *h)
{
    XXH3_128bits_reset((XXH3_state_t *)(void *)h);
}

void tt_hasher_add(tt_hasher *h, const void *data, size_t bytes)
{
    XXH3_128bits_update((XXH3_state_t *)(void *)h, data, bytes);
}

tt_hash128 tt_hasher_end(const tt_hasher *h)
{
    XXH128_hash_t hash = XXH3_128bits_digest((const XXH3_state_t *)(const void *)h);
    return (tt_hash128){hash.low64, hash.high64};
}
