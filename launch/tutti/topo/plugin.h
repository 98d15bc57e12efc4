/* SPDX-License-Identifier: Apache-2.0 */
/* What the findings take from outside the model: NCCL's network plugin. */
#ifndef TUTTI_TOPO_PLUGIN_H
#define TUTTI_TOPO_PLUGIN_H

#include "topo/findings.h"

/* Whether the plugin that NCCL would take can be loaded here (its constructors run). */
tt_tri net_plugin_loads(void);
/* For tt_findings_make. The plugin is tried only on this machine, and where it has an EFA device.
 */
tt_find_also what_else(const tutti_topo *topo);

#endif
