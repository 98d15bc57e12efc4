/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's PCI tree from the bus as the kernel shows it, for the readers that see all bridges. */
#ifndef TT_TOPO_TREE_H
#define TT_TOPO_TREE_H

#include "topo/model.h"

enum { TT_TREE_MAX = 32768 }; /* functions and bridges on a bus */

typedef struct tt_raw_pci {
    tt_pci pci; /* numa and parent are not used; link facts are the function's own */
    int32_t parent; /* the bridge above (no cycles); -1: the root complex */
    int32_t node; /* NUMA node, as the kernel numbers it; -1 */
} tt_raw_pci;

/*
 * Adds the wanted functions to the machine with the switches above them, and the NUMA domains they
 * hang on, in the order in which the wanted ones name them. A switch is its upstream port: the
 * downstream ports and root ports are not shown, as they are not in NCCL's XML, but their link
 * limits count. at_out[i] is the model's index of raw[i], -1 where it is not shown.
 */
tutti_status tt_tree_build(tt_machine *machine, const tt_raw_pci *raw, int n, const int *wanted,
                           int n_wanted, int32_t *at_out);
/* The model's domain of a NUMA node, -1: none. */
int tt_tree_domain(const tt_machine *machine, int node);

#endif
