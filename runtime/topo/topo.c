/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The public calls on a topology. Devices are numbered over all hosts, and a number's host is found
 * by bisection, so that nothing is stored per device of a large job.
 *
 * Info structs begin with the size that the caller knows: a program built against an older header
 * gets the fields that it has.
 */
#include <stdlib.h>
#include <string.h>

#include "topo/paths.h"
#include "topo/read.h"

tutti_status tutti_topo_open_file(const char *path, tutti_topo **topo_out)
{
    if (path == NULL || topo_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_topo_open_file: path or topo_out is NULL");
    return tt_topo_read_file(path, topo_out);
}

tutti_status tutti_topo_open_synthetic(const char *text, tutti_topo **topo_out)
{
    if (text == NULL || topo_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_topo_open_synthetic: text or topo_out is NULL");
    return tt_topo_read_synthetic(text, topo_out);
}

tutti_status tutti_topo_open_live(tutti_topo **topo_out)
{
    if (topo_out == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_topo_open_live: topo_out is NULL");
    return tt_topo_read_live(topo_out);
}

int tutti_topo_host_count(const tutti_topo *topo)
{
    return topo == NULL ? 0 : topo->n_hosts;
}

int tutti_topo_gpu_count(const tutti_topo *topo)
{
    return topo == NULL ? 0 : (int)topo->gpu_first[topo->n_hosts];
}

int tutti_topo_nic_count(const tutti_topo *topo)
{
    return topo == NULL ? 0 : (int)topo->nic_first[topo->n_hosts];
}

int tutti_topo_island_count(const tutti_topo *topo)
{
    return topo == NULL ? 0 : topo->n_islands;
}

/* The host of a device numbered over all hosts: the last one whose first is not above it. */
static int host_of(const uint32_t *first, int n_hosts, int device)
{
    int low = 0, high = n_hosts;

    while (high - low > 1) {
        int middle = low + (high - low) / 2;

        if (first[middle] <= (uint32_t)device)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static tutti_status find(const tutti_topo *topo, const uint32_t *first, int device,
                         const char *what, int *host_out)
{
    int n = (int)first[topo->n_hosts];

    if (device < 0 || device >= n)
        return tt_fail(TUTTI_ERR_ARG, "%s %d is not one of the %d of %s", what, device, n,
                       topo->origin);
    *host_out = host_of(first, topo->n_hosts, device);
    return TUTTI_OK;
}

/* Copies as much as the caller's struct holds, and leaves its size. */
static void give(void *to, const void *from, size_t theirs, size_t ours)
{
    memcpy((char *)to + sizeof(size_t), (const char *)from + sizeof(size_t),
           (theirs < ours ? theirs : ours) - sizeof(size_t));
}

tutti_status tutti_topo_gpu(const tutti_topo *topo, int gpu, tutti_topo_gpu_info *info)
{
    tutti_topo_gpu_info mine = TUTTI_TOPO_GPU_INFO_INIT;
    const tt_machine *m;
    const tt_gpu *g;
    int host = 0, at;

    if (topo == NULL || info == NULL || info->size < sizeof(size_t))
        return tt_fail(TUTTI_ERR_ARG, "tutti_topo_gpu: topo or info is NULL, or info->size is not "
                                      "set");
    TT_TRY(find(topo, topo->gpu_first, gpu, "GPU", &host));
    m = tt_topo_machine_of(topo, host);
    at = gpu - (int)topo->gpu_first[host];
    g = &m->gpus[at];
    mine.host = host;
    mine.dev = g->dev;
    mine.numa = m->numa[g->numa].id;
    mine.sm = g->sm;
    mine.island = topo->island[gpu];
    for (int i = 0; i < m->n_nvlinks; i++)
        if (m->nvlinks[i].gpu == at && m->nvlinks[i].peer < TT_PEER_SELF)
            mine.nvlinks += m->nvlinks[i].count;
    mine.nic = m->paths->nic_first[at];
    if (mine.nic >= 0)
        mine.nic += (int)topo->nic_first[host];
    mine.pcie_gbps = g->pci >= 0 ? (double)m->pci[g->pci].gbps : 0;
    mine.memory = g->memory;
    mine.name = g->name;
    mine.uuid = g->uuid;
    (void)tt_busid_print(g->pci >= 0 ? m->pci[g->pci].busid : TT_BUSID_NONE, mine.busid);
    give(info, &mine, info->size, sizeof mine);
    return TUTTI_OK;
}

tutti_status tutti_topo_nic(const tutti_topo *topo, int nic, tutti_topo_nic_info *info)
{
    tutti_topo_nic_info mine = TUTTI_TOPO_NIC_INFO_INIT;
    const tt_machine *m;
    const tt_nic *n;
    int host = 0;

    if (topo == NULL || info == NULL || info->size < sizeof(size_t))
        return tt_fail(TUTTI_ERR_ARG, "tutti_topo_nic: topo or info is NULL, or info->size is not "
                                      "set");
    TT_TRY(find(topo, topo->nic_first, nic, "NIC", &host));
    m = tt_topo_machine_of(topo, host);
    n = &m->nics[nic - (int)topo->nic_first[host]];
    mine.host = host;
    mine.numa = m->numa[n->numa].id;
    mine.port = n->port;
    mine.gbps = (double)n->gbps;
    mine.name = n->name;
    (void)tt_busid_print(n->pci >= 0 ? m->pci[n->pci].busid : TT_BUSID_NONE, mine.busid);
    give(info, &mine, info->size, sizeof mine);
    return TUTTI_OK;
}

static tt_path to_nic(const tutti_topo *topo, int host, int gpu, int nic_host, int nic)
{
    const tt_machine *m = tt_topo_machine_of(topo, host);

    if (host == nic_host)
        return m->paths->gpu_nic[(size_t)gpu * (size_t)m->n_nics + (size_t)nic];
    return (tt_path){0, 0, TUTTI_PATH_DIS, -1};
}

tutti_status tutti_topo_path_query(const tutti_topo *topo, int gpu, tutti_device_kind kind,
                                   int peer, tutti_topo_path *path_out)
{
    bool nic = kind == TUTTI_DEVICE_NIC;
    int host = 0, peer_host = 0;
    tt_path path;

    if (topo == NULL || path_out == NULL || (kind != TUTTI_DEVICE_GPU && !nic))
        return tt_fail(TUTTI_ERR_ARG,
                       "tutti_topo_path_query: topo or path_out is NULL, or kind is "
                       "%d",
                       (int)kind);
    TT_TRY(find(topo, topo->gpu_first, gpu, "GPU", &host));
    TT_TRY(
        find(topo, nic ? topo->nic_first : topo->gpu_first, peer, nic ? "NIC" : "GPU", &peer_host));
    gpu -= (int)topo->gpu_first[host];
    peer -= (int)(nic ? topo->nic_first[peer_host] : topo->gpu_first[peer_host]);
    path = nic ? to_nic(topo, host, gpu, peer_host, peer)
               : tt_topo_path_between(topo, host, gpu, peer_host, peer);
    *path_out = (tutti_topo_path){(tutti_path_type)path.type, (double)path.gbps, path.hops};
    return TUTTI_OK;
}
