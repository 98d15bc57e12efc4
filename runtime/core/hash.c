/* SPDX-License-Identifier: Apache-2.0 */
#include "core/hash.h"

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
