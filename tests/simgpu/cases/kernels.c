/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels: right ones, and ones that leave their ranges, diverge, or are launched wrongly. */
#include "kernels.h"

#include "cases.h"

static void computes(void)
{
    pair p = pair_make();
    for (int i = 0; i < N; i++) {
        p.host[i] = (float)(i % 7);
    }
    OK(cudaMemcpyAsync(p.x, p.host, BYTES, cudaMemcpyHostToDevice, p.a));
    launch_scale(p.x, 2, N - 3, 2, p.a);
    OK(cudaGetLastError());
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaStreamWaitEvent(p.b, p.event, 0));
    launch_sum(p.y, p.x, N, p.b);
    OK(cudaGetLastError());
    OK(cudaStreamSynchronize(p.b));
    float wanted = 0;
    for (int i = 0; i < N; i++) {
        wanted += i < N - 3 ? 2 * (float)(i % 7) : (float)(i % 7);
    }
    OK(cudaMemcpyAsync(p.host, p.y, sizeof(float), cudaMemcpyDeviceToHost, p.b));
    OK(cudaStreamSynchronize(p.b));
    CHECK(p.host[0] == wanted);
    pair_free(&p);
}

static void captured(void)
{
    pair p = pair_make();
    cudaGraph_t g;
    cudaGraphExec_t exec;
    p.host[0] = 1;
    OK(cudaMemcpyAsync(p.x, p.host, BYTES, cudaMemcpyHostToDevice, p.a));
    OK(cudaStreamSynchronize(p.a));
    OK(cudaStreamBeginCapture(p.a, cudaStreamCaptureModeGlobal));
    launch_scale(p.x, 3, N, 4, p.a);
    OK(cudaStreamEndCapture(p.a, &g));
    OK(cudaGraphInstantiate(&exec, g, 0));
    for (int i = 0; i < 3; i++) {
        OK(cudaGraphLaunch(exec, p.a));
    }
    OK(cudaMemcpyAsync(p.host, p.x, BYTES, cudaMemcpyDeviceToHost, p.a));
    OK(cudaStreamSynchronize(p.a));
    CHECK(p.host[0] == 27);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(g));
    pair_free(&p);
}

static void pinned_result(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    launch_sum(p.host, p.x, N, p.a);
    OK(cudaStreamSynchronize(p.a));
    CHECK(p.host[0] == 0);
    pair_free(&p);
}

static void unordered(void)
{
    pair p = pair_make();
    launch_scale(p.x, 2, N, 2, p.a);
    launch_scale(p.x, 2, N, 2, p.b);
    pair_free(&p);
}

static void overrun(void)
{
    pair p = pair_make();
    float *z;
    OK(cudaMalloc((void **)&z, 100));
    launch_poke(z, 25, p.a);
    OK(cudaStreamSynchronize(p.a));
    OK(cudaFree(z));
    pair_free(&p);
}

static void far_away(void)
{
    pair p = pair_make();
    launch_poke(p.x, 1 << 20, p.a);
    (void)cudaStreamSynchronize(p.a);
}

static void diverges(void)
{
    pair p = pair_make();
    launch_diverge(p.x, p.a);
    (void)cudaStreamSynchronize(p.a);
}

static void unknown(void)
{
    pair p = pair_make();
    launch_unregistered(p.x, p.a);
    (void)cudaStreamSynchronize(p.a);
}

static void other_device(void)
{
    pair p = pair_make();
    OK(cudaSetDevice(1));
    launch_scale(p.x, 2, N, 1, p.a);
    FAILS(cudaErrorInvalidResourceHandle, cudaGetLastError());
    OK(cudaSetDevice(0));
    pair_free(&p);
}

static void others_memory(void)
{
    pair p = pair_make();
    cudaStream_t s;
    OK(cudaSetDevice(1));
    OK(cudaStreamCreate(&s));
    launch_scale(p.x, 2, N, 1, s);
    FAILS(cudaErrorIllegalAddress, cudaStreamSynchronize(s));
    FAILS(cudaErrorIllegalAddress, cudaStreamSynchronize(s)); /* for good */
    OK(cudaStreamDestroy(s));
    OK(cudaSetDevice(0));
    pair_free(&p);
}

static void host_pointer(void)
{
    pair p = pair_make();
    float mine[4];
    launch_scale(mine, 2, 4, 1, p.a);
    FAILS(cudaErrorIllegalAddress, cudaStreamSynchronize(p.a));
    exit(0);
}

static void too_many_threads(void)
{
    pair p = pair_make();
    launch_scale(p.x, 2, N, 0, p.a);
    FAILS(cudaErrorInvalidConfiguration, cudaGetLastError());
    pair_free(&p);
}

static const case_entry cases[] = {
    {"computes", computes, NULL, NULL, NULL, false},
    {"captured", captured, NULL, NULL, NULL, false},
    {"pinned_result", pinned_result, NULL, NULL, NULL, false},
    {"unordered", unordered, "race", "kernel scale", NULL, false},
    {"overrun", overrun, "overrun", "100 bytes", NULL, false},
    {"far_away", far_away, "kernel-bounds", "kernel poke", NULL, false},
    {"diverges", diverges, "divergent-sync", "32 threads", NULL, false},
    {"unknown", unknown, "unknown-call", "unregistered", NULL, false},
    {"other_device", other_device, "wrong-device", "scale", NULL, false},
    {"others_memory", others_memory, "wrong-device", "peer access", NULL, false},
    {"host_pointer", host_pointer, "not-device", "pageable", "SIMGPU_ON_FINDING=abort", false},
    {"too_many_threads", too_many_threads, "launch", "grid (0", NULL, false},
};
const case_list kernel_cases = {"kernels", cases, sizeof(cases) / sizeof(cases[0])};
