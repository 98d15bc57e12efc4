/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TT_FUZZ_H
#define TT_FUZZ_H

#include <stddef.h>
#include <stdint.h>

enum { TT_FUZZ_ANY, TT_FUZZ_NCCL, TT_FUZZ_HWLOC, TT_FUZZ_MATRIX, TT_FUZZ_WORDS, TT_FUZZ_READERS };

/* 1: the reader took it. Aborts where an answer is wrong. */
int tt_fuzz_one(int reader, const uint8_t *data, size_t bytes);

#endif
