/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward pass: the forward pass of model.c read from the bottom up.
 *
 * One array, d_residual, is the gradient of the residual stream. Each half of a block adds its own
 * part to it through its norm, so the "+ x" of the forward pass costs nothing here. After each
 * block `ready` is told that the block's gradients are final: from then on they can be reduced over
 * the ranks while the blocks before it are still being worked on.
 */
#include "model.h"

#include "linear.h"

/* The gradient of a product's input, for some of its rows. */
typedef struct input_term {
    const gpt_device *dev;
    const linear *l;
    const real *dout;
    real *din;
} input_term;

static void make_term(void *arg, int first, int rows)
{
    const input_term *t = arg;
    size_t out = (size_t)first * (size_t)t->l->weight.rows;
    size_t in = (size_t)first * (size_t)t->l->weight.cols;

    linear_backward_input(t->dev, t->l, t->dout + out, t->din + in, rows);
}

/* A linear layer that is split by outputs: each rank has a term of its input's gradient. */
static int linear_backward_out(const model *m, linear *l, const real *in, const real *dout,
                               real *din)
{
    const int rows = m->batch * m->time;
    input_term t = {m->dev, l, dout, din};
    int status = 0;

    if (m->links.sum_products != NULL)
        status = m->links.sum_products(m->links.arg, make_term, &t, din, rows, l->weight.cols);
    else
        make_term(&t, 0, rows);
    linear_backward_params(m->dev, l, in, dout, rows);
    return status;
}

static int block_backward(model *m, int layer)
{
    const int rows = m->batch * m->time, shards = m->part.shards;
    const attention_shape shape = {m->batch, m->time, m->shape.width / shards,
                                   m->shape.heads / shards};
    const real *in = layer > 0       ? m->block_caches[layer - 1].out
                     : m->part.first ? m->embedded
                                     : m->in;
    const block_cache *k = &m->block_caches[layer];
    block *b = &m->blocks[layer];
    int status;

    linear_backward_input(m->dev, &b->down, m->d_residual, m->d_wide, rows);
    linear_backward_params(m->dev, &b->down, k->gelu, m->d_residual, rows);
    m->dev->gelu_backward(k->up, m->d_wide, (size_t)rows * (size_t)b->up.weight.rows);
    status = linear_backward_out(m, &b->up, k->norm2, m->d_wide, m->d_narrow);
    if (status != 0)
        return status;
    m->dev->layer_norm_backward(&b->norm2, k->middle, k->stats2, m->d_narrow, m->d_residual, rows);

    linear_backward_input(m->dev, &b->project, m->d_residual, m->d_narrow, rows);
    linear_backward_params(m->dev, &b->project, k->mixed, m->d_residual, rows);
    m->dev->attention_backward(shape, k->qkv, k->prob, m->d_narrow, m->d_wide, m->d_scores);
    status = linear_backward_out(m, &b->qkv, k->norm1, m->d_wide, m->d_narrow);
    if (status == 0)
        m->dev->layer_norm_backward(&b->norm1, in, k->stats1, m->d_narrow, m->d_residual, rows);
    return status;
}

/* From the loss to the gradient of the residual stream behind the last block. */
static int head_backward(model *m, const model_gradient *from)
{
    const int rows = m->batch * m->time;
    const size_t bytes = (size_t)rows * (size_t)m->shape.width * sizeof(real);
    int status;

    m->dev->cross_entropy_backward(m->logits, model_vocabulary(m), from->targets, from->scale,
                                   rows);
    status = linear_backward_out(m, &m->head, m->final, m->logits, m->d_narrow);
    if (status != 0)
        return status;
    m->dev->zero(m->d_residual, bytes);
    m->dev->layer_norm_backward(&m->norm, model_out(m), m->final_stats, m->d_narrow, m->d_residual,
                                rows);
    return from->ready(from->arg, m->param_count - HEAD_PARAMS, HEAD_PARAMS);
}

int model_backward_part(model *m, const model_pass *pass, const model_gradient *from)
{
    const int before = m->part.first ? EMBEDDING_PARAMS : 0;
    int status = 0;

    model_select(m, pass);
    if (m->part.last)
        status = head_backward(m, from);
    else
        m->dev->copy(m->d_residual, from->d_out,
                     (size_t)(m->batch * m->time) * (size_t)m->shape.width * sizeof(real));
    for (int l = m->part.blocks - 1; l >= 0 && status == 0; l--) {
        status = block_backward(m, l);
        if (status == 0)
            status = from->ready(from->arg, before + BLOCK_PARAMS * l, BLOCK_PARAMS);
    }
    if (status != 0 || !m->part.first)
        return status;
    m->dev->embed_backward(m->inputs, &m->tokens, &m->positions, m->d_residual, m->batch * m->time,
                           m->time);
    return from->ready(from->arg, 0, EMBEDDING_PARAMS);
}

int model_backward(model *m, const uint8_t *targets, real scale, model_ready ready, void *arg)
{
    const model_pass pass = {0, m->batch, m->time, m->inputs, NULL};

    return model_backward_part(m, &pass, &(model_gradient){targets, scale, NULL, ready, arg});
}
