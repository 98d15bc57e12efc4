/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model's memory, initial weights and forward pass.
 *
 * All weights are one array and everything that a pass keeps is another, each laid out by walking
 * the model once with a pointer (take): first with no memory, to learn the size. Parameters are
 * listed in forward order, which is what a gradient reducer wants to know.
 */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"
#include "simd.h"

/* Cuts `count` numbers from the array that *next walks over; on the sizing walk (base NULL) only
 * counts. Starts are 64-byte aligned. */
typedef struct cutter {
    real *base;
    size_t used;
} cutter;

static real *take(cutter *c, size_t count)
{
    real *at = c->base == NULL ? NULL : c->base + c->used;

    c->used += (count + 15) / 16 * 16;
    return at;
}

static void add_param(model *m, param *p, const char *prefix, const char *name)
{
    snprintf(p->name, sizeof p->name, "%s%s", prefix, name);
    p->count = (size_t)p->rows * (size_t)(p->cols == 0 ? 1 : p->cols);
    p->decay = p->cols != 0;
    m->weight_count += p->count;
    m->params[m->param_count++] = p;
}

static void add_linear(model *m, linear *l, const char *name, int in, int out)
{
    l->weight.rows = out;
    l->weight.cols = in;
    l->bias.rows = out;
    add_param(m, &l->weight, name, ".weight");
    add_param(m, &l->bias, name, ".bias");
}

static void add_norm(model *m, layer_norm *n, const char *name)
{
    n->weight.rows = n->bias.rows = m->shape.width;
    add_param(m, &n->weight, name, ".weight");
    add_param(m, &n->bias, name, ".bias");
}

static void add_block(model *m, block *b, int layer)
{
    const int width = m->shape.width;
    char name[6][32];
    static const char *const part[6] = {"norm1", "qkv", "project", "norm2", "up", "down"};

    for (int i = 0; i < 6; i++)
        snprintf(name[i], sizeof name[i], "block%d.%s", layer, part[i]);
    add_norm(m, &b->norm1, name[0]);
    add_linear(m, &b->qkv, name[1], width, 3 * width);
    add_linear(m, &b->project, name[2], width, width);
    add_norm(m, &b->norm2, name[3]);
    add_linear(m, &b->up, name[4], width, 4 * width);
    add_linear(m, &b->down, name[5], 4 * width, width);
}

static void list_params(model *m)
{
    m->tokens.rows = VOCABULARY;
    m->positions.rows = m->shape.context;
    m->tokens.cols = m->positions.cols = m->shape.width;
    add_param(m, &m->tokens, "tokens", "");
    add_param(m, &m->positions, "positions", "");
    for (int l = 0; l < m->shape.layers; l++)
        add_block(m, &m->blocks[l], l);
    add_norm(m, &m->norm, "norm");
    add_linear(m, &m->head, "head", m->shape.width, VOCABULARY);
}

static void lay_out_cache(model *m, cutter *c)
{
    const size_t time = (size_t)m->shape.context, rows = (size_t)m->max_batch * time;
    const size_t width = (size_t)m->shape.width;
    const size_t prob = rows * time * (size_t)m->shape.heads;

    m->embedded = take(c, rows * width);
    for (int l = 0; l < m->shape.layers; l++) {
        block_cache *k = &m->block_caches[l];

        k->norm1 = take(c, rows * width);
        k->stats1 = take(c, rows * 2);
        k->qkv = take(c, rows * width * 3);
        k->prob = take(c, prob);
        k->mixed = take(c, rows * width);
        k->middle = take(c, rows * width);
        k->norm2 = take(c, rows * width);
        k->stats2 = take(c, rows * 2);
        k->up = take(c, rows * width * 4);
        k->gelu = take(c, rows * width * 4);
        k->out = take(c, rows * width);
    }
    m->final = take(c, rows * width);
    m->final_stats = take(c, rows * 2);
    m->logits = take(c, rows * VOCABULARY);
    m->loss = take(c, rows);
    m->d_residual = take(c, rows * width);
    m->d_narrow = take(c, rows * width);
    m->d_wide = take(c, rows * width * 4);
    m->d_scores = take(c, time * time);
}

static void lay_out_weights(model *m, cutter *c)
{
    for (int i = 0; i < m->param_count; i++)
        m->params[i]->value = take(c, m->params[i]->count);
}

static real *allocate(size_t count)
{
    size_t bytes = (count * sizeof(real) + 63) / 64 * 64;
    real *memory = aligned_alloc(64, bytes);

    if (memory != NULL)
        memset(memory, 0, bytes);
    return memory;
}

/* Matrices get normal numbers (Box and Muller) with deviation 1/sqrt(inputs), those that add to the
 * residual stream less, so that it does not grow with depth; norms scale by 1; biases are 0. */
static void init_param(const model *m, param *p, uint64_t seed, uint64_t id)
{
    bool into_residual = strstr(p->name, "project") != NULL || strstr(p->name, "down") != NULL;
    double deviation = p->cols == 0 ? 0 : 1 / sqrt((double)p->cols);
    bool is_norm = strstr(p->name, "norm") != NULL && strstr(p->name, ".weight") != NULL;

    if (p == &m->tokens || p == &m->positions || p == &m->head.weight)
        deviation = 0.02;
    if (into_residual)
        deviation /= sqrt(2.0 * m->shape.layers);
    for (size_t i = 0; i < p->count; i++) {
        double u = random_unit(random_at(seed, id, 2 * i));
        double v = random_unit(random_at(seed, id, 2 * i + 1));

        p->value[i] = (real)(deviation * sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
        if (is_norm)
            p->value[i] = 1;
    }
}

bool model_create(model *m, model_shape shape, int max_batch, uint64_t seed)
{
    size_t params = EMBEDDING_PARAMS + BLOCK_PARAMS * (size_t)shape.layers + HEAD_PARAMS;
    cutter weights = {NULL, 0}, cache = {NULL, 0};

    memset(m, 0, sizeof *m);
    m->shape = shape;
    m->max_batch = max_batch;
    m->blocks = calloc((size_t)shape.layers, sizeof *m->blocks);
    m->block_caches = calloc((size_t)shape.layers, sizeof *m->block_caches);
    m->params = calloc(params, sizeof(param *));
    if (m->blocks == NULL || m->block_caches == NULL || m->params == NULL)
        goto destroy;
    list_params(m);
    lay_out_weights(m, &weights);
    lay_out_cache(m, &cache);
    m->weights = weights.base = allocate(weights.used);
    m->cache = cache.base = allocate(cache.used);
    if (m->weights == NULL || m->cache == NULL)
        goto destroy;
    weights.used = cache.used = 0;
    lay_out_weights(m, &weights);
    lay_out_cache(m, &cache);
    for (int i = 0; i < m->param_count; i++)
        init_param(m, m->params[i], seed, (uint64_t)i);
    return true;

destroy:
    model_destroy(m);
    return false;
}

void model_destroy(model *m)
{
    free(m->weights);
    free(m->cache);
    free(m->params);
    free(m->block_caches);
    free(m->blocks);
    memset(m, 0, sizeof *m);
}

HOT static void embed(const model *m, const uint8_t *inputs, int batch, int time)
{
    const int width = m->shape.width;

    for (int i = 0; i < batch * time; i++) {
        const real *token = m->tokens.value + (size_t)inputs[i] * (size_t)width;
        const real *position = m->positions.value + (size_t)(i % time) * (size_t)width;
        real *restrict out = m->embedded + (size_t)i * (size_t)width;

        for (int j = 0; j < width; j++)
            out[j] = token[j] + position[j];
    }
}

static void block_forward(const model *m, int layer, const real *in)
{
    const int rows = m->batch * m->time;
    const attention_shape shape = {m->batch, m->time, m->shape.width, m->shape.heads};
    const block *b = &m->blocks[layer];
    const block_cache *k = &m->block_caches[layer];

    layer_norm_forward(&b->norm1, in, k->stats1, k->norm1, rows);
    linear_forward(&b->qkv, k->norm1, NULL, k->qkv, rows);
    attention_forward(shape, k->qkv, k->prob, k->mixed);
    linear_forward(&b->project, k->mixed, in, k->middle, rows);

    layer_norm_forward(&b->norm2, k->middle, k->stats2, k->norm2, rows);
    linear_forward(&b->up, k->norm2, NULL, k->up, rows);
    gelu_forward(k->up, k->gelu, (size_t)rows * (size_t)b->up.weight.rows);
    linear_forward(&b->down, k->gelu, k->middle, k->out, rows);
}

static void need(const model *m, int first, int count)
{
    if (m->need != NULL)
        m->need(m->need_arg, first, count);
}

void model_forward(model *m, const uint8_t *inputs, int batch, int time)
{
    const int rows = batch * time;
    const real *stream = m->embedded;

    m->inputs = inputs;
    m->batch = batch;
    m->time = time;
    need(m, 0, EMBEDDING_PARAMS);
    embed(m, inputs, batch, time);
    for (int l = 0; l < m->shape.layers; l++) {
        need(m, EMBEDDING_PARAMS + l * BLOCK_PARAMS, BLOCK_PARAMS);
        block_forward(m, l, stream);
        stream = m->block_caches[l].out;
    }
    need(m, m->param_count - HEAD_PARAMS, HEAD_PARAMS);
    layer_norm_forward(&m->norm, stream, m->final_stats, m->final, rows);
    linear_forward(&m->head, m->final, NULL, m->logits, rows);
}

double model_loss(model *m, const uint8_t *targets)
{
    const int rows = m->batch * m->time;
    double sum = 0;

    cross_entropy_forward(m->logits, targets, m->loss, rows);
    for (int i = 0; i < rows; i++)
        sum += (double)m->loss[i];
    return sum / rows;
}
