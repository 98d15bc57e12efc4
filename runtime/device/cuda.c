/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA device: choice and opening, streams, and the table of the backend.
 *
 * Only the runtime API is called, so that the primary context is shared with the program, and a
 * stream is the caller's cudaStream_t as it is. Nothing on the hot path (events, copies, capture
 * status) waits or queries: waits of the host poll cudaStreamQuery instead of blocking in
 * cudaStreamSynchronize, because a collective whose peer has died never ends, and the context's
 * failure must end the wait.
 *
 * The current device is a property of the calling thread. tutti_init sets it for its caller; calls
 * that depend on it (allocation, stream and event creation, host waits) visit the device and go
 * back. Recording and waiting for events and copying do not depend on it, except on the default
 * stream, which is the current device's.
 *
 * An error of the device is sticky in CUDA: whoever sees one in a wait tells the owner, which fails
 * the context.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"
#include "device/cuda_device.h"

static const double drain_failed_s = 1;
static const tt_patience wait_patience = {20000, 20000, 500000};

tutti_status tt_cuda_status(cudaError_t error, const char *call)
{
    tutti_status status = TUTTI_ERR_DEVICE;
    if (__builtin_expect(error == cudaSuccess, 1))
        return TUTTI_OK;
    (void)cudaGetLastError(); /* else the program finds it later and takes it for its own */
    if (error == cudaErrorMemoryAllocation)
        status = TUTTI_ERR_NO_MEMORY;
    return tt_fail(status, "%.*s: %s (%s)", (int)strcspn(call, "("), call,
                   cudaGetErrorString(error), cudaGetErrorName(error));
}

tutti_status tt_cuda_async_status(tt_cuda *dev, cudaError_t error, const char *call)
{
    tutti_status status = tt_cuda_status(error, call);
    if (status != TUTTI_OK && dev->base.owner.on_error != NULL)
        dev->base.owner.on_error(dev->base.owner.arg, status, tutti_last_error());
    return status;
}

tutti_status tt_cuda_enter(const tt_cuda *dev, tt_cuda_visit *visit)
{
    visit->mode = cudaStreamCaptureModeRelaxed;
    TT_TRY(TT_CUDA(cudaGetDevice(&visit->device)));
    if (visit->device != dev->ordinal)
        TT_TRY(TT_CUDA(cudaSetDevice(dev->ordinal)));
    return TT_CUDA(cudaThreadExchangeStreamCaptureMode(&visit->mode));
}

void tt_cuda_leave(const tt_cuda *dev, const tt_cuda_visit *visit)
{
    enum cudaStreamCaptureMode mode = visit->mode;
    cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
    if (error == cudaSuccess && visit->device != dev->ordinal)
        error = cudaSetDevice(visit->device);
    if (error != cudaSuccess)
        tt_log_debug(TT_DEV, "leaving GPU %d: %s", dev->ordinal, cudaGetErrorString(error));
}

tutti_status tt_cuda_stream(tutti_stream stream, cudaStream_t *s_out)
{
    if (__builtin_expect(stream.kind == TUTTI_STREAM_CUDA, 1)) {
        *s_out = (cudaStream_t)stream.handle;
        return TUTTI_OK;
    }
    if (stream.kind == TUTTI_STREAM_INLINE && stream.handle == NULL)
        return tt_fail(TUTTI_ERR_ARG, "the inline stream {0} is the host backend's; on CUDA give a "
                                      "stream of tutti_stream_create or tutti_stream_cuda()");
    if (stream.kind == TUTTI_STREAM_HOST)
        return tt_fail(TUTTI_ERR_ARG,
                       "the stream is a host stream, but this context runs on the CUDA backend");
    return tt_fail(TUTTI_ERR_ARG, "no stream: kind %u", stream.kind);
}

/* Streams. */

static tutti_status add_stream(tt_cuda *dev, cudaStream_t s)
{
    pthread_mutex_lock(&dev->lock);
    tutti_status status =
        tt_grow(&dev->streams, &dev->cap, dev->nstreams + 1, sizeof(cudaStream_t));
    if (status == TUTTI_OK)
        dev->streams[dev->nstreams++] = s;
    pthread_mutex_unlock(&dev->lock);
    return status;
}

static bool remove_stream(tt_cuda *dev, cudaStream_t s)
{
    bool found = false;
    pthread_mutex_lock(&dev->lock);
    for (size_t i = 0; i < dev->nstreams && !found; i++) {
        found = dev->streams[i] == s;
        if (found)
            dev->streams[i] = dev->streams[--dev->nstreams];
    }
    pthread_mutex_unlock(&dev->lock);
    return found;
}

static int clamp_priority(const tt_cuda *dev, int priority)
{
    if (priority > dev->priority_least) /* numerically, least is the largest */
        return dev->priority_least;
    return priority < dev->priority_most ? dev->priority_most : priority;
}

static tutti_status make_stream(tt_cuda *dev, int priority, cudaStream_t *s_out)
{
    tt_cuda_visit visit;
    TT_TRY(tt_cuda_enter(dev, &visit));
    tutti_status status = TT_CUDA(
        cudaStreamCreateWithPriority(s_out, cudaStreamNonBlocking, clamp_priority(dev, priority)));
    tt_cuda_leave(dev, &visit);
    return status;
}

static void end_stream(tt_cuda *dev, cudaStream_t s)
{
    tt_cuda_visit visit;
    if (tt_cuda_enter(dev, &visit) != TUTTI_OK)
        return;
    cudaError_t error = cudaStreamDestroy(s); /* does not wait */
    tt_cuda_leave(dev, &visit);
    if (error != cudaSuccess)
        tt_log_debug(TT_DEV, "cudaStreamDestroy: %s", cudaGetErrorString(error));
}

static tutti_status cuda_stream_create(tt_device *base, const char *name, int priority,
                                       tutti_stream *out)
{
    tt_cuda *dev = tt_cuda_of(base);
    cudaStream_t s = NULL;
    TT_TRY(make_stream(dev, priority, &s));
    tutti_status status = add_stream(dev, s);
    if (status != TUTTI_OK)
        goto end_stream;
    tt_log_debug(TT_DEV, "stream %s: priority %d on GPU %d", name != NULL ? name : "without name",
                 clamp_priority(dev, priority), dev->ordinal);
    out->handle = s;
    out->kind = TUTTI_STREAM_CUDA;
    return TUTTI_OK;

end_stream:
    end_stream(dev, s);
    return status;
}

static cudaError_t query(const tt_cuda *dev, cudaStream_t s, tutti_status *status_out)
{
    tt_cuda_visit visit;
    cudaError_t error = cudaSuccess;
    *status_out = tt_cuda_enter(dev, &visit);
    if (*status_out != TUTTI_OK)
        return error;
    error = cudaStreamQuery(s);
    if (error == cudaErrorNotReady)
        (void)cudaGetLastError(); /* CUDA keeps even this as the last error */
    tt_cuda_leave(dev, &visit);
    return error;
}

tutti_status tt_cuda_await_stream(tt_cuda *dev, cudaStream_t s)
{
    const tt_device_owner *owner = &dev->base.owner;
    tutti_status status;
    tt_wait wait;
    tt_wait_begin(&wait, &wait_patience);
    for (;;) {
        cudaError_t error = query(dev, s, &status);
        TT_TRY(status);
        if (error != cudaErrorNotReady)
            return tt_cuda_async_status(dev, error, "cudaStreamQuery");
        if (owner->check != NULL)
            TT_TRY(owner->check(owner->arg));
        tt_wait_once(&wait, NULL, 0);
    }
}

/* Before it is destroyed. Where the owner has failed its collectives have been aborted: what else
 * is on the stream gets a moment. */
static void finish_stream(tt_cuda *dev, cudaStream_t s)
{
    int64_t deadline = tt_deadline(1);
    tutti_status status = TUTTI_OK;
    if (tt_cuda_await_stream(dev, s) == TUTTI_OK)
        return;
    while (query(dev, s, &status) == cudaErrorNotReady && status == TUTTI_OK) {
        if (tt_now_ns() > deadline) {
            tt_log_debug(TT_DEV, "stream destroyed with work on it: %s", tutti_last_error());
            return;
        }
        tt_sleep_ns(1000000);
    }
}

static void cuda_stream_destroy(tt_device *base, tutti_stream stream)
{
    tt_cuda *dev = tt_cuda_of(base);
    cudaStream_t s = NULL;
    if (stream.kind == TUTTI_STREAM_INLINE && stream.handle == NULL)
        return;
    if (tt_cuda_stream(stream, &s) != TUTTI_OK)
        tt_log_error(TT_DEV, "stream not destroyed: %s", tutti_last_error());
    else if (!remove_stream(dev, s))
        tt_log_error(TT_DEV, "stream not destroyed: it is not one of tutti_stream_create");
    else {
        finish_stream(dev, s);
        end_stream(dev, s);
    }
}

static tutti_status cuda_stream_check(tt_device *base, tutti_stream stream)
{
    cudaStream_t s = NULL;
    (void)base;
    return tt_cuda_stream(stream, &s);
}

static tutti_status cuda_capture(tt_device *base, tutti_stream stream, uint64_t *id_out)
{
    enum cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    cudaStream_t s = NULL;
    (void)base;
    TT_TRY(tt_cuda_stream(stream, &s));
    TT_TRY(TT_CUDA(cudaStreamIsCapturing(s, &capture)));
    *id_out = 0;
    if (__builtin_expect(capture == cudaStreamCaptureStatusNone, 1))
        return TUTTI_OK;
    if (capture == cudaStreamCaptureStatusInvalidated)
        return tt_fail(TUTTI_ERR_DEVICE, "the capture that the stream is in has been invalidated");
#if CUDART_VERSION >= 13000
    TT_TRY(TT_CUDA(cudaStreamGetCaptureInfo(s, &capture, &id, NULL, NULL, NULL, NULL)));
#else
    TT_TRY(TT_CUDA(cudaStreamGetCaptureInfo_v2(s, &capture, &id, NULL, NULL, NULL)));
#endif
    *id_out = id;
    return TUTTI_OK;
}

static tutti_status cuda_stream_sync(tt_device *base, tutti_stream stream)
{
    uint64_t capture = 0;
    cudaStream_t s = NULL;
    TT_TRY(tt_cuda_stream(stream, &s));
    TT_TRY(cuda_capture(base, stream, &capture));
    if (capture != 0)
        return tt_fail(TUTTI_ERR_STATE, "the stream is being captured: it cannot be waited for");
    return tt_cuda_await_stream(tt_cuda_of(base), s);
}

static tutti_status cuda_stream_call(tt_device *base, tutti_stream stream, tt_work_fn fn, void *arg,
                                     size_t bytes)
{
    cudaStream_t s = NULL;
    (void)base;
    (void)fn;
    (void)arg;
    (void)bytes;
    TT_TRY(tt_cuda_stream(stream, &s));
    return tt_fail(TUTTI_ERR_UNSUPPORTED, "CUDA streams run no host functions of tutti's: use "
                                          "cudaLaunchHostFunc");
}

/* The device. */

static tutti_status prepare(tt_cuda *dev)
{
    TT_TRY(tt_cuda_describe(dev->ordinal, dev->pci, dev->id));
    TT_TRY(TT_CUDA(cudaSetDevice(dev->ordinal))); /* the first call that opens a context */
    TT_TRY(TT_CUDA(cudaDeviceGetStreamPriorityRange(&dev->priority_least, &dev->priority_most)));
    return make_stream(dev, 0, &dev->service);
}

static void cuda_close(tt_device *base)
{
    tt_cuda *dev = base == NULL ? NULL : tt_cuda_of(base);
    if (dev == NULL)
        return;
    for (size_t i = 0; i < dev->nstreams; i++) {
        finish_stream(dev, dev->streams[i]);
        end_stream(dev, dev->streams[i]);
    }
    if (dev->service != NULL)
        end_stream(dev, dev->service);
    tt_cuda_events_free(dev);
    free(dev->streams);
    pthread_mutex_destroy(&dev->lock);
    free(dev);
}

static tutti_status cuda_open(const tt_device_owner *owner, int local_rank, int local_size,
                              tt_device **dev_out)
{
    tt_cuda *dev;
    TT_TRY(tt_calloc(1, sizeof *dev, &dev));
    dev->base.ops = &tt_device_cuda;
    dev->base.owner = *owner;
    pthread_mutex_init(&dev->lock, NULL);
    tutti_status status = tt_cuda_choose(local_rank, local_size, &dev->ordinal);
    if (status == TUTTI_OK)
        status = prepare(dev);
    if (status != TUTTI_OK) {
        cuda_close(&dev->base);
        return status;
    }
    tt_log_info(TT_DEV, "local rank %d of %d: GPU %d, PCI %s, %s", local_rank, local_size,
                dev->ordinal, dev->pci, dev->id);
    *dev_out = &dev->base;
    return TUTTI_OK;
}

static int cuda_ordinal(const tt_device *dev)
{
    return ((const tt_cuda *)dev)->ordinal;
}

static void cuda_identity(const tt_device *dev, char id_out[TT_DEVICE_ID_MAX])
{
    memcpy(id_out, ((const tt_cuda *)dev)->id, TT_DEVICE_ID_MAX);
}

static void cuda_pci(const tt_device *dev, char pci_out[TT_DEVICE_ID_MAX])
{
    snprintf(pci_out, TT_DEVICE_ID_MAX, "%s", ((const tt_cuda *)dev)->pci);
}

static tutti_stream cuda_service(tt_device *dev)
{
    return (tutti_stream){tt_cuda_of(dev)->service, TUTTI_STREAM_CUDA};
}

/* Of a failed context, which await_stream does not wait for: its collectives have been aborted, and
 * what stood behind them ends soon. */
static bool await_end(tt_cuda *dev, cudaStream_t s, int64_t deadline)
{
    tutti_status status;
    tt_wait wait;
    tt_wait_begin(&wait, &wait_patience);
    for (;;) {
        cudaError_t error = query(dev, s, &status);
        if (status != TUTTI_OK || error != cudaErrorNotReady)
            return status == TUTTI_OK && error == cudaSuccess;
        if (tt_now_ns() > deadline)
            return false;
        tt_wait_once(&wait, NULL, 0);
    }
}

static bool cuda_drain(tt_device *base)
{
    tt_cuda *dev = tt_cuda_of(base);
    int64_t deadline = tt_deadline(drain_failed_s);
    bool idle = true;
    for (size_t i = 0;; i++) {
        cudaStream_t s = NULL;
        pthread_mutex_lock(&dev->lock);
        bool more = i < dev->nstreams;
        if (more)
            s = dev->streams[i];
        pthread_mutex_unlock(&dev->lock);
        if (!more)
            return idle;
        if (tt_cuda_await_stream(dev, s) != TUTTI_OK)
            idle = await_end(dev, s, deadline) && idle;
    }
}

const tt_device_ops tt_device_cuda = {
    .size = sizeof(tt_device_ops),
    .name = "cuda",
    .kind = TUTTI_BACKEND_CUDA,
    .probe = tt_cuda_probe,
    .open = cuda_open,
    .close = cuda_close,
    .ordinal = cuda_ordinal,
    .identity = cuda_identity,
    .pci = cuda_pci,
    .list = tt_cuda_list,
    .stream_create = cuda_stream_create,
    .stream_destroy = cuda_stream_destroy,
    .stream_check = cuda_stream_check,
    .stream_sync = cuda_stream_sync,
    .stream_call = cuda_stream_call,
    .event_create = tt_cuda_event_create,
    .event_destroy = tt_cuda_event_destroy,
    .event_record = tt_cuda_event_record,
    .event_wait = tt_cuda_event_wait,
    .event_query = tt_cuda_event_query,
    .event_elapsed = tt_cuda_event_elapsed,
    .copy = tt_cuda_copy,
    .zero = tt_cuda_zero,
    .fill_nan = tt_cuda_fill_nan,
    .usable = tt_cuda_usable,
    .mem_alloc = tt_cuda_mem_alloc,
    .mem_free = tt_cuda_mem_free,
    .host_alloc = tt_cuda_host_alloc,
    .host_free = tt_cuda_host_free,
    .capture = cuda_capture,
    .service = cuda_service,
    .drain = cuda_drain,
};
