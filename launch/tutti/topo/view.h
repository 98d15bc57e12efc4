/* SPDX-License-Identifier: Apache-2.0 */
/* What `tutti topo` shows, collected once; page.c, json.c and svg.c draw it. */
#ifndef TUTTI_TOPO_VIEW_H
#define TUTTI_TOPO_VIEW_H

#include <stdio.h>

#include "mesh/mesh.h"
#include "topo/bind.h"
#include "topo/cost.h"
#include "topo/findings.h"
#include "topo/plan.h"

enum { VIEW_BYTES = 256 << 20 }; /* the all-reduce that bandwidths are told for */

/* One communicator of the mesh: that along an axis, as the rank at place 0 has it. */
typedef struct view_comm {
    const tt_axis *axis;
    int size, hosts;
    tt_comm_config config;
    double flat_us, three_us; /* of VIEW_BYTES; 0: not known */
} view_comm;

typedef struct view_rank {
    tt_plan_seat seat;
    char cpus[128];
    tt_bind_why why;
} view_rank;

typedef struct topo_view {
    const tutti_topo *topo;
    tt_cost *cost; /* of each machine, all its GPUs; local 0: none */
    tt_findings findings;
    /* the plan: one rank per GPU; NULL where there is none to make one of */
    tt_plan *plan;
    int ranks;
    view_rank *rank;
    tt_axes axes;
    int *order; /* rank at each place of the mesh */
    double order_us, launcher_us;
    view_comm comm[TT_MESH_AXES];
    int n_comms;
    tt_plan_variable variable[TT_PLAN_VARIABLES];
    int n_variables;
} topo_view;

/* mesh: "dp=8,tp=4", or NULL: one axis over all GPUs. */
tutti_status view_make(const tutti_topo *topo, const char *mesh, topo_view *view);
void view_free(topo_view *view);

void page_print(const topo_view *view, FILE *out);
tutti_status json_print(const topo_view *view, FILE *out);
/* The file is replaced whole or not at all. */
tutti_status svg_write(const topo_view *view, const char *path);

#endif
