/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "here.h"
#include "topo/read.h"

tutti_status read_here(tutti_topo **topo)
{
    char busid[TT_TOPO_MAX_GPUS][TT_DEVICE_ID_MAX];
    const char *busids[TT_TOPO_MAX_GPUS];
    TT_TRY(tt_topo_read_live(topo));
    int n = tutti_topo_gpu_count(*topo) > 0 ? tt_device_list(busid, TT_TOPO_MAX_GPUS) : 0;
    for (int i = 0; i < n; i++)
        busids[i] = busid[i];
    tt_topo_add_cuda(*topo, busids, n);
    return TUTTI_OK;
}

static bool loads(const char *name)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library != NULL)
        dlclose(library);
    return library != NULL;
}

/* As NCCL looks for it: NCCL_NET_PLUGIN is a file, or the end of a name; "none" forbids it. */
tt_tri net_plugin_loads(void)
{
    const char *chosen = getenv("NCCL_NET_PLUGIN");
    char name[256];
    if (chosen == NULL || chosen[0] == '\0')
        return loads("libnccl-net.so") ? TT_YES : TT_NO;
    if (strcmp(chosen, "none") == 0)
        return TT_NO;
    if (loads(chosen))
        return TT_YES;
    snprintf(name, sizeof name, "libnccl-net-%.200s.so", chosen);
    return loads(name) || loads("libnccl-net.so") ? TT_YES : TT_NO;
}

tt_find_also what_else(const tutti_topo *topo)
{
    tt_find_also also = {TT_TRI_UNKNOWN};
    for (int m = 0; topo->format == TT_TOPO_LIVE && m < topo->n_machines; m++)
        if (topo->machines[m]->system.efa == TT_YES)
            also.net_plugin = net_plugin_loads();
    return also;
}
