/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A residual network of fully connected layers on arrays, with sizes that no number of ranks
 * divides but where a matrix is shared: 13 inputs, 23 wide, blocks of 54 hidden units, 9 outputs.
 *
 *   x = E in;  per block x += D tanh(U x + u) + d;  out = H x
 *
 * Of every block's hidden units a rank has hidden/ranks: its rows of U and u, its columns of D.
 */
#ifndef MLP_NETWORK_H
#define MLP_NETWORK_H

#include <tutti/tutti.h>

enum { IN = 13, WIDTH = 23, HIDDEN = 54, OUT = 9, BLOCKS = 3, TENSORS = 2 + 4 * BLOCKS };

/* A parameter, or this rank's box of it, in arenas that are the program's own. */
typedef struct tensor {
    char name[32];
    int64_t whole[2], offset[2], shape[2];
    bool replica; /* equal on all ranks that share matrices */
    float *value, *grad;
} tensor;

typedef struct network {
    tensor t[TENSORS]; /* E; U, u, D, d of every block; H */
    size_t hidden; /* of a block, on this rank */
    int share; /* this rank among those that share matrices */
    tutti_tp *tp;
    bool dealt; /* rows between blocks are dealt out to the ranks (sequence parallelism) */
    size_t rows, part_rows; /* of a batch: all; this rank's between blocks */
    float *params, *grads; /* the arenas */
    float *memory; /* activations */
    float *in, *target, *x, *x_full[BLOCKS + 1], *h[BLOCKS], *y, *out;
    float *dx, *dy_full, *dh, *dy;
} network;

/* False: out of memory. */
bool network_create(network *n, tutti_comm *tp_comm, tutti_tp *tp, bool dealt, size_t rows);
void network_destroy(network *n);

/* Rows first ... first + rows - 1 of step `step`'s batch, a function of their numbers alone. */
void network_batch(network *n, int64_t step, int64_t first);

typedef tutti_status (*network_ready)(void *arg, int id);

/* Mean squared error of the batch; gradients are added to. `ready` is told of every tensor whose
 * gradient is final. */
tutti_status network_step(network *n, double *loss_out, network_ready ready, void *arg);

#endif
