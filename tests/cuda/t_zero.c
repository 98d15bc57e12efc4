/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO-1 on a device, ranks being threads: t_cuda_zero [NODES]. A job of 20 steps with clipping, of
 * which each step's eight micro-steps are shared out to 1, 2, 4 or 8 ranks, ends with the same
 * parameters to the bit, sharded or not, in the reducer's memory or the program's own (reproducible
 * mode). Memory is the device's; what a kernel would compute is computed on the host between
 * copies. It runs on the host backend too.
 */
#include <math.h>

#include "boot/context.h"
#include "tt_test.h"

enum { STEPS = 20, MICROS = 8, TENSORS = 6, FLOATS = 4000 };

static const size_t counts[TENSORS] = {1001, 1, 64, 130, 777, 5};

typedef struct plan {
    bool shard, own_grads;
    float params[FLOATS]; /* what rank 0 ends with */
} plan;

typedef struct job {
    tt_rank *r;
    plan *p;
    tutti_reducer *red;
    tutti_stream stream;
    char *memory; /* the device's: parameters, gradients of the program's own, the norm */
    float *param[TENSORS], *grad[TENSORS], *norm;
    float host[FLOATS]; /* of one tensor */
    float *m, *v;
} job;

/* Waits, so that host memory may be used again. */
static tutti_status copy(job *j, void *to, const void *from, size_t count)
{
    tutti_status status =
        j->r->ctx->dev_ops->copy(j->r->ctx->dev, to, from, count * sizeof(float), j->stream);
    return status != TUTTI_OK ? status : tutti_stream_sync(j->r->ctx, j->stream);
}

static float noise(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t h = (a * 0x9e3779b1u) ^ (b * 0x85ebca6bu) ^ (c * 0xc2b2ae35u);
    h = (h ^ (h >> 15)) * 0x2c1b3c6du;
    h = (h ^ (h >> 12)) * 0x297a2d39u;
    return (float)((h ^ (h >> 15)) >> 8) * 0x1p-24f - 0.5f;
}

static void describe(job *j)
{
    float *at = (float *)(void *)j->memory;

    for (int id = 0; id < TENSORS; id++) {
        tutti_param p = TUTTI_PARAM_INIT;
        char name[16];
        snprintf(name, sizeof name, "t%d", id);
        p.name = name;
        p.dtype = TUTTI_FLOAT32;
        p.ndim = 1;
        p.shape[0] = (int64_t)counts[id];
        p.param = j->param[id] = at;
        at += counts[id] + (id % 2 == 0 ? 4 : 0);
        if (j->p->own_grads) {
            p.grad = at;
            at += counts[id] + 4;
        }
        for (size_t i = 0; i < counts[id]; i++)
            j->host[i] = noise(1, (uint32_t)id, (uint32_t)i);
        TT_EXPECT_OK(j->r, copy(j, j->param[id], j->host, counts[id]));
        TT_EXPECT_OK(j->r, tutti_reducer_add(j->red, &p, NULL));
    }
    j->norm = at;
    TT_EXPECT_OK(j->r, tutti_reducer_commit(j->red));
    for (int id = 0; id < TENSORS; id++)
        j->grad[id] = tutti_reducer_grad(j->red, id);
}

static void backward(job *j, int step, int sample, int id)
{
    TT_EXPECT_OK(j->r, copy(j, j->host, j->param[id], counts[id]));
    for (size_t i = 0; i < counts[id]; i++)
        j->host[i] =
            noise((uint32_t)(step * 64 + sample), (uint32_t)id, (uint32_t)i) + 0.1f * j->host[i];
    TT_EXPECT_OK(j->r, copy(j, j->grad[id], j->host, counts[id]));
    TT_EXPECT_OK(j->r, tutti_reducer_ready(j->red, &id, 1, j->stream));
}

static void adam(job *j, float norm)
{
    const tutti_piece *piece;
    size_t n = tutti_reducer_pieces(j->red, &piece);
    float scale = norm > 1 ? 1 / norm : 1, w[FLOATS];

    for (size_t k = 0; k < n; k++) {
        const tutti_piece *p = &piece[k];
        size_t count = (size_t)p->count;
        TT_EXPECT_OK(j->r, copy(j, j->host, p->grad, count));
        TT_EXPECT_OK(j->r, copy(j, w, p->param, count));
        for (size_t i = 0; i < count; i++) {
            float x = j->host[i] * scale;
            float *m = &j->m[(size_t)p->state_offset + i], *v = &j->v[(size_t)p->state_offset + i];
            *m = 0.9f * *m + 0.1f * x;
            *v = 0.99f * *v + 0.01f * x * x;
            w[i] -= 0.01f * *m / (sqrtf(*v) + 1e-6f);
        }
        TT_EXPECT_OK(j->r, copy(j, p->param, w, count));
    }
}

static void step(job *j, int number)
{
    int micros = MICROS / j->r->size;
    float norm = 0;

    for (int k = 0; k < micros; k++) {
        TT_EXPECT_OK(j->r, tutti_reducer_begin(j->red, k, micros, j->stream));
        for (int id = TENSORS - 1; id >= 0 && !j->r->failed; id--)
            backward(j, number, j->r->rank * micros + k, id);
    }
    TT_EXPECT_OK(j->r, tutti_reducer_wait(j->red, j->stream));
    TT_EXPECT_OK(j->r, tutti_reducer_grad_norm(j->red, j->stream, j->norm));
    TT_EXPECT_OK(j->r, copy(j, &norm, j->norm, 1));
    TT_EXPECT(j->r, isfinite(norm) && norm > 1);
    adam(j, norm);
    TT_EXPECT_OK(j->r, tutti_reducer_gather(j->red, j->stream));
    TT_EXPECT_OK(j->r, tutti_reducer_param_wait(j->red, NULL, 0, j->stream));
}

static void train(job *j)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    float *at = j->p->params;
    size_t state;

    opts.flags = TUTTI_REDUCER_REPRODUCIBLE | TUTTI_REDUCER_AVERAGE_MICRO |
                 (j->p->shard ? TUTTI_SHARD_OPTIMIZER : 0u);
    opts.bucket_bytes = 3000;
    TT_EXPECT_OK(j->r, tutti_reducer_create(j->r->comm, &opts, &j->red));
    describe(j);
    state = tutti_reducer_shard_count(j->red);
    j->m = calloc(state + 1, sizeof *j->m);
    j->v = calloc(state + 1, sizeof *j->v);
    for (int s = 0; s < STEPS && !j->r->failed; s++)
        step(j, s);
    for (int id = 0; id < TENSORS && j->r->rank == 0 && !j->r->failed; at += counts[id++])
        TT_EXPECT_OK(j->r, copy(j, at, j->param[id], counts[id]));
    TT_EXPECT_OK(j->r, tutti_stream_sync(j->r->ctx, j->stream));
    TT_EXPECT_OK(j->r, tutti_reducer_check(j->red));
}

static void body(tt_rank *r)
{
    job *j = calloc(1, sizeof *j);

    if (j == NULL)
        abort();
    j->r = r;
    j->p = r->arg;
    if (getenv("SIMGPU_MACHINE") != NULL)
        TT_EXPECT(r, tutti_device(r->ctx) >= 0); /* it is CUDA that is tried */
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "compute", 0, &j->stream));
    TT_EXPECT_OK(r, tutti_alloc(r->comm, 3 * FLOATS * sizeof(float), (void **)&j->memory));
    train(j);
    tutti_reducer_destroy(j->red);
    TT_EXPECT_OK(r, tutti_free(r->comm, j->memory));
    tutti_stream_destroy(r->ctx, j->stream);
    free(j->m);
    free(j->v);
    free(j);
}

static const char *nodes;

static void zero_1_and_ranks_change_no_bit(void **state)
{
    static plan reference, other;

    (void)state;
    TT_ASSERT_RANKS(1, NULL, body, &reference);
    for (int ranks = 2; ranks <= 8; ranks *= 2)
        for (int k = 0; k < 4; k++) {
            if (ranks != 4 && k > 1)
                continue;
            other = (plan){.shard = k % 2 == 1, .own_grads = k >= 2};
            TT_ASSERT_RANKS(ranks, ranks == 8 ? nodes : NULL, body, &other);
            if (memcmp(reference.params, other.params, sizeof other.params) != 0)
                fail_msg("other bits with %d ranks, shard %d, own %d", ranks, other.shard,
                         other.own_grads);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(zero_1_and_ranks_change_no_bit)};

    nodes = argc > 1 ? argv[1] : NULL;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
