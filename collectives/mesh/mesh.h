/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a mesh. */
#ifndef TT_COLL_MESH_H
#define TT_COLL_MESH_H

#include "boot/live.h"
#include "comm/comm.h"
#include "tutti/mesh.h"

enum { TT_MESH_AXES = 16, TT_MESH_NAME = 32 };

typedef struct tt_axis {
    char name[TT_MESH_NAME];
    int size; /* 0 while it is to be inferred */
    int stride; /* positions between neighbours along it */
} tt_axis;

typedef struct tt_axes {
    int n;
    tt_axis axis[TT_MESH_AXES];
} tt_axes;

/* A communicator that was asked for. */
typedef struct tt_mesh_comm {
    uint32_t set;
    tutti_comm *comm;
    bool made; /* the mesh's own; else the world */
} tt_mesh_comm;

struct tutti_mesh {
    tutti_ctx *ctx;
    tt_axes axes;
    int size;
    int *rank; /* world rank at each position; positions count with the last axis fastest */
    int *position; /* of each world rank */
    tt_mesh_comm *comms;
    size_t ncomms, comms_cap;
    tt_live live;
};

/* parse.c: from text to sizes and strides that make `ranks`; ARG says what is wrong. */
tutti_status tt_mesh_parse(const char *text, int ranks, tt_axes *axes_out);
/* Bits of the axes that are in the set and larger than 1: sets with equal bits have equal members.
 */
tutti_status tt_mesh_set(const tt_axes *axes, const char *text, uint32_t *set_out);

/* Of a position: its number among those that differ in the set alone. */
int tt_mesh_index(const tt_axes *axes, uint32_t set, int position);
int tt_mesh_set_size(const tt_axes *axes, uint32_t set);

#endif
