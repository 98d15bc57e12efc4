/* SPDX-License-Identifier: Apache-2.0 */
/* This machine, with what the model does not look for itself: CUDA's numbers, NCCL's network
 * plugin. */
#ifndef TUTTI_TOPO_HERE_H
#define TUTTI_TOPO_HERE_H

#include "topo/findings.h"

/* The live machine, GPUs with CUDA's numbers unless TUTTI_BACKEND=host. */
tutti_status read_here(tutti_topo **topo);
/* Whether the plugin that NCCL would take can be loaded here (its constructors run). */
tt_tri net_plugin_loads(void);
/* For tt_findings_make. The plugin is tried only on this machine, and where it has an EFA device.
 */
tt_find_also what_else(const tutti_topo *topo);

#endif
