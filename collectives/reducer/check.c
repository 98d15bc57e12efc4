/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replica check: parameters are equal on all ranks, bit for bit. One hash over all of them
 * travels first; the hashes of the single parameters only if these differ. The common value is the
 * one that most ranks have, so that the odd rank is named and not its neighbours; with no majority
 * it is rank 0's.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/hash.h"
#include "core/mem.h"
#include "reducer/reducer.h"

enum { RANKS_NAMED = 8, PARAMS_NAMED = 4, TEXT_MAX = 1024 };

void tt_red_odd_ranks(const tt_group *group, const uint64_t *value, uint64_t common, char *buf,
                      size_t cap)
{
    int named = 0, odd = 0;
    size_t at = 0;

    for (int r = 0; r < group->size; r++) {
        if (value[r] == common)
            continue;
        odd++;
        if (named < RANKS_NAMED && at < cap)
            at += (size_t)snprintf(buf + at, cap - at, "%s%d", named++ > 0 ? ", " : "",
                                   group->world[r]);
    }
    if (odd > named && at < cap)
        snprintf(buf + at, cap - at, " and %d more", odd - named);
}

/* What more than half of the values are, else the first. */
static uint64_t common_value(const uint64_t *value, int n)
{
    uint64_t guess = value[0];
    int lead = 0, have = 0;

    for (int i = 0; i < n; i++) {
        if (lead == 0)
            guess = value[i];
        lead += value[i] == guess ? 1 : -1;
    }
    for (int i = 0; i < n; i++)
        have += value[i] == guess;
    return 2 * have > n ? guess : value[0];
}

/* Memory of a GPU is hashed from a copy. */
static tutti_status hash_params(tutti_reducer *red)
{
    const bool direct = tt_device_host_memory(red->ctx->dev);
    tutti_status status = TUTTI_OK;
    void *copy = NULL;
    size_t room = 0;

    for (size_t id = 0; id < red->nparams && !direct; id++)
        if (red->params[id].param != NULL && red->params[id].bytes > room)
            room = red->params[id].bytes;
    if (room > 0)
        TT_TRY(tt_calloc(room, 1, &copy));
    for (size_t id = 0; id < red->nparams && status == TUTTI_OK; id++) {
        const tt_red_param *param = &red->params[id];
        const void *data = direct ? param->param : copy;
        red->hashes[id] = 0;
        if (param->param == NULL || param->bytes == 0)
            continue;
        if (!direct)
            status = tt_device_copy_now(red->ctx->dev, copy, param->param, param->bytes);
        red->hashes[id] = tt_hash64(data, param->bytes, 0);
    }
    free(copy);
    return status;
}

static tutti_status name_differences(tutti_reducer *red, const char *what, const tt_blobs *all)
{
    const tt_group *group = &red->comm->group;
    char text[TEXT_MAX] = "", ranks[128];
    size_t at = 0, odd = 0;

    for (size_t id = 0; id < red->nparams; id++) {
        uint64_t common;
        bool same = true;
        for (int r = 0; r < group->size; r++) {
            red->rank_hashes[r] = ((const uint64_t *)tt_blob(all, r))[id];
            same = same && red->rank_hashes[r] == red->rank_hashes[0];
        }
        if (same || odd++ >= PARAMS_NAMED)
            continue;
        common = common_value(red->rank_hashes, group->size);
        tt_red_odd_ranks(group, red->rank_hashes, common, ranks, sizeof ranks);
        if (at < sizeof text)
            at += (size_t)snprintf(text + at, sizeof text - at, "%s \"%s\" (id %zu) on rank %s",
                                   odd > 1 ? "," : "", red->params[id].name, id, ranks);
    }
    return tt_fail(TUTTI_ERR_MISMATCH,
                   "%s: reducer \"%s\": %zu of %zu parameters are not the same on all ranks: "
                   "different are%s%s",
                   what, red->name, odd, red->nparams, text, odd > PARAMS_NAMED ? ", ..." : "");
}

tutti_status tt_red_compare_params(tutti_reducer *red, const char *what)
{
    tt_group *group = &red->comm->group;
    tt_blobs all = {0};
    uint64_t total;
    bool same = true;
    tutti_status status;

    TT_TRY(tt_agree(group, what, hash_params(red)));
    total = tt_hash64(red->hashes, red->nparams * sizeof *red->hashes, 0);
    TT_TRY(tt_all_gather_fixed(group, "the parameters' hashes", &total, sizeof total,
                               red->rank_hashes));
    for (int r = 0; r < group->size; r++)
        same = same && red->rank_hashes[r] == total;
    if (same)
        return TUTTI_OK;
    status = tt_all_gather_blobs(group, "the parameters' hashes", red->hashes,
                                 red->nparams * sizeof *red->hashes, &all);
    if (status == TUTTI_OK)
        status = name_differences(red, what, &all);
    tt_blobs_free(&all);
    return status;
}

tutti_status tutti_reducer_check(tutti_reducer *red)
{
    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_check: the reducer is NULL");
    TT_TRY(tt_ctx_check(red->ctx));
    if (!red->committed)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": check before commit", red->name);
    if (!tt_red_inline(red->stream)) /* gathered parameters may still be on their way */
        TT_TRY(tutti_stream_sync(red->ctx, red->stream));
    return tt_red_failed(red, tt_red_compare_params(red, "replica check"));
}
