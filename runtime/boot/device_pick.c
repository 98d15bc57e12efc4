/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "boot/internal.h"
#include "core/log.h"

static void device_error(void *arg, tutti_status status, const char *text)
{
    tt_ctx_fail(arg, tt_fail_text(status, text));
}

/* Asked by a caller that waits for a stream: where there is no progress thread, it is the one that
 * hears of failures. */
static tutti_status device_check(void *arg)
{
    tt_ctx_poll(arg);
    return tt_ctx_check(arg);
}

static _Thread_local const tutti_ctx *worker_of;

bool tt_ctx_on_worker(const tutti_ctx *ctx)
{
    return worker_of == ctx;
}

static void device_thread(void *arg)
{
    const tutti_ctx *ctx = arg;
    worker_of = ctx;
    tt_log_identity(ctx->world.rank, ctx->world.size);
}

/* What ranks may have been told differently by their options. */
typedef struct choice {
    int32_t backend;
    uint32_t reproducible;
} choice;

static tutti_status different(const tutti_ctx *ctx, int other, const char *what, const char *mine,
                              const char *first)
{
    char name[TT_HOST_MAX + 64];
    return tt_fail(TUTTI_ERR_MISMATCH, "tutti_init: %s %s %s, rank 0 %s",
                   tt_ctx_rank_name(ctx, other, name, sizeof name), what, mine, first);
}

static const char *backend_name(int32_t kind)
{
    return kind == TUTTI_BACKEND_CUDA ? "cuda" : "host";
}

/* All ranks take one backend and one order of summation; those that do not are named. */
static tutti_status same_choice(tutti_ctx *ctx)
{
    choice mine = {(int32_t)ctx->dev_ops->kind, ctx->flags & TUTTI_INIT_REPRODUCIBLE}, *all = NULL;
    tutti_status status = tt_calloc((size_t)ctx->world.size, sizeof *all, &all);
    status = tt_agree(&ctx->world, "tutti_init, memory for the choice of backend", status);
    if (status == TUTTI_OK)
        status = tt_all_gather_fixed(&ctx->world, "tutti_init, choice of backend", &mine,
                                     sizeof mine, all);
    for (int i = 1; i < ctx->world.size && status == TUTTI_OK; i++) {
        if (all[i].backend != all[0].backend)
            status = different(ctx, i, "chose the backend (TUTTI_BACKEND)",
                               backend_name(all[i].backend), backend_name(all[0].backend));
        else if (all[i].reproducible != all[0].reproducible)
            status = different(ctx, i, "has the reproducible mode",
                               all[i].reproducible != 0 ? "on" : "off",
                               all[0].reproducible != 0 ? "on" : "off");
    }
    free(all);
    return status;
}

int tt_duplicate_find(const char *const *ids, int n, int *first_out)
{
    for (int i = 1; i < n; i++)
        for (int k = 0; k < i && ids[i][0] != '\0'; k++)
            if (strcmp(ids[i], ids[k]) == 0) {
                *first_out = k;
                return i;
            }
    return 0;
}

static tutti_status no_duplicates(tutti_ctx *ctx)
{
    char mine[TT_DEVICE_ID_MAX] = "", *all = NULL;
    const char **ids = NULL;
    int n = ctx->world.size, first = 0;
    tutti_status status = tt_calloc((size_t)n, sizeof mine, &all);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)n, sizeof *ids, &ids);
    status = tt_agree(&ctx->world, "tutti_init, memory for the device names", status);
    if (status != TUTTI_OK)
        goto free_ids;
    if (ctx->dev_ops->identity != NULL)
        ctx->dev_ops->identity(ctx->dev, mine);
    status = tt_all_gather_fixed(&ctx->world, "tutti_init, device names", mine, sizeof mine, all);
    if (status != TUTTI_OK)
        goto free_ids;
    for (int i = 0; i < n; i++)
        ids[i] = all + (size_t)i * sizeof mine;
    int second = tt_duplicate_find(ids, n, &first);
    if (second > 0) {
        char a[TT_HOST_MAX + 64], b[TT_HOST_MAX + 64];
        status = tt_fail(TUTTI_ERR_ARG, "%s and %s use the same device %s; give each rank its own",
                         tt_ctx_rank_name(ctx, first, a, sizeof a),
                         tt_ctx_rank_name(ctx, second, b, sizeof b), ids[second]);
    }
free_ids:
    free(ids);
    free(all);
    return status;
}

tutti_status tt_device_pick(tutti_ctx *ctx, tutti_backend wanted)
{
    char note[512] = "";
    const tt_device_owner owner = {ctx, device_error, device_check, device_thread};
    tutti_status status = tt_device_select(wanted, &ctx->dev_ops, note, sizeof note);
    TT_TRY(tt_agree(&ctx->world, "tutti_init, choice of backend", status));
    if (note[0] != '\0' && ctx->world.rank == 0)
        tt_log_warn(TT_DEV, "%s", note);
    TT_TRY(same_choice(ctx));
    /* Nodes that are only played share this machine's devices. */
    bool plays = ctx->boot->fake_node >= 0;
    status = ctx->dev_ops->open(&owner, plays ? ctx->world.rank : tutti_local_rank(ctx),
                                plays ? ctx->world.size : ctx->local_size, &ctx->dev);
    TT_TRY(tt_agree(&ctx->world, "tutti_init, opening the device", status));
    return no_duplicates(ctx);
}
