/* SPDX-License-Identifier: Apache-2.0 */
/* What tutti_init plans: the machines' models, the seats of the ranks, their processors. */
#ifndef TT_COLL_PLANNING_H
#define TT_COLL_PLANNING_H

#include "boot/context.h"

/* Collective; sets ctx->plan. A machine that nobody can describe is no error: hosts alone count
 * then. Narrows the calling thread's processors where the plan says so. */
tutti_status tt_planning_make(tutti_ctx *ctx);
/* Takes what tt_planning_make left, also after a failure of it; gives the processors back. */
void tt_planning_end(tutti_ctx *ctx);

/* Collective, part of tt_planning_make (variables.c): on the CUDA backend, sets the plan's NCCL_*
 * variables that no rank has set, and reports what the user has set against it. */
tutti_status tt_planning_variables(tutti_ctx *ctx);

#endif
