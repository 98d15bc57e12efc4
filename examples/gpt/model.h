/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte-level GPT: token and position embeddings, pre-norm blocks (causal multi-head attention and
 * a GELU network, each added to the residual stream), a last norm and an output head of its own
 * weights. Tying the head to the token table would save 4 % of the parameters here and make the
 * largest table's gradient final only at the very end of the backward pass.
 */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "kernels.h"

typedef struct model_shape {
    int layers, width, heads, context;
} model_shape;

typedef struct block {
    layer_norm norm1;
    linear qkv, project;
    layer_norm norm2;
    linear up, down;
} block;
enum { BLOCK_PARAMS = 12, HEAD_PARAMS = 4, EMBEDDING_PARAMS = 2 };

/* What a block's forward pass keeps for its backward pass; a row per token. */
typedef struct block_cache {
    real *norm1, *stats1, *qkv, *prob, *mixed, *middle, *norm2, *stats2, *up, *gelu, *out;
} block_cache;

/* Parameters first ... first+count-1 are about to be used. */
typedef void (*model_need)(void *arg, int first, int count);

typedef struct model {
    model_shape shape;
    int max_batch; /* sequences per pass */
    param tokens, positions; /* embedding tables */
    block *blocks;
    layer_norm norm;
    linear head;
    model_need need; /* called before parameters are used; NULL: they are always there */
    void *need_arg;
    param **params; /* all of them in forward order; the index is the parameter's id */
    int param_count;
    size_t weight_count;
    real *weights; /* the values of all parameters */
    /* The last forward pass. */
    int batch, time;
    const uint8_t *inputs;
    real *cache; /* the memory of all that follows */
    real *embedded, *final, *final_stats, *logits, *loss;
    block_cache *block_caches;
    real *d_residual, *d_narrow, *d_wide, *d_scores; /* backward's scratch */
} model;

/* Allocates the model with random weights that depend on the seed only. Gradients are not
 * allocated: the caller sets params[i]->grad. False: out of memory, nothing is left. */
bool model_create(model *m, model_shape shape, int max_batch, uint64_t seed);
void model_destroy(model *m);

/* Runs batch x time tokens through the model; m->logits then holds a row per token. `inputs` must
 * stay as it is until the backward pass. */
void model_forward(model *m, const uint8_t *inputs, int batch, int time);

/* The mean cross entropy of the last forward pass in nats; m->loss has it per token. Turns
 * m->logits into probabilities. */
double model_loss(model *m, const uint8_t *targets);

/* Tells that the gradients of params first ... first+count-1 are final for this pass. Not 0: stop.
 */
typedef int (*model_ready)(void *arg, int first, int count);

/* Adds the gradients of scale * (sum of the tokens' losses), last layer first. Returns the first
 * value of `ready` that is not 0 (at once), else 0. */
int model_backward(model *m, const uint8_t *targets, real scale, model_ready ready, void *arg);

#endif
