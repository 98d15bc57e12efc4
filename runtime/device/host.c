/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The host backend: streams are worker threads (host_stream.c), events remember a point of one.
 *
 * A handle is a number, not an address: the slot in the device's table and a serial number that is
 * unique in the process, so that a destroyed stream or one of another context is told from a live
 * one and refused.
 *
 * The inline stream is accepted everywhere: its work is done in the call, so its points have always
 * passed. An event records no job unless it takes the time; then a job writes the time down, and
 * only if the event was not recorded again meanwhile.
 */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/spare.h"
#include "device/host_stream.h"

enum { SLOT_BITS = 16, SLOT_MAX = 1 << SLOT_BITS };

typedef struct host_device {
    tt_device base;
    pthread_mutex_t lock; /* of the table */
    tt_host_stream **slot;
    size_t slots;
    tt_spare *spare; /* for copies that work on streams takes along */
} host_device;

struct tt_event {
    _Atomic int refs;
    bool timing;
    pthread_mutex_t lock;
    tt_host_stream *stream; /* the point; NULL: passed, or never recorded */
    uint64_t number;
    uint64_t recorded; /* how many times */
    int64_t at_ns; /* of the last recording, once it has passed */
};

static host_device *host_of(tt_device *dev)
{
    return (host_device *)dev;
}

/* The table of streams. */

static tutti_status grow_table(host_device *dev)
{
    size_t before = dev->slots;

    if (before >= SLOT_MAX)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "more than %d streams in one context", SLOT_MAX);
    TT_TRY(tt_grow(&dev->slot, &dev->slots, before + 1, sizeof(tt_host_stream *)));
    for (size_t i = before; i < dev->slots; i++)
        dev->slot[i] = NULL;
    return TUTTI_OK;
}

static tutti_status table_add(host_device *dev, tt_host_stream *s)
{
    static _Atomic uintptr_t serial;
    size_t i = 0;
    tutti_status status = TUTTI_OK;

    pthread_mutex_lock(&dev->lock);
    while (i < dev->slots && dev->slot[i] != NULL)
        i++;
    if (i == dev->slots)
        status = grow_table(dev);
    if (status == TUTTI_OK) {
        s->handle = (atomic_fetch_add(&serial, 1) + 1) << SLOT_BITS | i;
        dev->slot[i] = s;
    }
    pthread_mutex_unlock(&dev->lock);
    return status;
}

static void table_remove(host_device *dev, tt_host_stream *s)
{
    pthread_mutex_lock(&dev->lock);
    dev->slot[s->handle & (SLOT_MAX - 1)] = NULL;
    pthread_mutex_unlock(&dev->lock);
}

/* *s_out is NULL for the inline stream. */
static tutti_status resolve(tt_device *base, tutti_stream stream, tt_host_stream **s_out)
{
    host_device *dev = host_of(base);
    uintptr_t handle = (uintptr_t)stream.handle;
    size_t slot = handle & (SLOT_MAX - 1);
    tt_host_stream *s = NULL;

    if (stream.kind == TUTTI_STREAM_INLINE && handle == 0) {
        *s_out = NULL;
        return TUTTI_OK;
    }
    if (stream.kind == TUTTI_STREAM_CUDA)
        return tt_fail(TUTTI_ERR_ARG, "the stream is a CUDA stream, but this context runs on the "
                                      "host backend: use tutti_stream_create, or {0} for inline");
    if (stream.kind != TUTTI_STREAM_HOST)
        return tt_fail(TUTTI_ERR_ARG, "no stream: kind %u with handle %#llx", stream.kind,
                       (unsigned long long)handle);
    pthread_mutex_lock(&dev->lock);
    if (slot < dev->slots && dev->slot[slot] != NULL && dev->slot[slot]->handle == handle)
        s = dev->slot[slot];
    pthread_mutex_unlock(&dev->lock);
    if (s == NULL)
        return tt_fail(TUTTI_ERR_ARG, "the stream was destroyed or belongs to another context");
    *s_out = s;
    return TUTTI_OK;
}

/* Streams. */

static tutti_status host_stream_create(tt_device *base, const char *name, int priority,
                                       tutti_stream *out)
{
    host_device *dev = host_of(base);
    tt_host_stream *s = NULL;
    tutti_status status;

    TT_TRY(tt_host_stream_new(&base->owner, name, priority, &s));
    status = table_add(dev, s);
    if (status != TUTTI_OK)
        goto drop_stream;
    status = tt_host_stream_start(s);
    if (status != TUTTI_OK)
        goto remove_stream;
    out->handle = (void *)s->handle;
    out->kind = TUTTI_STREAM_HOST;
    return TUTTI_OK;

remove_stream:
    table_remove(dev, s);
drop_stream:
    tt_host_stream_drop(s);
    return status;
}

static void finish_stream(host_device *dev, tt_host_stream *s)
{
    tt_host_stream_finish(s);
    table_remove(dev, s);
    tt_host_stream_drop(s);
}

static void host_stream_destroy(tt_device *base, tutti_stream stream)
{
    tt_host_stream *s = NULL;

    if (resolve(base, stream, &s) != TUTTI_OK)
        tt_log_error(TT_DEV, "stream not destroyed: %s", tutti_last_error());
    else if (s != NULL && pthread_equal(pthread_self(), s->thread))
        tt_log_error(TT_DEV, "stream %s not destroyed: called from its own work", s->name);
    else if (s != NULL)
        finish_stream(host_of(base), s);
}

static tutti_status host_stream_check(tt_device *base, tutti_stream stream)
{
    tt_host_stream *s = NULL;
    return resolve(base, stream, &s);
}

static tutti_status host_stream_sync(tt_device *base, tutti_stream stream)
{
    tt_host_stream *s = NULL;

    TT_TRY(resolve(base, stream, &s));
    if (s == NULL)
        return TUTTI_OK;
    if (pthread_equal(pthread_self(), s->thread))
        return tt_fail(TUTTI_ERR_STATE, "stream %s cannot be waited for from its own work",
                       s->name);
    return tt_host_stream_await(s, tt_host_stream_last(s));
}

static tutti_status run_call(tt_host_stream *s, const tt_job *job)
{
    (void)s;
    return job->from.fn(job->to);
}

static tutti_status run_call_copied(tt_host_stream *s, const tt_job *job)
{
    tutti_status status = run_call(s, job);

    tt_spare_give(job->to);
    return status;
}

static tutti_status host_stream_call(tt_device *base, tutti_stream stream, tt_work_fn fn, void *arg,
                                     size_t bytes)
{
    tt_job job = {.run = bytes > 0 ? run_call_copied : run_call, .from.fn = fn, .to = arg};
    tt_host_stream *s = NULL;
    tutti_status status;

    TT_TRY(resolve(base, stream, &s));
    if (s == NULL)
        return fn(arg);
    if (bytes > 0) {
        TT_TRY(tt_spare_take(host_of(base)->spare, bytes, &job.to));
        memcpy(job.to, arg, bytes);
    }
    status = tt_host_stream_push(s, &job, NULL);
    if (status != TUTTI_OK && bytes > 0)
        tt_spare_give(job.to);
    return status;
}

/* Events. */

static void event_drop(tt_event *event)
{
    if (event == NULL || atomic_fetch_sub(&event->refs, 1) > 1)
        return;
    tt_host_stream_drop(event->stream);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

static tutti_status host_event_create(tt_device *base, bool timing, tt_event **out)
{
    tt_event *event;

    (void)base;
    TT_TRY(tt_calloc(1, sizeof *event, &event));
    event->refs = 1;
    event->timing = timing;
    pthread_mutex_init(&event->lock, NULL);
    *out = event;
    return TUTTI_OK;
}

static void host_event_destroy(tt_device *base, tt_event *event)
{
    (void)base;
    event_drop(event);
}

static tutti_status run_time(tt_host_stream *s, const tt_job *job)
{
    tt_event *event = job->to;

    (void)s;
    pthread_mutex_lock(&event->lock);
    if (event->recorded == job->n)
        event->at_ns = tt_now_ns();
    pthread_mutex_unlock(&event->lock);
    event_drop(event);
    return TUTTI_OK;
}

/* The point behind the work now on the stream. */
static tutti_status mark(tt_event *event, tt_host_stream *s, uint64_t *number_out)
{
    tt_job job = {.run = run_time, .to = event, .n = event->recorded + 1};
    tutti_status status;

    if (!event->timing) {
        *number_out = tt_host_stream_last(s);
        return TUTTI_OK;
    }
    atomic_fetch_add(&event->refs, 1);
    status = tt_host_stream_push(s, &job, number_out);
    if (status != TUTTI_OK)
        atomic_fetch_sub(&event->refs, 1); /* the caller has one more */
    return status;
}

static tutti_status host_event_record(tt_device *base, tt_event *event, tutti_stream stream)
{
    tt_host_stream *s = NULL, *before = NULL;
    uint64_t number = 0;
    tutti_status status = TUTTI_OK;

    TT_TRY(resolve(base, stream, &s));
    pthread_mutex_lock(&event->lock);
    if (s != NULL)
        status = mark(event, s, &number);
    if (status == TUTTI_OK) {
        before = event->stream;
        event->stream = tt_host_stream_keep(s);
        event->number = number;
        event->recorded++;
        if (s == NULL)
            event->at_ns = tt_now_ns();
    }
    pthread_mutex_unlock(&event->lock);
    tt_host_stream_drop(before);
    return status;
}

/* The event's point, with a reference to its stream. */
static tt_host_stream *point_of(tt_event *event, uint64_t *number_out)
{
    tt_host_stream *s = NULL;

    pthread_mutex_lock(&event->lock);
    s = tt_host_stream_keep(event->stream);
    *number_out = event->number;
    pthread_mutex_unlock(&event->lock);
    return s;
}

static tutti_status wait_for(tt_host_stream *s, tt_host_stream *until, uint64_t number)
{
    if (s != NULL)
        return tt_host_stream_after(s, until, number);
    if (until != NULL && !tt_host_stream_passed(until, number) &&
        pthread_equal(pthread_self(), until->thread))
        return tt_fail(TUTTI_ERR_STATE, "stream %s cannot be waited for from its own work",
                       until->name);
    return tt_host_stream_await(until, number);
}

static tutti_status host_event_wait(tt_device *base, tt_event *event, tutti_stream stream)
{
    tt_host_stream *s = NULL, *until;
    uint64_t number;
    tutti_status status;

    TT_TRY(resolve(base, stream, &s));
    until = point_of(event, &number);
    status = wait_for(s, until, number);
    tt_host_stream_drop(until);
    return status;
}

static tutti_status host_event_query(tt_device *base, tt_event *event, bool *passed_out)
{
    uint64_t number;
    tt_host_stream *s = point_of(event, &number);

    (void)base;
    *passed_out = tt_host_stream_passed(s, number);
    tt_host_stream_drop(s);
    return TUTTI_OK;
}

static tutti_status event_time(tt_event *event, int64_t *at_out)
{
    tutti_status status = TUTTI_OK;

    pthread_mutex_lock(&event->lock);
    if (!event->timing)
        status = tt_fail(TUTTI_ERR_ARG, "the event was made without timing");
    else if (event->recorded == 0)
        status = tt_fail(TUTTI_ERR_STATE, "the event was never recorded");
    else if (!tt_host_stream_passed(event->stream, event->number))
        status = tt_fail(TUTTI_ERR_STATE, "the event has not passed yet");
    else
        *at_out = event->at_ns;
    pthread_mutex_unlock(&event->lock);
    return status;
}

static tutti_status host_event_elapsed(tt_device *base, tt_event *from, tt_event *to,
                                       double *seconds_out)
{
    int64_t begin = 0, end = 0;

    (void)base;
    TT_TRY(event_time(from, &begin));
    TT_TRY(event_time(to, &end));
    *seconds_out = (double)(end - begin) * 1e-9;
    return TUTTI_OK;
}

/* Data. */

static tutti_status run_copy(tt_host_stream *s, const tt_job *job)
{
    (void)s;
    memmove(job->to, job->from.ptr, job->n);
    return TUTTI_OK;
}

static tutti_status run_zero(tt_host_stream *s, const tt_job *job)
{
    (void)s;
    memset(job->to, 0, job->n);
    return TUTTI_OK;
}

static tutti_status run_nan(tt_host_stream *s, const tt_job *job)
{
    static const uint64_t f64 = 0x7ff8000000000000u;
    static const uint32_t f32 = 0x7fc00000u;
    static const uint16_t bf16 = 0x7fc0u, f16 = 0x7e00u;
    const void *nan = &f16;
    size_t size = tutti_dtype_size(job->dtype);

    (void)s;
    if (job->dtype == TUTTI_FLOAT64)
        nan = &f64;
    else if (job->dtype == TUTTI_FLOAT32)
        nan = &f32;
    else if (job->dtype == TUTTI_BFLOAT16)
        nan = &bf16;
    for (size_t i = 0; i < job->n; i++)
        memcpy((char *)job->to + i * size, nan, size);
    return TUTTI_OK;
}

static tutti_status submit(tt_device *base, tutti_stream stream, const tt_job *job)
{
    tt_host_stream *s = NULL;

    TT_TRY(resolve(base, stream, &s));
    if (job->n == 0)
        return TUTTI_OK;
    return s == NULL ? job->run(NULL, job) : tt_host_stream_push(s, job, NULL);
}

static tutti_status host_copy(tt_device *base, void *dst, const void *src, size_t bytes,
                              tutti_stream stream)
{
    tt_job job = {.run = run_copy, .data = true, .to = dst, .from.ptr = src, .n = bytes};
    return submit(base, stream, &job);
}

static tutti_status host_zero(tt_device *base, void *dst, size_t bytes, tutti_stream stream)
{
    tt_job job = {.run = run_zero, .data = true, .to = dst, .n = bytes};
    return submit(base, stream, &job);
}

static tutti_status host_fill_nan(tt_device *base, void *dst, size_t n, tutti_dtype dtype,
                                  tutti_stream stream)
{
    tt_job job = {.run = run_nan, .data = true, .dtype = dtype, .to = dst, .n = n};

    if (dtype != TUTTI_FLOAT32 && dtype != TUTTI_FLOAT64 && dtype != TUTTI_BFLOAT16 &&
        dtype != TUTTI_FLOAT16)
        return tt_fail(TUTTI_ERR_ARG, "%s has no NaN", tutti_dtype_name(dtype));
    return submit(base, stream, &job);
}

/* Memory. */

enum { ALIGN = 4096 };

static tutti_status host_mem_alloc(tt_device *base, size_t bytes, void **ptr_out)
{
    void *ptr;

    (void)base;
    if (posix_memalign(&ptr, ALIGN, bytes == 0 ? 1 : bytes) != 0)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "out of memory: %zu bytes", bytes);
    *ptr_out = ptr;
    return TUTTI_OK;
}

static void host_mem_free(tt_device *base, void *ptr)
{
    (void)base;
    free(ptr);
}

static tutti_stream host_service(tt_device *base)
{
    (void)base;
    return (tutti_stream){0};
}

/* The device. */

static tutti_status host_open(const tt_device_owner *owner, int local_rank, int local_size,
                              tt_device **dev_out)
{
    host_device *dev;
    tutti_status status;

    (void)local_rank;
    (void)local_size;
    TT_TRY(tt_calloc(1, sizeof *dev, &dev));
    status = tt_spare_create(&dev->spare);
    if (status != TUTTI_OK) {
        free(dev);
        return status;
    }
    dev->base.ops = &tt_device_host;
    dev->base.owner = *owner;
    pthread_mutex_init(&dev->lock, NULL);
    *dev_out = &dev->base;
    return TUTTI_OK;
}

static bool host_drain(tt_device *base)
{
    host_device *dev = host_of(base);
    bool idle = true;

    for (size_t i = 0;; i++) {
        tt_host_stream *s = NULL;
        bool more;
        pthread_mutex_lock(&dev->lock);
        more = i < dev->slots;
        if (more)
            s = tt_host_stream_keep(dev->slot[i]);
        pthread_mutex_unlock(&dev->lock);
        if (!more)
            return idle;
        if (s != NULL) {
            uint64_t last = tt_host_stream_last(s);
            tt_host_stream_await(s, last);
            idle = idle && tt_host_stream_passed(s, last);
            tt_host_stream_drop(s);
        }
    }
}

static void host_close(tt_device *base)
{
    host_device *dev = host_of(base);

    if (dev == NULL)
        return;
    for (size_t i = 0; i < dev->slots; i++)
        if (dev->slot[i] != NULL)
            finish_stream(dev, dev->slot[i]);
    free(dev->slot);
    tt_spare_drop(dev->spare);
    pthread_mutex_destroy(&dev->lock);
    free(dev);
}

static int host_ordinal(const tt_device *dev)
{
    (void)dev;
    return -1;
}

const tt_device_ops tt_device_host = {
    .size = sizeof(tt_device_ops),
    .name = "host",
    .kind = TUTTI_BACKEND_HOST,
    .open = host_open,
    .close = host_close,
    .ordinal = host_ordinal,
    .stream_create = host_stream_create,
    .stream_destroy = host_stream_destroy,
    .stream_check = host_stream_check,
    .stream_sync = host_stream_sync,
    .stream_call = host_stream_call,
    .event_create = host_event_create,
    .event_destroy = host_event_destroy,
    .event_record = host_event_record,
    .event_wait = host_event_wait,
    .event_query = host_event_query,
    .event_elapsed = host_event_elapsed,
    .copy = host_copy,
    .zero = host_zero,
    .fill_nan = host_fill_nan,
    .mem_alloc = host_mem_alloc,
    .mem_free = host_mem_free,
    .host_alloc = host_mem_alloc,
    .host_free = host_mem_free,
    .host_memory = true,
    .service = host_service,
    .drain = host_drain,
};
