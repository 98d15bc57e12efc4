/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "topo/model.h"

/* The machine changes hands; its host's place in an NVLink fabric comes along. */
static tutti_status take(tutti_topo *to, tutti_topo *part)
{
    tt_machine *mine;
    if (part->n_machines != 1 || part->n_hosts != 1)
        return tt_fail(TUTTI_ERR_ARG, "%s describes %d machines, not one", part->origin,
                       part->n_hosts);
    TT_TRY(tt_topo_add_machine(to, &mine));
    tt_machine empty = *mine;
    *mine = *part->machines[0];
    *part->machines[0] = empty;
    return TUTTI_OK;
}

tutti_status tt_topo_join(tutti_topo *const *parts, int n_parts, const int *part_of, int n_hosts,
                          tutti_topo **topo_out)
{
    tutti_topo *topo;
    TT_TRY(tt_topo_new(n_parts > 0 ? parts[0]->format : TT_TOPO_LIVE, "several hosts", &topo));
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < n_parts && status == TUTTI_OK; i++)
        status = take(topo, parts[i]);
    for (int h = 0; h < n_hosts && status == TUTTI_OK; h++) {
        const tt_host *from = &parts[part_of[h]]->hosts[0];
        status = tt_topo_add_host(topo, part_of[h], from->name);
        if (status == TUTTI_OK) {
            memcpy(topo->hosts[h].cluster, from->cluster, sizeof from->cluster);
            topo->hosts[h].clique = from->clique;
        }
    }
    if (status == TUTTI_OK)
        status = tt_topo_seal(topo);
    if (status != TUTTI_OK) {
        tutti_topo_close(topo);
        return status;
    }
    *topo_out = topo;
    return TUTTI_OK;
}
