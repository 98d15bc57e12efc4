/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tutti costs the host on the CUDA backend: one tutti_all_reduce beside the bare
 * ncclAllReduce, in turns, and tutti_reducer_ready. Medians and quartiles over blocks of calls.
 *
 * On simulated GPUs that do nothing the calls into CUDA and NCCL cost next to nothing, so what is
 * left is tutti's own (one rank, which then needs an NCCL communicator):
 *
 *     LD_LIBRARY_PATH=build/simgpu SIMGPU_NOOP=1 SIMGPU_MACHINE=1 TUTTI_NCCL_ONE=1
 * build/bin/bench_cuda
 *
 * On a real GPU the same command without the first three variables shows both with the driver.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <tutti/interop_cuda.h>
#include <tutti/interop_nccl.h>
#include <tutti/tutti.h>

#include "quantile.h"

enum { BLOCKS = 301, CALLS = 100, PARAMS = 200, FLOATS = 1024 };

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void print(const char *what, double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, bench_ascending);
    printf("%-44s median %7.0f ns   quartiles %7.0f %7.0f\n", what, values[n / 2], values[n / 4],
           values[3 * n / 4]);
}

/* Blocks of both in turns; the difference is taken pair by pair. */
static void all_reduce(tutti_ctx *ctx, tutti_stream stream, float *memory)
{
    static double bare[BLOCKS], ours[BLOCKS], more[BLOCKS];
    tutti_comm *world = tutti_world(ctx);
    for (int b = 0; b < BLOCKS; b++) {
        ncclComm_t nccl;
        TUTTI_MUST(ctx, tutti_comm_nccl_begin(world, stream, &nccl));
        double from = now_ns();
        for (int i = 0; i < CALLS; i++)
            if (ncclAllReduce(memory, memory, FLOATS, ncclFloat32, ncclSum, nccl,
                              tutti_stream_to_cuda(stream)) != ncclSuccess)
                tutti_abort(ctx, 1, "ncclAllReduce");
        bare[b] = (now_ns() - from) / CALLS;
        TUTTI_MUST(ctx, tutti_comm_nccl_end(world));
        from = now_ns();
        for (int i = 0; i < CALLS; i++)
            TUTTI_MUST(ctx, tutti_all_reduce(world, memory, memory, FLOATS, TUTTI_FLOAT32,
                                             TUTTI_SUM, stream));
        ours[b] = (now_ns() - from) / CALLS;
        more[b] = ours[b] - bare[b];
        TUTTI_MUST(ctx, tutti_stream_sync(ctx, stream));
    }
    print("ncclAllReduce", bare, BLOCKS);
    print("tutti_all_reduce", ours, BLOCKS);
    print("the difference", more, BLOCKS);
}

static void ready(tutti_ctx *ctx, tutti_stream stream)
{
    static double each[BLOCKS], steps[BLOCKS];
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_reducer *red = NULL;
    int ids[PARAMS];
    opts.bucket_bytes = (size_t)PARAMS * FLOATS * sizeof(float); /* two buckets */
    TUTTI_MUST(ctx, tutti_reducer_create(tutti_world(ctx), &opts, &red));
    for (int p = 0; p < PARAMS; p++) {
        tutti_param param = TUTTI_PARAM_INIT;
        char name[16];
        snprintf(name, sizeof name, "p%d", p);
        param.name = name;
        param.dtype = TUTTI_FLOAT32;
        param.ndim = 1;
        param.shape[0] = FLOATS;
        TUTTI_MUST(ctx, tutti_reducer_add(red, &param, &ids[p]));
    }
    TUTTI_MUST(ctx, tutti_reducer_commit(red));
    for (int b = 0; b < BLOCKS; b++) {
        double from = now_ns();
        TUTTI_MUST(ctx, tutti_reducer_begin(red, 0, 1, stream));
        double before = now_ns();
        for (int p = PARAMS - 1; p >= 0; p--)
            TUTTI_MUST(ctx, tutti_reducer_ready(red, &ids[p], 1, stream));
        each[b] = (now_ns() - before) / PARAMS;
        TUTTI_MUST(ctx, tutti_reducer_wait(red, stream));
        steps[b] = now_ns() - from;
        TUTTI_MUST(ctx, tutti_stream_sync(ctx, stream));
    }
    print("tutti_reducer_ready, launches included", each, BLOCKS);
    print("a step: begin, 200 times ready, wait", steps, BLOCKS);
    tutti_reducer_destroy(red);
}

int main(void)
{
    tutti_ctx *ctx = NULL;
    tutti_stream stream;
    void *memory = NULL;
    if (tutti_init(NULL, &ctx) != TUTTI_OK) {
        fprintf(stderr, "tutti_init: %s\n", tutti_last_error());
        return 1;
    }
    if (tutti_device(ctx) < 0)
        tutti_abort(ctx, 1, "no GPU is used: nothing to measure");
    TUTTI_MUST(ctx, tutti_stream_create(ctx, "cost", 0, &stream));
    TUTTI_MUST(ctx, tutti_alloc(tutti_world(ctx), FLOATS * sizeof(float), &memory));
    all_reduce(ctx, stream, memory);
    ready(ctx, stream);
    TUTTI_MUST(ctx, tutti_free(tutti_world(ctx), memory));
    tutti_stream_destroy(ctx, stream);
    return tutti_finalize(ctx) == TUTTI_OK ? 0 : 1;
}
