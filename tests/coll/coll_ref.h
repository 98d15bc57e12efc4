/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What collectives must give, computed one element at a time by code that shares nothing with the
 * library: contents of buffers by formula, sums in the documented order.
 */
#ifndef COLL_REF_H
#define COLL_REF_H

#include "tt_test.h"

enum { MAX_TEAM = 64 };

/* A communicator as the test knows it. */
typedef struct team {
    tutti_comm *comm;
    int rank, size;
    int world[MAX_TEAM]; /* world rank of each member */
    int node[MAX_TEAM]; /* any number that is equal for members on one node */
    bool reproducible;
} team;

/* Node of each world rank from TUTTI_NODES' text; NULL: all on one. */
void ref_nodes(const char *nodes, int n, int *node_out);

/* How values are made: exact ones give the same sum, powers the same product, in any order. */
typedef enum ref_values { REF_EXACT, REF_ROUGH, REF_PRODUCT, REF_POWERS } ref_values;

/* Element `index` of the buffer that world rank `rank` contributes under `seed`. */
void ref_value(uint64_t seed, int rank, size_t index, tutti_dtype dtype, ref_values values,
               void *element_out);

/* Element `index` reduced over the team. */
void ref_reduced(const team *t, uint64_t seed, size_t index, tutti_dtype dtype, tutti_op op,
                 ref_values values, void *element_out);

uint64_t ref_mix(uint64_t a, uint64_t b);

#endif
