/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "../topo/here.h"
#include "core/mem.h"
#include "doctor.h"
#include "topo/model.h"

static int gpu_of(const tt_machine *m, tt_busid busid)
{
    for (int i = 0; i < m->n_gpus && busid != TT_BUSID_NONE; i++)
        if (tt_gpu_busid(m, i) == busid)
            return i;
    return -1;
}

static tt_busid own_busid(const tt_machine *m, int device)
{
    for (int i = 0; i < m->n_gpus && device >= 0; i++)
        if (m->gpus[i].cuda == device)
            return tt_gpu_busid(m, i);
    return TT_BUSID_NONE;
}

static void ask_paths(const tutti_ctx *ctx, const tutti_topo *topo, const tt_busid *busid,
                      double *gbps)
{
    const tt_machine *m = tt_topo_machine_of(topo, 0);
    int me = ctx->world.rank, own = gpu_of(m, busid[me]);
    for (int r = 0; r < ctx->world.size; r++) {
        int gpu = ctx->place[r].node == ctx->place[me].node ? gpu_of(m, busid[r]) : -1;
        tutti_topo_path path;
        if (own >= 0 && gpu >= 0 && gpu != own &&
            tutti_topo_path_query(topo, own, TUTTI_DEVICE_GPU, gpu, &path) == TUTTI_OK)
            gbps[r] = path.gbps;
    }
}

tutti_status promised_gbps(tutti_ctx *ctx, double *gbps)
{
    tutti_topo *topo = NULL;
    tt_busid own = TT_BUSID_NONE, *all;
    tutti_status status = tt_calloc((size_t)ctx->world.size, sizeof *all, &all);
    TT_TRY(tt_agree(&ctx->world, "doctor, links", status));
    if (tutti_device(ctx) >= 0 && read_here(&topo) == TUTTI_OK)
        own = own_busid(tt_topo_machine_of(topo, 0), tutti_device(ctx));
    status = tt_all_gather_fixed(&ctx->world, "doctor, GPUs", &own, sizeof own, all);
    if (status == TUTTI_OK && topo != NULL)
        ask_paths(ctx, topo, all, gbps);
    tutti_topo_close(topo);
    free(all);
    return status;
}
