/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of a step. Events around each bucket's all-reduce on the communication stream and around
 * the delay that wait puts on the program's stream; an inline wait is timed by the clock. Two sets
 * are used in turn, since with streams the host may begin a step before the last one has passed;
 * what a set held is computed and kept just before it is used again.
 */
#include <stdlib.h>

#include "core/mem.h"
#include "reducer/reducer.h"

static tutti_status create_set(tutti_reducer *red, tt_red_times *times)
{
    const tt_device_ops *ops = red->ctx->dev_ops;
    tt_device *dev = red->ctx->dev;
    size_t n = (size_t)red->nbuckets;

    TT_TRY(tt_calloc(n, sizeof *times->order, &times->order));
    TT_TRY(tt_calloc(n, sizeof *times->issued_s, &times->issued_s));
    TT_TRY(tt_calloc(n, sizeof(tt_event *), &times->from));
    TT_TRY(tt_calloc(n, sizeof(tt_event *), &times->to));
    TT_TRY(ops->event_create(dev, true, &times->wait_from));
    TT_TRY(ops->event_create(dev, true, &times->wait_to));
    for (size_t i = 0; i < n; i++) {
        TT_TRY(ops->event_create(dev, true, &times->from[i]));
        TT_TRY(ops->event_create(dev, true, &times->to[i]));
    }
    return TUTTI_OK;
}

tutti_status tt_red_times_create(tutti_reducer *red)
{
    TT_TRY(tt_calloc((size_t)red->nbuckets, sizeof *red->figures.bucket, &red->figures.bucket));
    TT_TRY(tt_calloc(1, sizeof *red->fresh, &red->fresh));
    TT_TRY(tt_calloc((size_t)red->nbuckets, sizeof *red->fresh->bucket, &red->fresh->bucket));
    TT_TRY(create_set(red, &red->times[0]));
    return create_set(red, &red->times[1]);
}

void tt_red_times_free(tutti_reducer *red)
{
    const tt_device_ops *ops = red->ctx->dev_ops;
    tt_device *dev = red->ctx->dev;

    for (int set = 0; set < 2; set++) {
        tt_red_times *times = &red->times[set];
        for (int i = 0; i < red->nbuckets && times->to != NULL; i++) {
            ops->event_destroy(dev, times->from[i]);
            ops->event_destroy(dev, times->to[i]);
        }
        ops->event_destroy(dev, times->wait_from);
        ops->event_destroy(dev, times->wait_to);
        free(times->order);
        free(times->issued_s);
        free(times->from);
        free(times->to);
        *times = (tt_red_times){0};
    }
    free(red->figures.bucket);
    if (red->fresh != NULL)
        free(red->fresh->bucket);
    free(red->fresh);
    red->figures = (tt_red_figures){0};
    red->fresh = NULL;
}

static bool passed(const tutti_reducer *red, const tt_red_times *times)
{
    bool done = true;

    if (times->step == 0)
        return false;
    if (!times->inline_wait &&
        red->ctx->dev_ops->event_query(red->ctx->dev, times->wait_to, &done) != TUTTI_OK)
        return false;
    return done;
}

static bool elapsed(const tutti_reducer *red, tt_event *from, tt_event *to, double *seconds_out)
{
    return red->ctx->dev_ops->event_elapsed(red->ctx->dev, from, to, seconds_out) == TUTTI_OK;
}

/* False, with *out spoilt, if the device cannot say. */
static bool compute(const tutti_reducer *red, const tt_red_times *times, tt_red_figures *out)
{
    out->step = 0;
    out->comm_s = 0;
    out->exposed_s = times->exposed_s;
    if (!times->inline_wait && !elapsed(red, times->wait_from, times->wait_to, &out->exposed_s))
        return false;
    for (int i = 0; i < red->nbuckets; i++) {
        out->bucket[i].bytes = red->buckets[times->order[i]].bytes;
        out->bucket[i].issued_s = times->issued_s[i];
        if (!elapsed(red, times->from[i], times->to[i], &out->bucket[i].comm_s))
            return false;
        out->comm_s += out->bucket[i].comm_s;
    }
    out->first_ready_s = times->issued_s[0];
    out->last_bucket_s = out->bucket[red->nbuckets - 1].comm_s;
    out->step = times->step;
    return true;
}

void tt_red_times_keep(tutti_reducer *red)
{
    tt_red_times *times = tt_red_times_now(red);

    if (red->capture == 0 && passed(red, times) && compute(red, times, red->fresh)) {
        tt_red_figures kept = red->figures;
        red->figures = *red->fresh;
        *red->fresh = kept;
    }
    times->step = 0;
}

/* The newest step that has passed; NULL if none has. */
static const tt_red_figures *newest(const tutti_reducer *red)
{
    tt_red_figures *fresh = red->fresh;
    const tt_red_times *last = &red->times[red->steps % 2],
                       *before = &red->times[(red->steps + 1) % 2];

    if (!red->committed)
        return NULL;
    if (passed(red, last) && compute(red, last, fresh))
        return fresh;
    if (passed(red, before) && compute(red, before, fresh))
        return fresh;
    return red->figures.step > 0 ? &red->figures : NULL;
}

tutti_status tutti_reducer_stats_get(const tutti_reducer *red, tutti_reducer_stats *stats_out)
{
    const tt_red_figures *figures;

    if (red == NULL || stats_out == NULL || stats_out->size != sizeof *stats_out)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_stats_get: %s",
                       red == NULL         ? "the reducer is NULL"
                       : stats_out == NULL ? "stats_out is NULL"
                                           : "stats_out->size is not sizeof(tutti_reducer_stats)");
    figures = newest(red);
    if (figures == NULL)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": no step has finished", red->name);
    *stats_out = (tutti_reducer_stats){
        .size = sizeof *stats_out,
        .steps = figures->step,
        .buckets = red->nbuckets,
        .bytes = red->step_bytes,
        .comm_s = figures->comm_s,
        .exposed_s = figures->exposed_s,
        .first_ready_s = figures->first_ready_s,
        .last_bucket_s = figures->last_bucket_s,
        .overlap =
            figures->comm_s > figures->exposed_s ? 1 - figures->exposed_s / figures->comm_s : 0,
        .param_exposed_s = red->param_exposed_s,
        .bucket_bytes = red->bucket_bytes,
        .partial_bytes = tt_red_partial_bytes(red),
        .state_count = red->shard_count,
        .padding = red->padding,
    };
    return TUTTI_OK;
}

size_t tutti_reducer_bucket_stats(const tutti_reducer *red, tutti_bucket_stats *out, size_t cap)
{
    const tt_red_figures *figures = red != NULL ? newest(red) : NULL;

    if (figures == NULL)
        return 0;
    for (size_t i = 0; out != NULL && i < cap && i < (size_t)red->nbuckets; i++)
        out[i] = figures->bucket[i];
    return (size_t)red->nbuckets;
}
