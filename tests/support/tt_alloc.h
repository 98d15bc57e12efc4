/* SPDX-License-Identifier: Apache-2.0 */
/* Counts calls of malloc, calloc and realloc. A program that links tt_alloc has them counted: the
 * linker puts the counters in front of the C library (--wrap). */
#ifndef TT_ALLOC_H
#define TT_ALLOC_H

#include <stdatomic.h>
#include <stdbool.h>

extern _Thread_local bool tt_alloc_here; /* those of this thread count */
extern _Atomic bool tt_alloc_everywhere; /* those of all threads do */
extern _Atomic long tt_allocations;

#endif
