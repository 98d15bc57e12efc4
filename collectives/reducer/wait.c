/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of a step: wait, or abandon.
 *
 * A rank that comes to wait with gradients missing still issues their buckets, filled with NaN: the
 * others have issued theirs or will, and a stream cannot be called back. Then it fails the context
 * with the parameters' names, which every rank gets from tutti_step.
 *
 * Abandon meets ranks that have issued different numbers of buckets. They agree on the largest, the
 * others issue up to it (whatever is in the buckets; it is dropped), with the scalars of the rank
 * that is furthest, and all drain their streams.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/issue.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "reducer/reducer.h"
#include "trace/nvtx.h"

enum { NAMES_MAX = 8 };

const char *tt_red_missing_text(const tutti_reducer *red, char *buf, size_t cap)
{
    size_t remaining = atomic_load(&red->remaining), named = 0;
    size_t at =
        (size_t)snprintf(buf, cap, "gradients of %zu of %zu parameters:", remaining, red->nparams);

    for (size_t id = 0; id < red->nparams && named < NAMES_MAX && at < cap; id++)
        if (atomic_load(&red->params[id].stamp) != red->stamp)
            at += (size_t)snprintf(buf + at, cap - at, "%s \"%s\"", named++ > 0 ? "," : "",
                                   red->params[id].name);
    if (named < remaining && at < cap)
        snprintf(buf + at, cap - at, " and %zu more", remaining - named);
    return buf;
}

/* Issues what is left. MISSING if gradients are. */
static tutti_status finish_issue(tutti_reducer *red)
{
    char text[512];

    while (red->next < red->nbuckets)
        TT_TRY(tt_red_issue(red, !red->buckets[red->order[red->next]].complete));
    if (atomic_load(&red->remaining) > 0)
        return tt_fail(TUTTI_ERR_MISSING,
                       "reducer \"%s\": wait at step %" PRId64
                       ", not made ready in micro-step %d of %d: %s",
                       red->name, red->steps, red->micro, red->micros,
                       tt_red_missing_text(red, text, sizeof text));
    return tt_red_means_check(red);
}

static tutti_status exactly_once(const tutti_reducer *red)
{
    for (int b = 0; b < red->nbuckets; b++) {
        const tt_red_bucket *bucket = &red->buckets[b];
        if (bucket->issues != 1)
            return tt_fail(TUTTI_ERR_INTERNAL,
                           "reducer \"%s\": bucket %d, from \"%s\" to \"%s\", was reduced %d times "
                           "instead of once in step %" PRId64,
                           red->name, b, red->params[bucket->ids[0]].name,
                           red->params[bucket->ids[bucket->n - 1]].name, bucket->issues,
                           red->steps);
    }
    return TUTTI_OK;
}

static tutti_status hand_over_inline(tutti_reducer *red)
{
    int64_t from = tt_now_ns();
    tutti_status status = TUTTI_OK;

    if (!tt_red_inline(red->stream))
        status = tutti_stream_sync(red->ctx, red->stream);
    tt_red_times_now(red)->exposed_s = (double)(tt_now_ns() - from) * 1e-9;
    tt_red_times_now(red)->inline_wait = true;
    return status;
}

static tutti_status hand_over(tutti_reducer *red, tutti_stream stream)
{
    const tt_device_ops *ops = red->ctx->dev_ops;
    tt_device *dev = red->ctx->dev;
    tt_red_times *times = tt_red_times_now(red);

    TT_TRY(tt_red_move_back(red));
    TT_TRY(ops->event_record(dev, red->done, red->stream));
    red->done_in = red->capture;
    if (tt_red_inline(stream))
        return hand_over_inline(red);
    if (red->capture != 0)
        return ops->event_wait(dev, red->done, stream);
    times->inline_wait = false;
    TT_TRY(ops->event_record(dev, times->wait_from, stream));
    TT_TRY(ops->event_wait(dev, red->done, stream));
    return ops->event_record(dev, times->wait_to, stream);
}

/* Which parameters any rank has used. */
static tutti_status share_used(tutti_reducer *red)
{
    return tt_all_gather_fixed(&red->comm->group, "which parameters are used", red->used,
                               red->nparams, red->used_by_all);
}

tutti_status tt_red_end_step(tutti_reducer *red, tutti_stream stream)
{
    tutti_status status;

    TT_TRY(tt_ctx_check(red->ctx));
    TT_TRY(tt_group_forbid("tutti_reducer_wait"));
    if (!red->in_step || !tt_red_last_micro(red))
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": wait outside the last micro-step%s",
                       red->name, red->in_step ? "" : " (no step was begun)");
    TT_TRY(tt_red_check_stream(red, stream, "wait"));
    TT_TRY(tt_red_capture_same(red, stream));
    status = finish_issue(red);
    red->in_step = false;
    if (status == TUTTI_OK)
        status = exactly_once(red);
    if (!red->learnt || red->ctx->check)
        status = tt_red_agree_step(red, status);
    if (red->used != NULL)
        status = tt_agree(&red->comm->group, "tutti_reducer_wait", status);
    if (status == TUTTI_OK && red->used != NULL)
        status = share_used(red);
    if (status == TUTTI_OK)
        status = hand_over(red, stream);
    if (status == TUTTI_OK)
        status = tt_red_micros_check(red);
    if (status != TUTTI_OK)
        return tt_ctx_fail(red->ctx, status);
    tt_red_times_now(red)->step = red->capture == 0 ? red->steps + 1 : 0;
    red->steps++;
    return TUTTI_OK;
}

tutti_status tutti_reducer_wait(tutti_reducer *red, tutti_stream stream)
{
    tutti_status status;

    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_wait: the reducer is NULL");
    if (red->in_step && tt_red_last_micro(red))
        TT_TRY(tt_red_rest_is_absent(red, stream));
    tt_nvtx_push("tutti reducer wait");
    pthread_mutex_lock(&red->lock);
    status = tt_red_end_step(red, stream);
    pthread_mutex_unlock(&red->lock);
    tt_nvtx_pop();
    return status;
}

bool tutti_reducer_used(const tutti_reducer *red, int id)
{
    if (red == NULL || id < 0 || (size_t)id >= red->nparams)
        return false;
    for (int r = 0; red->used != NULL && r < red->ranks; r++)
        if (red->used_by_all[(size_t)r * red->nparams + (size_t)id] != 0)
            return true;
    return red->used == NULL;
}

/* What a rank has issued, told to the others. */
typedef struct progress_told {
    int32_t issued, nscalars, nmeans;
    struct {
        uint32_t n, op;
    } scalar[TT_RED_SCALARS_MAX];
} progress_told;

static void tell(const tutti_reducer *red, progress_told *told)
{
    *told = (progress_told){.issued = tt_red_last_micro(red) ? red->next : 0,
                            .nscalars = red->nscalars,
                            .nmeans = red->mean_given ? red->nmeans : 0};
    for (int i = 0; i < red->nscalars; i++) {
        told->scalar[i].n = red->scalar[i].n;
        told->scalar[i].op = red->scalar[i].op;
    }
}

static tutti_status catch_up(tutti_reducer *red, const progress_told *furthest)
{
    if (!tt_red_last_micro(red)) { /* it has not begun here */
        red->next = 0;
        tt_red_times_keep(red);
    }
    if (furthest->issued <= red->next)
        return TUTTI_OK;
    red->dropping = true;
    red->nscalars = furthest->nscalars;
    red->nmeans = furthest->nmeans;
    red->mean_given = furthest->nmeans > 0;
    for (int i = 0, at = 0; i < furthest->nscalars && i < TT_RED_SCALARS_MAX; i++) {
        red->scalar[i] =
            (tt_red_scalar){&red->scratch[at], furthest->scalar[i].n, furthest->scalar[i].op};
        at += (int)furthest->scalar[i].n;
    }
    while (red->next < furthest->issued)
        TT_TRY(tt_red_issue(red, false));
    return TUTTI_OK;
}

static tutti_status abandon(tutti_reducer *red)
{
    tt_group *group = &red->comm->group;
    progress_told mine;
    const progress_told *furthest = &mine;
    tt_blobs all = {0};
    tutti_status status;

    tell(red, &mine);
    status = tt_all_gather_blobs(group, "tutti_reducer_abandon", &mine, sizeof mine, &all);
    for (int r = 0; status == TUTTI_OK && r < group->size; r++) {
        const progress_told *told = tt_blob(&all, r);
        if (told->issued > furthest->issued)
            furthest = told;
    }
    if (status == TUTTI_OK)
        status = catch_up(red, furthest);
    if (status == TUTTI_OK && !tt_red_inline(red->stream))
        status = tutti_stream_sync(red->ctx, red->stream);
    tt_blobs_free(&all);
    red->in_step = false;
    return status == TUTTI_OK ? TUTTI_OK : tt_ctx_fail(red->ctx, status);
}

tutti_status tutti_reducer_abandon(tutti_reducer *red)
{
    tutti_status status;

    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_abandon: the reducer is NULL");
    pthread_mutex_lock(&red->lock);
    status = tt_ctx_check(red->ctx);
    if (status == TUTTI_OK)
        status = tt_group_forbid("tutti_reducer_abandon");
    if (status == TUTTI_OK && !red->in_step)
        status = tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": abandon without a step", red->name);
    else if (status == TUTTI_OK && red->present < red->ranks)
        status =
            tt_fail(TUTTI_ERR_STATE,
                    "reducer \"%s\": abandon while %d ranks have joined, which do not take part",
                    red->name, red->ranks - red->present);
    else if (status == TUTTI_OK)
        status = abandon(red);
    pthread_mutex_unlock(&red->lock);
    return status;
}
