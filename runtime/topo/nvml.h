/* SPDX-License-Identifier: Apache-2.0 */
/* NVML, opened at run time. Without the library there is simply nothing to ask. */
#ifndef TT_TOPO_NVML_H
#define TT_TOPO_NVML_H

#include "topo/model.h"

typedef struct tt_nvml tt_nvml;

/* NULL: no library, no driver or no GPU that this process may see; the reason is logged. */
tt_nvml *tt_nvml_open(void);
void tt_nvml_close(tt_nvml *nvml);
int tt_nvml_count(const tt_nvml *nvml); /* 0 of NULL */
/* TT_BUSID_NONE: NVML does not tell. */
tt_busid tt_nvml_busid(const tt_nvml *nvml, int dev);

/* Fills in a GPU of the machine, and appends its NVLinks (entries without a class yet: 0). */
tutti_status tt_nvml_fill(const tt_nvml *nvml, tt_machine *machine, int gpu);
/* The statuses of all pairs, and the driver's version. */
tutti_status tt_nvml_fill_machine(const tt_nvml *nvml, tt_machine *machine);
/* The NVLink fabric of the host; all zero: none, or not ready. */
void tt_nvml_fabric(const tt_nvml *nvml, uint8_t cluster_out[16], uint32_t *clique_out);
/* Processors near a GPU; false: not known. */
bool tt_nvml_cpus(const tt_nvml *nvml, int dev, tt_cpuset *cpus_out);

#endif
