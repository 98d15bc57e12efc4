/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs of threads whose fake nodes have folders of their own: TOP/a, TOP/b, ... */
#ifndef NODES_TEST_H
#define NODES_TEST_H

#include "ckpt_test.h"

enum { NODE_RANKS = 8 };

typedef struct nodes_job {
    const char *top, *nodes; /* "2x2" */
    const char *folders; /* one letter for each rank: "aabb" */
    const char *copy; /* the second tier's folder below TOP, NULL: none */
    int64_t step; /* to save; to load, -1: the newest */
    int keep_last;
    int64_t got; /* loaded */
    tutti_status status; /* the same on all ranks, else the job's report says so */
    char text[1024]; /* of the last rank */
    tutti_status each[NODE_RANKS];
    int64_t each_got[NODE_RANKS];
} nodes_job;

const char *nodes_dir(const nodes_job *job, int rank, char path[PATH_CAP]);
/* The job's report: "" unless a test itself went wrong. */
const char *nodes_save(nodes_job *job);
const char *nodes_load(nodes_job *job);

#endif
