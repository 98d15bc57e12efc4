/* SPDX-License-Identifier: Apache-2.0 */
/* A worker thread with a ring of jobs: what host.c makes streams and events of. */
#ifndef TT_DEVICE_HOST_STREAM_H
#define TT_DEVICE_HOST_STREAM_H

#include <pthread.h>
#include <stdatomic.h>

#include "device/device.h"

typedef struct tt_host_stream tt_host_stream;

/* One piece of work, kept by value in the ring. */
typedef struct tt_job tt_job;
struct tt_job {
    tutti_status (*run)(tt_host_stream *s, const tt_job *job);
    bool data; /* touches data only: skipped when the stream has failed */
    tutti_dtype dtype;
    void *to;
    union {
        const void *ptr;
        tt_work_fn fn;
    } from;
    uint64_t n;
};

struct tt_host_stream {
    const tt_device_owner *owner;
    _Atomic int refs;
    uintptr_t handle; /* host.c's name for it */
    int priority;
    char name[16]; /* as much as the kernel keeps of a thread's name */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more; /* work for the worker */
    pthread_cond_t moved; /* `done` has grown */
    bool worker_sleeps, stop;
    int waiters;
    tt_job *ring; /* job k is at k & (cap - 1) */
    size_t cap;
    uint64_t queued; /* number of the last job queued, from 1 */
    _Atomic uint64_t done; /* number of the last job that has run */
    tutti_status failed; /* set once, by the worker, and its text with it */
    char fail_text[TT_ERROR_TEXT_MAX];
};

/* A stream whose worker does not run yet, with one reference. `owner` outlives the worker. */
tutti_status tt_host_stream_new(const tt_device_owner *owner, const char *name, int priority,
                                tt_host_stream **s_out);
tutti_status tt_host_stream_start(tt_host_stream *s);
void tt_host_stream_finish(tt_host_stream *s); /* runs what is queued, ends the worker */

tt_host_stream *tt_host_stream_keep(tt_host_stream *s); /* takes NULL, as drop does */
void tt_host_stream_drop(tt_host_stream *s);

/* Queues a copy of the job; *number_out (may be NULL) is its number. */
tutti_status tt_host_stream_push(tt_host_stream *s, const tt_job *job, uint64_t *number_out);
uint64_t tt_host_stream_last(tt_host_stream *s); /* number of the job queued last */

/* Points: job `number` of s and all before it have run. s == NULL: always. */
bool tt_host_stream_passed(const tt_host_stream *s, uint64_t number);
/* A thread that is no worker waits for a point; returns s's failure, or the owner's. */
tutti_status tt_host_stream_await(tt_host_stream *s, uint64_t number);
/* Work given to s from now on waits for the point. */
tutti_status tt_host_stream_after(tt_host_stream *s, tt_host_stream *until, uint64_t number);

#endif
