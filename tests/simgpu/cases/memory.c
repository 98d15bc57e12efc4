/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong uses of memory. */
#include "cases.h"

#include <string.h>

static volatile float sink;

static void host_reads(void)
{
    pair p = pair_make();
    sink = p.x[3];
}

static void host_writes(void)
{
    pair p = pair_make();
    p.x[3] = 1;
}

static void use_after_free(void)
{
    pair p = pair_make();
    float *z;
    OK(cudaMalloc((void **)&z, BYTES));
    OK(cudaFree(z));
    (void)cudaMemsetAsync(z, 0, BYTES, p.a);
    (void)cudaStreamSynchronize(p.a);
}

static void host_after_free(void)
{
    float *z;
    OK(cudaMallocHost((void **)&z, BYTES));
    z[0] = 1;
    OK(cudaFreeHost(z));
    z[0] = 2;
}

static void free_pending(void)
{
    pair p = pair_make();
    float *z;
    OK(cudaMalloc((void **)&z, BYTES));
    OK(cudaMemsetAsync(z, 0, BYTES, p.a));
    (void)cudaFree(z);
    exit(0);
}

static void free_async_race(void)
{
    pair p = pair_make();
    float *z;
    OK(cudaMallocAsync((void **)&z, BYTES, p.a));
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaStreamWaitEvent(p.b, p.event, 0));
    OK(cudaMemsetAsync(z, 0, BYTES, p.b));
    OK(cudaFreeAsync(z, p.b));
    OK(cudaStreamSynchronize(p.b));
    (void)cudaMemsetAsync(z, 0, BYTES, p.a); /* long freed */
    (void)cudaStreamSynchronize(p.a);
}

static void double_free(void)
{
    float *z;
    OK(cudaMalloc((void **)&z, BYTES));
    OK(cudaFree(z));
    FAILS(cudaErrorInvalidValue, cudaFree(z));
}

static void bad_free(void)
{
    float *z;
    OK(cudaMalloc((void **)&z, BYTES));
    FAILS(cudaErrorInvalidValue, cudaFree(z + 1));
    OK(cudaFree(z));
}

static void bounds(void)
{
    float *z;
    OK(cudaMalloc((void **)&z, BYTES));
    (void)cudaMemset(z, 0, BYTES + 4);
    (void)cudaDeviceSynchronize();
    (void)cudaFree(z);
}

static void between(void)
{
    float *z;
    OK(cudaMalloc((void **)&z, BYTES));
    (void)cudaMemset((char *)z + 4096, 0, 4);
    (void)cudaDeviceSynchronize();
    (void)cudaFree(z);
}

static void copy_kind(void)
{
    pair p = pair_make();
    FAILS(cudaErrorInvalidValue, cudaMemcpyAsync(p.x, p.host, BYTES, cudaMemcpyDeviceToHost, p.a));
    pair_free(&p);
}

static void leak_device(void)
{
    float *z;
    OK(cudaMalloc((void **)&z, BYTES));
}

static void leak_pinned(void)
{
    float *z;
    OK(cudaMallocHost((void **)&z, BYTES));
}

static void leak_registered(void)
{
    static float mine[N];
    OK(cudaHostRegister(mine, sizeof(mine), 0));
    FAILS(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(mine, sizeof(mine), 0));
}

static void too_much(void)
{
    void *z;
    FAILS(cudaErrorMemoryAllocation, cudaMalloc(&z, (size_t)81 << 30));
}

static const case_entry cases[] = {
    {"host_reads", host_reads, "host-access", "reads", NULL, false},
    {"host_writes", host_writes, "host-access", "writes", NULL, false},
    {"use_after_free", use_after_free, "use-after-free", "cudaMemsetAsync",
     "SIMGPU_ON_FINDING=abort", false},
    {"host_after_free", host_after_free, "host-race", "freed", NULL, false},
    {"free_pending", free_pending, "free-pending", "cudaMemsetAsync", "SIMGPU_ON_FINDING=abort",
     false},
    {"free_async_race", free_async_race, "use-after-free", "cudaFreeAsync",
     "SIMGPU_ON_FINDING=abort", false},
    {"double_free", double_free, "double-free", "cudaMalloc #1", NULL, false},
    {"bad_free", bad_free, "bad-free", NULL, NULL, false},
    {"bounds", bounds, "bounds", "4100 bytes", NULL, false},
    {"between", between, "bounds", "between", NULL, false},
    {"copy_kind", copy_kind, "copy-kind", NULL, NULL, false},
    {"leak_device", leak_device, "leak", "4096 bytes of device", NULL, false},
    {"leak_pinned", leak_pinned, "leak", "pinned", NULL, false},
    {"leak_registered", leak_registered, "leak", "registered", NULL, false},
    {"too_much", too_much, NULL, NULL, NULL, false},
};
const case_list memory_cases = {"memory", cases, sizeof(cases) / sizeof(cases[0])};
