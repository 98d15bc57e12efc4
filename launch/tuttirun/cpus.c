/* SPDX-License-Identifier: Apache-2.0 */
#include "cpus.h"

#include <hwloc.h>
#include <stdlib.h>

/* The machine cut down to what the process's own mask allows; NULL when hwloc cannot tell. */
static hwloc_topology_t allowed_topology(void)
{
    hwloc_topology_t topo;

    if (hwloc_topology_init(&topo) != 0)
        return NULL;
    if (hwloc_topology_set_flags(topo, HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING |
                                           HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM) != 0 ||
        hwloc_topology_load(topo) != 0) {
        hwloc_topology_destroy(topo);
        return NULL;
    }
    return topo;
}

int cpus_cores(void)
{
    hwloc_topology_t topo = allowed_topology();
    int cores;

    if (topo == NULL)
        return 1;
    cores = hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_CORE);
    if (cores <= 0)
        cores = hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_PU);
    hwloc_topology_destroy(topo);
    return cores > 0 ? cores : 1;
}

static void bind_share(hwloc_topology_t topo, int index, int count)
{
    hwloc_obj_t root = hwloc_get_root_obj(topo);
    hwloc_cpuset_t *shares = calloc((size_t)count, sizeof(*shares));
    int i;

    if (shares == NULL)
        return;
    if (hwloc_distrib(topo, &root, 1, shares, (unsigned)count, INT_MAX, 0) == 0) {
        /* a machine that refuses (a sandbox) leaves the rank where it is, which is only slower */
        hwloc_set_cpubind(topo, shares[index], HWLOC_CPUBIND_PROCESS);
        for (i = 0; i < count; i++)
            hwloc_bitmap_free(shares[i]);
    }
    free(shares);
}

int cpus_bind_share(int index, int count)
{
    hwloc_topology_t topo = allowed_topology();
    int cpus;

    if (topo == NULL)
        return 0;
    cpus = hwloc_get_nbobjs_by_type(topo, HWLOC_OBJ_PU);
    if (count > 1 && index >= 0 && index < count && count <= cpus)
        bind_share(topo, index, count);
    hwloc_topology_destroy(topo);
    return cpus > 0 ? cpus : 0;
}
