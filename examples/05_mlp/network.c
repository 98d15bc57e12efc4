/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network on plain loops. What a tensor-parallel program does with tutti stands in
 * block_forward and block_backward: products are functions of rows, which tutti_tp_gather calls as
 * rows come in and tutti_tp_reduce calls before rows go out.
 */
#include "network.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In -1 ... 1, a function of its arguments (splitmix64's finalizer, public domain). */
static float noise(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t z = (a * 0x9e3779b97f4a7c15u + b) * 0xd1342543de82ef95u + c + 1;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (float)((double)(z ^ z >> 31) / 9223372036854775808.0 - 1);
}

/* Tensors stand in the arenas with odd gaps, as in a program that grew. */
static size_t add(network *n, int id, size_t at, const char *name, const int64_t whole[2],
                  int split_axis)
{
    tensor *t = &n->t[id];
    int64_t count;

    snprintf(t->name, sizeof t->name, "%s", name);
    memcpy(t->whole, whole, sizeof t->whole);
    memcpy(t->shape, whole, sizeof t->shape);
    t->replica = split_axis < 0;
    if (split_axis >= 0) {
        t->shape[split_axis] = (int64_t)n->hidden;
        t->offset[split_axis] = (int64_t)n->hidden * n->share;
    }
    count = t->shape[0] * (t->shape[1] == 0 ? 1 : t->shape[1]);
    if (n->params != NULL) {
        t->value = n->params + at;
        t->grad = n->grads + at;
    }
    return at + (size_t)count + (size_t)(id % 5);
}

static size_t lay_out(network *n)
{
    size_t at = add(n, 0, 0, "embed", (int64_t[]){WIDTH, IN}, -1);
    char name[32];

    for (int b = 0; b < BLOCKS; b++) {
        snprintf(name, sizeof name, "block%d.up", b);
        at = add(n, 1 + 4 * b, at, name, (int64_t[]){HIDDEN, WIDTH}, 0);
        snprintf(name, sizeof name, "block%d.up_bias", b);
        at = add(n, 2 + 4 * b, at, name, (int64_t[]){HIDDEN, 0}, 0);
        snprintf(name, sizeof name, "block%d.down", b);
        at = add(n, 3 + 4 * b, at, name, (int64_t[]){WIDTH, HIDDEN}, 1);
        snprintf(name, sizeof name, "block%d.down_bias", b);
        at = add(n, 4 + 4 * b, at, name, (int64_t[]){WIDTH, 0}, -1);
    }
    return add(n, TENSORS - 1, at, "head", (int64_t[]){OUT, WIDTH}, -1);
}

/* Every element is what it would be in one place. */
static void fill(network *n)
{
    for (int id = 0; id < TENSORS; id++) {
        tensor *t = &n->t[id];
        int64_t cols = t->shape[1] == 0 ? 1 : t->shape[1];
        int64_t whole = t->whole[1] == 0 ? 1 : t->whole[1];
        float scale = t->whole[1] == 0 ? 0 : 1 / sqrtf((float)whole);

        for (int64_t i = 0; i < t->shape[0] * cols; i++) {
            int64_t row = t->offset[0] + i / cols, col = t->offset[1] + i % cols;

            t->value[i] = scale * noise(1, (uint64_t)id, (uint64_t)(row * whole + col));
        }
    }
}

static float *take(float **at, size_t count)
{
    float *here = *at;

    *at += count;
    return here;
}

static void lay_out_memory(network *n, float *at)
{
    n->in = take(&at, n->rows * IN);
    n->target = take(&at, n->rows * OUT);
    n->x = take(&at, n->rows * WIDTH);
    n->y = take(&at, n->rows * WIDTH);
    n->dx = take(&at, n->rows * WIDTH);
    n->dy = take(&at, n->rows * WIDTH);
    n->dy_full = take(&at, n->rows * WIDTH);
    n->out = take(&at, n->rows * OUT);
    n->dh = take(&at, n->rows * HIDDEN);
    for (int b = 0; b < BLOCKS; b++)
        n->h[b] = take(&at, n->rows * HIDDEN);
    for (int b = 0; b <= BLOCKS; b++)
        n->x_full[b] = take(&at, n->rows * WIDTH);
}

bool network_create(network *n, tutti_comm *tp_comm, tutti_tp *tp, bool dealt, size_t rows)
{
    const size_t row = IN + 2 * OUT + (6 + BLOCKS) * WIDTH + (1 + BLOCKS) * HIDDEN;
    size_t count;

    memset(n, 0, sizeof *n);
    n->tp = tp;
    n->dealt = dealt;
    n->rows = rows;
    n->part_rows = dealt ? rows / (size_t)tutti_size(tp_comm) : rows;
    n->share = tutti_rank(tp_comm);
    n->hidden = HIDDEN / (size_t)tutti_size(tp_comm);
    count = lay_out(n);
    n->params = calloc(count, sizeof(float));
    n->grads = calloc(count, sizeof(float));
    n->memory = calloc(rows * row, sizeof(float));
    if (n->params == NULL || n->grads == NULL || n->memory == NULL)
        return false;
    lay_out(n);
    lay_out_memory(n, n->memory);
    fill(n);
    return true;
}

void network_destroy(network *n)
{
    free(n->params);
    free(n->grads);
    free(n->memory);
    memset(n, 0, sizeof *n);
}

/* What is to be learnt: sums of sines of the inputs. */
void network_batch(network *n, int64_t step, int64_t first)
{
    for (size_t r = 0; r < n->rows; r++) {
        float *in = n->in + r * IN, *target = n->target + r * OUT;

        for (int i = 0; i < IN; i++)
            in[i] = noise(2, (uint64_t)step, (uint64_t)(first + (int64_t)r) * IN + (uint64_t)i);
        for (int o = 0; o < OUT; o++)
            target[o] = sinf(2 * in[o]) + 0.5F * in[(o + 4) % IN] * in[(o + 7) % IN];
    }
}

/* out[row] (+)= matrix in[row]; the matrix is [outs][ins]. */
static void apply(const float *matrix, size_t outs, size_t ins, const float *in, float *out,
                  bool add_to)
{
    for (size_t o = 0; o < outs; o++) {
        float sum = 0;

        for (size_t i = 0; i < ins; i++)
            sum += matrix[o * ins + i] * in[i];
        out[o] = add_to ? out[o] + sum : sum;
    }
}

static void apply_transposed(const float *matrix, size_t outs, size_t ins, const float *d,
                             float *out, bool add_to)
{
    if (!add_to)
        memset(out, 0, ins * sizeof *out);
    for (size_t o = 0; o < outs; o++)
        for (size_t i = 0; i < ins; i++)
            out[i] += matrix[o * ins + i] * d[o];
}

static void add_gradient(float *grad, size_t outs, size_t ins, const float *d, const float *in)
{
    for (size_t o = 0; o < outs; o++)
        for (size_t i = 0; i < ins; i++)
            grad[o * ins + i] += d[o] * in[i];
}

typedef struct in_block {
    network *n;
    int block;
} in_block;

static tensor *tensor_of(const in_block *b, int which)
{
    return &b->n->t[1 + 4 * b->block + which];
}

/* h = tanh(U x + u): this rank's hidden units. */
static tutti_status up(void *arg, size_t first, size_t rows, tutti_stream stream)
{
    const in_block *b = arg;
    network *n = b->n;

    (void)stream; /* inline: the work is done here */
    for (size_t r = first; r < first + rows; r++) {
        float *h = n->h[b->block] + r * n->hidden;

        memcpy(h, tensor_of(b, 1)->value, n->hidden * sizeof *h);
        apply(tensor_of(b, 0)->value, n->hidden, WIDTH, n->x_full[b->block] + r * WIDTH, h, true);
        for (size_t i = 0; i < n->hidden; i++)
            h[i] = tanhf(h[i]);
    }
    return TUTTI_OK;
}

/* This rank's term of D h + d; the bias is in the first rank's. */
static tutti_status down(void *arg, size_t first, size_t rows, tutti_stream stream)
{
    const in_block *b = arg;
    network *n = b->n;

    (void)stream;
    for (size_t r = first; r < first + rows; r++) {
        float *y = n->dy_full + r * WIDTH;

        memset(y, 0, WIDTH * sizeof *y);
        if (n->share == 0)
            memcpy(y, tensor_of(b, 3)->value, WIDTH * sizeof *y);
        apply(tensor_of(b, 2)->value, WIDTH, n->hidden, n->h[b->block] + r * n->hidden, y, true);
    }
    return TUTTI_OK;
}

/* dh, and the gradients of this block's parameters. */
static tutti_status down_back(void *arg, size_t first, size_t rows, tutti_stream stream)
{
    const in_block *b = arg;
    network *n = b->n;

    (void)stream;
    for (size_t r = first; r < first + rows; r++) {
        const float *dy = n->dy_full + r * WIDTH, *h = n->h[b->block] + r * n->hidden;
        float *dh = n->dh + r * n->hidden;

        apply_transposed(tensor_of(b, 2)->value, WIDTH, n->hidden, dy, dh, false);
        for (size_t i = 0; i < n->hidden; i++)
            dh[i] *= 1 - h[i] * h[i];
        add_gradient(tensor_of(b, 0)->grad, n->hidden, WIDTH, dh, n->x_full[b->block] + r * WIDTH);
        add_gradient(tensor_of(b, 2)->grad, WIDTH, n->hidden, dy, h);
        for (size_t i = 0; i < n->hidden; i++)
            tensor_of(b, 1)->grad[i] += dh[i];
        for (size_t i = 0; i < WIDTH; i++)
            tensor_of(b, 3)->grad[i] += dy[i];
    }
    return TUTTI_OK;
}

/* This rank's term of the gradient of x. */
static tutti_status up_back(void *arg, size_t first, size_t rows, tutti_stream stream)
{
    const in_block *b = arg;
    network *n = b->n;

    (void)stream;
    for (size_t r = first; r < first + rows; r++)
        apply_transposed(tensor_of(b, 0)->value, n->hidden, WIDTH, n->dh + r * n->hidden,
                         n->dy_full + r * WIDTH, false);
    return TUTTI_OK;
}

static tutti_tp_matrix matrix(float *full, float *part, size_t rows)
{
    return (tutti_tp_matrix){full, part, rows, WIDTH, TUTTI_FLOAT32};
}

/* x += D tanh(U x + u) + d. Dealt out, x is this rank's rows. */
static tutti_status block_forward(network *n, int block)
{
    in_block b = {n, block};
    tutti_tp_matrix x = matrix(n->x_full[block], n->x, n->rows);
    tutti_tp_matrix y = matrix(n->dy_full, n->y, n->rows);
    const float *sum = n->dealt ? n->y : n->dy_full;
    tutti_status status;

    if (!n->dealt)
        memcpy(n->x_full[block], n->x, n->rows * WIDTH * sizeof(float));
    status = tutti_tp_gather(n->tp, &x, up, &b, (tutti_stream){0});
    if (status == TUTTI_OK)
        status = tutti_tp_reduce(n->tp, &y, down, &b, (tutti_stream){0});
    for (size_t i = 0; i < n->part_rows * WIDTH && status == TUTTI_OK; i++)
        n->x[i] += sum[i];
    return status;
}

static tutti_status block_backward(network *n, int block)
{
    in_block b = {n, block};
    tutti_tp_matrix dy = matrix(n->dy_full, n->dx, n->rows);
    tutti_tp_matrix dx = matrix(n->dy_full, n->dy, n->rows);
    const float *sum = n->dealt ? n->dy : n->dy_full;
    tutti_status status;

    if (!n->dealt)
        memcpy(n->dy_full, n->dx, n->rows * WIDTH * sizeof(float));
    status = tutti_tp_gather(n->tp, &dy, down_back, &b, (tutti_stream){0});
    if (status == TUTTI_OK)
        status = tutti_tp_reduce(n->tp, &dx, up_back, &b, (tutti_stream){0});
    for (size_t i = 0; i < n->part_rows * WIDTH && status == TUTTI_OK; i++)
        n->dx[i] += sum[i];
    return status;
}

static size_t row_of(const network *n, size_t part_row)
{
    return n->dealt ? tutti_tp_row(n->tp, n->rows, part_row) : part_row;
}

/* The head sees all rows on every rank, so that its gradient is the same everywhere. */
static tutti_status loss_and_head(network *n, double *loss_out)
{
    tutti_tp_matrix x = matrix(n->x_full[BLOCKS], n->x, n->rows);
    const tensor *head = &n->t[TENSORS - 1];
    tutti_status status = tutti_tp_gather(n->tp, &x, NULL, NULL, (tutti_stream){0});
    double sum = 0;

    if (!n->dealt)
        memcpy(n->x_full[BLOCKS], n->x, n->rows * WIDTH * sizeof(float));
    for (size_t r = 0; r < n->rows; r++) {
        float *out = n->out + r * OUT;

        apply(head->value, OUT, WIDTH, n->x_full[BLOCKS] + r * WIDTH, out, false);
        for (int o = 0; o < OUT; o++) {
            out[o] -= n->target[r * OUT + (size_t)o];
            sum += (double)(out[o] * out[o]);
            out[o] *= 2.0F / (float)(n->rows * OUT);
        }
        add_gradient(head->grad, OUT, WIDTH, out, n->x_full[BLOCKS] + r * WIDTH);
    }
    for (size_t i = 0; i < n->part_rows; i++)
        apply_transposed(head->value, OUT, WIDTH, n->out + row_of(n, i) * OUT, n->dx + i * WIDTH,
                         false);
    *loss_out = sum / (double)(n->rows * OUT);
    return status;
}

/* The embedding's gradient, from all rows too. */
static tutti_status embed_backward(network *n)
{
    tutti_tp_matrix dx = matrix(n->dy_full, n->dx, n->rows);
    tutti_status status = tutti_tp_gather(n->tp, &dx, NULL, NULL, (tutti_stream){0});
    const float *all = n->dealt ? n->dy_full : n->dx;

    for (size_t r = 0; r < n->rows && status == TUTTI_OK; r++)
        add_gradient(n->t[0].grad, WIDTH, IN, all + r * WIDTH, n->in + r * IN);
    return status;
}

tutti_status network_step(network *n, double *loss_out, network_ready ready, void *arg)
{
    tutti_status status = TUTTI_OK;

    for (size_t i = 0; i < n->part_rows; i++)
        apply(n->t[0].value, WIDTH, IN, n->in + row_of(n, i) * IN, n->x + i * WIDTH, false);
    for (int b = 0; b < BLOCKS && status == TUTTI_OK; b++)
        status = block_forward(n, b);
    if (status == TUTTI_OK)
        status = loss_and_head(n, loss_out);
    if (status == TUTTI_OK)
        status = ready(arg, TENSORS - 1);
    for (int b = BLOCKS - 1; b >= 0 && status == TUTTI_OK; b--) {
        status = block_backward(n, b);
        for (int k = 3; k >= 0 && status == TUTTI_OK; k--)
            status = ready(arg, 1 + 4 * b + k);
    }
    if (status == TUTTI_OK)
        status = embed_backward(n);
    return status == TUTTI_OK ? ready(arg, 0) : status;
}
