/* SPDX-License-Identifier: Apache-2.0 */
/* An open checkpoint whose files lie on several nodes: who has what, and the way here. */
#ifndef TT_CKPT_NODES_H
#define TT_CKPT_NODES_H

#include "boot/context.h"
#include "ckpt/loader.h"

typedef struct tt_nodes {
    char *path; /* of this rank's folder */
    int n;
    int *rank, *first; /* ranks of all nodes, one node behind the other; where each begins */
    size_t nfile;
    bool *has; /* whether node i has file k, at i * nfile + k */
    size_t *block; /* number of each file's first block among all blocks; then how many there are */
    bool *fetched; /* blocks that are in this node's spool */
} tt_nodes;
void tt_nodes_free(tt_nodes *nodes); /* takes NULL */

/* The steps that any node has, newest first; step BEST: the one that is tagged. dir: this rank's
 * folder, -1: it has none. Collective. */
tutti_status tt_nodes_steps(tutti_ctx *ctx, int dir, int64_t step, int64_t **steps_out,
                            size_t *n_out);

/* Opens a version of the step of which the nodes together have every file. NOT_FOUND: no node has
 * anything of the step. Collective. */
tutti_status tt_nodes_open(tutti_ctx *ctx, const char *path, int dir, int64_t step,
                           tt_source *src_out, tt_nodes **nodes_out);

/* Brings here what this rank needs for the boxes and its node does not have. Collective: ranks want
 * different boxes, or none. */
tutti_status tt_nodes_fetch(tutti_ctx *ctx, tt_nodes *nodes, tt_source *src, const tt_want *want,
                            size_t n);

#endif
