/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TT_FUZZ_H
#define TT_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TT_FUZZ_ANY, /* told apart by content: NCCL graphs and templates, tables, everything */
    TT_FUZZ_NCCL,
    TT_FUZZ_HWLOC,
    TT_FUZZ_MATRIX,
    TT_FUZZ_WORDS,
    TT_FUZZ_P2P, /* nvidia-smi topo -p2p, added to a machine of 8 GPUs */
    TT_FUZZ_TREE, /* a recorded /sys, as lines of tree.c */
    TT_FUZZ_READERS
};

/* 1: the reader took it. Aborts where an answer is wrong. */
int tt_fuzz_one(int reader, const uint8_t *data, size_t bytes);
/* Makes the files that the text describes; the root, which the next call empties. */
const char *tt_fuzz_tree(const char *text, size_t bytes);

#endif
