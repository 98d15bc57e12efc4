/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A byte-level GPT: token and position embeddings, pre-norm blocks (causal multi-head attention and
 * a GELU network, each added to the residual stream), a last norm and an output head of its own
 * weights. Tying the head to the token table would save 4 % of the parameters here and make the
 * largest table's gradient final only at the very end of the backward pass.
 */
#ifndef GPT_MODEL_H
#define GPT_MODEL_H

#include "device.h"

typedef struct model_shape {
    int layers, width, heads, context;
} model_shape;

/*
 * What one rank holds of the model: some of its blocks, and of each block's matrices one of
 * `shards` equal shares: the first of each pair of products (qkv, up) and the head by outputs, the
 * second (project, down) by inputs, so that between them nothing is exchanged. Norms, embeddings
 * and the biases of the second products are whole on every rank.
 */
typedef struct model_part {
    int first_block, blocks;
    bool first, last; /* has the embeddings; has the last norm and the head */
    int shard, shards;
    int passes; /* forward passes whose backward pass is still to come, at most */
} model_part;
model_part model_whole(model_shape shape);

/* What the ranks that share the matrices do together; all NULL on a whole model. Not 0: stop. */
typedef void (*model_product)(void *arg, int first_row, int rows);
typedef struct model_links {
    void *arg;
    /* Lets `product` fill rows of `out` ([rows][cols]) and sums them over the ranks. */
    int (*sum_products)(void *arg, model_product product, void *product_arg, real *out, int rows,
                        int cols);
    /* As cross_entropy_forward, of which this rank has some columns. */
    int (*cross_entropy)(void *arg, real *logits, vocabulary_part part, const uint8_t *targets,
                         real *loss, int rows);
} model_links;

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
    const gpt_device *dev; /* where it lies and computes */
    model_shape shape;
    model_part part;
    model_links links;
    int max_batch; /* sequences per pass */
    param tokens, positions; /* embedding tables */
    block *blocks;
    layer_norm norm;
    linear head;
    model_need need; /* called before parameters are used; NULL: they are always there */
    void *need_arg;
    param **params; /* those of this part in forward order; the index is the parameter's number */
    int param_count;
    size_t weight_count, whole_count; /* numbers in them; in all of the model */
    real *weights; /* the values of all parameters */
    /* A pass: what it was given and what it keeps, one of part.passes sets of memory. */
    int batch, time;
    const uint8_t *inputs;
    const real *in; /* the residual stream as it came in */
    real *cache; /* the memory of all that follows */
    real *embedded, *final, *final_stats, *logits, *loss;
    block_cache *block_caches;
    real *scratch; /* the memory of what follows, which no pass keeps */
    real *d_residual, *d_narrow, *d_wide, *d_scores;
} model;

/* Allocates the model on the host with random weights that depend on the seed only. Gradients are
 * not allocated: the caller sets params[i]->grad. False: out of memory, nothing is left. */
bool model_create(model *m, model_shape shape, int max_batch, uint64_t seed);
/* The same of a part, anywhere: its weights are those that the whole model would have there. */
bool model_create_part(model *m, const gpt_device *dev, model_shape shape, model_part part,
                       int max_batch, uint64_t seed);
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

/*
 * The same of a part. The residual stream ([batch * time][width]) comes in as `in`, unless the part
 * is the first, and leaves as model_out, unless it is the last; inputs and `in` must stay as they
 * are until the backward pass of the same set of memory. Not 0: a link's or `ready`'s.
 */
typedef struct model_pass {
    int set; /* 0 ... part.passes - 1 */
    int batch, time;
    const uint8_t *inputs; /* first part */
    const real *in; /* other parts */
} model_pass;
int model_forward_part(model *m, const model_pass *pass);
/* Shows a pass's memory again without computing anything. */
void model_select(model *m, const model_pass *pass);
vocabulary_part model_vocabulary(const model *m); /* last part: the tokens of its logits */
const real *model_out(const model *m);
int model_loss_part(model *m, const uint8_t *targets); /* last part: m->loss */
/* d_out: the gradient of model_out (NULL on the last part); m->d_residual is then that of `in`. */
typedef struct model_gradient {
    const uint8_t *targets; /* last part */
    real scale; /* last part */
    const real *d_out; /* other parts */
    model_ready ready;
    void *arg;
} model_gradient;
int model_backward_part(model *m, const model_pass *pass, const model_gradient *from);

#endif
