/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The beginning of a micro-step: its checks, zeroed gradients, and counters for `ready`.
 *
 * Gradients are zeroed behind the last step's collectives, which `done` marks, whatever stream was
 * given to its wait. The communication stream follows the zeroing at its next issue. A reducer that
 * adds up micro-steps itself zeroes a bucket right behind its addition, and the next micro-step
 * waits for all of them.
 */
#include <inttypes.h>
#include <string.h>

#include "core/clock.h"
#include "reducer/reducer.h"
#include "trace/nvtx.h"

static tutti_status check_order(tutti_reducer *red, int micro, int n)
{
    char text[512];

    if (!red->in_step && micro != 0)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": begin of micro-step %d before 0",
                       red->name, micro);
    if (!red->in_step)
        return TUTTI_OK;
    if (micro == 0)
        return tt_fail(
            TUTTI_ERR_STATE,
            "reducer \"%s\": begin of a step while micro-step %d of %d of the last one is "
            "neither waited for nor abandoned",
            red->name, red->micro, red->micros);
    if (n != red->micros || micro != red->micro + 1)
        return tt_fail(TUTTI_ERR_STATE,
                       "reducer \"%s\": begin of micro-step %d of %d, but the last was %d of %d",
                       red->name, micro, n, red->micro, red->micros);
    if (red->remaining > 0)
        return tt_fail(TUTTI_ERR_STATE,
                       "reducer \"%s\": begin of micro-step %d, but %s were not made ready in "
                       "micro-step %d",
                       red->name, micro, tt_red_missing_text(red, text, sizeof text), red->micro);
    return tt_red_means_check(red);
}

static tutti_status check_fold(const tutti_reducer *red, int n)
{
    if ((red->flags & TUTTI_REDUCER_REPRODUCIBLE) == 0 || n == 1)
        return TUTTI_OK;
    if (red->math == NULL)
        return tt_fail(TUTTI_ERR_UNSUPPORTED,
                       "reducer \"%s\": no reproducible sums over micro-steps on the %s backend",
                       red->name, red->ctx->dev_ops->name);
    if ((n & (n - 1)) != 0)
        return tt_fail(TUTTI_ERR_ARG,
                       "reducer \"%s\": %d micro-steps; a reproducible one takes a power of two",
                       red->name, n);
    for (size_t id = 0; id < red->nparams; id++)
        if (red->params[id].dtype != TUTTI_FLOAT32 && red->params[id].dtype != TUTTI_FLOAT64)
            return tt_fail(TUTTI_ERR_ARG,
                           "reducer \"%s\": parameter \"%s\" is %s; a reproducible reducer adds "
                           "up micro-steps of FLOAT32 and FLOAT64",
                           red->name, red->params[id].name,
                           tutti_dtype_name(red->params[id].dtype));
    return TUTTI_OK;
}

static tutti_status check_begin(tutti_reducer *red, int micro, int n, tutti_stream stream)
{
    TT_TRY(tt_ctx_check(red->ctx));
    if (!red->committed)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": begin before commit", red->name);
    if (n < 1 || micro < 0 || micro >= n)
        return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": there is no micro-step %d of %d", red->name,
                       micro, n);
    TT_TRY(tt_red_check_stream(red, stream, "begin"));
    TT_TRY(check_fold(red, n));
    return check_order(red, micro, n);
}

/* After the last step's all-reduces, whatever stream was given to its wait. The sums of means too:
 * a rank that has joined gives neither gradients nor values, so `zeroed` is all that its buckets
 * follow. */
static tutti_status zero_step(tutti_reducer *red, tutti_stream stream)
{
    const tt_device_ops *ops = red->ctx->dev_ops;
    tt_device *dev = red->ctx->dev;
    int64_t *sums = red->sums + TT_EXACT_WORDS;

    TT_TRY(tt_red_wait_if(red, red->done, red->done_in, stream));
    TT_TRY(ops->zero(dev, sums, TT_RED_SCALARS_MAX * TT_EXACT_WORDS * sizeof *sums, stream));
    if (red->arena_bytes > 0)
        TT_TRY(ops->zero(dev, red->arena, red->arena_bytes, stream));
    for (int b = 0; b < red->nbuckets; b++) {
        const tt_red_bucket *bucket = &red->buckets[b];
        for (int i = 0; !bucket->owned && i < bucket->nruns; i++)
            TT_TRY(ops->zero(dev, bucket->runs[i].ptr,
                             bucket->runs[i].count * tutti_dtype_size(bucket->dtype), stream));
    }
    red->zero_pending = !tt_red_inline(stream);
    return red->zero_pending ? ops->event_record(dev, red->zeroed, stream) : TUTTI_OK;
}

/* Gradients of this micro-step go into buckets. */
static void begin_counting(tutti_reducer *red)
{
    for (int b = 0; b < red->nbuckets; b++) {
        tt_red_bucket *bucket = &red->buckets[b];
        atomic_store_explicit(&bucket->pending, bucket->n + bucket->ties, memory_order_relaxed);
        bucket->complete = false;
        bucket->issues = 0;
        tt_red_sources_forget(&bucket->sources);
    }
    tt_red_sources_forget(&red->scalar_sources);
    red->ncompleted = red->next = 0;
}

static void begin_last_micro(tutti_reducer *red)
{
    red->nscalars = red->scalar_floats = 0;
    tt_red_times_keep(red);
    red->begin_ns = tt_now_ns();
}

tutti_status tt_red_begin_step(tutti_reducer *red, int n, tutti_stream stream)
{
    TT_TRY(tt_red_capture_begin(red, stream));
    red->micros = n;
    if (tt_red_folds(red))
        TT_TRY(tt_red_fold_create(red, n));
    red->nmeans = 0;
    if (red->used != NULL)
        memset(red->used, 0, red->nparams);
    return zero_step(red, stream);
}

void tt_red_begin_micro(tutti_reducer *red, int micro)
{
    red->in_step = true;
    red->dropping = red->mean_given = false;
    red->micro = micro;
    red->stamp++;
    atomic_store(&red->remaining, red->nparams);
    if (tt_red_last_micro(red) || tt_red_folds(red))
        begin_counting(red);
    if (tt_red_last_micro(red))
        begin_last_micro(red);
}

static tutti_status begin(tutti_reducer *red, int micro, int n, tutti_stream stream)
{
    tutti_status status;

    TT_TRY(check_begin(red, micro, n, stream));
    if (micro == 0) {
        TT_TRY(tt_red_meet(red, &n));
        TT_TRY(tt_red_begin_step(red, n, stream));
        status = tt_red_micros_check(red); /* of earlier steps */
        if (status != TUTTI_OK)
            return tt_ctx_fail(red->ctx, status);
    } else if (tt_red_folds(red)) { /* gradients are zero again */
        TT_TRY(red->ctx->dev_ops->event_wait(red->ctx->dev, red->folded, stream));
    }
    tt_red_begin_micro(red, micro);
    return TUTTI_OK;
}

tutti_status tutti_reducer_begin(tutti_reducer *red, int micro, int n, tutti_stream stream)
{
    tutti_status status;

    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_begin: the reducer is NULL");
    TT_TRY(tt_red_rest_is_absent(red, stream));
    tt_nvtx_push("tutti reducer begin");
    pthread_mutex_lock(&red->lock);
    status = begin(red, micro, n, stream);
    pthread_mutex_unlock(&red->lock);
    tt_nvtx_pop();
    return status;
}
