/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From `ready` to the all-reduce.
 *
 * One lock covers the bookkeeping and the issue itself, which only queues work: whichever thread
 * completes a bucket issues it, and with it every later bucket of the agreed order that was waiting
 * for it. The order is thus the same on all ranks although gradients become ready in any.
 *
 * The communication stream waits for one event per bucket and producer stream. It has to be
 * recorded when the stream's last gradient of the bucket is given, no later (on CUDA the host runs
 * far ahead, and the event would cover the next layers too); which one is the last is known from
 * the step before. In the first step, and after the pattern changed, the guess may be wrong: then
 * the event is recorded when the bucket completes, which waits for more than needed but never for
 * less.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "comm/issue.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "reducer/reducer.h"
#include "trace/nvtx.h"

void tt_red_sources_free(tutti_reducer *red, tt_red_sources *sources)
{
    for (size_t i = 0; i < sources->n; i++)
        red->ctx->dev_ops->event_destroy(red->ctx->dev, sources->list[i].event);
    free(sources->list);
    *sources = (tt_red_sources){0};
}

static tt_red_source *find_source(const tt_red_sources *sources, tutti_stream stream)
{
    for (size_t i = 0; i < sources->n; i++)
        if (sources->list[i].stream.handle == stream.handle &&
            sources->list[i].stream.kind == stream.kind)
            return &sources->list[i];
    return NULL;
}

/* Makes sure that the stream has a source. A new one is expected to give `expected` gradients. */
static tutti_status add_source(tutti_reducer *red, tt_red_sources *sources, tutti_stream stream,
                               int expected)
{
    tt_event *event;

    if (tt_red_inline(stream) || find_source(sources, stream) != NULL)
        return TUTTI_OK;
    TT_TRY(tt_grow(&sources->list, &sources->cap, sources->n + 1, sizeof *sources->list));
    TT_TRY(red->ctx->dev_ops->event_create(red->ctx->dev, false, &event));
    sources->list[sources->n++] =
        (tt_red_source){.stream = stream, .event = event, .expected = expected};
    return TUTTI_OK;
}

static tutti_status record_source(tutti_reducer *red, tt_red_source *source)
{
    TT_TRY(red->ctx->dev_ops->event_record(red->ctx->dev, source->event, source->stream));
    source->recorded = true;
    return TUTTI_OK;
}

/* The communication stream waits for what the sources gave in this step. */
static tutti_status follow_sources(tutti_reducer *red, tt_red_sources *sources)
{
    for (size_t i = 0; i < sources->n; i++) {
        tt_red_source *source = &sources->list[i];
        if (source->seen == 0)
            continue;
        if (!source->recorded)
            TT_TRY(record_source(red, source));
        TT_TRY(red->ctx->dev_ops->event_wait(red->ctx->dev, source->event, red->stream));
    }
    return TUTTI_OK;
}

static tutti_status launch_runs(tutti_reducer *red, const tt_red_bucket *bucket)
{
    for (int i = 0; i < bucket->nruns; i++)
        TT_TRY(tutti_all_reduce(red->comm, bucket->runs[i].ptr, bucket->runs[i].ptr,
                                bucket->runs[i].count, bucket->dtype, TUTTI_AVG, red->stream));
    return TUTTI_OK;
}

static tutti_status launch_scalars(tutti_reducer *red)
{
    for (int i = 0; i < red->nscalars; i++)
        TT_TRY(tutti_all_reduce(red->comm, red->scalar[i].values, red->scalar[i].values,
                                red->scalar[i].n, TUTTI_FLOAT32, (tutti_op)red->scalar[i].op,
                                red->stream));
    return TUTTI_OK;
}

static tutti_status launch(tutti_reducer *red, const tt_red_bucket *bucket, bool last)
{
    int scalars = last ? red->nscalars : 0;
    tutti_status status, ended;

    if (bucket->nruns + scalars == 1)
        return launch_runs(red, bucket);
    TT_TRY(tutti_group_begin());
    status = launch_runs(red, bucket);
    if (status == TUTTI_OK && scalars > 0)
        status = launch_scalars(red);
    ended = tutti_group_end();
    return status != TUTTI_OK ? status : ended;
}

static tutti_status fill_bucket(tutti_reducer *red, const tt_red_bucket *bucket)
{
    for (int i = 0; i < bucket->nruns; i++)
        TT_TRY(red->ctx->dev_ops->fill_nan(red->ctx->dev, bucket->runs[i].ptr,
                                           bucket->runs[i].count, bucket->dtype, red->stream));
    return TUTTI_OK;
}

static tutti_status issue(tutti_reducer *red, tt_red_bucket *bucket, bool fill_nan)
{
    const tt_device_ops *ops = red->ctx->dev_ops;
    tt_red_times *times = tt_red_times_now(red);
    int at = red->next;
    bool last = at == red->nbuckets - 1;

    if (red->zero_pending)
        TT_TRY(ops->event_wait(red->ctx->dev, red->zeroed, red->stream));
    red->zero_pending = false;
    TT_TRY(follow_sources(red, &bucket->sources));
    if (last)
        TT_TRY(follow_sources(red, &red->scalar_sources));
    if (fill_nan)
        TT_TRY(fill_bucket(red, bucket));
    times->order[at] = red->order[at];
    times->issued_s[at] = (double)(tt_now_ns() - red->begin_ns) * 1e-9;
    TT_TRY(ops->event_record(red->ctx->dev, times->from[at], red->stream));
    TT_TRY(launch(red, bucket, last));
    return ops->event_record(red->ctx->dev, times->to[at], red->stream);
}

tutti_status tt_red_issue(tutti_reducer *red, bool fill_nan)
{
    tt_red_bucket *bucket = &red->buckets[red->order[red->next]];
    tutti_status status;

    tt_nvtx_push(bucket->label);
    status = issue(red, bucket, fill_nan);
    tt_nvtx_pop();
    if (status != TUTTI_OK)
        return tt_ctx_fail(red->ctx, status); /* the other ranks wait for this bucket */
    tt_log_trace(TT_RED, "\"%s\": step %" PRId64 ": bucket %d issued as number %d", red->name,
                 red->steps, red->order[red->next], red->next);
    bucket->issues++;
    red->next++;
    return TUTTI_OK;
}

static tutti_status check_ready(const tutti_reducer *red, const char *call, const int *ids,
                                size_t n)
{
    TT_TRY(tt_ctx_check(red->ctx));
    TT_TRY(tt_group_forbid("tutti_reducer_ready"));
    if (!red->in_step)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": %s outside begin and wait", red->name,
                       call);
    if (ids == NULL && n > 0)
        return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": %s without ids", red->name, call);
    if (n > red->nparams)
        return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": %s of %zu ids; there are %zu parameters",
                       red->name, call, n, red->nparams);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= red->nparams)
            return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": %s: there is no parameter %d of %zu",
                           red->name, call, ids[i], red->nparams);
    return TUTTI_OK;
}

/* All of them or, when one was ready before, none. */
static tutti_status mark(tutti_reducer *red, const char *call, const int *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        tt_red_param *param = &red->params[ids[i]];
        if (param->stamp != red->stamp) {
            param->stamp = red->stamp;
            continue;
        }
        while (i-- > 0)
            red->params[ids[i]].stamp = 0;
        return tt_fail(TUTTI_ERR_STATE,
                       "reducer \"%s\": %s: parameter \"%s\" was made ready twice in micro-step %d "
                       "of %d",
                       red->name, call, param->name, red->micro, red->micros);
    }
    red->remaining -= n;
    return TUTTI_OK;
}

/* Counts down the buckets and records where a stream has given its last gradient of one. */
static tutti_status account(tutti_reducer *red, const int *ids, size_t n, tutti_stream stream)
{
    for (size_t i = 0; i < n; i++) {
        int b = red->params[ids[i]].bucket;
        tt_red_bucket *bucket = &red->buckets[b];
        tt_red_source *source = find_source(&bucket->sources, stream);
        if (source != NULL) {
            source->seen++;
            source->recorded = false;
        }
        if (--bucket->pending == 0) {
            bucket->complete = true;
            red->completed[red->ncompleted++] = b;
        }
    }
    for (size_t i = 0; i < n; i++) {
        tt_red_source *source =
            find_source(&red->buckets[red->params[ids[i]].bucket].sources, stream);
        if (source != NULL && !source->recorded && source->seen >= source->expected)
            TT_TRY(record_source(red, source));
    }
    return TUTTI_OK;
}

static tutti_status take(tutti_reducer *red, const char *call, const int *ids, size_t n,
                         tutti_stream stream)
{
    bool last_micro;

    TT_TRY(check_ready(red, call, ids, n));
    TT_TRY(red->ctx->dev_ops->stream_check(red->ctx->dev, stream));
    last_micro = red->micro == red->micros - 1;
    for (size_t i = 0; last_micro && i < n; i++) {
        tt_red_bucket *bucket = &red->buckets[red->params[ids[i]].bucket];
        TT_TRY(add_source(red, &bucket->sources, stream, bucket->n));
    }
    TT_TRY(mark(red, call, ids, n));
    if (!last_micro)
        return TUTTI_OK;
    TT_TRY(account(red, ids, n, stream));
    while (red->next < red->nbuckets && red->buckets[red->order[red->next]].complete)
        TT_TRY(tt_red_issue(red, false));
    return TUTTI_OK;
}

static tutti_status take_locked(tutti_reducer *red, const char *call, const int *ids, size_t n,
                                tutti_stream stream)
{
    tutti_status status;

    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_%s: the reducer is NULL", call);
    pthread_mutex_lock(&red->lock);
    status = take(red, call, ids, n, stream);
    pthread_mutex_unlock(&red->lock);
    return status;
}

tutti_status tutti_reducer_ready(tutti_reducer *red, const int *ids, size_t n, tutti_stream stream)
{
    return take_locked(red, "ready", ids, n, stream);
}

/* The gradient holds zeros or what earlier micro-steps gave: there is nothing to do but to go on.
 */
tutti_status tutti_reducer_absent(tutti_reducer *red, const int *ids, size_t n, tutti_stream stream)
{
    return take_locked(red, "absent", ids, n, stream);
}

static tutti_status check_scalar(const tutti_reducer *red, const float *values, size_t n,
                                 tutti_op op)
{
    TT_TRY(tt_ctx_check(red->ctx));
    if (!red->in_step || red->micro != red->micros - 1 || red->next == red->nbuckets)
        return tt_fail(TUTTI_ERR_STATE,
                       "reducer \"%s\": scalars belong into the last micro-step, before the last "
                       "ready",
                       red->name);
    if (values == NULL || n == 0 || n > (size_t)(TT_RED_SCALARS_MAX - red->scalar_floats))
        return tt_fail(TUTTI_ERR_ARG,
                       "reducer \"%s\": %zu scalars on top of %d (at most %d a step)", red->name, n,
                       red->scalar_floats, TT_RED_SCALARS_MAX);
    if (op != TUTTI_SUM && op != TUTTI_AVG && op != TUTTI_MAX && op != TUTTI_MIN)
        return tt_fail(TUTTI_ERR_ARG,
                       "reducer \"%s\": scalars take SUM, AVG, MAX or MIN, not op %d", red->name,
                       (int)op);
    return TUTTI_OK;
}

static tutti_status add_scalar(tutti_reducer *red, float *values, size_t n, tutti_op op,
                               tutti_stream stream)
{
    tt_red_source *source;

    TT_TRY(check_scalar(red, values, n, op));
    TT_TRY(red->ctx->dev_ops->stream_check(red->ctx->dev, stream));
    TT_TRY(add_source(red, &red->scalar_sources, stream, 0));
    source = find_source(&red->scalar_sources, stream);
    if (source != NULL) {
        source->seen++;
        TT_TRY(record_source(red, source));
    }
    red->scalar[red->nscalars++] = (tt_red_scalar){values, (uint32_t)n, (uint32_t)op};
    red->scalar_floats += (int)n;
    return TUTTI_OK;
}

tutti_status tutti_reducer_scalar(tutti_reducer *red, float *values, size_t n, tutti_op op,
                                  tutti_stream stream)
{
    tutti_status status;

    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_scalar: the reducer is NULL");
    pthread_mutex_lock(&red->lock);
    status = add_scalar(red, values, n, op, stream);
    pthread_mutex_unlock(&red->lock);
    return status;
}
