/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hooks: the same small training job with gradients averaged by the library, as bfloat16, and by
 * PowerSGD; what each sends, and how far it comes.
 *
 * Three matrices are fitted to targets of low rank. Every rank sees the targets through noise of
 * its own, so ranks need each other's gradients.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "hooks.h"

enum { MATRICES = 3, SIDE = 96, SIZE = SIDE * SIDE, STEPS = 60, TARGET_RANK = 6 };
static const float rate = 0.2f;

typedef struct job {
    tutti_ctx *ctx;
    int rank;
    tutti_reducer *reducer;
    float *weight[MATRICES], *target[MATRICES];
} job;

static float noise(uint32_t a, uint32_t b)
{
    uint32_t h = a * 0x9e3779b1u ^ b * 0x85ebca6bu;

    h = (h ^ h >> 15) * 0x2c1b3c6du;
    h = (h ^ h >> 12) * 0x297a2d39u;
    return (float)((h ^ h >> 15) >> 8) * 0x1p-24f - 0.5f;
}

static float *matrix(void)
{
    float *x = calloc(SIZE, sizeof *x);

    if (x == NULL) {
        fprintf(stderr, "hooks: out of memory\n");
        exit(1);
    }
    return x;
}

static void make_targets(job *j)
{
    for (int m = 0; m < MATRICES; m++) {
        uint32_t seed = 1000u * (uint32_t)m;
        j->weight[m] = matrix();
        j->target[m] = matrix();
        for (int i = 0; i < SIZE; i++)
            for (int k = 0; k < TARGET_RANK; k++)
                j->target[m][i] += noise(seed + 1, (uint32_t)(i / SIDE * TARGET_RANK + k)) *
                                   noise(seed + 2, (uint32_t)(i % SIDE * TARGET_RANK + k));
    }
}

static void make_reducer(job *j)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;

    opts.bucket_bytes = SIZE * sizeof(float);
    TUTTI_MUST(j->ctx, tutti_reducer_create(tutti_world(j->ctx), &opts, &j->reducer));
    for (int m = 0; m < MATRICES; m++) {
        tutti_param p = TUTTI_PARAM_INIT;
        char name[16];
        snprintf(name, sizeof name, "matrix%d", m);
        p.name = name;
        p.dtype = TUTTI_FLOAT32;
        p.ndim = 2;
        p.shape[0] = p.shape[1] = SIDE;
        p.param = j->weight[m];
        TUTTI_MUST(j->ctx, tutti_reducer_add(j->reducer, &p, NULL));
    }
    TUTTI_MUST(j->ctx, tutti_reducer_commit(j->reducer));
}

/* The mean squared distance from the targets: the noise of all ranks averages out in it. */
static double train(job *j)
{
    const tutti_stream here = {0};
    double loss = 0;

    for (int step = 0; step < STEPS; step++) {
        TUTTI_MUST(j->ctx, tutti_reducer_begin(j->reducer, 0, 1, here));
        for (int m = MATRICES - 1; m >= 0; m--) {
            float *grad = tutti_reducer_grad(j->reducer, m);
            for (int i = 0; i < SIZE; i++)
                grad[i] += j->weight[m][i] - j->target[m][i] +
                           0.05f * noise((uint32_t)(step * 64 + j->rank), (uint32_t)i);
            TUTTI_MUST(j->ctx, tutti_reducer_ready(j->reducer, &m, 1, here));
        }
        TUTTI_MUST(j->ctx, tutti_reducer_wait(j->reducer, here));
        for (int m = 0; m < MATRICES; m++)
            for (int i = 0; i < SIZE; i++)
                j->weight[m][i] -= rate * ((float *)tutti_reducer_grad(j->reducer, m))[i];
    }
    TUTTI_MUST(j->ctx, tutti_reducer_check(j->reducer));
    for (int m = 0; m < MATRICES; m++)
        for (int i = 0; i < SIZE; i++)
            loss += pow((double)(j->weight[m][i] - j->target[m][i]), 2) / (MATRICES * SIZE);
    return loss;
}

static double run(job *j, const char *name, tutti_bucket_hook hook, void *arg)
{
    make_targets(j);
    make_reducer(j);
    TUTTI_MUST(j->ctx, tutti_reducer_hook(j->reducer, hook, arg));
    double loss = train(j);
    uint64_t bytes = (uint64_t)MATRICES * SIZE * sizeof(float);
    if (hook == bfloat_hook)
        bytes = bfloat_bytes(arg) / STEPS;
    else if (hook == power_sgd_hook)
        bytes = power_sgd_bytes(arg) / STEPS;
    if (j->rank == 0)
        printf("%-12s %8llu bytes a step, distance %.2e after %d steps\n", name,
               (unsigned long long)bytes, loss, STEPS);
    tutti_reducer_destroy(j->reducer);
    for (int m = 0; m < MATRICES; m++) {
        free(j->weight[m]);
        free(j->target[m]);
    }
    return loss;
}

int main(void)
{
    tutti_init_opts init = TUTTI_INIT_OPTS_INIT;
    job j = {0};

    init.backend = TUTTI_BACKEND_HOST; /* the hooks compute on the CPU */
    if (tutti_init(&init, &j.ctx) != TUTTI_OK) {
        fprintf(stderr, "hooks: %s\n", tutti_last_error());
        return 1;
    }
    j.rank = tutti_rank(tutti_world(j.ctx));

    bfloat *half = bfloat_create(j.ctx);
    power_sgd *power = power_sgd_create(j.ctx, 4);
    if (half == NULL || power == NULL)
        tutti_abort(j.ctx, 1, "out of memory");
    double worst = run(&j, "library", NULL, NULL);
    worst = fmax(worst, run(&j, "bfloat16", bfloat_hook, half));
    worst = fmax(worst, run(&j, "PowerSGD(4)", power_sgd_hook, power));
    bfloat_destroy(half);
    power_sgd_destroy(power);
    if (tutti_finalize(j.ctx) != TUTTI_OK)
        return 1;
    return worst < 2e-3 ? 0 : 3; /* from 4e-2 at the start */
}
