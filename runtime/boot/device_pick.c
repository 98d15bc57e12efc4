/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "boot/internal.h"
#include "core/log.h"

static void device_error(void *arg, tutti_status status, const char *text)
{
    tt_ctx_fail(arg, tt_fail_text(status, text));
}

static tutti_status device_check(void *arg)
{
    return tt_ctx_check(arg);
}

static void device_thread(void *arg)
{
    const tutti_ctx *ctx = arg;
    tt_log_identity(ctx->world.rank, ctx->world.size);
}

/* All ranks take one backend: ranks that chose differently are told apart by name. */
static tutti_status same_backend(tutti_ctx *ctx)
{
    int32_t mine = (int32_t)ctx->dev_ops->kind, *all = NULL;
    tutti_status status = tt_calloc((size_t)ctx->world.size, sizeof *all, &all);
    status = tt_agree(&ctx->world, "tutti_init, memory for the choice of backend", status);
    if (status == TUTTI_OK)
        status = tt_all_gather_fixed(&ctx->world, "tutti_init, choice of backend", &mine,
                                     sizeof mine, all);
    for (int i = 1; i < ctx->world.size && status == TUTTI_OK; i++)
        if (all[i] != all[0]) {
            char name[TT_HOST_MAX + 64];
            status = tt_fail(TUTTI_ERR_MISMATCH,
                             "%s chose the %s backend and rank 0 the %s backend; set TUTTI_BACKEND",
                             tt_ctx_rank_name(ctx, i, name, sizeof name),
                             all[i] == TUTTI_BACKEND_CUDA ? "cuda" : "host",
                             all[0] == TUTTI_BACKEND_CUDA ? "cuda" : "host");
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
    char note[256] = "";
    const tt_device_owner owner = {ctx, device_error, device_check, device_thread};
    tutti_status status = tt_device_select(wanted, &ctx->dev_ops, note, sizeof note);
    TT_TRY(tt_agree(&ctx->world, "tutti_init, choice of backend", status));
    if (note[0] != '\0' && ctx->world.rank == 0)
        tt_log_warn(TT_DEV, "%s", note);
    TT_TRY(same_backend(ctx));
    status = ctx->dev_ops->open(&owner, tutti_local_rank(ctx), ctx->local_size, &ctx->dev);
    TT_TRY(tt_agree(&ctx->world, "tutti_init, opening the device", status));
    return no_duplicates(ctx);
}
