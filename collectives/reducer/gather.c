/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters after a sharded update: gathered in forward order, waited for where they are used. */
#include "comm/issue.h"
#include "core/clock.h"
#include "reducer/reducer.h"
#include "trace/nvtx.h"

static tutti_status gather_run(tutti_reducer *red, const tt_red_bucket *bucket,
                               const tt_red_run *run)
{
    bool differ = tt_red_run_counts(red, bucket, run);
    size_t before = 0;
    const char *in;

    for (int r = 0; r < red->rank; r++)
        before += red->counts[r];
    in = (const char *)run->ptr + before * tutti_dtype_size(bucket->dtype);
    if (!differ)
        return tutti_all_gather(red->comm, in, run->ptr, red->counts[0], bucket->dtype,
                                red->stream);
    return tutti_all_gatherv(red->comm, in, run->ptr, red->counts, bucket->dtype, red->stream);
}

static tutti_status gather_bucket(tutti_reducer *red, const tt_red_bucket *bucket)
{
    tutti_status status = TUTTI_OK, ended;

    TT_TRY(tutti_group_begin());
    for (int i = 0; i < bucket->nparam_runs && status == TUTTI_OK; i++)
        status = gather_run(red, bucket, &bucket->param_runs[i]);
    ended = tutti_group_end();
    TT_TRY(status != TUTTI_OK ? status : ended);
    return red->ctx->dev_ops->event_record(red->ctx->dev, bucket->gathered, red->stream);
}

/* Buckets are numbered by what the backward pass makes ready last, which is used first. */
static tutti_status gather(tutti_reducer *red, tutti_stream stream)
{
    const tt_device_ops *ops = red->ctx->dev_ops;

    TT_TRY(tt_ctx_check(red->ctx));
    TT_TRY(tt_group_forbid("tutti_reducer_gather"));
    if (red->in_step || red->steps == 0)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": gather %s", red->name,
                       red->in_step ? "within a step: wait comes first" : "before the first step");
    TT_TRY(tt_red_check_stream(red, stream, "gather"));
    if (!tt_red_sharded(red) || red->ranks == 1)
        return TUTTI_OK;
    red->param_exposed_s = 0;
    TT_TRY(tt_device_capture(red->ctx->dev, stream, &red->gathered_in));
    if (!tt_red_inline(stream)) {
        TT_TRY(ops->event_record(red->ctx->dev, red->updated, stream));
        TT_TRY(ops->event_wait(red->ctx->dev, red->updated, red->stream));
    }
    for (int b = red->nbuckets - 1; b >= 0; b--) {
        tutti_status status = gather_bucket(red, &red->buckets[b]);
        if (status != TUTTI_OK)
            return tt_ctx_fail(red->ctx, status); /* the others wait for it */
    }
    return TUTTI_OK;
}

tutti_status tutti_reducer_gather(tutti_reducer *red, tutti_stream stream)
{
    tutti_status status;

    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_gather: the reducer is NULL");
    tt_nvtx_push("tutti reducer gather");
    pthread_mutex_lock(&red->lock);
    status = gather(red, stream);
    pthread_mutex_unlock(&red->lock);
    tt_nvtx_pop();
    return status;
}

static tutti_status param_wait(tutti_reducer *red, const int *ids, size_t n, tutti_stream stream)
{
    int before = -1;

    for (size_t i = 0; i < n; i++) {
        int id = ids != NULL ? ids[i] : (int)i, b;
        if (id < 0 || (size_t)id >= red->nparams)
            return tt_fail(TUTTI_ERR_ARG,
                           "reducer \"%s\": param_wait: there is no parameter %d of %zu", red->name,
                           id, red->nparams);
        b = red->params[id].bucket;
        if (b != before && red->buckets[b].gathered != NULL)
            TT_TRY(tt_red_wait_if(red, red->buckets[b].gathered, red->gathered_in, stream));
        before = b;
    }
    return TUTTI_OK;
}

tutti_status tutti_reducer_param_wait(tutti_reducer *red, const int *ids, size_t n,
                                      tutti_stream stream)
{
    int64_t from;

    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_param_wait: the reducer is NULL");
    TT_TRY(tt_ctx_check(red->ctx));
    if (!red->committed)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": param_wait before commit", red->name);
    TT_TRY(tt_red_check_stream(red, stream, "param_wait"));
    from = tt_now_ns();
    TT_TRY(param_wait(red, ids, ids != NULL ? n : red->nparams, stream));
    if (tt_red_inline(stream) && tt_red_sharded(red))
        red->param_exposed_s += (double)(tt_now_ns() - from) * 1e-9;
    return TUTTI_OK;
}
