/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, their queues, and marks. A stream that was destroyed keeps its few bytes until the
 * process ends: its handle is recognised as dead, not mistaken for another.
 *
 * Marks and waits are operations too, so that nothing overtakes them. The legacy stream's rule (it
 * waits for all blocking streams of its device, and they for it) is written out as waits at the
 * time of the call, as CUDA defines it.
 */
#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

sg_stream *sg_streams;
static sg_stream *dead;
static uint64_t next_id;
static sg_stream *legacy[SG_MAX_DEVICES];
static uint32_t gone[SG_MAX_DEVICES][SG_SLOTS]; /* what streams did that are no more */
static __thread sg_stream *per_thread[SG_MAX_DEVICES];

sg_stream *sg_stream_make(int ordinal, unsigned flags, int priority, bool internal)
{
    sg_stream *s = sg_must(calloc(1, sizeof(*s)));
    s->magic = SG_STREAM_MAGIC;
    s->alive = true;
    s->internal = internal;
    s->device = ordinal;
    s->flags = flags;
    s->priority = priority;
    s->id = ++next_id;
    s->slot = sg_slot_take();
    s->clock = sg_must(calloc(SG_SLOTS, sizeof(uint32_t)));
    s->not_ready = -1;
    snprintf(s->name, sizeof(s->name), "stream %llu (dev%d)", (unsigned long long)s->id, ordinal);
    s->next = sg_streams;
    sg_streams = s;
    return s;
}

int sg_stream_create(int ordinal, unsigned flags, int priority, sg_stream **out)
{
    if (sg_device(ordinal) == NULL) {
        return SG_ERR_INVALID_DEVICE;
    }
    sg_lock();
    *out = sg_stream_make(ordinal, flags, priority, false);
    sg_unlock();
    return SG_OK;
}

sg_stream *sg_stream_legacy(int ordinal)
{
    if (legacy[ordinal] == NULL) {
        sg_stream *s = sg_stream_make(ordinal, 0, 0, true);
        s->legacy = true;
        snprintf(s->name, sizeof(s->name), "the legacy stream (dev%d)", ordinal);
        legacy[ordinal] = s;
    }
    return legacy[ordinal];
}

static sg_stream *thread_stream(int ordinal)
{
    if (per_thread[ordinal] == NULL) {
        sg_stream *s = sg_stream_make(ordinal, 0, 0, true);
        snprintf(s->name, sizeof(s->name), "a per-thread stream (dev%d)", ordinal);
        per_thread[ordinal] = s;
    }
    return per_thread[ordinal];
}

static sg_stream *known(const void *handle)
{
    for (sg_stream *s = sg_streams; s != NULL; s = s->next) {
        if (s == handle) {
            return s;
        }
    }
    for (sg_stream *s = dead; s != NULL; s = s->next_dead) {
        if (s == handle) {
            return s;
        }
    }
    return NULL;
}

const char *sg_name_stream(const void *handle)
{
    if (!sg_logging()) {
        return "";
    }
    if ((uintptr_t)handle <= 2) {
        return (uintptr_t)handle == 2 ? "the per-thread stream" : "the legacy stream";
    }
    sg_lock();
    const sg_stream *s = known(handle);
    sg_unlock();
    return s != NULL ? s->name : "no stream";
}

sg_stream *sg_stream_get(void *handle, const char *call)
{
    int device = sg_current_device();
    uintptr_t value = (uintptr_t)handle;
    sg_stream *s = NULL;
    sg_lock();
    if (value <= 1) {
        s = sg_stream_legacy(device);
    } else if (value == 2) {
        s = thread_stream(device);
    } else {
        s = known(handle);
        if (s == NULL || !s->alive || s->internal) {
            sg_finding("dead-stream", "%s is given %s", call,
                       s != NULL ? s->name : "a handle that never was a stream");
            s = NULL;
        }
    }
    sg_unlock();
    return s;
}

int sg_stream_device(const sg_stream *stream)
{
    return stream->device;
}

int sg_stream_priority(const sg_stream *stream)
{
    return stream->priority;
}

unsigned sg_stream_flags(const sg_stream *stream)
{
    return stream->flags;
}

uint64_t sg_stream_id(const sg_stream *stream)
{
    return stream->id;
}

const char *sg_stream_name(const sg_stream *stream)
{
    return stream->name;
}

int sg_stream_check(sg_stream *stream, const char *call)
{
    if (stream->device == sg_current_device()) {
        return SG_OK;
    }
    sg_finding("wrong-device", "%s on %s while device %d is current", call, stream->name,
               sg_current_device());
    return SG_ERR_INVALID_HANDLE;
}

/* ---- operations ---- */

sg_op *sg_op_new(sg_stream *stream, const char *label)
{
    sg_op *op = sg_must(calloc(1, sizeof(*op)));
    op->stream = stream;
    op->label = sg_text_new(label != NULL ? label : "work");
    op->seen = sg_host_clock();
    return op;
}

void sg_op_free(sg_op *op)
{
    if (op->release != NULL) {
        op->release(op->arg);
    }
    for (size_t i = 0; i < op->n_deps; i++) {
        sg_mark_release(op->deps[i]);
    }
    free(op->deps);
    free(op->ranges);
    sg_mark_release(op->mark);
    sg_clock_drop(op->seen);
    sg_text_drop(op->label);
    free(op);
}

static void add_dep(sg_op *op, sg_mark *mark)
{
    op->deps = sg_must(realloc(op->deps, (op->n_deps + 1) * sizeof(op->deps[0])));
    op->deps[op->n_deps++] = sg_mark_retain(mark);
}

static void push(sg_op *op)
{
    sg_stream *s = op->stream;
    if (s->tail != NULL) {
        s->tail->next = op;
    } else {
        s->head = op;
    }
    s->tail = op;
    s->queued++;
    s->queued_data += op->run != NULL;
    sg_mark_release(s->tail_mark);
    s->tail_mark = NULL;
    sg_stamp++;
}

static sg_mark *mark_new(sg_stream *stream)
{
    sg_mark *mark = sg_must(calloc(1, sizeof(*mark)));
    mark->refs = 1;
    mark->stream = stream;
    return mark;
}

sg_mark *sg_op_mark(sg_op *op)
{
    if (op->mark == NULL) {
        op->mark = mark_new(op->stream);
    }
    return sg_mark_retain(op->mark);
}

/* A mark of the end of the queue, shared until something is enqueued. Borrowed. */
static sg_mark *tail_mark(sg_stream *s)
{
    if (s->tail_mark == NULL) {
        sg_mark *mark = mark_new(s);
        if (s->head == NULL) {
            mark->done = true;
            mark->clock = sg_clock_copy(s->clock);
            mark->when = sg_now();
        } else {
            sg_op *op = sg_op_new(s, "a mark");
            op->mark = sg_mark_retain(mark);
            push(op);
        }
        s->tail_mark = mark;
    }
    return s->tail_mark;
}

/* What the rule of the legacy stream makes an operation wait for. */
static void legacy_deps(sg_op *op)
{
    sg_stream *s = op->stream;
    if (s->legacy) {
        for (sg_stream *t = sg_streams; t != NULL; t = t->next) {
            bool blocking = (t->flags & SG_STREAM_NONBLOCKING) == 0 && t != s;
            if (blocking && t->device == s->device && t->clock != NULL &&
                (t->epoch > 0 || t->head != NULL)) {
                add_dep(op, tail_mark(t));
            }
        }
    } else if ((s->flags & SG_STREAM_NONBLOCKING) == 0 && legacy[s->device] != NULL) {
        add_dep(op, tail_mark(legacy[s->device]));
    }
}

void sg_op_append(sg_op *op)
{
    legacy_deps(op);
    push(op);
    sg_schedule_enqueued(op->stream);
}

int sg_op_queue(sg_stream *stream, const sg_op_desc *desc, sg_mark *const *deps, size_t n_deps)
{
    sg_op *op = sg_op_new(stream, desc->label);
    op->site = desc->site;
    op->n_ranges = desc->n_ranges;
    if (desc->n_ranges > 0) {
        op->ranges = sg_must(malloc(desc->n_ranges * sizeof(op->ranges[0])));
        memcpy(op->ranges, desc->ranges, desc->n_ranges * sizeof(op->ranges[0]));
    }
    op->run = desc->run;
    op->arg = desc->arg;
    op->release = desc->release;
    op->explain = desc->explain;
    op->flags = desc->flags;
    for (size_t i = 0; i < n_deps; i++) {
        add_dep(op, deps[i]);
    }
    sg_pinned_watch(op);
    sg_op_append(op);
    return SG_OK;
}

int sg_enqueue(sg_stream *stream, const sg_op_desc *desc)
{
    sg_lock();
    int error = sg_device_error(stream->device);
    if (error == SG_OK && stream->capture != NULL) {
        error = sg_capture_add(stream, desc);
    } else if (error == SG_OK) {
        error = sg_op_queue(stream, desc, NULL, 0);
    }
    sg_unlock();
    return error;
}

sg_stream *sg_op_stream(const sg_op *op)
{
    return op->stream;
}

const char *sg_op_label(const sg_op *op)
{
    return op->label->s;
}

void sg_op_join(sg_op *later, const sg_op *earlier)
{
    if (later != earlier && later->stream->clock != NULL && earlier->stream->clock != NULL) {
        for (unsigned i = 0; i < sg_slots(); i++) {
            if (earlier->stream->clock[i] > later->stream->clock[i]) {
                later->stream->clock[i] = earlier->stream->clock[i];
            }
        }
    }
}

/* ---- marks ---- */

sg_mark *sg_mark_record(sg_stream *stream, const char *label)
{
    sg_lock();
    sg_mark *mark = mark_new(stream);
    if (stream->capture != NULL) {
        sg_capture_mark(stream, mark);
    } else {
        sg_op *op = sg_op_new(stream, label);
        op->mark = sg_mark_retain(mark);
        sg_op_append(op);
    }
    sg_unlock();
    return mark;
}

sg_mark *sg_mark_retain(sg_mark *mark)
{
    sg_lock();
    mark->refs++;
    sg_unlock();
    return mark;
}

void sg_mark_release(sg_mark *mark)
{
    if (mark == NULL) {
        return;
    }
    sg_lock();
    if (--mark->refs == 0) {
        sg_clock_drop(mark->clock);
        free(mark->nodes);
        free(mark);
    }
    sg_unlock();
}

bool sg_mark_done(const sg_mark *mark)
{
    sg_lock();
    bool done = mark->done;
    sg_unlock();
    return done;
}

double sg_mark_seconds(const sg_mark *mark)
{
    return mark->when;
}

bool sg_mark_awaited(const sg_mark *mark)
{
    bool found = false;
    sg_lock();
    for (const sg_stream *s = sg_streams; s != NULL && !found; s = s->next) {
        for (const sg_op *op = s->head; op != NULL && !found; op = op->next) {
            for (size_t i = 0; i < op->n_deps; i++) {
                found = found || op->deps[i] == mark;
            }
        }
    }
    sg_unlock();
    return found;
}

int sg_stream_wait_mark(sg_stream *stream, sg_mark *mark, const char *label)
{
    int error = SG_OK;
    sg_lock();
    if (stream->capture != NULL || mark->capture != 0) {
        error = sg_capture_wait(stream, mark, label);
    } else {
        sg_op *op = sg_op_new(stream, label);
        add_dep(op, mark);
        sg_op_append(op);
    }
    sg_unlock();
    return error;
}

/* ---- the end of a stream ---- */

void sg_stream_drop_queue(sg_stream *s)
{
    while (s->head != NULL && !s->head->running) {
        sg_op *op = s->head;
        s->head = op->next;
        if (op->mark != NULL) {
            op->mark->done = true;
            op->mark->when = sg_now();
        }
        s->queued--;
        s->queued_data -= op->run != NULL && !op->started;
        sg_op_free(op);
    }
    if (s->head == NULL) {
        s->tail = NULL;
    }
}

void sg_stream_finish(sg_stream *s)
{
    if (s->alive || s->head != NULL || s->clock == NULL) {
        return;
    }
    sg_mark_release(s->tail_mark);
    s->tail_mark = NULL;
    sg_slot_give(s->slot);
    for (unsigned i = 0; i < sg_slots(); i++) {
        if (s->clock[i] > gone[s->device][i]) {
            gone[s->device][i] = s->clock[i];
        }
    }
    free(s->clock);
    s->clock = NULL;
    sg_stream **at = &sg_streams;
    while (*at != s) {
        at = &(*at)->next;
    }
    *at = s->next;
    s->next_dead = dead;
    dead = s;
}

const uint32_t *sg_stream_gone(int ordinal)
{
    return gone[ordinal];
}

static bool unseen(const sg_stream *s)
{
    return s->queued_data > 0 || (s->data_epoch > 0 && !sg_host_saw(s->slot, s->data_epoch));
}

int sg_stream_destroy(sg_stream *stream)
{
    sg_lock();
    if (unseen(stream) && !stream->internal && sg_device_error(stream->device) == SG_OK) {
        sg_finding("stream-pending", "%s is destroyed with work that nobody has waited for: %s",
                   stream->name, stream->head != NULL ? stream->head->label->s : "it has run");
    }
    stream->alive = false;
    sg_stream_finish(stream);
    sg_unlock();
    return SG_OK;
}

void sg_streams_left(void)
{
    for (const sg_stream *s = sg_streams; s != NULL; s = s->next) {
        if (s->alive && !s->internal) {
            sg_finding("leak", "%s is never destroyed", s->name);
        }
        if (s->alive && unseen(s) && sg_device_error(s->device) == SG_OK) {
            sg_finding("pending-at-exit", "%s ends with work that nobody has waited for: %s",
                       s->name, s->head != NULL ? s->head->label->s : "it has run");
        }
    }
}
