/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensor sizes of known models, and what each costs in a backward pass: multiply-adds per sample or
 * token in proportion. Norms and biases cost what they are small for: nothing.
 *
 * gpt2: GPT-2 small (Radford et al., 2019): 12 blocks of width 768, vocabulary 50257, context 1024,
 * 124,439,808 parameters, the head tied to the token table. resnet50: He et al., 2015, with 1000
 * classes, 25,557,032 parameters.
 */
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "models.h"

typedef struct list {
    synth_tensor *t;
    size_t n, cap;
    tutti_status status;
} list;

static void add(list *l, size_t count, double cost)
{
    if (l->status == TUTTI_OK)
        l->status = tt_grow(&l->t, &l->cap, l->n + 1, sizeof *l->t);
    if (l->status == TUTTI_OK)
        l->t[l->n++] = (synth_tensor){count, cost};
}

/* A matrix product per token, weight and bias. */
static void add_linear(list *l, size_t in, size_t out)
{
    add(l, in * out, (double)(in * out));
    add(l, out, 0);
}

static void add_norm(list *l, size_t width)
{
    add(l, width, 0);
    add(l, width, 0);
}

static void add_gpt2(list *l)
{
    const size_t width = 768, vocabulary = 50257, context = 1024;

    add(l, vocabulary * width, (double)(vocabulary * width)); /* the head's product */
    add(l, context * width, 0);
    for (int block = 0; block < 12; block++) {
        add_norm(l, width);
        add_linear(l, width, 3 * width);
        add_linear(l, width, width);
        add_norm(l, width);
        add_linear(l, width, 4 * width);
        add_linear(l, 4 * width, width);
    }
    add_norm(l, width);
}

/* A convolution without bias on `side` x `side` outputs, and its batch norm. */
static void add_conv(list *l, size_t in, size_t out, size_t kernel, size_t side)
{
    size_t weights = in * out * kernel * kernel;

    add(l, weights, (double)(weights * side * side));
    add_norm(l, out);
}

static void add_resnet50(list *l)
{
    static const size_t blocks[4] = {3, 4, 6, 3};
    size_t in = 64, narrow = 64, side = 56;

    add_conv(l, 3, 64, 7, 112);
    for (int stage = 0; stage < 4; stage++, narrow *= 2, side /= 2)
        for (size_t block = 0; block < blocks[stage]; block++) {
            add_conv(l, in, narrow, 1, side);
            add_conv(l, narrow, narrow, 3, side);
            add_conv(l, narrow, 4 * narrow, 1, side);
            if (block == 0)
                add_conv(l, in, 4 * narrow, 1, side);
            in = 4 * narrow;
        }
    add_linear(l, 2048, 1000);
}

bool synth_model_known(const char *name)
{
    return strcmp(name, "gpt2") == 0 || strcmp(name, "resnet50") == 0 ||
           strcmp(name, "uniform") == 0;
}

tutti_status synth_model(const synth_options *o, synth_tensor **out, size_t *n_out)
{
    list l = {NULL, 0, 0, TUTTI_OK};
    double cost = 0;

    if (strcmp(o->model, "gpt2") == 0)
        add_gpt2(&l);
    else if (strcmp(o->model, "resnet50") == 0)
        add_resnet50(&l);
    else
        for (int i = 0; i < o->layers; i++)
            add(&l, o->bytes / sizeof(float), 1);
    for (size_t i = 0; i < l.n; i++) {
        size_t count = (size_t)((double)l.t[i].count * o->scale);

        l.t[i].count = count > 0 ? count : 1;
        cost += l.t[i].cost;
    }
    for (size_t i = 0; i < l.n; i++)
        l.t[i].cost /= cost;
    if (l.status != TUTTI_OK) {
        free(l.t);
        return l.status;
    }
    *out = l.t;
    *n_out = l.n;
    return TUTTI_OK;
}
