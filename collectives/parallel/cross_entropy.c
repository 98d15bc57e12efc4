/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cross entropy over a vocabulary that the ranks share, on the host.
 *
 * Three passes over this rank's columns with two small all-reduces between them: the maximum of a
 * row; then exponentials relative to it, their sum, and the target's own value where it is here;
 * then the division. A row's maximum over the ranks is known before anything is exponentiated, so
 * no sum overflows, and what is exchanged does not grow with the vocabulary.
 */
#include <math.h>
#include <stdlib.h>

#include "comm/issue.h"
#include "core/mem.h"
#include "parallel/tensor.h"
#include "tutti/coll.h"
#include "tutti/tensor_parallel.h"

typedef struct work {
    tutti_tp_logits l;
    float *loss;
    float *max; /* [rows] */
    float *sums; /* [3][rows]: of the exponentials; the target's exponent; 1 where it was found */
} work;

static tutti_status find_max(void *arg)
{
    work *w = arg;

    for (size_t i = 0; i < w->l.rows; i++) {
        const float *row = w->l.logits + i * w->l.count;
        float max = -INFINITY;

        for (size_t j = 0; j < w->l.count; j++)
            max = row[j] > max || isnan(row[j]) ? row[j] : max;
        w->max[i] = max;
    }
    return TUTTI_OK;
}

static tutti_status exponentiate(void *arg)
{
    work *w = arg;

    for (size_t i = 0; i < w->l.rows; i++) {
        float *row = w->l.logits + i * w->l.count, max = w->max[i], sum = 0;
        int64_t target = (int64_t)w->l.targets[i] - w->l.first;

        bool here = target >= 0 && (uint64_t)target < w->l.count;

        w->sums[w->l.rows + i] = here ? row[target] - max : 0;
        w->sums[2 * w->l.rows + i] = here;
        for (size_t j = 0; j < w->l.count; j++) {
            row[j] = expf(row[j] - max);
            sum += row[j];
        }
        w->sums[i] = sum;
    }
    return TUTTI_OK;
}

static tutti_status divide(void *arg)
{
    work *w = arg;

    for (size_t i = 0; i < w->l.rows; i++) {
        float *row = w->l.logits + i * w->l.count, inverse = 1 / w->sums[i];

        w->loss[i] = logf(w->sums[i]) - w->sums[w->l.rows + i];
        if (w->sums[2 * w->l.rows + i] == 0)
            w->loss[i] = INFINITY; /* no rank has that column */
        for (size_t j = 0; j < w->l.count; j++)
            row[j] *= inverse;
    }
    return TUTTI_OK;
}

static tutti_status let_go(void *arg)
{
    free(arg);
    return TUTTI_OK;
}

static tutti_status check(const tutti_tp *tp, const tutti_tp_logits *l, const float *loss)
{
    if (tp == NULL || l == NULL || loss == NULL || l->logits == NULL || l->targets == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tp_cross_entropy: a pointer is NULL");
    if (l->rows > SIZE_MAX / 64 || (l->rows > 0 && l->count > SIZE_MAX / 64 / l->rows))
        return tt_fail(TUTTI_ERR_ARG, "tp_cross_entropy: %zu x %zu logits", l->rows, l->count);
    return TUTTI_OK;
}

static tutti_status queue(tutti_comm *comm, work *w, tutti_stream stream)
{
    const tt_device_ops *dev = comm->ctx->dev_ops;
    size_t rows = w->l.rows;

    TT_TRY(dev->stream_call(comm->ctx->dev, stream, find_max, w, 0));
    TT_TRY(tutti_all_reduce(comm, w->max, w->max, rows, TUTTI_FLOAT32, TUTTI_MAX, stream));
    TT_TRY(dev->stream_call(comm->ctx->dev, stream, exponentiate, w, 0));
    TT_TRY(tutti_all_reduce(comm, w->sums, w->sums, 3 * rows, TUTTI_FLOAT32, TUTTI_SUM, stream));
    return dev->stream_call(comm->ctx->dev, stream, divide, w, 0);
}

tutti_status tutti_tp_cross_entropy(tutti_tp *tp, const tutti_tp_logits *l, float *loss,
                                    tutti_stream stream)
{
    tutti_status status;
    tutti_comm *comm;
    tutti_ctx *ctx;
    work *w;

    TT_TRY(check(tp, l, loss));
    comm = tt_tp_comm(tp);
    ctx = comm->ctx;
    TT_TRY(tt_ctx_check(ctx));
    TT_TRY(tt_group_forbid("tp_cross_entropy"));
    if (ctx->dev_ops->kind != TUTTI_BACKEND_HOST)
        return tt_fail(TUTTI_ERR_UNSUPPORTED,
                       "tp_cross_entropy: the %s backend has none: reduce your kernel's maxima and "
                       "sums with tutti_all_reduce",
                       ctx->dev_ops->name);
    if (l->rows == 0)
        return TUTTI_OK;
    status = tt_calloc(1, sizeof *w + 4 * l->rows * sizeof(float), &w);
    if (status != TUTTI_OK)
        return comm->group.size > 1 ? tt_ctx_fail(ctx, status) : status;
    w->l = *l;
    w->loss = loss;
    w->max = (float *)(w + 1);
    w->sums = w->max + l->rows;
    status = queue(comm, w, stream);
    /* Behind all that was queued, whatever became of it. */
    if (ctx->dev_ops->stream_call(ctx->dev, stream, let_go, w, 0) != TUTTI_OK &&
        ctx->dev_ops->stream_sync(ctx->dev, stream) == TUTTI_OK)
        free(w);
    return status;
}
