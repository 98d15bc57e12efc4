/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wires of a machine as traffic sees them: which of them a transfer loads, and what NVLink
 * gives to a set of GPUs.
 */
#ifndef TT_TOPO_FABRIC_H
#define TT_TOPO_FABRIC_H

#include "topo/paths.h"
#include "topo/wires.h"

enum { TT_WAY_MAX = 64 };

typedef struct tt_fabric {
    const tt_machine *machine;
    tt_wires *wires;
    float *direct; /* [n_gpus squared] NVLink between two GPUs */
    float *uplink; /* [n_gpus] NVLink to switches */
    float *cut; /* memo of tt_fabric_island by set of the first 8 GPUs; < 0: not computed */
} tt_fabric;

tutti_status tt_fabric_create(const tt_machine *machine, tt_fabric **fabric_out);
void tt_fabric_destroy(tt_fabric *fabric); /* takes NULL */

/* The wires that GPU a loads to reach GPU b: the path's own, or those through the host's memory
 * where peer to peer is not used. Returns their number. */
int tt_fabric_way(const tt_fabric *fabric, int a, int b, int way[TT_WAY_MAX]);
/* From a GPU to a NIC (out) or back. */
int tt_fabric_way_nic(const tt_fabric *fabric, int gpu, int nic, bool out, int way[TT_WAY_MAX]);

/* Ring bandwidth that NVLink alone gives a set of GPUs: no more rings than cross its narrowest cut.
 * 0: some of them are not joined by NVLink. */
float tt_fabric_island(tt_fabric *fabric, const int *gpus, int n);

#endif
