/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker thread of a host stream.
 *
 * Jobs are numbered from 1 as they are queued; `done` is the number of the last one that has run. A
 * point of a stream is a pair {stream, number}, and to wait for it is to wait until `done` has come
 * so far: recording an event costs no job. A point names earlier work only, so waits between
 * streams cannot form a circle. Points outlive tutti_stream_destroy, hence the reference counts.
 *
 * The ring holds jobs by value and doubles when it is full: a steady state allocates nothing.
 *
 * A worker never gives up a wait for another stream, not even in a failed context, because work
 * behind it may free what is still in use; the work it waits for ends by itself, as every wait in
 * the library is bounded. Callers' waits are bounded here: when the owner reports a failure they
 * get a short grace, so that work which is about to end does not outlive the buffers that the
 * caller frees next.
 */
#include "device/host_stream.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"

enum { FIRST_RING = 64, URGENT_SLICE_NS = 100000 /* the least that Linux takes */ };

static const int64_t check_ns = 10 * 1000 * 1000; /* how often a waiting caller asks the owner */
static const int64_t grace_ns = 1000 * 1000 * 1000;

tutti_status tt_host_stream_new(const tt_device_owner *owner, const char *name, int priority,
                                tt_host_stream **s_out)
{
    pthread_condattr_t monotonic;
    tt_host_stream *s;

    TT_TRY(tt_calloc(1, sizeof *s, &s));
    s->owner = owner;
    s->refs = 1;
    s->priority = priority;
    snprintf(s->name, sizeof s->name, "%s", name != NULL ? name : "tutti-stream");
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    pthread_cond_init(&s->moved, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *s_out = s;
    return TUTTI_OK;
}

tt_host_stream *tt_host_stream_keep(tt_host_stream *s)
{
    if (s != NULL)
        atomic_fetch_add(&s->refs, 1);
    return s;
}

void tt_host_stream_drop(tt_host_stream *s)
{
    if (s == NULL || atomic_fetch_sub(&s->refs, 1) > 1)
        return;
    pthread_cond_destroy(&s->moved);
    pthread_cond_destroy(&s->more);
    pthread_mutex_destroy(&s->lock);
    free(s->ring);
    free(s);
}

bool tt_host_stream_passed(const tt_host_stream *s, uint64_t number)
{
    return s == NULL || atomic_load_explicit(&s->done, memory_order_acquire) >= number;
}

tutti_status tt_host_stream_await(tt_host_stream *s, uint64_t number)
{
    tutti_status status = TUTTI_OK;
    int64_t give_up = TT_NEVER;

    if (s == NULL)
        return TUTTI_OK;
    pthread_mutex_lock(&s->lock);
    while (!tt_host_stream_passed(s, number) && tt_now_ns() < give_up) {
        int64_t until = tt_now_ns() + check_ns;
        struct timespec at = {until / 1000000000, until % 1000000000};
        s->waiters++;
        pthread_cond_timedwait(&s->moved, &s->lock, &at);
        s->waiters--;
        if (status != TUTTI_OK || s->owner->check == NULL)
            continue;
        pthread_mutex_unlock(&s->lock);
        status = s->owner->check(s->owner->arg);
        if (status != TUTTI_OK)
            give_up = tt_now_ns() + grace_ns;
        pthread_mutex_lock(&s->lock);
    }
    if (s->failed != TUTTI_OK)
        status = tt_fail_text(s->failed, s->fail_text);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* Keeps the first failure; false if there was one before. */
static bool stream_fail(tt_host_stream *s, tutti_status status, const char *text)
{
    bool first;

    pthread_mutex_lock(&s->lock);
    first = s->failed == TUTTI_OK;
    if (first) {
        s->failed = status;
        snprintf(s->fail_text, sizeof s->fail_text, "%s", text);
    }
    pthread_mutex_unlock(&s->lock);
    return first;
}

static tutti_status run_wait(tt_host_stream *s, const tt_job *job)
{
    tt_host_stream *until = job->to;
    tutti_status failed;

    pthread_mutex_lock(&until->lock);
    until->waiters++;
    while (!tt_host_stream_passed(until, job->n))
        pthread_cond_wait(&until->moved, &until->lock);
    until->waiters--;
    failed = until->failed;
    pthread_mutex_unlock(&until->lock);
    if (failed != TUTTI_OK)
        stream_fail(s, failed, until->fail_text); /* told by `until` already */
    tt_host_stream_drop(until);
    return TUTTI_OK;
}

static void run_job(tt_host_stream *s, const tt_job *job)
{
    tutti_status status;

    if (job->data && s->failed != TUTTI_OK) /* only this thread writes it */
        return;
    status = job->run(s, job);
    if (status == TUTTI_OK || !stream_fail(s, status, tutti_last_error()))
        return;
    tt_log_debug(TT_DEV, "stream %s: %s", s->name, s->fail_text);
    if (s->owner->on_error != NULL)
        s->owner->on_error(s->owner->arg, status, s->fail_text);
}

/* struct sched_attr, as first published; glibc got it late. */
typedef struct sched_attributes {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t slice_ns, deadline_ns, period_ns;
} sched_attributes;

/*
 * Lowering the nice value takes rights, a short slice does not. It is what matters: on a core that
 * computes, Linux (EEVDF, 6.12 and later) lets a thread that wakes run at once only if its slice is
 * the shorter one; else it waits for milliseconds, at every message. Older kernels ignore it.
 */
static void set_priority(const tt_host_stream *s)
{
    int nice = s->priority < -20 ? -20 : s->priority > 19 ? 19 : s->priority;
    sched_attributes attr = {.size = sizeof attr, .slice_ns = URGENT_SLICE_NS};

    if (nice != 0 && setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), nice) != 0)
        tt_log_debug(TT_DEV, "stream %s keeps normal priority: %s", s->name, strerror(errno));
    if (nice >= 0 || sched_getscheduler(0) != SCHED_OTHER)
        return;
    attr.nice = getpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid));
    if (syscall(SYS_sched_setattr, 0, &attr, 0) != 0)
        tt_log_debug(TT_DEV, "stream %s keeps the usual time slice: %s", s->name, strerror(errno));
}

static void *worker(void *arg)
{
    tt_host_stream *s = arg;

    if (s->owner->on_thread != NULL)
        s->owner->on_thread(s->owner->arg);
    set_priority(s);
    pthread_mutex_lock(&s->lock);
    for (;;) {
        uint64_t next = atomic_load_explicit(&s->done, memory_order_relaxed) + 1;
        while (s->queued < next && !s->stop) {
            s->worker_sleeps = true;
            pthread_cond_wait(&s->more, &s->lock);
            s->worker_sleeps = false;
        }
        if (s->queued < next)
            break;
        tt_job job = s->ring[next & (s->cap - 1)];
        pthread_mutex_unlock(&s->lock);
        run_job(s, &job);
        pthread_mutex_lock(&s->lock);
        atomic_store_explicit(&s->done, next, memory_order_release);
        if (s->waiters > 0)
            pthread_cond_broadcast(&s->moved);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

static tutti_status grow_ring(tt_host_stream *s)
{
    size_t cap = s->cap == 0 ? FIRST_RING : s->cap * 2;
    uint64_t first = atomic_load_explicit(&s->done, memory_order_relaxed) + 1;
    tt_job *ring;

    TT_TRY(tt_calloc(cap, sizeof *ring, &ring));
    for (uint64_t k = first; k <= s->queued; k++)
        ring[k & (cap - 1)] = s->ring[k & (s->cap - 1)];
    free(s->ring);
    s->ring = ring;
    s->cap = cap;
    return TUTTI_OK;
}

tutti_status tt_host_stream_start(tt_host_stream *s)
{
    TT_TRY(grow_ring(s));
    return tt_thread_start(&s->thread, s->name, worker, s);
}

void tt_host_stream_finish(tt_host_stream *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->thread, NULL);
}

tutti_status tt_host_stream_push(tt_host_stream *s, const tt_job *job, uint64_t *number_out)
{
    tutti_status status = TUTTI_OK;

    pthread_mutex_lock(&s->lock);
    /* The job that runs still counts as one of the ring's. */
    if (s->queued - atomic_load_explicit(&s->done, memory_order_relaxed) >= s->cap)
        status = grow_ring(s);
    if (status == TUTTI_OK) {
        s->queued++;
        s->ring[s->queued & (s->cap - 1)] = *job;
        if (number_out != NULL)
            *number_out = s->queued;
        if (s->worker_sleeps)
            pthread_cond_signal(&s->more);
    }
    pthread_mutex_unlock(&s->lock);
    return status;
}

uint64_t tt_host_stream_last(tt_host_stream *s)
{
    uint64_t number;

    pthread_mutex_lock(&s->lock);
    number = s->queued;
    pthread_mutex_unlock(&s->lock);
    return number;
}

tutti_status tt_host_stream_after(tt_host_stream *s, tt_host_stream *until, uint64_t number)
{
    tt_job job = {.run = run_wait, .to = until, .n = number};
    tutti_status status;

    if (until == NULL || until == s)
        return TUTTI_OK;
    tt_host_stream_keep(until);
    status = tt_host_stream_push(s, &job, NULL);
    if (status != TUTTI_OK)
        tt_host_stream_drop(until);
    return status;
}
