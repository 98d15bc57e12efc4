/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a power cut may leave of recorded operations (tt_fs.h). A file system that promises no more
 * than POSIX: what was written to a file or entered into a directory since its last fsync may be
 * there or not, each operation by itself, a write also in part; what is older is there.
 */
#ifndef TT_CRASH_H
#define TT_CRASH_H

#include "tt_fs.h"
#include "tt_test.h"

/* How much of what is not durable survives: nothing, all, or each operation by a throw of dice. */
typedef enum tt_crash_fate { TT_CRASH_NOTHING, TT_CRASH_ALL, TT_CRASH_RANDOM } tt_crash_fate;

/* Makes in the empty folder `to` what is there after the first n operations. */
void tt_crash_make(const tt_fs_op *ops, size_t n, tt_crash_fate fate, tt_rng *rng, const char *to);

#endif
