/* SPDX-License-Identifier: Apache-2.0 */
/* Hashes (xxHash: XXH3). */
#ifndef TT_CORE_HASH_H
#define TT_CORE_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t tt_hash64(const void *data, size_t bytes, uint64_t seed);

typedef struct tt_hash128 {
    uint64_t low, high;
} tt_hash128;
tt_hash128 tt_hash128_of(const void *data, size_t bytes);

/* The same of data that comes piece by piece. */
typedef struct tt_hasher {
    _Alignas(64) unsigned char state[640];
} tt_hasher;
void tt_hasher_begin(tt_hasher *h);
void tt_hasher_add(tt_hasher *h, const void *data, size_t bytes);
tt_hash128 tt_hasher_end(const tt_hasher *h);

#endif
