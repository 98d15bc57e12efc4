/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of logical processors, as large as the machine; a zero-filled one is empty. */
#ifndef TT_TOPO_CPUSET_H
#define TT_TOPO_CPUSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

enum { TT_CPUS_MAX = 16384 }; /* highest processor number + 1 that is read from anywhere */

typedef struct tt_cpuset {
    uint64_t *words;
    uint32_t n_words;
} tt_cpuset;

void tt_cpuset_free(tt_cpuset *set); /* leaves it empty */
tutti_status tt_cpuset_add(tt_cpuset *set, int cpu);
tutti_status tt_cpuset_copy(const tt_cpuset *from, tt_cpuset *to_out);
/* The intersection, or the union, of two sets into one that is empty or owned before. */
tutti_status tt_cpuset_and(const tt_cpuset *a, const tt_cpuset *b, tt_cpuset *out);
tutti_status tt_cpuset_or(const tt_cpuset *a, const tt_cpuset *b, tt_cpuset *out);
bool tt_cpuset_has(const tt_cpuset *set, int cpu);
int tt_cpuset_count(const tt_cpuset *set);
int tt_cpuset_next(const tt_cpuset *set, int after); /* -1: none; start with after = -1 */
bool tt_cpuset_equal(const tt_cpuset *a, const tt_cpuset *b);

/* "0-3,8" (the kernel's list) and "ffffffff,00000003" (its mask, highest word first). Malformed
 * text is CORRUPT and leaves the set as it was. */
tutti_status tt_cpuset_parse_list(const char *text, tt_cpuset *set_out);
tutti_status tt_cpuset_parse_mask(const char *text, tt_cpuset *set_out);
/* Writes up to `bytes` with the terminating zero and returns the length wanted, as snprintf. */
size_t tt_cpuset_print_list(const tt_cpuset *set, char *text, size_t bytes);
size_t tt_cpuset_print_mask(const tt_cpuset *set, char *text, size_t bytes);

#endif
