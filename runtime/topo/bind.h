/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which processors a rank should run on: those of its GPU's NUMA domain, or its share of the
 * domains, never more than the launcher gave it. Computes only.
 */
#ifndef TT_TOPO_BIND_H
#define TT_TOPO_BIND_H

#include "topo/model.h"

typedef struct tt_bind_rank {
    int gpu; /* index in the machine; -1: none */
    const tt_cpuset *mask; /* the processors that the rank has now */
} tt_bind_rank;

typedef enum tt_bind_why {
    TT_BIND_GPU, /* narrowed to the GPU's domain */
    TT_BIND_SHARE, /* narrowed to its share of the domains */
    TT_BIND_LAUNCHER, /* left: the launcher gave the ranks different processors */
    TT_BIND_NOTHING, /* left: nothing to choose from, or the domains are not known */
    TT_BIND_EMPTY /* left: none of the wanted processors may be used */
} tt_bind_why;
const char *tt_bind_text(tt_bind_why why);

/* Of local rank `me` among the n ranks of a host. *cpus_out (freed by the caller) is the set to
 * use, equal to the mask where it is to be left. Errors: NO_MEMORY. */
tutti_status tt_bind_cpus(const tt_machine *machine, const tt_bind_rank *ranks, int n, int me,
                          tt_cpuset *cpus_out, tt_bind_why *why_out);

#endif
