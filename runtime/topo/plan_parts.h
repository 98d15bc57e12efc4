/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the plan only. */
#ifndef TT_TOPO_PLAN_PARTS_H
#define TT_TOPO_PLAN_PARTS_H

#include "topo/cost.h"
#include "topo/fabric.h"
#include "topo/plan.h"

struct tt_plan {
    const tutti_topo *topo; /* may be NULL */
    int hosts, ranks;
    tt_plan_seat *seat; /* of each rank */
    int *host_first; /* hosts + 1: where a host's ranks begin in by_host */
    int *by_host; /* ranks sorted by host, then rank */
    int *domain; /* of each host: the first host of its NVLink fabric, itself where it is in none */
    tt_fabric **fabric; /* of each machine of the topo */
};

enum { TT_PLAN_AXES = 16 };

/* What is not known of a host: shared memory inside, one NIC of 100 Gb/s, in GB/s. */
#define TT_PLAN_MEMORY_GBPS 10.0
#define TT_PLAN_NIC_GBPS 12.5
/* A transfer that changes rails crosses the spine: it is charged as this many of one that does not.
 */
#define TT_PLAN_RAIL_CHANGE 1.25

/* A mesh to be judged, with what each axis carries per step. */
typedef struct tt_mesh_load {
    int n, axes;
    int size[TT_PLAN_AXES];
    double bytes[TT_PLAN_AXES];
} tt_mesh_load;

/* order_cost.c: judges orders of one mesh again and again. */
typedef struct tt_judge tt_judge;
tutti_status tt_judge_create(const tt_plan *plan, const tt_mesh_load *mesh, tt_judge **judge_out);
void tt_judge_destroy(tt_judge *judge);
double tt_judge_us(tt_judge *judge, const int *order); /* order: rank at each place */
/* The same with a little of what is not the slowest, so that a step towards something better counts
 * before all groups have made it. */
double tt_judge_search(tt_judge *judge, const int *order);

/* groups.c: from which size on three steps are faster, with both times at that size. */
typedef struct tt_three_steps {
    size_t min_bytes; /* SIZE_MAX: never */
    double flat_us, three_us;
    bool known; /* the model covers these ranks: then lanes is what a ring over all of them has */
    tt_lanes lanes;
} tt_three_steps;
tutti_status tt_plan_three_steps_from(const tt_plan *plan, const int *ranks, int n,
                                      tt_three_steps *out);

static inline const tt_machine *tt_plan_machine(const tt_plan *plan, int host)
{
    return plan->topo == NULL ? NULL : tt_topo_machine_of(plan->topo, host);
}

#endif
