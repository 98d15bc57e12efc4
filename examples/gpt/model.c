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

#include "linear.h"
#include "random.h"

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

/* A tensor, whole here. */
static void add_param(model *m, param *p, const char *prefix, const char *name)
{
    snprintf(p->name, sizeof p->name, "%s%s", prefix, name);
    p->whole_rows = p->rows;
    p->whole_cols = p->cols;
    p->count = (size_t)p->rows * (size_t)(p->cols == 0 ? 1 : p->cols);
    p->decay = p->cols != 0;
    p->replica = m->part.shards > 1;
    p->id = m->param_count;
    m->weight_count += p->count;
    m->params[m->param_count++] = p;
}

/* Of a tensor that was added whole: only this rank's share of its rows or columns. */
static void cut_rows(model *m, param *p)
{
    m->weight_count -= p->count;
    p->count /= (size_t)m->part.shards;
    p->rows /= m->part.shards;
    p->first_row = p->rows * m->part.shard;
    p->replica = false;
    m->weight_count += p->count;
}

static void cut_cols(model *m, param *p)
{
    m->weight_count -= p->count;
    p->count /= (size_t)m->part.shards;
    p->cols /= m->part.shards;
    p->first_col = p->cols * m->part.shard;
    p->replica = false;
    m->weight_count += p->count;
}

static void add_linear(model *m, linear *l, const char *name, int in, int out)
{
    l->weight.rows = out;
    l->weight.cols = in;
    l->bias.rows = out;
    l->adds = true;
    add_param(m, &l->weight, name, ".weight");
    add_param(m, &l->bias, name, ".bias");
}

/* By outputs: every rank has some of them, complete. */
static void add_linear_out(model *m, linear *l, const char *name, int in, int out)
{
    add_linear(m, l, name, in, out);
    cut_rows(m, &l->weight);
    cut_rows(m, &l->bias);
}

/* By inputs: every rank has a term of all outputs. */
static void add_linear_in(model *m, linear *l, const char *name, int in, int out)
{
    add_linear(m, l, name, in, out);
    cut_cols(m, &l->weight);
    l->adds = m->part.shard == 0;
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
    add_linear_out(m, &b->qkv, name[1], width, 3 * width);
    add_linear_in(m, &b->project, name[2], width, width);
    add_norm(m, &b->norm2, name[3]);
    add_linear_out(m, &b->up, name[4], width, 4 * width);
    add_linear_in(m, &b->down, name[5], 4 * width, width);
}

/* The numbers of the parameters in the whole model, which random weights depend on. */
static void number_params(model *m)
{
    int id = m->part.first ? 0 : EMBEDDING_PARAMS + BLOCK_PARAMS * m->part.first_block;

    for (int i = 0; i < m->param_count; i++)
        m->params[i]->id = id++;
}

static void count_whole(model *m)
{
    const size_t width = (size_t)m->shape.width, layers = (size_t)m->shape.layers;
    const size_t of_block = 12 * width * width + 13 * width;

    m->whole_count = (VOCABULARY + (size_t)m->shape.context) * width + layers * of_block +
                     2 * width + VOCABULARY * (width + 1);
}

static void list_params(model *m)
{
    if (m->part.first) {
        m->tokens.rows = VOCABULARY;
        m->positions.rows = m->shape.context;
        m->tokens.cols = m->positions.cols = m->shape.width;
        add_param(m, &m->tokens, "tokens", "");
        add_param(m, &m->positions, "positions", "");
    }
    for (int l = 0; l < m->part.blocks; l++)
        add_block(m, &m->blocks[l], m->part.first_block + l);
    if (m->part.last) {
        add_norm(m, &m->norm, "norm");
        add_linear_out(m, &m->head, "head", m->shape.width, VOCABULARY);
    }
    number_params(m);
    count_whole(m);
}

/* One set of what a pass keeps. */
static void lay_out_cache(model *m, cutter *c)
{
    const size_t time = (size_t)m->shape.context, rows = (size_t)m->max_batch * time;
    const size_t width = (size_t)m->shape.width, shards = (size_t)m->part.shards;
    const size_t share = width / shards, prob = rows * time * (size_t)m->shape.heads / shards;

    m->embedded = m->part.first ? take(c, rows * width) : NULL;
    for (int l = 0; l < m->part.blocks; l++) {
        block_cache *k = &m->block_caches[l];

        k->norm1 = take(c, rows * width);
        k->stats1 = take(c, rows * 2);
        k->qkv = take(c, rows * share * 3);
        k->prob = take(c, prob);
        k->mixed = take(c, rows * share);
        k->middle = take(c, rows * width);
        k->norm2 = take(c, rows * width);
        k->stats2 = take(c, rows * 2);
        k->up = take(c, rows * share * 4);
        k->gelu = take(c, rows * share * 4);
        k->out = take(c, rows * width);
    }
    if (!m->part.last)
        return;
    m->final = take(c, rows * width);
    m->final_stats = take(c, rows * 2);
    m->logits = take(c, rows * VOCABULARY / shards);
    m->loss = take(c, rows);
}

static void lay_out_scratch(model *m, cutter *c)
{
    const size_t time = (size_t)m->shape.context, rows = (size_t)m->max_batch * time;
    const size_t width = (size_t)m->shape.width;

    m->d_residual = take(c, rows * width);
    m->d_narrow = take(c, rows * width);
    m->d_wide = take(c, rows * width * 4 / (size_t)m->part.shards);
    m->d_scores = take(c, time * time * (size_t)(m->shape.heads / m->part.shards));
}

static size_t cache_size(model *m)
{
    cutter c = {NULL, 0};

    lay_out_cache(m, &c);
    return c.used;
}

/* Makes a set of memory the one that the pointers show. */
static void select_set(model *m, int set)
{
    cutter c = {m->cache + cache_size(m) * (size_t)set, 0};

    lay_out_cache(m, &c);
}

static void lay_out_weights(model *m, cutter *c)
{
    for (int i = 0; i < m->param_count; i++)
        m->params[i]->value = take(c, m->params[i]->count);
}

/* Number `index` of a tensor of the whole model: normal (Box and Muller). */
static double normal_at(uint64_t seed, uint64_t id, uint64_t index)
{
    double u = random_unit(random_at(seed, id, 2 * index));
    double v = random_unit(random_at(seed, id, 2 * index + 1));

    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* Matrices get normal numbers with deviation 1/sqrt(inputs), those that add to the residual stream
 * less, so that it does not grow with depth; norms scale by 1; biases are 0. */
static void init_param(const model *m, param *p, uint64_t seed, real *to)
{
    bool into_residual = strstr(p->name, "project") != NULL || strstr(p->name, "down") != NULL;
    double deviation = p->whole_cols == 0 ? 0 : 1 / sqrt((double)p->whole_cols);
    bool is_norm = strstr(p->name, "norm") != NULL && strstr(p->name, ".weight") != NULL;
    const int cols = p->cols == 0 ? 1 : p->cols, whole = p->whole_cols == 0 ? 1 : p->whole_cols;

    if (p == &m->tokens || p == &m->positions || p == &m->head.weight)
        deviation = 0.02;
    if (into_residual)
        deviation /= sqrt(2.0 * m->shape.layers);
    for (int i = 0; i < p->rows; i++) {
        uint64_t at = (uint64_t)(p->first_row + i) * (uint64_t)whole + (uint64_t)p->first_col;
        real *row = to + (size_t)i * (size_t)cols;

        for (int j = 0; j < cols; j++) {
            row[j] = (real)(deviation * normal_at(seed, (uint64_t)p->id, at + (uint64_t)j));
            if (is_norm)
                row[j] = 1;
        }
    }
}

model_part model_whole(model_shape shape)
{
    return (model_part){0, shape.layers, true, true, 0, 1, 1};
}

bool model_create(model *m, model_shape shape, int max_batch, uint64_t seed)
{
    return model_create_part(m, &gpt_device_host, shape, model_whole(shape), max_batch, seed);
}

/* Weights are made on the host, and then brought to where the model computes. */
static bool init_params(model *m, uint64_t seed)
{
    size_t most = 0;
    real *made;

    for (int i = 0; i < m->param_count; i++)
        most = m->params[i]->count > most ? m->params[i]->count : most;
    made = m->dev->take_host(most * sizeof *made);
    for (int i = 0; i < m->param_count && made != NULL; i++) {
        param *p = m->params[i];
        real first;

        init_param(m, p, seed, made);
        m->dev->upload(p->value, made, p->count * sizeof *made);
        m->dev->download(&first, p->value, sizeof first); /* until `made` may change */
    }
    m->dev->give_host(made);
    return made != NULL;
}

static bool allocate_all(model *m)
{
    cutter weights = {NULL, 0}, scratch = {NULL, 0};

    lay_out_weights(m, &weights);
    lay_out_scratch(m, &scratch);
    m->weights = m->dev->take(weights.used * sizeof(real));
    m->scratch = m->dev->take(scratch.used * sizeof(real));
    m->cache = m->dev->take(cache_size(m) * (size_t)m->part.passes * sizeof(real));
    if (m->weights == NULL || m->scratch == NULL || m->cache == NULL)
        return false;
    weights = (cutter){m->weights, 0};
    scratch = (cutter){m->scratch, 0};
    lay_out_weights(m, &weights);
    lay_out_scratch(m, &scratch);
    select_set(m, 0);
    return true;
}

bool model_create_part(model *m, const gpt_device *dev, model_shape shape, model_part part,
                       int max_batch, uint64_t seed)
{
    size_t params = EMBEDDING_PARAMS + BLOCK_PARAMS * (size_t)part.blocks + HEAD_PARAMS;

    memset(m, 0, sizeof *m);
    m->dev = dev;
    m->shape = shape;
    m->part = part;
    m->max_batch = max_batch;
    m->blocks = calloc((size_t)part.blocks + 1, sizeof *m->blocks);
    m->block_caches = calloc((size_t)part.blocks + 1, sizeof *m->block_caches);
    m->params = calloc(params, sizeof(param *));
    if (m->blocks == NULL || m->block_caches == NULL || m->params == NULL)
        goto destroy;
    list_params(m);
    if (!allocate_all(m) || !init_params(m, seed))
        goto destroy;
    return true;

destroy:
    model_destroy(m);
    return false;
}

void model_destroy(model *m)
{
    if (m->dev != NULL) {
        m->dev->give(m->weights);
        m->dev->give(m->cache);
        m->dev->give(m->scratch);
    }
    free(m->params);
    free(m->block_caches);
    free(m->blocks);
    memset(m, 0, sizeof *m);
}

/* A product whose terms the ranks sum, for some of its rows. */
typedef struct term {
    const gpt_device *dev;
    const linear *l;
    const real *in, *residual;
    real *out;
} term;

static void make_term(void *arg, int first, int rows)
{
    const term *t = arg;
    size_t in = (size_t)first * (size_t)t->l->weight.cols;
    size_t out = (size_t)first * (size_t)t->l->weight.rows;

    linear_forward(t->dev, t->l, t->in + in, t->residual + out, t->out + out, rows);
}

/* A linear layer that is split by inputs. */
static int linear_forward_in(const model *m, const linear *l, const real *in, const real *residual,
                             real *out)
{
    const int rows = m->batch * m->time;
    term t = {m->dev, l, in, residual, out};

    if (m->links.sum_products != NULL)
        return m->links.sum_products(m->links.arg, make_term, &t, out, rows, l->weight.rows);
    make_term(&t, 0, rows);
    return 0;
}

static int block_forward(const model *m, int layer, const real *in)
{
    const int rows = m->batch * m->time, shards = m->part.shards;
    const attention_shape shape = {m->batch, m->time, m->shape.width / shards,
                                   m->shape.heads / shards};
    const block *b = &m->blocks[layer];
    const block_cache *k = &m->block_caches[layer];
    int status;

    m->dev->layer_norm_forward(&b->norm1, in, k->stats1, k->norm1, rows);
    linear_forward(m->dev, &b->qkv, k->norm1, NULL, k->qkv, rows);
    m->dev->attention_forward(shape, k->qkv, k->prob, k->mixed);
    status = linear_forward_in(m, &b->project, k->mixed, in, k->middle);
    if (status != 0)
        return status;
    m->dev->layer_norm_forward(&b->norm2, k->middle, k->stats2, k->norm2, rows);
    linear_forward(m->dev, &b->up, k->norm2, NULL, k->up, rows);
    m->dev->gelu_forward(k->up, k->gelu, (size_t)rows * (size_t)b->up.weight.rows);
    return linear_forward_in(m, &b->down, k->gelu, k->middle, k->out);
}

const real *model_out(const model *m)
{
    if (m->part.blocks > 0)
        return m->block_caches[m->part.blocks - 1].out;
    return m->part.first ? m->embedded : m->in;
}

void model_select(model *m, const model_pass *pass)
{
    select_set(m, pass->set);
    m->inputs = pass->inputs;
    m->in = pass->in;
    m->batch = pass->batch;
    m->time = pass->time;
}

static void need(const model *m, int first, int count)
{
    if (m->need != NULL)
        m->need(m->need_arg, first, count);
}

int model_forward_part(model *m, const model_pass *pass)
{
    const int before = m->part.first ? EMBEDDING_PARAMS : 0;
    const real *stream = pass->in;
    int status = 0;

    model_select(m, pass);
    if (m->part.first) {
        need(m, 0, EMBEDDING_PARAMS);
        m->dev->embed(m->inputs, &m->tokens, &m->positions, m->embedded, m->batch * m->time,
                      m->time);
        stream = m->embedded;
    }
    for (int l = 0; l < m->part.blocks && status == 0; l++) {
        need(m, before + l * BLOCK_PARAMS, BLOCK_PARAMS);
        status = block_forward(m, l, stream);
        stream = m->block_caches[l].out;
    }
    if (status != 0 || !m->part.last)
        return status;
    need(m, m->param_count - HEAD_PARAMS, HEAD_PARAMS);
    m->dev->layer_norm_forward(&m->norm, stream, m->final_stats, m->final, m->batch * m->time);
    linear_forward(m->dev, &m->head, m->final, NULL, m->logits, m->batch * m->time);
    return 0;
}

vocabulary_part model_vocabulary(const model *m)
{
    return (vocabulary_part){m->head.weight.first_row, m->head.weight.rows};
}

int model_loss_part(model *m, const uint8_t *targets)
{
    const int rows = m->batch * m->time;

    if (m->links.cross_entropy != NULL)
        return m->links.cross_entropy(m->links.arg, m->logits, model_vocabulary(m), targets,
                                      m->loss, rows);
    m->dev->cross_entropy_forward(m->logits, targets, m->loss, rows);
    return 0;
}

/* Of a whole model on the host, which has no links that could fail. */
void model_forward(model *m, const uint8_t *inputs, int batch, int time)
{
    (void)model_forward_part(m, &(model_pass){0, batch, time, inputs, NULL});
}

double model_loss(model *m, const uint8_t *targets)
{
    const int rows = m->batch * m->time;
    double sum = 0;

    (void)model_loss_part(m, targets);
    for (int i = 0; i < rows; i++)
        sum += (double)m->loss[i];
    return sum / rows;
}
