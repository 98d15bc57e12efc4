/* SPDX-License-Identifier: Apache-2.0 */
/* Questions that saving and loading put to all ranks. Collective over the job. */
#ifndef TT_CKPT_RANKS_H
#define TT_CKPT_RANKS_H

#include "boot/context.h"

/* All mean the same checkpoint, or ARG names one that does not. */
tutti_status tt_ranks_alike(tutti_ctx *ctx, const char *call, const char *dir, int64_t step,
                            uint32_t flags);

/* How many ranks say yes, and which, as text. */
tutti_status tt_ranks_that(tutti_ctx *ctx, const char *call, bool mine, int *count_out, char *who,
                           size_t cap);

/* Not collective: this rank is going to read or write so much, which is no time-out. */
double tt_ranks_disk_s(uint64_t bytes); /* seconds that a slow disk takes for them */
void tt_ranks_busy(tutti_ctx *ctx, uint64_t bytes);

#endif
