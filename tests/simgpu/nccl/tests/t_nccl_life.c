/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators that do not block: init, split and launches that end when they are asked about, a
 * rank that never comes, abort with work under way, errors on demand, shrink, and graphs.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "world.h"

enum { N = 64 };

static ncclResult_t settle(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
        if (asked != ncclSuccess)
            return asked;
    }
    return state;
}

static bool begun(ncclResult_t result)
{
    return result == ncclSuccess || result == ncclInProgress;
}

static void init(world_rank *r)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = "free";
    CUDA_OK(r, cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    EXPECT(r, begun(ncclCommInitRankConfig(&r->comm, r->size, r->id, r->rank, &config)));
    NCCL_OK(r, settle(r->comm));
}

static void end(world_rank *r)
{
    EXPECT(r, begun(ncclCommFinalize(r->comm)));
    NCCL_OK(r, settle(r->comm));
    NCCL_OK(r, ncclCommDestroy(r->comm));
    CUDA_OK(r, cudaStreamDestroy(r->stream));
}

static void sum(world_rank *r, ncclComm_t comm, float *buf)
{
    EXPECT(r, begun(ncclAllReduce(buf, buf, N, ncclFloat, ncclSum, comm, r->stream)));
    NCCL_OK(r, settle(comm));
}

static void no_blocking(world_rank *r)
{
    float host[N], *buf;
    ncclComm_t part;
    init(r);
    EXPECT(r, !r->failed);
    CUDA_OK(r, cudaMalloc((void **)&buf, sizeof(host)));
    for (int i = 0; i < N; i++)
        host[i] = 1;
    world_put(r, buf, host, sizeof(host));
    for (int k = 0; k < 5; k++)
        sum(r, r->comm, buf);
    EXPECT(r, begun(ncclCommSplit(r->comm, r->rank / 2, r->rank, &part, NULL)));
    NCCL_OK(r, settle(r->comm));
    NCCL_OK(r, settle(part));
    sum(r, part, buf);
    world_get(r, host, buf, sizeof(host));
    float wanted = 2;
    for (int k = 0; k < 5; k++)
        wanted *= (float)r->size;
    EXPECT(r, host[N - 1] == wanted);
    EXPECT(r, begun(ncclCommFinalize(part)));
    NCCL_OK(r, settle(part));
    NCCL_OK(r, ncclCommDestroy(part));
    CUDA_OK(r, cudaFree(buf));
    end(r);
}

static void test_no_blocking(void **state)
{
    (void)state;
    assert_string_equal(world_threads_bare(4, no_blocking, NULL), "");
}

/* Rank 1 never comes: the others see no more than "in progress", and abort. */
static void missing(world_rank *r)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state;
    config.blocking = 0;
    if (r->rank == 1)
        return;
    EXPECT(r, begun(ncclCommInitRankConfig(&r->comm, r->size, r->id, r->rank, &config)));
    for (int i = 0; i < 50; i++) {
        NCCL_OK(r, ncclCommGetAsyncError(r->comm, &state));
        EXPECT(r, state == ncclInProgress);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    NCCL_OK(r, ncclCommAbort(r->comm));
}

static void test_missing(void **state)
{
    (void)state;
    assert_string_equal(world_threads_bare(3, missing, NULL), "");
}

/* Rank 0 never makes the call: the others' work ends by abort, with nothing moved. */
static void abort_work(world_rank *r)
{
    float *buf;
    init(r);
    EXPECT(r, !r->failed);
    CUDA_OK(r, cudaMalloc((void **)&buf, N * sizeof(*buf)));
    CUDA_OK(r, cudaMemsetAsync(buf, 0, N * sizeof(*buf), r->stream));
    if (r->rank != 0) {
        sum(r, r->comm, buf);
        for (int i = 0; i < 20; i++)
            EXPECT(r, cudaStreamQuery(r->stream) == cudaErrorNotReady);
    }
    world_barrier();
    NCCL_OK(r, ncclCommAbort(r->comm));
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaStreamDestroy(r->stream));
    CUDA_OK(r, cudaFree(buf));
}

static void test_abort(void **state)
{
    (void)state;
    assert_string_equal(world_threads_bare(3, abort_work, NULL), "");
}

/* Rank 0 aborts while its stream waits in the call; then the last rank makes the call too. It
 * meets nobody any more, and what rank 0 gave is left alone. */
static void abort_waiting(world_rank *r)
{
    float *buf, host[N] = {0};
    init(r);
    EXPECT(r, !r->failed);
    CUDA_OK(r, cudaMalloc((void **)&buf, sizeof(host)));
    CUDA_OK(r, cudaMemsetAsync(buf, 0, sizeof(host), r->stream));
    if (r->rank != 2)
        sum(r, r->comm, buf);
    for (int i = 0; i < 20 && r->rank != 2; i++)
        EXPECT(r, cudaStreamQuery(r->stream) == cudaErrorNotReady);
    world_barrier();
    if (r->rank == 0)
        NCCL_OK(r, ncclCommAbort(r->comm));
    world_barrier();
    if (r->rank == 2)
        sum(r, r->comm, buf);
    for (int i = 0; i < 20 && r->rank == 2; i++)
        EXPECT(r, cudaStreamQuery(r->stream) == cudaErrorNotReady);
    world_barrier();
    if (r->rank != 0)
        NCCL_OK(r, ncclCommAbort(r->comm));
    world_get(r, host, buf, sizeof(host));
    EXPECT(r, host[0] == 0);
    CUDA_OK(r, cudaStreamDestroy(r->stream));
    CUDA_OK(r, cudaFree(buf));
}

static void test_abort_waiting(void **state)
{
    (void)state;
    assert_string_equal(world_threads_bare(3, abort_waiting, NULL), "");
}

/* SIMGPU_FAULT (see CMakeLists.txt) dooms the first launch of the process: its rank sees the code,
 * the others a remote error. */
static void async_error(world_rank *r)
{
    float *buf;
    ncclResult_t state;
    init(r);
    world_barrier(); /* one that is still in init would see the others' error there */
    EXPECT(r, !r->failed);
    CUDA_OK(r, cudaMalloc((void **)&buf, N * sizeof(*buf)));
    CUDA_OK(r, cudaMemsetAsync(buf, 0, N * sizeof(*buf), r->stream));
    EXPECT(r, begun(ncclAllReduce(buf, buf, N, ncclFloat, ncclSum, r->comm, r->stream)));
    do
        NCCL_OK(r, ncclCommGetAsyncError(r->comm, &state));
    while (state == ncclSuccess || state == ncclInProgress);
    EXPECT(r, state == ncclSystemError || state == ncclRemoteError);
    int *codes = r->arg;
    codes[r->rank] = (int)state;
    NCCL_OK(r, ncclCommAbort(r->comm));
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaStreamDestroy(r->stream));
    CUDA_OK(r, cudaFree(buf));
}

static void test_async_error(void **state)
{
    int codes[3] = {0}, own = 0;
    (void)state;
    const char *fault = getenv("SIMGPU_FAULT");
    if (fault == NULL || strstr(fault, "lost") != NULL)
        skip();
    assert_string_equal(world_threads_bare(3, async_error, codes), "");
    for (int i = 0; i < 3; i++)
        own += codes[i] == ncclSystemError;
    assert_int_equal(own, 1);
}

/* SIMGPU_FAULT takes rank 1's GPU off the bus in its cudaDeviceSynchronize. */
static void lost(world_rank *r)
{
    ncclResult_t state;
    init(r);
    EXPECT(r, !r->failed);
    world_barrier();
    if (r->rank == 1)
        EXPECT(r, cudaDeviceSynchronize() != cudaSuccess);
    do
        NCCL_OK(r, ncclCommGetAsyncError(r->comm, &state));
    while (state == ncclSuccess);
    EXPECT(r, state == (r->rank == 1 ? ncclUnhandledCudaError : ncclRemoteError));
    world_barrier();
    NCCL_OK(r, ncclCommAbort(r->comm));
    cudaError_t error = cudaStreamDestroy(r->stream);
    EXPECT(r, r->rank == 1 || error == cudaSuccess);
}

static void test_lost(void **state)
{
    const char *fault = getenv("SIMGPU_FAULT");
    (void)state;
    if (fault == NULL || strstr(fault, "lost") == NULL)
        skip();
    assert_string_equal(world_threads_bare(3, lost, NULL), "");
}

/* The last rank is gone; the others go on without it. */
static void shrink(world_rank *r)
{
    float host[N], *buf;
    ncclComm_t rest;
    int gone = r->size - 1, size;
    CUDA_OK(r, cudaMalloc((void **)&buf, sizeof(host)));
    for (int i = 0; i < N; i++)
        host[i] = 1;
    world_put(r, buf, host, sizeof(host));
    if (r->rank != gone) {
        NCCL_OK(r, ncclCommShrink(r->comm, &gone, 1, &rest, NULL, NCCL_SHRINK_DEFAULT));
        NCCL_OK(r, ncclCommCount(rest, &size));
        EXPECT(r, size == r->size - 1);
        NCCL_OK(r, ncclAllReduce(buf, buf, N, ncclFloat, ncclSum, rest, r->stream));
        world_get(r, host, buf, sizeof(host));
        EXPECT(r, host[0] == (float)size);
        NCCL_OK(r, ncclCommDestroy(rest));
    }
    CUDA_OK(r, cudaFree(buf));
}

static void test_shrink(void **state)
{
    (void)state;
    assert_string_equal(world_threads(3, shrink, NULL), "");
}

/* A group of two collectives is captured once and launched three times. */
static void graph(world_rank *r)
{
    float host[2 * N], *buf;
    cudaGraph_t recorded;
    cudaGraphExec_t program;
    CUDA_OK(r, cudaMalloc((void **)&buf, sizeof(host)));
    for (int i = 0; i < 2 * N; i++)
        host[i] = 1;
    world_put(r, buf, host, sizeof(host));
    CUDA_OK(r, cudaStreamBeginCapture(r->stream, cudaStreamCaptureModeThreadLocal));
    NCCL_OK(r, ncclGroupStart());
    NCCL_OK(r, ncclAllReduce(buf, buf, N, ncclFloat, ncclSum, r->comm, r->stream));
    NCCL_OK(r, ncclAllReduce(buf + N, buf + N, N, ncclFloat, ncclMax, r->comm, r->stream));
    NCCL_OK(r, ncclGroupEnd());
    CUDA_OK(r, cudaStreamEndCapture(r->stream, &recorded));
    CUDA_OK(r, cudaGraphInstantiateWithFlags(&program, recorded, 0));
    for (int k = 0; k < 3; k++)
        CUDA_OK(r, cudaGraphLaunch(program, r->stream));
    world_get(r, host, buf, sizeof(host));
    EXPECT(r, host[0] == (float)(r->size * r->size * r->size) && host[N] == 1.0f);
    CUDA_OK(r, cudaGraphExecDestroy(program));
    CUDA_OK(r, cudaGraphDestroy(recorded));
    CUDA_OK(r, cudaFree(buf));
}

static void test_graph(void **state)
{
    (void)state;
    assert_string_equal(world_threads(4, graph, NULL), "");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_async_error), cmocka_unit_test(test_lost),
        cmocka_unit_test(test_no_blocking), cmocka_unit_test(test_missing),
        cmocka_unit_test(test_abort),       cmocka_unit_test(test_abort_waiting),
        cmocka_unit_test(test_shrink),      cmocka_unit_test(test_graph),
    };
    if (argc > 1) /* the GPU that is lost is lost to the other tests too */
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
