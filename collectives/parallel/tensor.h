/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TT_PARALLEL_TENSOR_H
#define TT_PARALLEL_TENSOR_H

#include "tutti/tensor_parallel.h"

tutti_comm *tt_tp_comm(const tutti_tp *tp);

/* cross_entropy.c: memory for maxima and sums, kept from call to call. A call's is in use until
 * `done` has passed; rooms that were too small stay until the end, for work on them may be pending.
 */
typedef struct tt_tp_room tt_tp_room;
typedef struct tt_tp_scratch {
    tt_tp_room *room; /* the largest first */
    tt_event *done;
} tt_tp_scratch;
tt_tp_scratch *tt_tp_scratch_of(tutti_tp *tp);
void tt_tp_scratch_free(tt_tp_scratch *scratch, tutti_ctx *ctx);

#endif
