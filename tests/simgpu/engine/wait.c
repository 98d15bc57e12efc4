/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host waits and queries, and the threads that make them.
 *
 * A waiting thread runs what it waits for, then anything that can run, and sleeps only if nothing
 * can; then it asks whether that can change (deadlock.c).
 *
 * The ticker runs what nobody waits for after 20 ms in which no thread called: a program may wait
 * for a host function's effect without asking CUDA.
 */
#include "internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const double IDLE = 0.02;

sg_thread_entry *sg_threads;
static __thread sg_thread_entry *self;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_key_t key;
static double last_call;
double sg_last_change;
static int waiters;

static void forget(void *arg)
{
    sg_lock();
    sg_thread_entry **at = &sg_threads;
    while (*at != NULL && *at != arg) {
        at = &(*at)->next;
    }
    if (*at != NULL) {
        *at = (*at)->next;
    }
    free(arg);
    self = NULL;
    sg_changed();
    sg_unlock();
}

static void make_key(void)
{
    pthread_key_create(&key, forget);
}

sg_thread_entry *sg_me(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (self == NULL) {
        pthread_once(&once, make_key);
        self = sg_must(calloc(1, sizeof(*self)));
        self->tid = (int)syscall(SYS_gettid);
        self->next = sg_threads;
        sg_threads = self;
        pthread_setspecific(key, self);
    }
    return self;
}

void sg_thread_called(const char *name)
{
    (void)name;
    sg_me();
    last_call = sg_now();
}

bool sg_in_host_function(void)
{
    return self != NULL && self->host_function;
}

void sg_host_function(bool inside)
{
    sg_lock();
    sg_me()->host_function = inside;
    sg_unlock();
}

void sg_changed(void)
{
    sg_lock();
    sg_stamp++;
    sg_last_change = sg_now();
    pthread_cond_broadcast(&changed);
    sg_unlock();
}

static void nap(double seconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    long ns = until.tv_nsec + (long)(seconds * 1e9);
    until.tv_sec += ns / 1000000000;
    until.tv_nsec = ns % 1000000000;
    pthread_cond_timedwait(&changed, sg_mutex(), &until);
}

/* ---- waits ---- */

typedef struct target {
    sg_stream *stream; /* NULL: every stream of `device`, or none if that is negative */
    sg_mark *mark;
    int device;
    const sg_wait *wait;
} target;

static bool reached(const target *t)
{
    if (t->wait != NULL) {
        return t->wait->done(t->wait->arg);
    }
    if (t->mark != NULL) {
        return t->mark->done;
    }
    if (t->stream != NULL) {
        return t->stream->head == NULL;
    }
    for (const sg_stream *s = sg_streams; s != NULL; s = s->next) {
        if (s->device == t->device && s->head != NULL) {
            return false;
        }
    }
    return true;
}

static bool push_on(const target *t)
{
    bool moved = false;
    if (t->stream != NULL) {
        moved = sg_advance(t->stream, t->mark);
    } else if (t->device >= 0) {
        for (sg_stream *s = sg_streams; s != NULL; s = s->next) {
            moved = (s->device == t->device && sg_advance(s, NULL)) || moved;
        }
    }
    return moved || sg_run_any();
}

static int target_error(const target *t)
{
    if (t->wait != NULL) {
        return SG_OK;
    }
    return sg_device_error(t->stream != NULL ? t->stream->device : t->device);
}

static bool wait_for(const target *t, const char *call, const char *what)
{
    sg_thread_entry *mine = sg_me();
    const sg_wait *w = t->wait;
    bool remote = w != NULL && w->remote;
    double begun = sg_now();
    double deadline = w != NULL && w->deadline_ms > 0 ? begun + 1e-3 * (double)w->deadline_ms : 0;
    bool ok = true;
    mine->call = call;
    mine->bounded = deadline > 0;
    snprintf(mine->what, sizeof(mine->what), "%s", what);
    waiters++;
    sg_last_change = begun; /* patience begins with the wait */
    while (!reached(t) && target_error(t) == SG_OK) {
        if (push_on(t)) {
            continue;
        }
        if (deadline > 0 && sg_now() > deadline) {
            ok = false;
            break;
        }
        if (reached(t)) {
            break;
        }
        sg_consider_deadlock(remote);
        nap(remote || sg_remote_blocked() || deadline > 0 ? 0.001 : 0.05);
    }
    waiters--;
    mine->call = NULL;
    mine->bounded = false;
    return ok;
}

static void see(const target *t)
{
    if (t->mark != NULL) {
        sg_host_sees(t->mark->clock);
    } else if (t->stream != NULL) {
        sg_host_sees_raw(t->stream->clock);
    } else if (t->device >= 0) {
        sg_host_sees_raw(sg_stream_gone(t->device));
        for (const sg_stream *s = sg_streams; s != NULL; s = s->next) {
            if (s->device == t->device && s->clock != NULL) {
                sg_host_sees_raw(s->clock);
            }
        }
    }
}

static int wait_target(const target *t, const char *call, const char *what)
{
    sg_lock();
    wait_for(t, call, what);
    int error = target_error(t);
    if (error == SG_OK) {
        see(t);
    }
    sg_unlock();
    return error;
}

int sg_wait_stream(sg_stream *stream, const char *call)
{
    target t = {.stream = stream, .device = -1};
    /* What others enqueue meanwhile is not waited for. */
    t.mark = sg_mark_record(stream, call);
    int error = wait_target(&t, call, stream->name);
    sg_mark_release(t.mark);
    return error;
}

int sg_wait_mark(sg_mark *mark, const char *call)
{
    target t = {.stream = mark->stream, .mark = mark, .device = -1};
    return wait_target(&t, call, mark->stream->name);
}

int sg_wait_device(int ordinal, const char *call)
{
    char what[32];
    snprintf(what, sizeof(what), "device %d", ordinal);
    target t = {.device = ordinal};
    return wait_target(&t, call, what);
}

bool sg_wait_until(const sg_wait *wait)
{
    target t = {.device = -1, .wait = wait};
    char what[160] = "its condition";
    sg_lock();
    if (wait->explain != NULL) {
        wait->explain(wait->arg, what, sizeof(what));
    }
    bool ok = wait_for(&t, wait->call, what);
    sg_unlock();
    return ok;
}

/* ---- queries ---- */

static void fruitless(const char *what, bool remote)
{
    sg_thread_entry *mine = sg_me();
    mine->fruitless = mine->seen_stamp == sg_stamp ? mine->fruitless + 1 : 1;
    snprintf(mine->what, sizeof(mine->what), "%s", what);
    sg_consider_deadlock(remote);
}

static int query(const target *t, const char *what)
{
    sg_stream *s = t->stream;
    int error = target_error(t);
    if (error != SG_OK) {
        return error;
    }
    if (!reached(t)) {
        if (s->not_ready < 0) {
            s->not_ready = (int)(sg_random("query") % 4);
        }
        if (s->not_ready > 0) {
            s->not_ready--;
            return SG_ERR_NOT_READY;
        }
        bool moved = push_on(t);
        if (!reached(t)) {
            if (!moved) {
                fruitless(what, false);
            }
            return target_error(t) != SG_OK ? target_error(t) : SG_ERR_NOT_READY;
        }
    }
    s->not_ready = -1;
    sg_me()->fruitless = 0;
    see(t);
    return target_error(t);
}

int sg_query_stream(sg_stream *stream, const char *call)
{
    (void)call;
    target t = {.stream = stream, .device = -1};
    sg_lock();
    int error = query(&t, stream->name);
    sg_unlock();
    return error;
}

int sg_query_mark(sg_mark *mark, const char *call)
{
    (void)call;
    target t = {.stream = mark->stream, .mark = mark, .device = -1};
    sg_lock();
    int error = query(&t, mark->stream->name);
    sg_unlock();
    return error;
}

bool sg_poll(const char *call)
{
    static __thread uint64_t seen;
    sg_lock();
    bool moved = false;
    if (sg_set.schedule != SG_LATE || sg_random("poll") % 4 == 0) {
        moved = sg_run_any();
    }
    bool news = seen != sg_stamp;
    seen = sg_stamp;
    if (!moved && !news) {
        fruitless(call, true);
    }
    sg_unlock();
    return news;
}

/* ---- the ticker ---- */

int sg_ticker_tid;

static void *tick(void *unused)
{
    const struct timespec pause = {0, 10000000};
    sg_ticker_tid = (int)syscall(SYS_gettid);
    for (;;) {
        nanosleep(&pause, NULL);
        sg_lock();
        while (waiters == 0 && sg_now() - last_call > IDLE && sg_run_any()) {
        }
        sg_unlock();
    }
    return unused;
}

void sg_ticker_start(void)
{
    static bool started;
    pthread_t id;
    if (!started && pthread_create(&id, NULL, tick, NULL) == 0) {
        pthread_detach(id);
    }
    started = true;
}
