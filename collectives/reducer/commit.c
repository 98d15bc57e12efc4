/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commit: from a list of parameters on each rank to one plan on all of them.
 *
 * The lists are compared by hash; only when some differ does rank 0's list travel, every rank
 * that differs says how, and all return one of these texts. Each local part (planning, events) is
 * followed by an agreement before the next collective one, so no rank is left alone in an exchange.
 * Parameters then come from rank 0 over the reducer's own communicator and stream, the way that
 * gradients will go.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/issue.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"
#include "reducer/reducer.h"

static void put_list(const tutti_reducer *red, tt_buf *buf)
{
    tt_buf_put_u64(buf, red->nparams);
    for (size_t id = 0; id < red->nparams; id++) {
        const tt_red_param *param = &red->params[id];
        tt_buf_put_str(buf, param->name);
        tt_buf_put_u32(buf, (uint32_t)param->dtype);
        tt_buf_put_u32(buf, (uint32_t)param->ndim);
        tt_buf_put(buf, param->shape, sizeof param->shape);
        tt_buf_put_u32(buf, param->owned);
        tt_buf_put_u32(buf, param->param != NULL);
        tt_buf_put_u32(buf, param->group);
        tt_buf_put_u32(buf, (uint32_t)param->tied);
    }
}

static bool get_param(tt_buf *buf, tt_red_param *param, bool *has_param_out)
{
    param->name = (char *)(size_t)tt_buf_get_str(buf);
    param->dtype = (tutti_dtype)tt_buf_get_u32(buf);
    param->ndim = (int)tt_buf_get_u32(buf);
    tt_buf_get(buf, param->shape, sizeof param->shape);
    param->owned = tt_buf_get_u32(buf) != 0;
    *has_param_out = tt_buf_get_u32(buf) != 0;
    param->group = tt_buf_get_u32(buf);
    param->tied = (int)tt_buf_get_u32(buf);
    return !buf->failed && param->ndim >= 0 && param->ndim <= TUTTI_MAX_DIMS;
}

static const char *type_text(const tt_red_param *param, char *buf, size_t cap)
{
    int at = snprintf(buf, cap, "%s [", tutti_dtype_name(param->dtype));
    for (int i = 0; i < param->ndim && at > 0 && (size_t)at < cap; i++)
        at +=
            snprintf(buf + at, cap - (size_t)at, "%s%" PRId64, i > 0 ? ", " : "", param->shape[i]);
    if (at > 0 && (size_t)at < cap)
        snprintf(buf + at, cap - (size_t)at, "]");
    return buf;
}

static tutti_status differ(const tutti_reducer *red, int id, const char *what, const char *here,
                           const char *there)
{
    return tt_fail(TUTTI_ERR_MISMATCH,
                   "reducer \"%s\": parameter %d \"%s\" %s: %s here, %s on rank %d", red->name, id,
                   red->params[id].name, what, here, there, red->comm->group.world[0]);
}

/* What a parameter is for; its name, type, shape and place are equal. */
static tutti_status compare_use(const tutti_reducer *red, int id, const tt_red_param *other,
                                bool has_param)
{
    const tt_red_param *mine = &red->params[id];
    char here[256], there[256];

    if ((mine->param != NULL) != has_param)
        return differ(red, id, "is described otherwise", has_param ? "without param" : "with param",
                      has_param ? "with param" : "without param");
    if (mine->group != other->group) {
        snprintf(here, sizeof here, "%" PRIu32, mine->group);
        snprintf(there, sizeof there, "%" PRIu32, other->group);
        return differ(red, id, "is in another group", here, there);
    }
    if (mine->tied != other->tied)
        return differ(red, id, "is tied otherwise",
                      mine->tied != 0 ? red->params[mine->tied - 1].name : "to none",
                      other->tied != 0 ? "to another" : "to none");
    return TUTTI_OK;
}

static tutti_status compare_param(const tutti_reducer *red, int id, tt_buf *theirs)
{
    const tt_red_param *mine = &red->params[id];
    tt_red_param other = {0};
    bool has_param;
    char here[256], there[256];

    if (!get_param(theirs, &other, &has_param))
        return tt_fail(TUTTI_ERR_INTERNAL, "reducer \"%s\": rank 0's list is cut short", red->name);
    if (strcmp(mine->name, other.name) != 0) {
        snprintf(there, sizeof there, "\"%s\"", other.name);
        return differ(red, id, "has another name", "this", there);
    }
    if (mine->dtype != other.dtype || mine->ndim != other.ndim ||
        memcmp(mine->shape, other.shape, sizeof mine->shape) != 0)
        return differ(red, id, "has another type or shape", type_text(mine, here, sizeof here),
                      type_text(&other, there, sizeof there));
    if (mine->owned != other.owned)
        return differ(red, id, "has its gradient elsewhere",
                      mine->owned ? "the reducer's" : "the program's",
                      other.owned ? "the reducer's" : "the program's");
    return compare_use(red, id, &other, has_param);
}

/* How this rank's list differs from rank 0's, as this thread's last error. */
static tutti_status compare_lists(const tutti_reducer *red, const tt_buf *from_first)
{
    tt_buf theirs = tt_buf_view(from_first->data, from_first->size);
    size_t n = tt_buf_get_u64(&theirs), both = tt_min_size(n, red->nparams);

    for (size_t id = 0; id < both; id++)
        TT_TRY(compare_param(red, (int)id, &theirs));
    if (n > both)
        return tt_fail(TUTTI_ERR_MISMATCH,
                       "reducer \"%s\": %zu parameters here, %zu on rank %d, which also has \"%s\"",
                       red->name, red->nparams, n, red->comm->group.world[0],
                       tt_buf_get_str(&theirs));
    if (red->nparams > both)
        return tt_fail(
            TUTTI_ERR_MISMATCH, "reducer \"%s\": %zu parameters here, also \"%s\"; %zu on rank %d",
            red->name, red->nparams, red->params[both].name, n, red->comm->group.world[0]);
    return TUTTI_OK;
}

static tutti_status explain(tutti_reducer *red, const tt_buf *mine)
{
    tt_group *group = &red->comm->group;
    tt_buf first = {0};
    char ranks[128] = "";
    tutti_status status;

    tt_red_odd_ranks(group, red->rank_hashes, red->rank_hashes[0], ranks, sizeof ranks);
    status =
        tt_bcast_blob(group, "the reducer's parameter list", 0, mine->data, mine->size, &first);
    if (status == TUTTI_OK)
        status = tt_agree(group, "the reducer's parameter list", compare_lists(red, &first));
    if (status == TUTTI_OK)
        status = tt_fail(TUTTI_ERR_INTERNAL, "reducer \"%s\": lists are equal, hashes are not",
                         red->name);
    else if (status == TUTTI_ERR_MISMATCH)
        status = tt_fail_more(status, "parameter lists differ (rank %d against rank %s)",
                              group->world[0], ranks);
    tt_buf_free(&first);
    return status;
}

static tutti_status same_lists(tutti_reducer *red)
{
    tt_group *group = &red->comm->group;
    tt_buf mine = {0};
    uint64_t hash;
    tutti_status status;
    bool same = true;

    put_list(red, &mine);
    status = mine.failed
                 ? tt_fail(TUTTI_ERR_NO_MEMORY, "reducer \"%s\": no memory for its list", red->name)
                 : TUTTI_OK;
    status = tt_agree(group, "tutti_reducer_commit", status);
    if (status != TUTTI_OK)
        goto free_mine;
    hash = tt_hash64(mine.data, mine.size, 0);
    status =
        tt_all_gather_fixed(group, "the reducer's plan hash", &hash, sizeof hash, red->rank_hashes);
    for (int r = 0; status == TUTTI_OK && r < group->size; r++)
        same = same && red->rank_hashes[r] == hash;
    if (status == TUTTI_OK && !same)
        status = explain(red, &mine);

free_mine:
    tt_buf_free(&mine);
    return status;
}

static int by_address(const void *a, const void *b)
{
    const tt_red_param *x = *(const tt_red_param *const *)a, *y = *(const tt_red_param *const *)b;
    return (x->grad > y->grad) - (x->grad < y->grad);
}

/* Two parameters with one gradient would be reduced twice. */
static tutti_status no_overlap(const tutti_reducer *red)
{
    const tt_red_param **sorted;
    size_t n = 0;
    tutti_status status = TUTTI_OK;

    TT_TRY(tt_calloc(red->nparams, sizeof(const tt_red_param *), &sorted));
    for (size_t id = 0; id < red->nparams; id++)
        if (!red->params[id].owned && red->params[id].bytes > 0)
            sorted[n++] = &red->params[id];
    qsort(sorted, n, sizeof(const tt_red_param *), by_address);
    for (size_t i = 1; i < n && status == TUTTI_OK; i++)
        if ((char *)sorted[i - 1]->grad + sorted[i - 1]->bytes > (char *)sorted[i]->grad)
            status =
                tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": the gradients of \"%s\" and \"%s\" overlap",
                        red->name, sorted[i - 1]->name, sorted[i]->name);
    free(sorted);
    return status;
}

static tutti_status make_events(tutti_reducer *red)
{
    const tt_device_ops *ops = red->ctx->dev_ops;
    tt_event **event[] = {&red->zeroed, &red->done, &red->folded, &red->updated};

    for (size_t i = 0; i < sizeof event / sizeof event[0]; i++)
        TT_TRY(ops->event_create(red->ctx->dev, false, event[i]));
    for (int b = 0; b < red->nbuckets && tt_red_sharded(red); b++)
        TT_TRY(ops->event_create(red->ctx->dev, false, &red->buckets[b].gathered));
    return tt_red_times_create(red);
}

static tutti_status local_plan(tutti_reducer *red)
{
    size_t n = red->nparams;

    if (n == 0)
        return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\" has no parameters", red->name);
    TT_TRY(no_overlap(red));
    TT_TRY(tt_red_plan_buckets(red));
    TT_TRY(tt_calloc((size_t)red->ranks, sizeof *red->counts, &red->counts));
    TT_TRY(tt_calloc((size_t)red->nbuckets, sizeof *red->order, &red->order));
    TT_TRY(tt_calloc((size_t)red->nbuckets, sizeof *red->completed, &red->completed));
    TT_TRY(tt_calloc(n, sizeof *red->hashes, &red->hashes));
    TT_TRY(red->ctx->dev_ops->mem_alloc(red->ctx->dev, TT_RED_SCALARS_MAX * sizeof *red->scratch,
                                        (void **)&red->scratch));
    if ((red->flags & TUTTI_REDUCER_FIND_UNUSED) != 0) {
        TT_TRY(tt_calloc(n, 1, &red->used));
        TT_TRY(tt_calloc(n * (size_t)red->ranks, 1, &red->used_by_all));
    }
    for (int b = 0; b < red->nbuckets; b++) {
        size_t bytes = red->buckets[b].elements * sizeof(uint16_t);
        red->order[b] = b;
        if (red->wire != 0 && red->buckets[b].dtype == TUTTI_FLOAT32 && bytes > red->staging_bytes)
            red->staging_bytes = bytes;
    }
    TT_TRY(tt_red_micros_create(red));
    return make_events(red);
}

/* Neighbours in memory on every rank: gradients of the program's own, parameters to be gathered. */
static tutti_status common_runs(tutti_reducer *red)
{
    tt_group *group = &red->comm->group;
    size_t n = red->nparams;
    uint8_t *mine = NULL, *all = NULL;
    tutti_status status = tt_calloc(n, 1, &mine);

    if (status == TUTTI_OK)
        status = tt_calloc(n * (size_t)group->size, 1, &all);
    status = tt_agree(group, "tutti_reducer_commit", status);
    if (status != TUTTI_OK)
        goto free_both;
    tt_red_plan_follows(red, mine);
    status = tt_all_gather_fixed(group, "where gradients lie", mine, n, all);
    if (status != TUTTI_OK)
        goto free_both;
    for (int r = 0; r < group->size; r++)
        for (size_t id = 0; id < n; id++)
            mine[id] &= all[(size_t)r * n + id];
    tt_red_plan_runs(red, mine);

free_both:
    free(mine);
    free(all);
    return status;
}

static tutti_status take_memory(tutti_reducer *red)
{
    size_t sums = (1 + TT_RED_SCALARS_MAX) * TT_EXACT_WORDS * sizeof *red->sums;
    size_t shadow_bytes = 0; /* room for all runs, however few neighbours there are */

    for (int b = 0; b < red->nbuckets; b++)
        shadow_bytes += (red->buckets[b].elements + (size_t)red->buckets[b].n * TT_EXACT_BLOCK) *
                        tutti_dtype_size(red->buckets[b].dtype);

    if (red->arena_bytes > 0)
        TT_TRY(tutti_alloc(red->comm, red->arena_bytes, (void **)&red->arena));
    if (red->ctx->check && shadow_bytes > 0)
        TT_TRY(tutti_alloc(red->comm, shadow_bytes, (void **)&red->shadow));
    if (red->staging_bytes > 0)
        TT_TRY(tutti_alloc(red->comm, red->staging_bytes, (void **)&red->staging));
    return tutti_alloc(red->comm, sums, (void **)&red->sums);
}

static tutti_status place_gradients(tutti_reducer *red)
{
    bool scattered = tt_red_sharded(red);

    for (size_t id = 0; id < red->nparams; id++)
        scattered = scattered || !red->params[id].owned;
    TT_TRY(take_memory(red));
    if (scattered)
        TT_TRY(common_runs(red));
    else
        tt_red_plan_runs(red, NULL);
    return tt_agree(&red->comm->group, "tutti_reducer_commit", tt_red_pieces_create(red));
}

static tutti_status broadcast_params(tutti_reducer *red)
{
    for (size_t id = 0; id < red->nparams; id++) {
        const tt_red_param *param = &red->params[id];
        if (param->param != NULL && param->count > 0)
            TT_TRY(tutti_broadcast(red->comm, param->param, param->param, param->count,
                                   param->dtype, 0, red->stream));
    }
    return tutti_stream_sync(red->ctx, red->stream);
}

static tutti_status equal_params(tutti_reducer *red)
{
    tutti_status status;

    if ((red->flags & TUTTI_REDUCER_COMPARE_PARAMS) != 0)
        return tt_red_compare_params(red, "tutti_reducer_commit");
    status = broadcast_params(red);
    if (status != TUTTI_OK)
        status =
            tt_ctx_fail(red->ctx, status); /* the others may wait for a call that is not made */
    return tt_agree(&red->comm->group, "the first parameters", status);
}

tutti_status tutti_reducer_commit(tutti_reducer *red)
{
    tutti_status status;

    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_commit: the reducer is NULL");
    TT_TRY(tt_ctx_check(red->ctx));
    TT_TRY(tt_group_forbid("tutti_reducer_commit"));
    if (red->committed)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\" is committed already", red->name);
    status = same_lists(red);
    if (status == TUTTI_OK)
        status = tt_red_choose_caps(red);
    if (status == TUTTI_OK)
        status = tt_agree(&red->comm->group, "tutti_reducer_commit", local_plan(red));
    if (status == TUTTI_OK)
        status = place_gradients(red);
    if (status == TUTTI_OK)
        status = equal_params(red);
    if (status != TUTTI_OK) {
        status = tt_red_failed(red, status);
        tt_red_plan_free(red);
        return status;
    }
    red->committed = true;
    tt_log_info(TT_RED, "\"%s\": %zu parameters, %.1f MiB of gradients in %d buckets", red->name,
                red->nparams, (double)red->step_bytes / 1048576, red->nbuckets);
    if (tt_red_sharded(red))
        tt_log_info(TT_RED,
                    "\"%s\": optimizer state of %zu elements on each of %d ranks, %zu of them "
                    "padding here",
                    red->name, red->shard_count, red->ranks, red->padding);
    return TUTTI_OK;
}
