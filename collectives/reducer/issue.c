/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A bucket's way: what is queued on the communication stream once its gradients are there.
 *
 * The issue itself only queues work. It is done under the lock by whichever thread completes a
 * bucket, always the next one of the agreed order. So the order is the same on all ranks although
 * gradients become ready in any.
 *
 * The communication stream waits for one event per bucket and producer stream (sources.c). It has
 * to be recorded when the stream's last gradient of the bucket is given, no later (on CUDA the host
 * runs far ahead, and the event would cover the next layers too); which one is the last is known
 * from the step before. In the first step, and after the pattern changed, the guess may be wrong:
 * then the event is recorded when the bucket completes, which waits for more than needed but never
 * for less.
 *
 * Then: sums over micro-steps (fold.c), whose number is compared over the ranks before the first
 * bucket or beside the last one (micros.c); the collective, an all-reduce or a reduce-scatter of
 * each run, or of a copy in the wire type; what remains of the division.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "comm/issue.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "reducer/reducer.h"
#include "trace/nvtx.h"

/* With the sum over ranks the average is one multiplication by 1 / divisor. */
static int divisor(const tutti_reducer *red)
{
    bool present = (red->flags & TUTTI_REDUCER_AVERAGE_PRESENT) != 0;
    bool micro = (red->flags & TUTTI_REDUCER_AVERAGE_MICRO) != 0;
    return (present ? red->present : red->ranks) * (micro ? red->micros : 1);
}

/* The collective's own average where it is the whole division: no other pass over the data. */
static tutti_op op_of(const tutti_reducer *red)
{
    return divisor(red) == red->ranks ? TUTTI_AVG : TUTTI_SUM;
}

static tutti_status scatter_run(tutti_reducer *red, const tt_red_bucket *bucket,
                                const tt_red_run *run)
{
    bool differ = tt_red_run_counts(red, bucket, run);
    size_t before = 0;
    char *out;

    for (int r = 0; r < red->rank; r++)
        before += red->counts[r];
    out = (char *)run->work + before * tutti_dtype_size(bucket->dtype);
    if (!differ)
        return tutti_reduce_scatter(red->comm, run->work, out, red->counts[0], bucket->dtype,
                                    op_of(red), red->stream);
    return tutti_reduce_scatterv(red->comm, run->work, out, red->counts, bucket->dtype, op_of(red),
                                 red->stream);
}

static tutti_status launch_runs(tutti_reducer *red, const tt_red_bucket *bucket)
{
    for (int i = 0; i < bucket->nruns; i++) {
        const tt_red_run *run = &bucket->runs[i];
        if (tt_red_sharded(red))
            TT_TRY(scatter_run(red, bucket, run));
        else
            TT_TRY(tutti_all_reduce(red->comm, run->work, run->work, run->count, bucket->dtype,
                                    op_of(red), red->stream));
    }
    return TUTTI_OK;
}

static bool narrowed(const tutti_reducer *red, const tt_red_bucket *bucket)
{
    return red->wire != 0 && bucket->dtype == TUTTI_FLOAT32;
}

static tutti_status narrow(tutti_reducer *red, const float *from, uint16_t *to, size_t n)
{
    const tt_math_cast cast = {to, from, red->wire, TUTTI_FLOAT32, n, divisor(red)};
    return red->math->cast(red->ctx->dev, &cast, red->stream);
}

/* Staging is the concatenation in the wire type; what lies between members means nothing. Packing
 * divides: a sum of many gradients might not be finite in 16 bits. */
static tutti_status pack(tutti_reducer *red, const tt_red_bucket *bucket)
{
    uint16_t *to = (uint16_t *)red->staging;

    if (bucket->owned)
        return narrow(red, bucket->runs[0].ptr, to, bucket->runs[0].count);
    for (int i = 0; i < bucket->n; i++) {
        const tt_red_param *param = &red->params[bucket->ids[i]];
        TT_TRY(narrow(red, param->grad, to + param->index, param->count));
    }
    return TUTTI_OK;
}

static tutti_status widen(tutti_reducer *red, const uint16_t *from, float *to, size_t n)
{
    const tt_math_cast cast = {to, from, TUTTI_FLOAT32, red->wire, n, 1};
    return red->math->cast(red->ctx->dev, &cast, red->stream);
}

/* Where a gradient is reduced: its own place, or, in checked mode, beside it (move_away). */
static float *reduced_at(const tutti_reducer *red, const tt_red_bucket *bucket,
                         const tt_red_param *param)
{
    const char *grad = param->grad;

    for (int i = 0; red->shadow != NULL && i < bucket->nruns; i++) {
        const tt_red_run *run = &bucket->runs[i];
        const char *from = run->ptr;
        if (grad >= from && grad < from + run->count * sizeof(float))
            return (float *)(void *)((char *)run->work + (grad - from));
    }
    return param->grad;
}

/* Of a sharded bucket this rank's part alone is there. */
static tutti_status unpack(tutti_reducer *red, const tt_red_bucket *bucket)
{
    const uint16_t *from = (const uint16_t *)red->staging;
    size_t first = tt_red_sharded(red) ? (size_t)red->rank * bucket->shard : 0;
    size_t end = tt_red_sharded(red) ? first + bucket->shard : bucket->elements;

    if (bucket->owned) { /* one piece of memory, to the end of its last member */
        end = tt_min_size(end, bucket->runs[0].count);
        return widen(red, from + first, (float *)bucket->runs[0].work + first, end - first);
    }
    for (int i = 0; i < bucket->n; i++) {
        const tt_red_param *param = &red->params[bucket->ids[i]];
        size_t at = param->index > first ? param->index : first;
        size_t to = tt_min_size(param->index + param->count, end);
        if (at < to)
            TT_TRY(widen(red, from + at, reduced_at(red, bucket, param) + (at - param->index),
                         to - at));
    }
    return TUTTI_OK;
}

static tutti_status launch_narrow(tutti_reducer *red, const tt_red_bucket *bucket)
{
    uint16_t *data = (uint16_t *)red->staging;

    if (tt_red_sharded(red))
        return tutti_reduce_scatter(red->comm, data, data + (size_t)red->rank * bucket->shard,
                                    bucket->shard, red->wire, TUTTI_SUM, red->stream);
    return tutti_all_reduce(red->comm, data, data,
                            bucket->owned ? bucket->runs[0].count : bucket->elements, red->wire,
                            TUTTI_SUM, red->stream);
}

/* What a sum over ranks still lacks to be the average. */
static tutti_status divide(tutti_reducer *red, const tt_red_bucket *bucket)
{
    if (red->hook != NULL || narrowed(red, bucket) || op_of(red) == TUTTI_AVG)
        return TUTTI_OK;
    for (int i = 0; i < bucket->nruns; i++) {
        const tt_red_run *run = &bucket->runs[i];
        const tt_math_cast cast = {run->work,     run->work,  bucket->dtype,
                                   bucket->dtype, run->count, divisor(red)};
        TT_TRY(red->math->cast(red->ctx->dev, &cast, red->stream));
    }
    return TUTTI_OK;
}

static tutti_status launch_scalars(tutti_reducer *red)
{
    for (int i = 0; i < red->nscalars; i++)
        TT_TRY(tutti_all_reduce(red->comm, red->scalar[i].values, red->scalar[i].values,
                                red->scalar[i].n, TUTTI_FLOAT32, (tutti_op)red->scalar[i].op,
                                red->stream));
    TT_TRY(tt_red_micros_beside(red));
    return tt_red_means_launch(red);
}

static tutti_status call_hook(tutti_reducer *red, const tt_red_bucket *bucket)
{
    for (int i = 0; i < bucket->nruns; i++) {
        const tutti_bucket part = {.size = sizeof part,
                                   .index = (int)(bucket - red->buckets),
                                   .part = i,
                                   .data = bucket->runs[i].work,
                                   .count = bucket->runs[i].count,
                                   .dtype = bucket->dtype,
                                   .divisor = divisor(red),
                                   .comm = red->comm,
                                   .stream = red->stream};
        tutti_status status;

        tt_fail_text(TUTTI_OK, ""); /* a hook's own failure leaves no text */
        status = red->hook(red->hook_arg, &part);
        if (status != TUTTI_OK)
            return tt_fail_more(status, "reducer \"%s\": the hook of bucket %d returned %s",
                                red->name, part.index, tutti_status_name(status));
    }
    return TUTTI_OK;
}

static tutti_status launch(tutti_reducer *red, const tt_red_bucket *bucket, bool last)
{
    tutti_status status, ended;

    if (red->hook != NULL)
        TT_TRY(call_hook(red, bucket));
    if (bucket->nruns == 1 && !last && red->hook == NULL && !narrowed(red, bucket))
        return launch_runs(red, bucket);
    TT_TRY(tutti_group_begin());
    if (red->hook != NULL)
        status = TUTTI_OK;
    else
        status = narrowed(red, bucket) ? launch_narrow(red, bucket) : launch_runs(red, bucket);
    if (status == TUTTI_OK && last)
        status = launch_scalars(red);
    ended = tutti_group_end();
    return status != TUTTI_OK ? status : ended;
}

/* Checked mode: who reads a gradient between ready and wait shall see it. The bucket is reduced in
 * another place, from which wait brings it back; in its own lies NaN. */
static tutti_status move_away(tutti_reducer *red, const tt_red_bucket *bucket)
{
    const tt_device_ops *ops = red->ctx->dev_ops;

    for (int i = 0; red->shadow != NULL && i < bucket->nruns; i++) {
        const tt_red_run *run = &bucket->runs[i];
        size_t bytes = run->count * tutti_dtype_size(bucket->dtype);
        if (bytes == 0)
            continue;
        TT_TRY(ops->copy(red->ctx->dev, run->work, run->ptr, bytes, red->stream));
        TT_TRY(ops->fill_nan(red->ctx->dev, run->ptr, run->count, bucket->dtype, red->stream));
    }
    return TUTTI_OK;
}

tutti_status tt_red_move_back(tutti_reducer *red)
{
    for (int b = 0; red->shadow != NULL && b < red->nbuckets; b++) {
        const tt_red_bucket *bucket = &red->buckets[b];
        for (int i = 0; i < bucket->nruns; i++)
            if (bucket->runs[i].count > 0)
                TT_TRY(red->ctx->dev_ops->copy(
                    red->ctx->dev, bucket->runs[i].ptr, bucket->runs[i].work,
                    bucket->runs[i].count * tutti_dtype_size(bucket->dtype), red->stream));
    }
    return TUTTI_OK;
}

/* The bucket's sum over micro-steps becomes the average over ranks. */
static tutti_status reduce(tutti_reducer *red, const tt_red_bucket *bucket, bool last)
{
    if (narrowed(red, bucket))
        TT_TRY(pack(red, bucket));
    TT_TRY(move_away(red, bucket));
    TT_TRY(launch(red, bucket, last));
    if (narrowed(red, bucket))
        TT_TRY(unpack(red, bucket));
    TT_TRY(divide(red, bucket));
    if (!last)
        return TUTTI_OK;
    TT_TRY(tt_red_micros_keep(red));
    return tt_red_means_finish(red);
}

static tutti_status fill_bucket(tutti_reducer *red, const tt_red_bucket *bucket)
{
    for (int i = 0; i < bucket->nruns; i++)
        TT_TRY(red->ctx->dev_ops->fill_nan(red->ctx->dev, bucket->runs[i].ptr,
                                           bucket->runs[i].count, bucket->dtype, red->stream));
    return TUTTI_OK;
}

static tutti_status follow(tutti_reducer *red, tt_red_bucket *bucket, bool last)
{
    if (red->zero_pending)
        TT_TRY(red->ctx->dev_ops->event_wait(red->ctx->dev, red->zeroed, red->stream));
    red->zero_pending = false;
    TT_TRY(tt_red_sources_follow(red, &bucket->sources));
    return last ? tt_red_sources_follow(red, &red->scalar_sources) : TUTTI_OK;
}

/* A bucket of a micro-step that is not the last is only added up. */
static tutti_status issue(tutti_reducer *red, tt_red_bucket *bucket, bool fill_nan)
{
    const tt_device_ops *ops = red->ctx->dev_ops;
    tt_red_times *times = tt_red_times_now(red);
    int at = red->next;
    bool last = at == red->nbuckets - 1;

    TT_TRY(follow(red, bucket, last));
    if (fill_nan)
        TT_TRY(fill_bucket(red, bucket));
    if (tt_red_folds(red) && !red->dropping)
        TT_TRY(tt_red_fold(red, bucket));
    if (!tt_red_last_micro(red) && !red->dropping)
        return last ? ops->event_record(red->ctx->dev, red->folded, red->stream) : TUTTI_OK;
    if (at == 0)
        TT_TRY(tt_red_micros_ahead(red));
    times->order[at] = red->order[at];
    times->issued_s[at] = (double)(tt_now_ns() - red->begin_ns) * 1e-9;
    if (red->capture != 0)
        return reduce(red, bucket, last);
    TT_TRY(ops->event_record(red->ctx->dev, times->from[at], red->stream));
    TT_TRY(reduce(red, bucket, last));
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

tutti_status tutti_reducer_hook(tutti_reducer *red, tutti_bucket_hook hook, void *arg)
{
    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_hook: the reducer is NULL");
    if (!red->committed || red->in_step)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": hook %s", red->name,
                       red->committed ? "within a step" : "before commit");
    if (red->wire != 0 && hook != NULL)
        return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": a hook decides what travels: no wire type",
                       red->name);
    red->hook = hook;
    red->hook_arg = arg;
    return TUTTI_OK;
}
