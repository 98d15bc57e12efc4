/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cross entropy over a vocabulary that the ranks share.
 *
 * Three passes over this rank's columns (comm/math.h) with two small all-reduces between them: the
 * maximum of a row; then exponentials relative to it, their sum, and the target's own value where
 * it is here; then the division. A row's maximum over the ranks is known before anything is
 * exponentiated, so no sum overflows, and what is exchanged does not grow with the vocabulary.
 *
 * Maxima and sums lie in memory of the group's, so calls of the same size allocate nothing. The
 * next call, on whatever stream, waits for the last one's event before it writes there.
 */
#include <stdlib.h>

#include "comm/issue.h"
#include "comm/math.h"
#include "core/mem.h"
#include "parallel/tensor.h"
#include "tutti/coll.h"

struct tt_tp_room {
    tt_tp_room *smaller;
    float *memory; /* [4][rows] */
    size_t rows;
};

void tt_tp_scratch_free(tt_tp_scratch *scratch, tutti_ctx *ctx)
{
    const tt_device_ops *ops = ctx->dev_ops;
    bool passed = true;

    if (scratch->done != NULL &&
        (ops->event_query(ctx->dev, scratch->done, &passed) != TUTTI_OK || !passed))
        (void)ops->drain(ctx->dev);
    while (scratch->room != NULL) {
        tt_tp_room *room = scratch->room;
        scratch->room = room->smaller;
        ops->mem_free(ctx->dev, room->memory);
        free(room);
    }
    ops->event_destroy(ctx->dev, scratch->done);
    scratch->done = NULL;
}

/* At least twice as large as the last one: all of them together are at most twice the largest. */
static tutti_status grow(tt_tp_scratch *scratch, tutti_ctx *ctx, size_t rows)
{
    tutti_status status = TUTTI_OK;
    tt_tp_room *room;

    if (scratch->room != NULL && scratch->room->rows >= rows)
        return TUTTI_OK;
    if (scratch->room != NULL && rows < 2 * scratch->room->rows)
        rows = 2 * scratch->room->rows;
    if (scratch->done == NULL)
        TT_TRY(ctx->dev_ops->event_create(ctx->dev, false, &scratch->done));
    TT_TRY(tt_calloc(1, sizeof *room, &room));
    status = ctx->dev_ops->mem_alloc(ctx->dev, 4 * rows * sizeof(float), (void **)&room->memory);
    if (status != TUTTI_OK) {
        free(room);
        return status;
    }
    room->rows = rows;
    room->smaller = scratch->room;
    scratch->room = room;
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

static tutti_status check_stream(const tutti_ctx *ctx, const tt_math_ops *math, tutti_stream stream)
{
    uint64_t capture = 0;

    TT_TRY(ctx->dev_ops->stream_check(ctx->dev, stream));
    if (math == NULL || math->entropy_max == NULL)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "tp_cross_entropy: the %s backend has none",
                       ctx->dev_ops->name);
    TT_TRY(tt_device_capture(ctx->dev, stream, &capture));
    if (capture != 0)
        return tt_fail(TUTTI_ERR_STATE, "tp_cross_entropy: the stream is being captured");
    return TUTTI_OK;
}

static tutti_status queue(tutti_comm *comm, const tt_math_ops *math, const tt_math_entropy *e,
                          tutti_stream stream)
{
    tt_device *dev = comm->ctx->dev;

    TT_TRY(math->entropy_max(dev, e, stream));
    TT_TRY(tutti_all_reduce(comm, e->max, e->max, e->rows, TUTTI_FLOAT32, TUTTI_MAX, stream));
    TT_TRY(math->entropy_sums(dev, e, stream));
    TT_TRY(tutti_all_reduce(comm, e->sums, e->sums, 3 * e->rows, TUTTI_FLOAT32, TUTTI_SUM, stream));
    return math->entropy_end(dev, e, stream);
}

static tutti_status run(tutti_tp *tp, const tt_math_ops *math, tt_math_entropy *e,
                        tutti_stream stream)
{
    tt_tp_scratch *scratch = tt_tp_scratch_of(tp);
    tutti_comm *comm = tt_tp_comm(tp);
    tutti_ctx *ctx = comm->ctx;
    tutti_status status;

    TT_TRY(grow(scratch, ctx, e->rows));
    TT_TRY(ctx->dev_ops->event_wait(ctx->dev, scratch->done, stream));
    e->max = scratch->room->memory;
    e->sums = e->max + e->rows;
    status = queue(comm, math, e, stream);
    /* Behind all that was queued, whatever became of it. */
    if (ctx->dev_ops->event_record(ctx->dev, scratch->done, stream) != TUTTI_OK)
        (void)ctx->dev_ops->stream_sync(ctx->dev, stream);
    return status;
}

tutti_status tutti_tp_cross_entropy(tutti_tp *tp, const tutti_tp_logits *l, float *loss,
                                    tutti_stream stream)
{
    const tt_math_ops *math;
    tutti_status status;
    tutti_comm *comm;

    TT_TRY(check(tp, l, loss));
    comm = tt_tp_comm(tp);
    math = tt_math_select(comm->ctx->dev_ops);
    TT_TRY(tt_ctx_check(comm->ctx));
    TT_TRY(tt_group_forbid("tp_cross_entropy"));
    TT_TRY(check_stream(comm->ctx, math, stream));
    if (l->rows == 0)
        return TUTTI_OK;
    tt_math_entropy e = {.logits = l->logits,
                         .targets = l->targets,
                         .rows = l->rows,
                         .count = l->count,
                         .first = l->first,
                         .loss = loss};
    status = run(tp, math, &e, stream);
    return status == TUTTI_OK || comm->group.size == 1 ? status : tt_ctx_fail(comm->ctx, status);
}
