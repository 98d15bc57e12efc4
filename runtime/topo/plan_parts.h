/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the plan only. */
#ifndef TT_TOPO_PLAN_PARTS_H
#define TT_TOPO_PLAN_PARTS_H

#include "topo/plan.h"

struct tt_plan {
    const struct tutti_topo *topo; /* may be NULL */
    int hosts, ranks;
    tt_plan_seat *seat; /* of each rank */
    int *host_first; /* hosts + 1: where a host's ranks begin in by_host */
    int *by_host; /* ranks sorted by host, then rank */
};

#endif
