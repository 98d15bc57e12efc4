/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `ready`: counting.
 *
 * A backward pass may call it from several threads, thousands of times in a step, so it takes no
 * lock and allocates nothing: a parameter's stamp is exchanged (which finds one that is ready
 * twice), its stream's source counts it, its bucket counts down. The thread that brings a bucket to
 * 0 takes the lock and issues, and with it every later bucket of the agreed order that was waiting
 * for it; unless another thread is at that already, which is told and issues this one too. So no
 * thread waits for the calls of another. The lock is also taken when a bucket meets a stream for
 * the first time.
 *
 * The count down comes last and is sequentially consistent: who brings it to 0 sees all that the
 * others counted and recorded before.
 */
#include <inttypes.h>

#include "comm/issue.h"
#include "reducer/reducer.h"

static tutti_status check_ready(const tutti_reducer *red, const char *call, const int *ids,
                                size_t n)
{
    TT_TRY(tt_ctx_check(red->ctx));
    TT_TRY(tt_group_forbid("tutti_reducer_ready"));
    if (ids == NULL && n > 0)
        return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": %s without ids", red->name, call);
    if (n > red->nparams)
        return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": %s of %zu ids; there are %zu parameters",
                       red->name, call, n, red->nparams);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (size_t)ids[i] >= red->nparams)
            return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": %s: there is no parameter %d of %zu",
                           red->name, call, ids[i], red->nparams);
    if (!red->in_step)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": %s of \"%s\" outside begin and wait: %s",
                       red->name, call, n > 0 ? red->params[ids[0]].name : "nothing",
                       red->steps > 0 ? "the step's wait has been called, the next begin has not"
                                      : "no step has begun");
    return TUTTI_OK;
}

/* All of them or, when one was ready before, none. */
static tutti_status mark(tutti_reducer *red, const char *call, const int *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        tt_red_param *param = &red->params[ids[i]];
        if (atomic_exchange_explicit(&param->stamp, red->stamp, memory_order_relaxed) != red->stamp)
            continue;
        while (i-- > 0)
            atomic_store_explicit(&red->params[ids[i]].stamp, 0, memory_order_relaxed);
        return tt_fail(TUTTI_ERR_STATE,
                       "reducer \"%s\": %s: parameter \"%s\" was made ready twice in micro-step %d "
                       "of %d",
                       red->name, call, param->name, red->micro, red->micros);
    }
    atomic_fetch_sub(&red->remaining, n);
    return TUTTI_OK;
}

static tutti_status failed_at(const tutti_reducer *red, const char *call, int id,
                              tutti_status status)
{
    return tt_fail_more(status, "reducer \"%s\": %s of \"%s\"", red->name, call,
                        red->params[id].name);
}

/* A stream that a bucket has not met before. */
static tutti_status new_source(tutti_reducer *red, tt_red_bucket *bucket, tutti_stream stream)
{
    tutti_status status = red->ctx->dev_ops->stream_check(red->ctx->dev, stream);

    if (status != TUTTI_OK)
        return status;
    pthread_mutex_lock(&red->lock);
    status = tt_red_source_add(red, &bucket->sources, stream, bucket->n + bucket->ties);
    pthread_mutex_unlock(&red->lock);
    return status;
}

static tutti_status check_stream(tutti_reducer *red, const char *call, const int *ids, size_t n,
                                 tutti_stream stream)
{
    if (n > 0 && tt_red_inline(stream)) {
        tutti_status status = red->ctx->dev_ops->stream_check(red->ctx->dev, stream);
        return status == TUTTI_OK ? TUTTI_OK : failed_at(red, call, ids[0], status);
    }
    for (size_t i = 0; i < n; i++) {
        tt_red_bucket *bucket = &red->buckets[red->params[ids[i]].bucket];
        tutti_status status = TUTTI_OK;
        if (tt_red_source_find(&bucket->sources, stream) == NULL)
            status = new_source(red, bucket, stream);
        if (status != TUTTI_OK)
            return failed_at(red, call, ids[i], status);
    }
    return TUTTI_OK;
}

static tutti_status issue_next(tutti_reducer *red)
{
    tutti_status status = TUTTI_OK;

    pthread_mutex_lock(&red->lock);
    while (status == TUTTI_OK && red->next < red->nbuckets &&
           atomic_load(&red->buckets[red->order[red->next]].complete))
        status = tt_red_issue(red, false);
    pthread_mutex_unlock(&red->lock);
    return status;
}

static tutti_status complete(tutti_reducer *red, int b)
{
    tutti_status status = TUTTI_OK;
    int seen;

    red->completed[atomic_fetch_add(&red->ncompleted, 1)] = b;
    atomic_store(&red->buckets[b].complete, true);
    if (atomic_fetch_add(&red->told, 1) > 0)
        return TUTTI_OK;
    do {
        seen = atomic_load(&red->told);
        if (status == TUTTI_OK)
            status = issue_next(red);
    } while (atomic_fetch_sub(&red->told, seen) != seen);
    return status;
}

/* A failure is the context's: the parameter is marked, but its bucket will never be complete. */
static tutti_status count(tutti_reducer *red, int id, tutti_stream stream)
{
    int b = red->params[id].bucket;
    tt_red_bucket *bucket = &red->buckets[b];
    tutti_status status = TUTTI_OK;

    if (!tt_red_inline(stream))
        status = tt_red_source_count(red, tt_red_source_find(&bucket->sources, stream));
    if (status != TUTTI_OK)
        return tt_ctx_fail(red->ctx, failed_at(red, "ready", id, status));
    if (atomic_fetch_sub(&bucket->pending, 1) == 1)
        return complete(red, b);
    return TUTTI_OK;
}

static tutti_status take(tutti_reducer *red, bool used, const int *ids, size_t n,
                         tutti_stream stream)
{
    const char *call = used ? "ready" : "absent";

    TT_TRY(check_ready(red, call, ids, n));
    TT_TRY(check_stream(red, call, ids, n, stream));
    TT_TRY(mark(red, call, ids, n));
    for (size_t i = 0; red->used != NULL && used && i < n; i++)
        red->used[ids[i]] = 1;
    if (!tt_red_last_micro(red) && !tt_red_folds(red))
        return TUTTI_OK;
    for (size_t i = 0; i < n; i++)
        TT_TRY(count(red, ids[i], stream));
    return TUTTI_OK;
}

tutti_status tutti_reducer_ready(tutti_reducer *red, const int *ids, size_t n, tutti_stream stream)
{
    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_ready: the reducer is NULL");
    return take(red, true, ids, n, stream);
}

/* The gradient holds zeros or what earlier micro-steps gave: there is nothing to do but to go on.
 */
tutti_status tutti_reducer_absent(tutti_reducer *red, const int *ids, size_t n, tutti_stream stream)
{
    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_absent: the reducer is NULL");
    return take(red, false, ids, n, stream);
}

tutti_status tt_red_rest_is_absent(tutti_reducer *red, tutti_stream stream)
{
    if ((red->flags & TUTTI_REDUCER_FIND_UNUSED) == 0 || !red->in_step)
        return TUTTI_OK;
    for (int id = 0; id < (int)red->nparams && atomic_load(&red->remaining) > 0; id++)
        if (atomic_load_explicit(&red->params[id].stamp, memory_order_relaxed) != red->stamp)
            TT_TRY(take(red, false, &id, 1, stream));
    return TUTTI_OK;
}
