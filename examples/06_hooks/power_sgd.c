/* SPDX-License-Identifier: Apache-2.0 */
/*
 * M is the gradient plus what earlier steps left out. Power iteration, one round per step and begun
 * where the last step ended:
 *
 *   P = M Q, averaged over ranks, its columns made orthonormal
 *   Q = M' P, averaged over ranks
 *   gradient = P Q', left out = M - gradient
 *
 * Each line is queued on the bucket's stream, so the host goes on with the backward pass; since all
 * of a part's work is on one stream, its memory needs no other care.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "hooks.h"

typedef struct part {
    float *grad;
    size_t count;
    int n, rank; /* M is n x n; P and Q are n x rank */
    float *m, *left_out, *p, *q;
} part;

struct power_sgd {
    tutti_ctx *ctx;
    int rank, parts;
    part part[PARTS_MAX];
    uint64_t bytes;
};

power_sgd *power_sgd_create(tutti_ctx *ctx, int rank)
{
    power_sgd *s = calloc(1, sizeof *s);

    if (s != NULL) {
        s->ctx = ctx;
        s->rank = rank;
    }
    return s;
}

void power_sgd_destroy(power_sgd *s)
{
    for (int i = 0; s != NULL && i < s->parts; i++)
        free(s->part[i].m);
    free(s);
}

uint64_t power_sgd_bytes(const power_sgd *s)
{
    return s->bytes;
}

/* The same numbers on every rank. */
static void begin_anywhere(part *p)
{
    uint32_t x = 12345;

    for (int i = 0; i < p->n * p->rank; i++) {
        x = x * 1664525u + 1013904223u;
        p->q[i] = (float)(x >> 8) * 0x1p-24f - 0.5f;
    }
}

static part *new_part(power_sgd *s, const tutti_bucket *bucket)
{
    part *p = &s->part[s->parts];
    int n = (int)ceil(sqrt((double)bucket->count));
    size_t square = (size_t)n * (size_t)n, thin = (size_t)n * (size_t)s->rank;

    if (s->parts == PARTS_MAX)
        return NULL;
    *p = (part){.grad = bucket->data, .count = bucket->count, .n = n, .rank = s->rank};
    p->m = calloc(2 * square + 2 * thin, sizeof *p->m);
    if (p->m == NULL)
        return NULL;
    p->left_out = p->m + square;
    p->p = p->left_out + square;
    p->q = p->p + thin;
    begin_anywhere(p);
    s->parts++;
    return p;
}

static part *find_part(power_sgd *s, const tutti_bucket *bucket)
{
    for (int i = 0; i < s->parts; i++)
        if (s->part[i].grad == bucket->data)
            return &s->part[i];
    return new_part(s, bucket);
}

static void first_product(void *arg)
{
    part *p = arg;

    for (size_t i = 0; i < p->count; i++)
        p->m[i] = p->grad[i] + p->left_out[i];
    memset(p->p, 0, (size_t)p->n * (size_t)p->rank * sizeof *p->p);
    for (int i = 0; i < p->n; i++)
        for (int j = 0; j < p->n; j++)
            for (int k = 0; k < p->rank; k++)
                p->p[i * p->rank + k] +=
                    p->m[(size_t)i * (size_t)p->n + (size_t)j] * p->q[j * p->rank + k];
}

/* Gram and Schmidt, column by column. A column that is nothing new becomes 0. */
static void orthonormal(float *x, int n, int rank)
{
    for (int k = 0; k < rank; k++) {
        double norm = 0;
        for (int before = 0; before < k; before++) {
            double dot = 0;
            for (int i = 0; i < n; i++)
                dot += (double)x[i * rank + k] * (double)x[i * rank + before];
            for (int i = 0; i < n; i++)
                x[i * rank + k] -= (float)dot * x[i * rank + before];
        }
        for (int i = 0; i < n; i++)
            norm += (double)x[i * rank + k] * (double)x[i * rank + k];
        norm = norm > 1e-20 ? 1 / sqrt(norm) : 0;
        for (int i = 0; i < n; i++)
            x[i * rank + k] *= (float)norm;
    }
}

static void second_product(void *arg)
{
    part *p = arg;

    orthonormal(p->p, p->n, p->rank);
    memset(p->q, 0, (size_t)p->n * (size_t)p->rank * sizeof *p->q);
    for (int i = 0; i < p->n; i++)
        for (int j = 0; j < p->n; j++)
            for (int k = 0; k < p->rank; k++)
                p->q[j * p->rank + k] +=
                    p->m[(size_t)i * (size_t)p->n + (size_t)j] * p->p[i * p->rank + k];
}

static void put_together(void *arg)
{
    part *p = arg;

    for (size_t at = 0; at < p->count; at++) {
        int i = (int)(at / (size_t)p->n), j = (int)(at % (size_t)p->n);
        float sum = 0;
        for (int k = 0; k < p->rank; k++)
            sum += p->p[i * p->rank + k] * p->q[j * p->rank + k];
        p->grad[at] = sum;
        p->left_out[at] = p->m[at] - sum;
    }
}

tutti_status power_sgd_hook(void *arg, const tutti_bucket *bucket)
{
    power_sgd *s = arg;
    part *p = find_part(s, bucket);
    const tutti_stream stream = bucket->stream;
    size_t thin = p == NULL ? 0 : (size_t)p->n * (size_t)p->rank;
    tutti_status status;

    if (p == NULL || bucket->dtype != TUTTI_FLOAT32)
        return TUTTI_ERR_UNSUPPORTED;
    s->bytes += 2 * thin * sizeof(float);
    status = tutti_stream_call(s->ctx, stream, first_product, p);
    if (status == TUTTI_OK)
        status = tutti_all_reduce(bucket->comm, p->p, p->p, thin, TUTTI_FLOAT32, TUTTI_AVG, stream);
    if (status == TUTTI_OK)
        status = tutti_stream_call(s->ctx, stream, second_product, p);
    if (status == TUTTI_OK)
        status = tutti_all_reduce(bucket->comm, p->q, p->q, thin, TUTTI_FLOAT32, TUTTI_AVG, stream);
    if (status == TUTTI_OK)
        status = tutti_stream_call(s->ctx, stream, put_together, p);
    return status;
}
