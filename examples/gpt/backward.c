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

#include <string.h>

#include "simd.h"

static void block_backward(model *m, int layer)
{
    const int rows = m->batch * m->time;
    const attention_shape shape = {m->batch, m->time, m->shape.width, m->shape.heads};
    const real *in = layer == 0 ? m->embedded : m->block_caches[layer - 1].out;
    const block_cache *k = &m->block_caches[layer];
    block *b = &m->blocks[layer];

    linear_backward(&b->down, k->gelu, m->d_residual, m->d_wide, rows);
    gelu_backward(k->up, m->d_wide, (size_t)rows * (size_t)b->up.weight.rows);
    linear_backward(&b->up, k->norm2, m->d_wide, m->d_narrow, rows);
    layer_norm_backward(&b->norm2, k->middle, k->stats2, m->d_narrow, m->d_residual, rows);

    linear_backward(&b->project, k->mixed, m->d_residual, m->d_narrow, rows);
    attention_backward(shape, k->qkv, k->prob, m->d_narrow, m->d_wide, m->d_scores);
    linear_backward(&b->qkv, k->norm1, m->d_wide, m->d_narrow, rows);
    layer_norm_backward(&b->norm1, in, k->stats1, m->d_narrow, m->d_residual, rows);
}

HOT static void embed_backward(model *m)
{
    const int width = m->shape.width;

    for (int i = 0; i < m->batch * m->time; i++) {
        real *restrict token = m->tokens.grad + (size_t)m->inputs[i] * (size_t)width;
        real *restrict position = m->positions.grad + (size_t)(i % m->time) * (size_t)width;
        const real *d = m->d_residual + (size_t)i * (size_t)width;

        for (int j = 0; j < width; j++) {
            token[j] += d[j];
            position[j] += d[j];
        }
    }
}

int model_backward(model *m, const uint8_t *targets, real scale, model_ready ready, void *arg)
{
    const int rows = m->batch * m->time, layers = m->shape.layers;
    int status;

    cross_entropy_backward(m->logits, targets, scale, rows);
    linear_backward(&m->head, m->final, m->logits, m->d_narrow, rows);
    memset(m->d_residual, 0, (size_t)rows * (size_t)m->shape.width * sizeof(real));
    layer_norm_backward(&m->norm, m->block_caches[layers - 1].out, m->final_stats, m->d_narrow,
                        m->d_residual, rows);
    status = ready(arg, m->param_count - HEAD_PARAMS, HEAD_PARAMS);
    for (int l = layers - 1; l >= 0 && status == 0; l--) {
        block_backward(m, l);
        status = ready(arg, EMBEDDING_PARAMS + BLOCK_PARAMS * l, BLOCK_PARAMS);
    }
    if (status != 0)
        return status;
    embed_backward(m);
    return ready(arg, 0, EMBEDDING_PARAMS);
}
