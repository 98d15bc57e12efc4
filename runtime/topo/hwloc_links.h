/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix NVLinkBandwidth of hwloc's XML. */
#ifndef TT_TOPO_HWLOC_LINKS_H
#define TT_TOPO_HWLOC_LINKS_H

#include "topo/model.h"
#include "topo/xml.h"

/* Adds the NVLinks of a machine whose GPUs are there, with the bus ids of the file. */
tutti_status tt_hwloc_read_nvlinks(const tt_xml *xml, tt_machine *machine);

#endif
