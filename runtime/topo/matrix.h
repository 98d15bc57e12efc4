/* SPDX-License-Identifier: Apache-2.0 */
/* The tables of `nvidia-smi topo` as cells, between the text of matrix_read.c and the model of
 * matrix_build.c. */
#ifndef TT_TOPO_MATRIX_H
#define TT_TOPO_MATRIX_H

#include "topo/model.h"

enum { TT_MATRIX_DEVICES = TT_TOPO_MAX_GPUS + TT_TOPO_MAX_NICS };

typedef struct tt_matrix_device {
    char label[TT_TOPO_NAME]; /* "GPU3", "NIC0", "mlx5_0" */
    char name[TT_TOPO_NAME]; /* of the legend, or the label */
    char cpus[256], numa[128], memory_node[32]; /* as written; "" where nothing is */
    int gpu; /* its number; -1: a NIC */
    uint32_t line; /* of its row; 0: it has none */
} tt_matrix_device;

typedef struct tt_matrix {
    tt_matrix_device *devices;
    uint8_t *cells; /* [row x n + column] tt_smi; TT_SMI_NV + links */
    uint8_t *p2p; /* [row x n_p2p + column] tt_p2p, by the numbers of the GPUs; NULL */
    int n, n_p2p;
} tt_matrix;

/* Builds and seals the topo. */
tutti_status tt_matrix_build(const tt_matrix *matrix, tutti_topo *topo);

static inline uint8_t tt_matrix_cell(const tt_matrix *m, int row, int column)
{
    return m->cells[(size_t)row * (size_t)m->n + (size_t)column];
}

#endif
