/* SPDX-License-Identifier: Apache-2.0 */
/* Broken rules of stream capture. Each must be an error, a finding, and end the capture. */
#include "cases.h"

static void end_invalid(pair *p)
{
    cudaGraph_t g;
    FAILS(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(p->a, &g));
    CHECK(g == NULL);
    pair_free(p);
}

static pair begin(void)
{
    pair p = pair_make();
    OK(cudaStreamBeginCapture(p.a, cudaStreamCaptureModeGlobal));
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    return p;
}

static void sync_inside(void)
{
    pair p = begin();
    FAILS(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(p.a));
    end_invalid(&p);
}

static void malloc_inside(void)
{
    void *z;
    pair p = begin();
    FAILS(cudaErrorStreamCaptureUnsupported, cudaMalloc(&z, 16));
    end_invalid(&p);
}

/* What a watchdog thread does to a global capture. */
static void query_inside(void)
{
    pair p = begin();
    FAILS(cudaErrorStreamCaptureUnsupported, cudaEventQuery(p.event));
    end_invalid(&p);
}

static void isolation(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.y, 0, BYTES, p.b));
    OK(cudaEventRecord(p.event, p.b));
    OK(cudaStreamBeginCapture(p.a, cudaStreamCaptureModeGlobal));
    FAILS(cudaErrorStreamCaptureIsolation, cudaStreamWaitEvent(p.a, p.event, 0));
    end_invalid(&p);
}

static void unjoined(void)
{
    cudaGraph_t g;
    pair p = begin();
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaStreamWaitEvent(p.b, p.event, 0));
    OK(cudaMemsetAsync(p.y, 0, BYTES, p.b));
    FAILS(cudaErrorStreamCaptureUnjoined, cudaStreamEndCapture(p.a, &g));
    pair_free(&p);
}

static void legacy_capture(void)
{
    FAILS(cudaErrorStreamCaptureUnsupported,
          cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal));
}

static void event_of_capture(void)
{
    cudaGraph_t g;
    pair p = begin();
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaStreamEndCapture(p.a, &g));
    FAILS(cudaErrorCapturedEvent, cudaEventSynchronize(p.event));
    OK(cudaGraphDestroy(g));
    pair_free(&p);
}

static void wrong_origin(void)
{
    cudaGraph_t g;
    pair p = begin();
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaStreamWaitEvent(p.b, p.event, 0));
    FAILS(cudaErrorStreamCaptureUnmatched, cudaStreamEndCapture(p.b, &g));
    pair_free(&p);
}

static const case_entry cases[] = {
    {"sync_inside", sync_inside, "capture", "cudaStreamSynchronize", NULL, false},
    {"malloc_inside", malloc_inside, "capture", "cudaMalloc", NULL, false},
    {"query_inside", query_inside, "capture", "cudaEventQuery", NULL, false},
    {"isolation", isolation, "capture", "is not", NULL, false},
    {"unjoined", unjoined, "capture", "has not come back", NULL, false},
    {"legacy_capture", legacy_capture, "capture", "legacy", NULL, false},
    {"event_of_capture", event_of_capture, "capture", "cudaEventSynchronize", NULL, false},
    {"wrong_origin", wrong_origin, "capture", "is ended on", NULL, false},
};
const case_list capture_cases = {"capture", cases, sizeof(cases) / sizeof(cases[0])};
