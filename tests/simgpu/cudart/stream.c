/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, host functions, and stream capture. */
#include "api.h"

#include <stdio.h>
#include <stdlib.h>

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned int flags, int priority)
{
    ENTER("flags=%u priority=%d", flags, priority);
    if (out == NULL || (flags & ~cudaStreamNonBlocking) != 0) {
        return rt_done(cudaErrorInvalidValue);
    }
    sg_stream *stream;
    priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    int error = sg_stream_create(sg_current_device(), flags, priority, &stream);
    if (error == SG_OK) {
        *out = (cudaStream_t)stream;
    }
    return rt_done((cudaError_t)error);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned int flags)
{
    return cudaStreamCreateWithPriority(out, flags, 0);
}

cudaError_t cudaStreamCreate(cudaStream_t *out)
{
    return cudaStreamCreateWithPriority(out, cudaStreamDefault, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    cudaError_t error;
    ENTER_ALWAYS("%s", sg_name_stream(stream));
    if ((uintptr_t)stream <= 2) {
        return rt_done(cudaErrorInvalidResourceHandle);
    }
    sg_stream *s = rt_stream(stream, __func__, &error);
    return s != NULL ? rt_done((cudaError_t)sg_stream_destroy(s)) : error;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    cudaError_t error;
    ENTER_HOT("%s", sg_name_stream(stream));
    sg_stream *s = rt_stream(stream, __func__, &error);
    if (s == NULL) {
        return error;
    }
    NOT_WHILE_CAPTURING(s);
    return rt_done((cudaError_t)sg_wait_stream(s, __func__));
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    cudaError_t error;
    ENTER_HOT("%s", sg_name_stream(stream));
    sg_stream *s = rt_stream(stream, __func__, &error);
    if (s == NULL) {
        return error;
    }
    NOT_WHILE_CAPTURING(s);
    return rt_done((cudaError_t)sg_query_stream(s, __func__));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    cudaError_t error;
    ENTER("%s", sg_name_stream(stream));
    sg_stream *s = rt_stream(stream, __func__, &error);
    if (s != NULL) {
        *priority = sg_stream_priority(s);
    }
    return error;
}

cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned int *flags)
{
    cudaError_t error;
    ENTER("%s", sg_name_stream(stream));
    sg_stream *s = rt_stream(stream, __func__, &error);
    if (s != NULL) {
        *flags = sg_stream_flags(s);
    }
    return error;
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id)
{
    cudaError_t error;
    ENTER("%s", sg_name_stream(stream));
    sg_stream *s = rt_stream(stream, __func__, &error);
    if (s != NULL) {
        *id = sg_stream_id(s);
    }
    return error;
}

cudaError_t cudaStreamGetDevice(cudaStream_t stream, int *device)
{
    cudaError_t error;
    ENTER("%s", sg_name_stream(stream));
    sg_stream *s = rt_stream(stream, __func__, &error);
    if (s != NULL) {
        *device = sg_device_visible(sg_stream_device(s));
    }
    return error;
}

/* ---- host functions ---- */

typedef struct host_call {
    int refs;
    cudaHostFn_t fn;
    void *user;
} host_call;

static sg_step call_host(void *arg, sg_op *op)
{
    host_call *call = arg;
    (void)op;
    sg_host_function(true);
    call->fn(call->user);
    sg_host_function(false);
    return SG_DONE;
}

static void drop_host(void *arg)
{
    host_call *call = arg;
    if (--call->refs == 0) {
        free(call);
    }
}

static void *keep_host(void *arg)
{
    host_call *call = arg;
    call->refs++;
    return call;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *user)
{
    cudaError_t error;
    ENTER_HOT("%s", sg_name_stream(stream));
    sg_stream *s = rt_stream(stream, __func__, &error);
    if (s == NULL || fn == NULL) {
        return s == NULL ? error : rt_done(cudaErrorInvalidValue);
    }
    host_call *call = calloc(1, sizeof(*call));
    if (call == NULL) {
        return rt_done(cudaErrorMemoryAllocation);
    }
    *call = (host_call){1, fn, user};
    sg_op_desc desc = {.label = "cudaLaunchHostFunc",
                       .site = CALLER,
                       .run = call_host,
                       .arg = call,
                       .release = drop_host,
                       .again = keep_host,
                       .flags = SG_OP_UNLOCKED};
    error = (cudaError_t)sg_enqueue(s, &desc);
    if (error != cudaSuccess) {
        free(call);
    }
    return rt_done(error);
}

/* ---- capture ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    cudaError_t error;
    ENTER("%s mode=%d", sg_name_stream(stream), (int)mode);
    sg_stream *s = rt_stream(stream, __func__, &error);
    return s != NULL ? rt_done((cudaError_t)sg_capture_begin(s, (int)mode)) : error;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    cudaError_t error;
    ENTER("%s", sg_name_stream(stream));
    sg_stream *s = rt_stream(stream, __func__, &error);
    if (s == NULL || graph == NULL) {
        return s == NULL ? error : rt_done(cudaErrorInvalidValue);
    }
    sg_graph *captured;
    error = (cudaError_t)sg_capture_end(s, &captured);
    *graph = (cudaGraph_t)captured;
    return rt_done(error);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    cudaError_t error;
    ENTER_HOT("%s", sg_name_stream(stream));
    sg_stream *s = rt_stream(stream, __func__, &error);
    if (s != NULL) {
        int state;
        sg_capture_id(s, &state);
        *status = (enum cudaStreamCaptureStatus)state;
    }
    return error;
}

static cudaError_t capture_info(cudaStream_t stream, const char *call,
                                enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                cudaGraph_t *graph)
{
    cudaError_t error;
    sg_stream *s = rt_stream(stream, call, &error);
    if (s == NULL || status == NULL) {
        return s == NULL ? error : rt_done(cudaErrorInvalidValue);
    }
    int state;
    uint64_t capture = sg_capture_id(s, &state);
    *status = (enum cudaStreamCaptureStatus)state;
    if (id != NULL && state != 0) {
        *id = capture;
    }
    if (graph != NULL) {
        *graph = (cudaGraph_t)sg_capture_graph(s);
    }
    return cudaSuccess;
}

/* The nodes themselves have no handles here: who asks for dependencies is refused. */
#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count)
{
    ENTER_HOT("%s", sg_name_stream(stream));
    if (nodes != NULL || edges != NULL || count != NULL) {
        sg_refuse("cudaStreamGetCaptureInfo with dependencies");
    }
    return capture_info(stream, __func__, status, id, graph);
}
#else
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, size_t *count)
{
    ENTER_HOT("%s", sg_name_stream(stream));
    if (nodes != NULL || count != NULL) {
        sg_refuse("cudaStreamGetCaptureInfo with dependencies");
    }
    return capture_info(stream, __func__, status, id, graph);
}
#endif

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    ENTER("%d", mode != NULL ? (int)*mode : -1);
    if (mode == NULL) {
        return rt_done(cudaErrorInvalidValue);
    }
    *mode = (enum cudaStreamCaptureMode)sg_capture_exchange_mode((int)*mode);
    return cudaSuccess;
}
