/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reducer on the CUDA backend: t_cuda_reducer RANKS. Gradients come from two producer streams;
 * averages, a mean and what a replayed graph gives are compared with numbers worked out here.
 * Values are small integers, so sums are exact in any order. Nothing waits for the GPU inside a
 * step.
 */
#include "tt_test.h"

#include "comm/comm.h"
#include "tutti/interop_cuda.h"

enum { PARAMS = 7, FLOATS = 5000, STEPS = 3, REPLAYS = 3 };

static int ranks = 2;

typedef struct model {
    tutti_reducer *red;
    tutti_stream compute[2];
    float *params, *source, *own; /* device: parameters, what the backward pass "computes", arena */
    float *image; /* host */
    int ids[PARAMS];
} model;

static size_t bytes_of(int params)
{
    return (size_t)params * FLOATS * sizeof(float);
}

static float value_of(int rank, int step, int param, int i)
{
    return (float)((rank * 7 + step * 3 + param * 5 + i) % 64);
}

static void make_model(tt_rank *r, model *m, bool owned)
{
    tt_device *dev = r->ctx->dev;
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    void *memory[3] = {NULL, NULL, NULL};
    for (int i = 0; i < 3; i++) {
        TT_EXPECT_OK(r, dev->ops->mem_alloc(dev, bytes_of(PARAMS), &memory[i]));
        TT_EXPECT(r, cudaMemset(memory[i], 0, bytes_of(PARAMS)) == cudaSuccess);
    }
    TT_EXPECT(r, cudaDeviceSynchronize() == cudaSuccess);
    *m = (model){.params = memory[0], .source = memory[1], .own = memory[2]};
    m->image = calloc(PARAMS * FLOATS, sizeof(float));
    for (int i = 0; i < 2; i++)
        TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "compute", 0, &m->compute[i]));
    opts.bucket_bytes = 3 * FLOATS * sizeof(float);
    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, &opts, &m->red));
    for (int p = 0; p < PARAMS; p++) {
        tutti_param param = TUTTI_PARAM_INIT;
        char name[16];
        snprintf(name, sizeof name, "p%d", p);
        param.name = name;
        param.dtype = TUTTI_FLOAT32;
        param.ndim = 1;
        param.shape[0] = FLOATS;
        param.param = m->params + (size_t)p * FLOATS;
        param.grad = owned ? NULL : m->own + (size_t)p * FLOATS;
        TT_EXPECT_OK(r, tutti_reducer_add(m->red, &param, &m->ids[p]));
    }
    TT_EXPECT_OK(r, tutti_reducer_commit(m->red));
}

static void free_model(tt_rank *r, model *m)
{
    tt_device *dev = r->ctx->dev;
    for (int i = 0; i < 2; i++)
        TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, m->compute[i]));
    tutti_reducer_destroy(m->red);
    for (int i = 0; i < 2; i++)
        tutti_stream_destroy(r->ctx, m->compute[i]);
    dev->ops->mem_free(dev, m->params);
    dev->ops->mem_free(dev, m->source);
    dev->ops->mem_free(dev, m->own);
    free(m->image);
}

/* What this rank's backward pass is to give. Waits. */
static void set_source(tt_rank *r, model *m, int step)
{
    for (int p = 0; p < PARAMS; p++)
        for (int i = 0; i < FLOATS; i++)
            m->image[p * FLOATS + i] = value_of(r->rank, step, p, i);
    TT_EXPECT_OK(r, tt_device_copy_now(r->ctx->dev, m->source, m->image, bytes_of(PARAMS)));
}

/* A step on compute[0], half of the backward pass on compute[1]. */
static void run_step(tt_rank *r, model *m)
{
    tutti_stream main = m->compute[0];
    TT_EXPECT_OK(r, tutti_reducer_begin(m->red, 0, 1, main));
    TT_EXPECT_OK(r, tutti_stream_wait(r->ctx, m->compute[1], main));
    for (int p = PARAMS - 1; p >= 0; p--) {
        tutti_stream s = m->compute[p % 2];
        TT_EXPECT(r, cudaMemcpyAsync(tutti_reducer_grad(m->red, m->ids[p]),
                                     m->source + (size_t)p * FLOATS, bytes_of(1),
                                     cudaMemcpyDeviceToDevice,
                                     tutti_stream_to_cuda(s)) == cudaSuccess);
        TT_EXPECT_OK(r, tutti_reducer_ready(m->red, &m->ids[p], 1, s));
    }
    TT_EXPECT_OK(r, tutti_reducer_wait(m->red, main));
    TT_EXPECT_OK(r, tutti_stream_wait(r->ctx, main, m->compute[1]));
    for (int p = 0; p < PARAMS; p++) /* the "optimizer" */
        TT_EXPECT(r, cudaMemcpyAsync(m->params + (size_t)p * FLOATS,
                                     tutti_reducer_grad(m->red, m->ids[p]), bytes_of(1),
                                     cudaMemcpyDeviceToDevice,
                                     tutti_stream_to_cuda(main)) == cudaSuccess);
}

static void check_step(tt_rank *r, model *m, int step)
{
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, m->compute[0]));
    TT_EXPECT_OK(r, tt_device_copy_now(r->ctx->dev, m->image, m->params, bytes_of(PARAMS)));
    for (int p = 0; p < PARAMS; p++)
        for (int i = 0; i < FLOATS; i++) {
            float sum = 0, got = m->image[p * FLOATS + i];
            for (int k = 0; k < r->size; k++)
                sum += value_of(k, step, p, i);
            float error = got * (float)r->size - sum;
            TT_EXPECT(r, error < 1e-3F && error > -1e-3F);
        }
}

static void steps(tt_rank *r)
{
    model m;
    make_model(r, &m, *(const bool *)r->arg);
    for (int step = 0; step < STEPS && !r->failed; step++) {
        set_source(r, &m, step);
        run_step(r, &m);
        check_step(r, &m, step);
    }
    if (!r->failed)
        TT_EXPECT_OK(r, tutti_reducer_check(m.red));
    if (!r->failed)
        free_model(r, &m);
}

/* A step is captured once and replayed with other gradients; then one runs as before. */
static void replays(tt_rank *r)
{
    model m;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    make_model(r, &m, true);
    cudaStream_t main = tutti_stream_to_cuda(m.compute[0]);
    TT_EXPECT(r, cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    TT_EXPECT(r, tutti_reducer_begin(m.red, 0, 1, m.compute[0]) == TUTTI_ERR_STATE);
    TT_EXPECT(r, strstr(tutti_last_error(), "run one step before") != NULL);
    TT_EXPECT(r, cudaStreamEndCapture(main, &graph) == cudaSuccess);
    TT_EXPECT(r, cudaGraphDestroy(graph) == cudaSuccess);
    set_source(r, &m, 0);
    run_step(r, &m);
    check_step(r, &m, 0);
    TT_EXPECT(r, cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    run_step(r, &m);
    TT_EXPECT(r, cudaStreamEndCapture(main, &graph) == cudaSuccess);
    TT_EXPECT(r, cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
    for (int i = 1; i <= REPLAYS && !r->failed; i++) {
        set_source(r, &m, i);
        TT_EXPECT(r, cudaGraphLaunch(exec, main) == cudaSuccess);
        check_step(r, &m, i);
    }
    set_source(r, &m, REPLAYS + 1);
    run_step(r, &m);
    check_step(r, &m, REPLAYS + 1);
    TT_EXPECT(r, cudaGraphExecDestroy(exec) == cudaSuccess);
    TT_EXPECT(r, cudaGraphDestroy(graph) == cudaSuccess);
    if (!r->failed)
        free_model(r, &m);
}

static void averages(void **state)
{
    static const bool owned[] = {true, false};
    (void)state;
    for (int i = 0; i < 2; i++)
        TT_ASSERT_RANKS(ranks, NULL, steps, (void *)(uintptr_t)&owned[i]);
}

static void whole_steps_in_graphs(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(ranks, NULL, replays, NULL);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(averages),
                                       cmocka_unit_test(whole_steps_in_graphs)};
    if (argc > 1)
        ranks = (int)strtol(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
