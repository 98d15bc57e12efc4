/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core/log.h"
#include "core/mem.h"
#include "device/cuda_device.h"

struct tt_event {
    cudaEvent_t event;
    bool timing;
    _Atomic bool recorded;
    tt_event *next; /* idle */
};

static tt_event *take_idle(tt_cuda *dev, bool timing)
{
    pthread_mutex_lock(&dev->lock);
    tt_event *event = dev->idle[timing];
    if (event != NULL)
        dev->idle[timing] = event->next;
    pthread_mutex_unlock(&dev->lock);
    if (event != NULL)
        atomic_store_explicit(&event->recorded, false, memory_order_relaxed);
    return event;
}

tutti_status tt_cuda_event_create(tt_device *base, bool timing, tt_event **out)
{
    tt_cuda *dev = tt_cuda_of(base);
    tt_cuda_visit visit;
    tt_event *event = take_idle(dev, timing);
    if (event != NULL) {
        *out = event;
        return TUTTI_OK;
    }
    TT_TRY(tt_calloc(1, sizeof *event, &event));
    event->timing = timing;
    tutti_status status = tt_cuda_enter(dev, &visit);
    if (status != TUTTI_OK)
        goto free_event;
    status = TT_CUDA(
        cudaEventCreateWithFlags(&event->event, timing ? 0 : (unsigned)cudaEventDisableTiming));
    tt_cuda_leave(dev, &visit);
    if (status != TUTTI_OK)
        goto free_event;
    *out = event;
    return TUTTI_OK;

free_event:
    free(event);
    return status;
}

/* A stream may still wait for it: it is kept, and recorded anew for whoever asks for an event next;
 * a wait is for the record that stood when it was queued. Events are costly to make besides. */
void tt_cuda_event_destroy(tt_device *base, tt_event *event)
{
    tt_cuda *dev = tt_cuda_of(base);
    if (event == NULL)
        return;
    pthread_mutex_lock(&dev->lock);
    event->next = dev->idle[event->timing];
    dev->idle[event->timing] = event;
    pthread_mutex_unlock(&dev->lock);
}

void tt_cuda_events_free(tt_cuda *dev)
{
    for (int timing = 0; timing < 2; timing++)
        while (dev->idle[timing] != NULL) {
            tt_event *event = dev->idle[timing];
            dev->idle[timing] = event->next;
            cudaError_t error = cudaEventDestroy(event->event);
            if (error != cudaSuccess)
                tt_log_debug(TT_DEV, "cudaEventDestroy: %s", cudaGetErrorString(error));
            free(event);
        }
}

tutti_status tt_cuda_event_record(tt_device *base, tt_event *event, tutti_stream stream)
{
    cudaStream_t s = NULL;
    (void)base;
    TT_TRY(tt_cuda_stream(stream, &s));
    TT_TRY(TT_CUDA(cudaEventRecord(event->event, s)));
    atomic_store_explicit(&event->recorded, true, memory_order_release);
    return TUTTI_OK;
}

tutti_status tt_cuda_event_wait(tt_device *base, tt_event *event, tutti_stream stream)
{
    cudaStream_t s = NULL;
    (void)base;
    TT_TRY(tt_cuda_stream(stream, &s));
    if (!atomic_load_explicit(&event->recorded, memory_order_acquire))
        return TUTTI_OK;
    return TT_CUDA(cudaStreamWaitEvent(s, event->event, 0));
}

tutti_status tt_cuda_event_query(tt_device *base, tt_event *event, bool *passed_out)
{
    tt_cuda *dev = tt_cuda_of(base);
    tt_cuda_visit visit;
    cudaError_t error = cudaSuccess;
    if (atomic_load_explicit(&event->recorded, memory_order_acquire)) {
        TT_TRY(tt_cuda_enter(dev, &visit));
        error = cudaEventQuery(event->event);
        tt_cuda_leave(dev, &visit);
    }
    if (error != cudaErrorNotReady)
        TT_TRY(tt_cuda_async_status(dev, error, "cudaEventQuery"));
    else
        (void)cudaGetLastError();
    *passed_out = error == cudaSuccess;
    return TUTTI_OK;
}

tutti_status tt_cuda_event_elapsed(tt_device *base, tt_event *from, tt_event *to,
                                   double *seconds_out)
{
    tt_event *const both[] = {from, to};
    float milliseconds = 0;
    for (int i = 0; i < 2; i++) {
        bool passed;
        if (!both[i]->timing)
            return tt_fail(TUTTI_ERR_ARG, "the event was made without timing");
        if (!atomic_load(&both[i]->recorded))
            return tt_fail(TUTTI_ERR_STATE, "the event was never recorded");
        TT_TRY(tt_cuda_event_query(base, both[i], &passed));
        if (!passed)
            return tt_fail(TUTTI_ERR_STATE, "the event has not passed yet");
    }
    TT_TRY(TT_CUDA(cudaEventElapsedTime(&milliseconds, from->event, to->event)));
    *seconds_out = (double)milliseconds * 1e-3;
    return TUTTI_OK;
}
