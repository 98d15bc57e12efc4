/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scalars that travel with the gradients, in the last bucket's group.
 *
 * `scalar` reduces floats as a collective does: in the last micro-step only. `mean` is for values
 * of every micro-step: they are added to exact sums (comm/exact.h) as they come, the sums of all
 * ranks are added as integers, and the mean is rounded at the end, once. So it does not matter
 * which rank had which micro-step.
 */
#include <inttypes.h>

#include "comm/issue.h"
#include "reducer/reducer.h"

static tutti_status check_scalar(const tutti_reducer *red, const float *values, size_t n,
                                 tutti_op op)
{
    TT_TRY(tt_ctx_check(red->ctx));
    if ((red->flags & TUTTI_REDUCER_UNEVEN) != 0)
        return tt_fail(TUTTI_ERR_STATE,
                       "reducer \"%s\": an uneven reducer takes no scalars, for a rank that has "
                       "joined gives none: use tutti_reducer_mean",
                       red->name);
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

/* The last bucket is issued behind the work now on the stream. */
static tutti_status follow_later(tutti_reducer *red, tt_red_sources *sources, tutti_stream stream)
{
    if (tt_red_inline(stream))
        return TUTTI_OK;
    TT_TRY(tt_red_source_add(red, sources, stream, 0));
    tt_red_source *source = tt_red_source_find(sources, stream);
    source->expected = 0;
    return tt_red_source_count(red, source);
}

static tutti_status add_scalar(tutti_reducer *red, float *values, size_t n, tutti_op op,
                               tutti_stream stream)
{
    TT_TRY(check_scalar(red, values, n, op));
    TT_TRY(tt_red_check_stream(red, stream, "scalar"));
    TT_TRY(follow_later(red, &red->scalar_sources, stream));
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

tutti_status tt_red_means_check(const tutti_reducer *red)
{
    if (red->nmeans > 0 && !red->mean_given)
        return tt_fail(
            TUTTI_ERR_STATE,
            "reducer \"%s\": tutti_reducer_mean was called in earlier micro-steps, but not "
            "in micro-step %d of %d",
            red->name, red->micro, red->micros);
    return TUTTI_OK;
}

static tutti_status check_mean(const tutti_reducer *red, const float *values, size_t n)
{
    TT_TRY(tt_ctx_check(red->ctx));
    if (red->math == NULL)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "reducer \"%s\": no means on the %s backend",
                       red->name, red->ctx->dev_ops->name);
    if (!red->in_step || red->mean_given || atomic_load(&red->remaining) == 0)
        return tt_fail(TUTTI_ERR_STATE,
                       "reducer \"%s\": tutti_reducer_mean belongs into every micro-step, once, "
                       "before its last ready",
                       red->name);
    if (values == NULL || n == 0 || n > TT_RED_SCALARS_MAX)
        return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": the mean of %zu scalars (at most %d)",
                       red->name, n, TT_RED_SCALARS_MAX);
    if (red->micro > 0 && (size_t)red->nmeans != n) /* 0: not called before */
        return tt_fail(TUTTI_ERR_STATE,
                       "reducer \"%s\": the mean of %zu scalars in micro-step %d, of %d before",
                       red->name, n, red->micro, red->nmeans);
    return TUTTI_OK;
}

/* Sums are zeroed by begin, on a stream that `stream` follows; the values are read on `stream`. */
static tutti_status add_mean(tutti_reducer *red, float *values, size_t n, tutti_stream stream)
{
    TT_TRY(check_mean(red, values, n));
    TT_TRY(tt_red_check_stream(red, stream, "mean"));
    TT_TRY(red->math->exact_add(red->ctx->dev, red->sums + TT_EXACT_WORDS, values, n, stream));
    TT_TRY(follow_later(red, &red->scalar_sources, stream));
    red->mean_given = true;
    red->nmeans = (int)n;
    red->means = values;
    return TUTTI_OK;
}

tutti_status tutti_reducer_mean(tutti_reducer *red, float *values, size_t n, tutti_stream stream)
{
    tutti_status status;

    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_mean: the reducer is NULL");
    pthread_mutex_lock(&red->lock);
    status = add_mean(red, values, n, stream);
    pthread_mutex_unlock(&red->lock);
    return status;
}
