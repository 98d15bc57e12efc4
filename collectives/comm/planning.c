/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan that tutti_init makes, between the choice of devices and the world communicator.
 *
 * One rank of each host looks at the machine and writes it as NCCL topology XML, which is small and
 * complete for planning. The ranks compare hashes, so that a machine that a thousand hosts have
 * travels once, and every rank joins the same texts into the same topology, from which all make the
 * same plan without another word. When any host cannot be described, all plan without models.
 *
 * Ranks that are threads of one process share its processors and one description of its machine:
 * there the machine is looked at only when TUTTI_TOPO names a description.
 *
 * Binding: only the calling thread is narrowed, and what it starts from then on; threads that were
 * there before keep their processors. tutti_finalize gives back what was taken.
 */
#include "comm/planning.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/env.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"
#include "topo/bind.h"
#include "topo/plan.h"
#include "topo/read.h"

enum { KINDS_MAX = 64 };

typedef struct planning {
    tutti_topo *topo; /* of all hosts; NULL: not known */
    int own_gpu; /* of this rank in its machine, -1 */
    bool bound;
    cpu_set_t before;
} planning;

static planning *planning_of(tutti_ctx *ctx)
{
    return ctx->planning;
}

static tutti_status read_machine(const tutti_ctx *ctx, tutti_topo **topo)
{
    const char *text;
    TT_TRY(tt_env_get_string(TT_ENV_TOPO, &text));
    if (text[0] == '\0' && ctx->boot->one_process)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "ranks are threads of one process");
    if (text[0] == '\0')
        return tt_topo_read_live(topo);
    if (access(text, F_OK) == 0)
        return tt_topo_read_file(text, topo);
    return tt_topo_read_synthetic(text, topo);
}

/* This host as XML, from its first rank. "" where it cannot be told. A description that the user
 * named must be right. */
static tutti_status describe(const tutti_ctx *ctx, char **text_out)
{
    const char *named;
    tutti_topo *topo = NULL;
    if (ctx->place[ctx->world.rank].local_rank != 0)
        return tt_strdup("", text_out);
    TT_TRY(tt_env_get_string(TT_ENV_TOPO, &named));
    tutti_status status = read_machine(ctx, &topo);
    if (status == TUTTI_OK)
        status = tt_topo_write_nccl(topo, 0, text_out);
    tutti_topo_close(topo);
    if (status == TUTTI_OK)
        return TUTTI_OK;
    if (named[0] != '\0')
        return tt_fail_more(status, "TUTTI_TOPO");
    tt_log_info(TT_TOPO, "planning without this machine's topology: %s", tutti_last_error());
    return tt_strdup("", text_out);
}

/* Which rank first has each host's text; false: some host has none, or there are too many kinds. */
static bool find_kinds(const tutti_ctx *ctx, const uint64_t *hash, int *part_of, int *root,
                       int *kinds_out)
{
    int kinds = 0;
    for (int r = 0; r < ctx->world.size; r++) {
        if (ctx->place[r].local_rank != 0)
            continue;
        int k = 0;
        while (k < kinds && hash[root[k]] != hash[r])
            k++;
        if (hash[r] == 0 || k == KINDS_MAX)
            return false;
        if (k == kinds)
            root[kinds++] = r;
        part_of[ctx->place[r].node] = k;
    }
    *kinds_out = kinds;
    return true;
}

static tutti_status receive(tutti_ctx *ctx, int root, const char *mine, tutti_topo **part_out)
{
    tt_buf text = {0};
    TT_TRY(tt_bcast_blob(&ctx->world, "tutti_init, topology", root, mine, strlen(mine), &text));
    tutti_status status =
        tt_topo_read_nccl(ctx->place[root].host, (const char *)text.data, text.size, part_out);
    tt_buf_free(&text);
    return tt_agree(&ctx->world, "tutti_init, topology", status);
}

static tutti_status gather(tutti_ctx *ctx, const char *mine, uint64_t *hash, int *part_of)
{
    tutti_topo *parts[KINDS_MAX] = {NULL};
    int root[KINDS_MAX], kinds = 0;
    uint64_t own = mine[0] == '\0' ? 0 : tt_hash64(mine, strlen(mine), 1);
    TT_TRY(tt_all_gather_fixed(&ctx->world, "tutti_init, topology", &own, sizeof own, hash));
    if (!find_kinds(ctx, hash, part_of, root, &kinds))
        return TUTTI_OK;
    tutti_status status = TUTTI_OK;
    for (int k = 0; k < kinds && status == TUTTI_OK; k++)
        status = receive(ctx, root[k], mine, &parts[k]);
    if (status == TUTTI_OK)
        status = tt_topo_join(parts, kinds, part_of, ctx->node_count, &planning_of(ctx)->topo);
    for (int k = 0; k < kinds; k++)
        tutti_topo_close(parts[k]);
    return status;
}

static tutti_status find_machines(tutti_ctx *ctx)
{
    char *mine = NULL;
    uint64_t *hash = NULL;
    int *part_of = NULL;
    tutti_status status = describe(ctx, &mine);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)ctx->world.size, sizeof *hash, &hash);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)ctx->node_count, sizeof *part_of, &part_of);
    status = tt_agree(&ctx->world, "tutti_init, topology", status);
    if (status == TUTTI_OK)
        status = gather(ctx, mine, hash, part_of);
    free(part_of);
    free(hash);
    free(mine);
    return status;
}

/* The GPU of this rank in its host's machine, by PCI bus id; -1: none. */
static int own_gpu(const tutti_ctx *ctx)
{
    char id[TT_DEVICE_ID_MAX] = "";
    const tutti_topo *topo = planning_of((tutti_ctx *)(size_t)ctx)->topo;
    tt_busid busid;
    if (topo == NULL || ctx->dev_ops->pci == NULL)
        return -1;
    ctx->dev_ops->pci(ctx->dev, id);
    if (tt_busid_parse(id, &busid) != TUTTI_OK)
        return -1;
    const tt_machine *m = tt_topo_machine_of(topo, ctx->place[ctx->world.rank].node);
    for (int g = 0; g < m->n_gpus; g++)
        if (m->gpus[g].pci >= 0 && m->pci[m->gpus[g].pci].busid == busid)
            return g;
    tt_log_info(TT_TOPO, "GPU %s is not in this machine's description", id);
    return -1;
}

static tutti_status make_plan(tutti_ctx *ctx)
{
    planning *p = planning_of(ctx);
    tt_plan_input in = {p->topo, ctx->node_count, ctx->world.size, NULL};
    tt_plan_rank *ranks = NULL;
    int *gpus = NULL;
    tutti_status status = tt_calloc((size_t)in.ranks, sizeof *ranks, &ranks);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)in.ranks, sizeof *gpus, &gpus);
    status = tt_agree(&ctx->world, "tutti_init, plan", status);
    if (status == TUTTI_OK)
        status = tt_all_gather_fixed(&ctx->world, "tutti_init, GPUs of the ranks", &p->own_gpu,
                                     sizeof p->own_gpu, gpus);
    if (status == TUTTI_OK) {
        for (int i = 0; i < in.ranks; i++)
            ranks[i] = (tt_plan_rank){ctx->place[i].node, gpus[i]};
        in.rank = ranks;
        status = tt_agree(&ctx->world, "tutti_init, plan", tt_plan_create(&in, &ctx->plan));
    }
    free(gpus);
    free(ranks);
    return status;
}

static tutti_status to_cpuset(const cpu_set_t *set, tt_cpuset *out)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, set))
            TT_TRY(tt_cpuset_add(out, cpu));
    return TUTTI_OK;
}

static void bind_thread(planning *p, const tt_cpuset *cpus, tt_bind_why why)
{
    cpu_set_t wanted;
    char text[128];
    CPU_ZERO(&wanted);
    for (int cpu = -1; (cpu = tt_cpuset_next(cpus, cpu)) >= 0 && cpu < CPU_SETSIZE;)
        CPU_SET(cpu, &wanted);
    tt_cpuset_print_list(cpus, text, sizeof text);
    if (CPU_EQUAL(&wanted, &p->before) || CPU_COUNT(&wanted) == 0) {
        tt_log_info(TT_TOPO, "processors %s, %s", text, tt_bind_text(why));
        return;
    }
    /* a sandbox may refuse: the rank is where it was, which is only slower */
    p->bound = sched_setaffinity(0, sizeof wanted, &wanted) == 0;
    tt_log_info(TT_TOPO, "%s processors %s, %s", p->bound ? "bound to" : "could not be bound to",
                text, tt_bind_text(why));
}

typedef struct local_mask {
    cpu_set_t mask;
    int32_t gpu;
} local_mask;

/* The ranks of this host as the binding wants them. */
static tutti_status choose_cpus(tutti_ctx *ctx, const local_mask *all)
{
    planning *p = planning_of(ctx);
    int me = ctx->world.rank, n = 0;
    tt_bind_rank *ranks = NULL;
    tt_cpuset *masks = NULL, cpus = {0};
    tt_bind_why why;
    tutti_status status = tt_calloc((size_t)ctx->local_size, sizeof *ranks, &ranks);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)ctx->local_size, sizeof *masks, &masks);
    for (int r = 0; r < ctx->world.size && status == TUTTI_OK; r++)
        if (ctx->place[r].node == ctx->place[me].node) {
            status = to_cpuset(&all[r].mask, &masks[n]);
            ranks[n] = (tt_bind_rank){all[r].gpu, &masks[n]};
            n++;
        }
    if (status == TUTTI_OK)
        status = tt_bind_cpus(tt_topo_machine_of(p->topo, ctx->place[me].node), ranks, n,
                              ctx->place[me].local_rank, &cpus, &why);
    if (status == TUTTI_OK)
        bind_thread(p, &cpus, why);
    tt_cpuset_free(&cpus);
    for (int i = 0; i < n; i++)
        tt_cpuset_free(&masks[i]);
    free(masks);
    free(ranks);
    return status;
}

static tutti_status bind_rank(tutti_ctx *ctx)
{
    planning *p = planning_of(ctx);
    local_mask mine, *all = NULL;
    bool wanted;
    tutti_status status = tt_env_get_bool(TT_ENV_BIND, &wanted);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)ctx->world.size, sizeof *all, &all);
    status = tt_agree(&ctx->world, "tutti_init, processors", status);
    if (status != TUTTI_OK || !wanted || p->topo == NULL || ctx->boot->one_process)
        goto free_all;
    memset(&mine, 0, sizeof mine);
    mine.gpu = p->own_gpu;
    if (sched_getaffinity(0, sizeof mine.mask, &mine.mask) != 0)
        CPU_ZERO(&mine.mask);
    p->before = mine.mask;
    status = tt_all_gather_fixed(&ctx->world, "tutti_init, processors", &mine, sizeof mine, all);
    if (status == TUTTI_OK)
        status = tt_agree(&ctx->world, "tutti_init, processors",
                          CPU_COUNT(&mine.mask) > 0 ? choose_cpus(ctx, all) : TUTTI_OK);
free_all:
    free(all);
    return status;
}

tutti_status tt_planning_make(tutti_ctx *ctx)
{
    planning *p = NULL;
    tutti_status status = tt_calloc(1, sizeof *p, &p);
    ctx->planning = p;
    TT_TRY(tt_agree(&ctx->world, "tutti_init, plan", status));
    TT_TRY(find_machines(ctx));
    p->own_gpu = own_gpu(ctx);
    TT_TRY(make_plan(ctx));
    TT_TRY(tt_planning_variables(ctx));
    return bind_rank(ctx);
}

void tt_planning_end(tutti_ctx *ctx)
{
    planning *p = planning_of(ctx);
    tt_plan_destroy(ctx->plan);
    ctx->plan = NULL;
    if (p == NULL)
        return;
    if (p->bound && sched_setaffinity(0, sizeof p->before, &p->before) != 0)
        tt_log_info(TT_TOPO, "the processors could not be given back");
    tutti_topo_close(p->topo);
    free(p);
    ctx->planning = NULL;
}
