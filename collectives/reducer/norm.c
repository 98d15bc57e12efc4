/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The norm of all gradients: exact sums of squares of the pieces that this rank counts, added over
 * ranks as integers, so that neither the sharing nor the order matters. With a norm_comm replicas
 * of an unsharded reducer share the tensors among them.
 */
#include "comm/issue.h"
#include "reducer/reducer.h"

static bool counts_piece(const tutti_reducer *red, size_t i)
{
    if ((red->params[red->pieces[i].id].flags & TUTTI_PARAM_UNCOUNTED) != 0)
        return false;
    return tt_red_sharded(red) || red->norm_comm == NULL ||
           (int)(i % (size_t)red->ranks) == red->rank;
}

static tutti_status add_squares(tutti_reducer *red, tutti_stream stream)
{
    tt_device *dev = red->ctx->dev;

    TT_TRY(red->ctx->dev_ops->zero(dev, red->sums, TT_EXACT_WORDS * sizeof *red->sums, stream));
    for (size_t i = 0; i < red->npieces; i++) {
        const tutti_piece *piece = &red->pieces[i];
        if (counts_piece(red, i))
            TT_TRY(red->math->squares(dev, red->sums, piece->grad, (size_t)piece->count,
                                      red->params[piece->id].dtype, stream));
    }
    return TUTTI_OK;
}

static tutti_status check_norm(const tutti_reducer *red, const float *norm)
{
    TT_TRY(tt_ctx_check(red->ctx));
    TT_TRY(tt_group_forbid("tutti_reducer_grad_norm"));
    if (norm == NULL)
        return tt_fail(TUTTI_ERR_ARG, "reducer \"%s\": grad_norm: norm is NULL", red->name);
    if (red->in_step || red->steps == 0)
        return tt_fail(TUTTI_ERR_STATE, "reducer \"%s\": grad_norm before wait", red->name);
    if (red->math == NULL)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "reducer \"%s\": no norm on the %s backend",
                       red->name, red->ctx->dev_ops->name);
    return TUTTI_OK;
}

static tutti_status take_norm(tutti_reducer *red, tutti_stream stream, float *norm)
{
    tutti_comm *over = red->norm_comm != NULL ? red->norm_comm
                       : tt_red_sharded(red)  ? red->comm
                                              : NULL;

    TT_TRY(add_squares(red, stream));
    if (over != NULL)
        TT_TRY(tutti_all_reduce(over, red->sums, red->sums, TT_EXACT_WORDS, TUTTI_INT64, TUTTI_SUM,
                                stream));
    return red->math->exact_get(red->ctx->dev, norm, red->sums, 1, 1, true, stream);
}

tutti_status tutti_reducer_grad_norm(tutti_reducer *red, tutti_stream stream, float *norm)
{
    tutti_status status;

    if (red == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_reducer_grad_norm: the reducer is NULL");
    TT_TRY(check_norm(red, norm));
    TT_TRY(tt_red_check_stream(red, stream, "grad_norm"));
    pthread_mutex_lock(&red->lock);
    status = take_norm(red, stream, norm);
    pthread_mutex_unlock(&red->lock);
    return status == TUTTI_OK ? TUTTI_OK : tt_ctx_fail(red->ctx, status);
}
