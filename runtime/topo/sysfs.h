/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel shows of the machine, below a root that may be a recorded one. */
#ifndef TT_TOPO_SYSFS_H
#define TT_TOPO_SYSFS_H

#include "topo/tree.h"

/* The first line of a file, without blanks at its end; false: it can't be read or is empty. */
bool tt_sysfs_text(char *out, size_t bytes, const char *fmt, ...) TT_PRINTF(3, 4);
/* A whole number (decimal, or 0x); `absent` where there is none. */
long long tt_sysfs_number(long long absent, const char *fmt, ...) TT_PRINTF(2, 3);

/* All PCI functions, by bus id. The caller frees. A machine without a PCI bus has none. */
tutti_status tt_sysfs_pci(const char *root, tt_raw_pci **raw_out, int *n_out);
/* The function of a bus id; -1. */
int tt_sysfs_find(const tt_raw_pci *raw, int n, tt_busid busid);

/* Fills in the NUMA domains that are there already and adds those that have processors. */
tutti_status tt_sysfs_numa(const char *root, tt_machine *machine);
/* The processors of a node; false: there is no such node. */
bool tt_sysfs_node_cpus(const char *root, int node, tt_cpuset *cpus_out);
/* Nodes that exist, in order; returns their number, at most cap. */
int tt_sysfs_nodes(const char *root, int *nodes, int cap);

/* The ports that NCCL would use: RDMA devices, or network interfaces where there are none. First
 * the functions they are at (for the tree), then they themselves. */
tutti_status tt_sysfs_net_functions(const char *root, const tt_raw_pci *raw, int n,
                                    int **functions_out, int *n_functions_out);
tutti_status tt_sysfs_nics(const char *root, tutti_topo *topo, const tt_raw_pci *raw, int n,
                           const int32_t *at);

#endif
