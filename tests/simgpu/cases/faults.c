/* SPDX-License-Identifier: Apache-2.0 */
/* Faults on demand: what SIMGPU_FAULT promises. */
#include "cases.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

static void nth_fails(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    FAILS(cudaErrorECCUncorrectable, cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    pair_free(&p);
}

/* The first call with device 1 current, whatever others did. */
static void nth_on_device(void)
{
    cudaStream_t s, t;
    OK(cudaStreamCreate(&s));
    OK(cudaSetDevice(1));
    FAILS(cudaErrorUnknown, cudaStreamCreate(&t));
    OK(cudaStreamCreate(&t));
    OK(cudaStreamDestroy(s));
    OK(cudaStreamDestroy(t));
}

static void lost(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    FAILS(cudaErrorUnknown, cudaStreamSynchronize(p.a));
    FAILS(cudaErrorUnknown, cudaMemsetAsync(p.x, 0, BYTES, p.a));
    CHECK(cudaGetLastError() == cudaErrorUnknown && cudaGetLastError() == cudaErrorUnknown);
    OK(cudaSetDevice(1)); /* the other one goes on */
    cudaStream_t s;
    OK(cudaStreamCreate(&s));
    OK(cudaStreamDestroy(s));
    _exit(0);
}

static void on_alarm(int signal)
{
    (void)signal;
    _exit(0);
}

static void hangs(void)
{
    signal(SIGALRM, on_alarm);
    ualarm(200000, 0);
    (void)cudaDeviceSynchronize();
    exit(3);
}

/* For measuring a caller: nothing is done, nothing is found, everything succeeds. */
static void does_nothing(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaMemcpyAsync(p.y, p.x, BYTES, cudaMemcpyDeviceToDevice, p.b));
    OK(cudaEventQuery(p.event));
    OK(cudaStreamSynchronize(p.a));
    pair_free(&p);
}

static const case_entry cases[] = {
    {"nth_fails", nth_fails, NULL, NULL, "SIMGPU_FAULT=cudaMemsetAsync:2=error,214", false},
    {"nth_on_device", nth_on_device, NULL, NULL,
     "SIMGPU_FAULT=cudaStreamCreateWithPriority:1@1=error", false},
    {"lost", lost, NULL, NULL, "SIMGPU_FAULT=cudaStreamSynchronize:1=lost", false},
    {"does_nothing", does_nothing, NULL, NULL, "SIMGPU_NOOP=1", false},
    {"hangs", hangs, NULL, NULL, "SIMGPU_FAULT=cudaDeviceSynchronize:1=hang", false},
};
const case_list fault_cases = {"faults", cases, sizeof(cases) / sizeof(cases[0])};
