/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/hash.h"

enum { SLOWEST_DISK = 10 << 20 }; /* bytes per second of one rank */

typedef struct meaning {
    uint64_t dir;
    int64_t step;
    uint64_t flags;
} meaning;

static tutti_status compare_meanings(tutti_ctx *ctx, const char *call, const meaning *all)
{
    for (int r = 1; r < ctx->world.size; r++) {
        if (all[r].flags != all[0].flags)
            return tt_fail(TUTTI_ERR_ARG, "%s: rank %d gives other flags than rank 0", call, r);
        if (all[r].step != all[0].step)
            return tt_fail(TUTTI_ERR_ARG, "%s: rank 0 means step %lld, rank %d step %lld", call,
                           (long long)all[0].step, r, (long long)all[r].step);
        if (all[r].dir != all[0].dir)
            return tt_fail(TUTTI_ERR_ARG, "%s: rank %d names another directory than rank 0", call,
                           r);
    }
    return TUTTI_OK;
}

tutti_status tt_ranks_alike(tutti_ctx *ctx, const char *call, const char *dir, int64_t step,
                            uint32_t flags)
{
    meaning mine = {tt_hash64(dir, strlen(dir), 0), step, flags}, *all = NULL;
    tutti_status status = tt_calloc((size_t)ctx->world.size, sizeof *all, &all);
    status = tt_agree(&ctx->world, call, status);
    if (status == TUTTI_OK)
        status = tt_all_gather_fixed(&ctx->world, call, &mine, sizeof mine, all);
    if (status == TUTTI_OK)
        status = compare_meanings(ctx, call, all);
    free(all);
    return status;
}

tutti_status tt_ranks_that(tutti_ctx *ctx, const char *call, bool mine, int *count_out, char *who,
                           size_t cap)
{
    unsigned char yes = mine, *all = NULL;
    char name[TT_HOST_MAX + 64];
    size_t at = 0;
    int count = 0;
    tutti_status status = tt_calloc((size_t)ctx->world.size, sizeof *all, &all);
    status = tt_agree(&ctx->world, call, status);
    if (status == TUTTI_OK)
        status = tt_all_gather_fixed(&ctx->world, call, &yes, sizeof yes, all);
    who[0] = '\0';
    for (int r = 0; r < ctx->world.size && status == TUTTI_OK; r++) {
        if (all[r] == 0)
            continue;
        if (at < cap)
            at += (size_t)snprintf(who + at, cap - at, "%s%s", count > 0 ? ", " : "",
                                   tt_ctx_rank_name(ctx, r, name, sizeof name));
        count++;
    }
    free(all);
    *count_out = count;
    return status;
}

double tt_ranks_disk_s(uint64_t bytes)
{
    return (double)bytes / SLOWEST_DISK;
}

void tt_ranks_busy(tutti_ctx *ctx, uint64_t bytes)
{
    if (bytes >= (uint64_t)1 << 30)
        tutti_expect_quiet(ctx, tt_ranks_disk_s(bytes));
}
