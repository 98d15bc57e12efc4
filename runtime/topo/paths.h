/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths between the devices of a machine by NCCL's rules (2.28): types, bandwidths and hops, what a
 * transfer then really uses (peer to peer or by the host's memory, GPUDirect, a peer GPU's NIC),
 * and each GPU's own NICs. Computed once per machine by tt_topo_seal; read only afterwards.
 */
#ifndef TT_TOPO_PATHS_H
#define TT_TOPO_PATHS_H

#include "topo/model.h"

typedef struct tt_path {
    float gbps;
    uint16_t hops;
    uint8_t type; /* tutti_path_type */
    int16_t via; /* GPU in between (NVB, PXN); -1 */
} tt_path;

/* What NCCL's environment variables may change; zero-initialised plus TT_PATH_RULES_INIT = default.
 */
typedef struct tt_path_rules {
    int p2p_level; /* a tutti_path_type; -1: NCCL's default */
    int gdr_level; /* likewise */
    int pxn_disable, nvb_disable, pxn_c2c; /* 0 or 1 */
} tt_path_rules;
#define TT_PATH_RULES_INIT                                                                         \
    {                                                                                              \
        -1, -1, 0, 0, 1                                                                            \
    }

typedef struct tt_paths {
    int n_gpus, n_nics, n_numa;
    tt_path *gpu_gpu; /* [from x n_gpus + to], as NCCL uses it */
    tt_path *gpu_nic; /* [gpu x n_nics + nic] */
    tt_path *gpu_numa; /* [gpu x n_numa + numa] */
    tt_path *raw_gpu_gpu, *raw_gpu_nic; /* the wires alone, before P2P, GDR and PXN are decided */
    uint8_t *p2p; /* [n_gpus squared] 1: peer to peer is used */
    uint8_t *gdr; /* [gpu x n_nics + nic] 1: the NIC reads and writes the GPU's memory itself */
    int32_t *nics; /* [gpu x n_nics]: its local NICs, best path; in NCCL's order */
    int32_t *n_local; /* [gpu] how many of them */
    int32_t *nic_first; /* [gpu] NIC its channel 0 takes; -1: none */
    int32_t *nic_count; /* [gpu] how many its channels take in turn, from there on in nics */
    int32_t *island; /* [gpu] joined by NVLink (one GPU in between allowed); alone: of its own */
    int n_islands;
    float max_gbps, total_gbps; /* fastest path of any GPU; sum of the fastest GPU's links */
} tt_paths;

tutti_status tt_paths_compute(const tt_machine *machine, const tt_path_rules *rules,
                              tt_paths **paths_out);
void tt_paths_free(tt_paths *paths);

/* Components of the GPUs joined by paths no worse than `worst`; group_out has n_gpus entries,
 * numbered in order of their first GPU. Returns their number. */
int tt_paths_groups(const tt_paths *paths, tutti_path_type worst, int32_t *group_out);

/* The NIC that the channel of a GPU takes: NCCL's round robin over its local ones. -1: none. */
int tt_paths_nic(const tt_machine *machine, int gpu, int channel);

/* Between devices of any two hosts: within a host the machine's; between hosts NVL where both GPUs
 * belong to one NVLink domain, else NET with the slower NIC's speed. */
tt_path tt_topo_path_between(const tutti_topo *topo, int host_a, int gpu_a, int host_b, int gpu_b);

const char *tt_path_name(tutti_path_type type); /* "NVL" */

#endif
