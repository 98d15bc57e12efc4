/* SPDX-License-Identifier: Apache-2.0 */
/* The command line. */
#ifndef GPT_ARGS_H
#define GPT_ARGS_H

#include <stdbool.h>
#include <stdint.h>

#include "model.h"

typedef struct args {
    const char **text; /* files or folders, borrowed from argv */
    int text_count;
    int64_t steps, every, keep, eval_every, sample, seed;
    int64_t batch, accum; /* batch: sequences per step over all ranks and micro-steps */
    int64_t layers, width, heads, context;
    double lr;
    const char *ckpt; /* NULL: no checkpoints */
    const char *copy; /* a second folder of them, NULL: none */
    const char *mesh; /* axes dp, pp, tp; NULL: data parallel */
    const char *device; /* "auto", "host" or "cuda" */
    const char *precision; /* of products: "f32", "bf16", "f16" */
    const char *wire; /* how gradients travel: "f32", "bf16", "f16" */
    int64_t zero; /* 1: optimizer state is shared out to the ranks */
    bool resume, node_local, reproducible, help;
} args;

/* Reads argv. NULL, or what is wrong as a sentence (static memory). a->text is to be freed by
 * args_free in both cases. */
const char *args_parse(args *a, int argc, char **argv);
void args_free(args *a);
/* The text of --help. */
void args_help(const char *program);

model_shape args_shape(const args *a);

#endif
