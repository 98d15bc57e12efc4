/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers. Each returns a sealed topo owned by the caller (tutti_topo_close), or refuses with one
 * sentence: file, line, what. Hostile input is expected: sizes, depths and counts are capped.
 */
#ifndef TT_TOPO_READ_H
#define TT_TOPO_READ_H

#include "topo/model.h"

enum { TT_TOPO_FILE_MAX = 64 << 20 }; /* bytes of a description */

/* Any format from a file, told apart by content. ARG/IO: cannot be read; CORRUPT: malformed;
 * UNSUPPORTED: recognised, and says why it describes no machine (a graph dump, a console log). */
tutti_status tt_topo_read_file(const char *path, tutti_topo **topo_out);
/* The same from memory; `name` appears in messages. */
tutti_status tt_topo_read_text(const char *name, const char *text, size_t bytes,
                               tutti_topo **topo_out);

/* The single formats. */
tutti_status tt_topo_read_nccl(const char *name, const char *text, size_t bytes,
                               tutti_topo **topo_out);
tutti_status tt_topo_read_hwloc(const char *name, const char *text, size_t bytes,
                                tutti_topo **topo_out);
tutti_status tt_topo_read_matrix(const char *name, const char *text, size_t bytes,
                                 tutti_topo **topo_out);
/* Adds a `nvidia-smi topo -p2p` text's statuses to a topo of one machine with as many GPUs. */
tutti_status tt_topo_add_p2p(tutti_topo *topo, const char *name, const char *text, size_t bytes);

/* CUDA's numbers of the GPUs of a live topo: the i-th bus id is that of its device i. */
void tt_topo_add_cuda(tutti_topo *topo, const char *const *busids, int n);

/*
 * A name of the catalogue, optionally "xN" hosts of it and changes ("hgx-h100 x4 -nvlink:5"), or a
 * line of the grammar (runtime/topo/synthetic.c, docs/topology.md).
 */
tutti_status tt_topo_read_synthetic(const char *text, tutti_topo **topo_out);
typedef struct tt_topo_catalogue {
    const char *name, *about, *line; /* line: the description in the grammar */
} tt_topo_catalogue;
/* Entry i, NULL past the end. */
const tt_topo_catalogue *tt_topo_catalogue_at(int i);

/* The machine this process runs on: sysfs (under TUTTI_TOPO_FSROOT where set) and NVML. A machine
 * without any GPU is no error. */
tutti_status tt_topo_read_live(tutti_topo **topo_out);
/* A recorded machine: a directory with sys/ (and proc/cpuinfo) in it. No NVML is asked. */
tutti_status tt_topo_read_root(const char *root, tutti_topo **topo_out);

/* One host as NCCL topology XML, which reads back to the same model. The caller frees *text_out. */
tutti_status tt_topo_write_nccl(const tutti_topo *topo, int host, char **text_out);

#endif
