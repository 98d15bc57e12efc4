/* SPDX-License-Identifier: Apache-2.0 */
/* Work without an order, and waits without an end. */
#include "cases.h"

#include <string.h>

static void wait_left_out(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaMemcpyAsync(p.y, p.x, BYTES, cudaMemcpyDeviceToDevice, p.b));
    pair_free(&p);
}

static void reused_early(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaStreamWaitEvent(p.b, p.event, 0));
    OK(cudaMemcpyAsync(p.y, p.x, BYTES, cudaMemcpyDeviceToDevice, p.b));
    OK(cudaMemsetAsync(p.x, 1, BYTES, p.a)); /* b may still read x */
    pair_free(&p);
}

static void wrong_producer(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaEventRecord(p.event, p.b)); /* a was meant */
    OK(cudaStreamWaitEvent(p.b, p.event, 0));
    OK(cudaMemcpyAsync(p.y, p.x, BYTES, cudaMemcpyDeviceToDevice, p.b));
    pair_free(&p);
}

static void recorded_too_early(void)
{
    pair p = pair_make();
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaStreamWaitEvent(p.b, p.event, 0));
    OK(cudaMemcpyAsync(p.y, p.x, BYTES, cudaMemcpyDeviceToDevice, p.b));
    pair_free(&p);
}

/* Only one byte of the two ranges is the same. */
static void one_byte(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES / 2 + 1, p.a));
    OK(cudaMemsetAsync((char *)p.x + BYTES / 2, 0, BYTES / 2, p.b));
    pair_free(&p);
}

static void sync_of_other_stream(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaStreamSynchronize(p.b));
    OK(cudaMemsetAsync(p.x, 1, BYTES, p.b));
    pair_free(&p);
}

static void in_graph(void)
{
    pair p = pair_make();
    cudaEvent_t back;
    cudaGraph_t g;
    cudaGraphExec_t exec;
    OK(cudaEventCreateWithFlags(&back, cudaEventDisableTiming));
    OK(cudaStreamBeginCapture(p.a, cudaStreamCaptureModeThreadLocal));
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaStreamWaitEvent(p.b, p.event, 0));
    OK(cudaMemsetAsync(p.x, 5, BYTES, p.a));
    OK(cudaMemcpyAsync(p.y, p.x, BYTES, cudaMemcpyDeviceToDevice, p.b));
    OK(cudaEventRecord(back, p.b));
    OK(cudaStreamWaitEvent(p.a, back, 0));
    OK(cudaStreamEndCapture(p.a, &g));
    OK(cudaGraphInstantiate(&exec, g, 0));
    OK(cudaGraphDestroy(g));
    OK(cudaGraphLaunch(exec, p.a));
    OK(cudaStreamSynchronize(p.a));
    OK(cudaGraphExecDestroy(exec));
    OK(cudaEventDestroy(back));
    pair_free(&p);
}

static void graph_against_stream(void)
{
    pair p = pair_make();
    cudaGraph_t g;
    cudaGraphExec_t exec;
    OK(cudaStreamBeginCapture(p.a, cudaStreamCaptureModeThreadLocal));
    OK(cudaMemsetAsync(p.x, 5, BYTES, p.a));
    OK(cudaStreamEndCapture(p.a, &g));
    OK(cudaGraphInstantiate(&exec, g, 0));
    OK(cudaGraphDestroy(g));
    OK(cudaGraphLaunch(exec, p.a));
    OK(cudaMemsetAsync(p.x, 6, BYTES, p.b));
    OK(cudaDeviceSynchronize());
    OK(cudaGraphExecDestroy(exec));
    pair_free(&p);
}

static volatile float sink;

static void host_reads_early(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaMemcpyAsync(p.host, p.x, BYTES, cudaMemcpyDeviceToHost, p.a));
    sink = p.host[0];
    pair_free(&p);
}

static void host_writes_early(void)
{
    pair p = pair_make();
    memset(p.host, 0, BYTES);
    OK(cudaMemcpyAsync(p.x, p.host, BYTES, cudaMemcpyHostToDevice, p.a));
    sink = p.host[0]; /* both read: allowed */
    p.host[0] = 1;
    pair_free(&p);
}

static void skipped_wait(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaStreamWaitEvent(p.b, p.event, 0)); /* SIMGPU_SKIP takes it out */
    OK(cudaMemcpyAsync(p.y, p.x, BYTES, cudaMemcpyDeviceToDevice, p.b));
    pair_free(&p);
}

static void skipped_sync(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaMemcpyAsync(p.host, p.x, BYTES, cudaMemcpyDeviceToHost, p.a));
    OK(cudaStreamSynchronize(p.a)); /* SIMGPU_SKIP takes it out */
    sink = p.host[1];
    pair_free(&p);
}

static const case_entry cases[] = {
    {"wait_left_out", wait_left_out, "race", "cudaMemsetAsync", NULL, false},
    {"reused_early", reused_early, "race", "(from t_simgpu_cases: ", NULL, false},
    {"wrong_producer", wrong_producer, "race", "cudaMemsetAsync", NULL, false},
    {"recorded_too_early", recorded_too_early, "race", "cudaMemsetAsync", NULL, false},
    {"one_byte", one_byte, "race", "cudaMalloc #1", NULL, false},
    {"sync_of_other_stream", sync_of_other_stream, "race", NULL, NULL, false},
    {"in_graph", in_graph, "race", "launch 1 of a graph", NULL, false},
    {"graph_against_stream", graph_against_stream, "race", "launch 1 of a graph", NULL, false},
    {"host_reads_early", host_reads_early, "host-race", "cudaMemcpyAsync", NULL, false},
    {"host_writes_early", host_writes_early, "host-race", "cudaMemcpyAsync", NULL, false},
    {"skipped_wait", skipped_wait, "race", NULL, "SIMGPU_SKIP=cudaStreamWaitEvent:1", false},
    {"skipped_sync", skipped_sync, "host-race", NULL, "SIMGPU_SKIP=cudaStreamSynchronize:1", false},
};
const case_list order_cases = {"order", cases, sizeof(cases) / sizeof(cases[0])};
