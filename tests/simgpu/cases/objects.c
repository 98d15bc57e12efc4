/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong uses of streams, events and devices. */
#include "cases.h"

static void dead_event(void)
{
    pair p = pair_make();
    cudaEvent_t e;
    OK(cudaEventCreate(&e));
    OK(cudaEventDestroy(e));
    FAILS(cudaErrorInvalidResourceHandle, cudaEventRecord(e, p.a));
    pair_free(&p);
}

/* The copy keeps the wait from passing until somebody waits: only then is the event in use. */
static void event_in_use(void)
{
    pair p = pair_make();
    cudaEvent_t e;
    OK(cudaEventCreate(&e));
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaEventRecord(e, p.a));
    OK(cudaStreamWaitEvent(p.b, e, 0));
    OK(cudaEventDestroy(e));
    pair_free(&p);
}

static void dead_stream(void)
{
    float *x;
    cudaStream_t s;
    OK(cudaMalloc((void **)&x, BYTES));
    OK(cudaStreamCreate(&s));
    OK(cudaStreamDestroy(s));
    FAILS(cudaErrorInvalidResourceHandle, cudaMemsetAsync(x, 0, BYTES, s));
    OK(cudaFree(x));
}

static void wrong_device(void)
{
    pair p = pair_make();
    cudaEvent_t e;
    OK(cudaSetDevice(1));
    OK(cudaEventCreate(&e));
    FAILS(cudaErrorInvalidResourceHandle, cudaEventRecord(e, p.a));
    OK(cudaEventDestroy(e));
    OK(cudaSetDevice(0));
    pair_free(&p);
}

static void stream_pending(void)
{
    pair p = pair_make();
    cudaStream_t s;
    OK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    OK(cudaMemsetAsync(p.x, 0, BYTES, s));
    OK(cudaStreamDestroy(s));
    pair_free(&p);
}

static void pending_at_exit(void)
{
    float *x;
    OK(cudaMalloc((void **)&x, BYTES));
    OK(cudaFree(x));
    OK(cudaLaunchHostFunc(NULL, (cudaHostFn_t)free, NULL));
}

static void leak_stream(void)
{
    cudaStream_t s;
    OK(cudaStreamCreate(&s));
}

static void leak_event(void)
{
    cudaEvent_t e;
    OK(cudaEventCreate(&e));
}

static void call_cuda(void *arg)
{
    FAILS(cudaErrorNotPermitted, cudaStreamSynchronize((cudaStream_t)arg));
}

static void host_function_calls(void)
{
    pair p = pair_make();
    OK(cudaLaunchHostFunc(p.a, call_cuda, p.b));
    pair_free(&p);
}

static void unknown_call(void)
{
    void *managed;
    (void)cudaMallocManaged(&managed, 16, cudaMemAttachGlobal);
}

static const case_entry cases[] = {
    {"dead_event", dead_event, "dead-event", "cudaEventRecord", NULL, false},
    {"dead_stream", dead_stream, "dead-stream", "cudaMemsetAsync", NULL, false},
    {"wrong_device", wrong_device, "wrong-device", "event", NULL, false},
    {"stream_pending", stream_pending, "stream-pending", NULL, NULL, false},
    {"leak_stream", leak_stream, "leak", "stream", NULL, false},
    {"leak_event", leak_event, "leak", "event", NULL, false},
    {"host_function_calls", host_function_calls, "host-function", "cudaStreamSynchronize", NULL,
     false},
    {"unknown_call", unknown_call, "unknown-call", "cudaMallocManaged", NULL, false},
    {"event_in_use", event_in_use, "event-in-use", NULL, NULL, true},
    {"pending_at_exit", pending_at_exit, "pending-at-exit", "legacy", NULL, true},
};
const case_list object_cases = {"objects", cases, sizeof(cases) / sizeof(cases[0])};
