/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The held-out loss: mean cross entropy, in nats per byte, of the held-out bytes 1 ... n-1, each
 * predicted once from the bytes before it (in a long text, of a regular sample of them). By the
 * model, and by a table of trigrams, which is what counting alone achieves.
 */
#ifndef GPT_EVALUATE_H
#define GPT_EVALUATE_H

#include "data.h"
#include "model.h"

/* Memory for one pass of the model: [max_batch][context] each. */
typedef struct token_buffers {
    uint8_t *inputs, *targets;
} token_buffers;

typedef struct loss_sum {
    double sum, count;
} loss_sum;

/* Runs sequences through the model and writes their tokens' losses; not 0: stop. */
typedef int (*loss_pass)(void *arg, token_buffers b, int rows, int time, real *losses_out);

/* Copy `copy` of `copies` has this share of the held-out loss; the shares add up to the whole. Only
 * a last part has losses: elsewhere nothing is added. Returns the first value of `pass` that is
 * not 0. */
typedef struct held_out_job {
    model *m;
    const corpus *t;
    token_buffers b;
    real *losses; /* [max_batch][context] */
    int copy, copies;
    loss_pass pass;
    void *arg;
} held_out_job;
int held_out_share(const held_out_job *job, loss_sum *out);

/* The trigram table's loss over the same bytes; below 0: out of memory. */
double trigram_held_out_loss(const corpus *t, int context);

#endif
