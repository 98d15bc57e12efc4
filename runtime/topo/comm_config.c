/* SPDX-License-Identifier: Apache-2.0 */
#include <stdint.h>
#include <stdio.h>

#include "topo/plan_parts.h"

tutti_status tt_plan_comm_config(const tt_plan *plan, const int *ranks, int n,
                                 const tt_comm_use *use, tt_comm_config *config_out)
{
    tt_comm_config config = {.cga_cluster_size = -1, .hier_min_bytes = SIZE_MAX};
    for (int i = 0; i < n; i++)
        if (ranks[i] < 0 || ranks[i] >= plan->ranks)
            return tt_fail(TUTTI_ERR_ARG, "plan: rank %d of %d", ranks[i], plan->ranks);
    if (use != NULL && use->name != NULL)
        snprintf(config.name, sizeof config.name, "%s", use->name);
    if (use != NULL && use->is_split && !use->overlaps_parent)
        config.split_share = 1;
    *config_out = config;
    return TUTTI_OK;
}
