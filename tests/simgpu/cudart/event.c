/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Events. The record of a destroyed event stays until the process ends, so that its handle is known
 * to be dead. Stricter than CUDA: an event may not be destroyed while a stream still waits for it.
 */
#include "api.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct event {
    unsigned flags;
    int device;
    bool alive;
    unsigned long number;
    sg_mark *mark;
    struct event *next;
} event;

enum { BUCKETS = 1024 };
static event *events[BUCKETS]; /* by address; the dead among the living */
static unsigned long n_events;

static event **bucket(const void *handle)
{
    return &events[((uintptr_t)handle >> 4) * 0x9e3779b97f4a7c15u >> 54];
}

static void events_left(void)
{
    for (size_t b = 0; b < BUCKETS; b++) {
        for (const event *e = events[b]; e != NULL; e = e->next) {
            if (e->alive) {
                sg_finding("leak", "event %lu (dev%d) is never destroyed", e->number, e->device);
            }
        }
    }
}

static event *known(cudaEvent_t handle)
{
    event *e = *bucket((void *)handle);
    while (e != NULL && e != (void *)handle) {
        e = e->next;
    }
    return e;
}

/* For the log: the same in every run. */
static const char *event_name(cudaEvent_t handle)
{
    static __thread char names[2][32];
    static __thread int turn;
    if (!sg_logging()) {
        return "";
    }
    sg_lock();
    const event *e = known(handle);
    turn = 1 - turn;
    snprintf(names[turn], sizeof(names[turn]), "event %lu", e != NULL ? e->number : 0);
    sg_unlock();
    return names[turn];
}

static event *find(cudaEvent_t handle, const char *call, cudaError_t *error)
{
    sg_lock();
    event *e = known(handle);
    if (e == NULL || !e->alive) {
        if (e != NULL) {
            sg_finding("dead-event", "%s is given event %lu, which was destroyed", call, e->number);
        } else {
            sg_finding("dead-event", "%s is given a handle that never was an event", call);
        }
        *error = rt_done(cudaErrorInvalidResourceHandle);
        e = NULL;
    }
    sg_unlock();
    return e;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned int flags)
{
    ENTER("flags=%u", flags);
    if (out == NULL || (flags & ~(cudaEventBlockingSync | cudaEventDisableTiming)) != 0) {
        if (out != NULL && (flags & cudaEventInterprocess) != 0) {
            sg_refuse("cudaEventCreateWithFlags(cudaEventInterprocess)");
        }
        return rt_done(cudaErrorInvalidValue);
    }
    event *e = calloc(1, sizeof(*e));
    if (e == NULL) {
        return rt_done(cudaErrorMemoryAllocation);
    }
    e->flags = flags;
    e->device = sg_current_device();
    e->alive = true;
    sg_lock();
    if (n_events == 0) {
        sg_at_exit(events_left);
    }
    e->number = ++n_events;
    e->next = *bucket(e);
    *bucket(e) = e;
    sg_unlock();
    *out = (cudaEvent_t)e;
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *out)
{
    return cudaEventCreateWithFlags(out, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t handle)
{
    cudaError_t error;
    ENTER_ALWAYS("%s", event_name(handle));
    event *e = find(handle, __func__, &error);
    if (e == NULL) {
        return error;
    }
    sg_lock();
    if (e->mark != NULL && !sg_mark_done(e->mark) && sg_mark_awaited(e->mark)) {
        sg_finding("event-in-use", "event %lu is destroyed while a stream still waits for it",
                   e->number);
    }
    e->alive = false;
    sg_mark_release(e->mark);
    e->mark = NULL;
    sg_unlock();
    return cudaSuccess;
}

static void record_at_launch(void *arg, sg_stream *stream)
{
    event *e = arg;
    sg_mark_release(e->mark);
    e->mark = sg_mark_record(stream, "cudaEventRecord in a graph");
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t handle, cudaStream_t stream, unsigned int flags)
{
    cudaError_t error = cudaSuccess;
    char label[64];
    ENTER_HOT("%s %s flags=%u", event_name(handle), sg_name_stream(stream), flags);
    event *e = find(handle, __func__, &error);
    sg_stream *s = e != NULL ? rt_stream(stream, __func__, &error) : NULL;
    if (s == NULL) {
        return error;
    }
    if (sg_stream_device(s) != e->device) {
        sg_finding("wrong-device", "event %lu of device %d is recorded on %s", e->number, e->device,
                   sg_stream_name(s));
        return rt_done(cudaErrorInvalidResourceHandle);
    }
    if ((flags & cudaEventRecordExternal) != 0) {
        return rt_done((cudaError_t)sg_capture_call(s, record_at_launch, e, "cudaEventRecord"));
    }
    snprintf(label, sizeof(label), "cudaEventRecord of event %lu", e->number);
    sg_lock();
    sg_mark *mark = sg_mark_record(s, label);
    sg_mark_release(e->mark);
    e->mark = mark;
    sg_unlock();
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t stream)
{
    return cudaEventRecordWithFlags(handle, stream, cudaEventRecordDefault);
}

/* The event's mark, with a reference; NULL: it was never recorded, which counts as passed. */
static sg_mark *take_mark(event *e)
{
    sg_lock();
    sg_mark *mark = e->mark != NULL ? sg_mark_retain(e->mark) : NULL;
    sg_unlock();
    return mark;
}

static void wait_at_launch(void *arg, sg_stream *stream)
{
    event *e = arg;
    if (e->mark != NULL) {
        sg_stream_wait_mark(stream, e->mark, "cudaStreamWaitEvent in a graph");
    }
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t handle, unsigned int flags)
{
    cudaError_t error = cudaSuccess;
    char label[64];
    ENTER_HOT("%s %s flags=%u", sg_name_stream(stream), event_name(handle), flags);
    event *e = find(handle, __func__, &error);
    sg_stream *s = e != NULL ? rt_stream(stream, __func__, &error) : NULL;
    if (s == NULL) {
        return error;
    }
    if ((flags & cudaEventWaitExternal) != 0) {
        return rt_done((cudaError_t)sg_capture_call(s, wait_at_launch, e, "cudaStreamWaitEvent"));
    }
    sg_mark *mark = take_mark(e);
    if (mark != NULL) {
        snprintf(label, sizeof(label), "cudaStreamWaitEvent for event %lu", e->number);
        error = (cudaError_t)sg_stream_wait_mark(s, mark, label);
        sg_mark_release(mark);
    }
    return rt_done(error);
}

static cudaError_t captured(const sg_mark *mark, const char *call)
{
    if (mark != NULL && sg_mark_captured(mark)) {
        sg_finding("capture", "%s of an event that was last recorded in a capture", call);
        return rt_done(cudaErrorCapturedEvent);
    }
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t handle)
{
    cudaError_t error;
    ENTER_HOT("%s", event_name(handle));
    event *e = find(handle, __func__, &error);
    if (e == NULL) {
        return error;
    }
    NOT_WHILE_CAPTURING(NULL);
    sg_mark *mark = take_mark(e);
    error = captured(mark, __func__);
    if (error == cudaSuccess && mark != NULL) {
        error = (cudaError_t)sg_query_mark(mark, __func__);
    }
    sg_mark_release(mark);
    return rt_done(error);
}

cudaError_t cudaEventSynchronize(cudaEvent_t handle)
{
    cudaError_t error;
    ENTER_HOT("%s", event_name(handle));
    event *e = find(handle, __func__, &error);
    if (e == NULL) {
        return error;
    }
    NOT_WHILE_CAPTURING(NULL);
    sg_mark *mark = take_mark(e);
    error = captured(mark, __func__);
    if (error == cudaSuccess && mark != NULL) {
        error = (cudaError_t)sg_wait_mark(mark, __func__);
    }
    sg_mark_release(mark);
    return rt_done(error);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    cudaError_t error;
    ENTER_HOT("%s %s", event_name(from), event_name(to));
    event *a = find(from, __func__, &error), *b = a != NULL ? find(to, __func__, &error) : NULL;
    if (b == NULL) {
        return error;
    }
    if (ms == NULL || ((a->flags | b->flags) & cudaEventDisableTiming) != 0 || a->mark == NULL ||
        b->mark == NULL) {
        return rt_done(ms == NULL ? cudaErrorInvalidValue : cudaErrorInvalidResourceHandle);
    }
    if (!sg_mark_done(a->mark) || !sg_mark_done(b->mark)) {
        return rt_done(cudaErrorNotReady);
    }
    *ms = (float)(1e3 * (sg_mark_seconds(b->mark) - sg_mark_seconds(a->mark)));
    return cudaSuccess;
}
