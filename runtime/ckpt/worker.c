/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ckpt/writer.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/thread.h"

enum { NICE = 10, IOPRIO_WHO_PROCESS = 1, IOPRIO_BEST_EFFORT_LAST = 2 << 13 | 7 };

/* Gives way to the training, but is not starved by it: that would hold the save up for ever. */
static void lower_priority(void)
{
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_BEST_EFFORT_LAST);
}

static void *worker_main(void *arg)
{
    tt_worker *w = arg;
    if (!w->urgent)
        lower_priority();
    tt_log_identity(w->log_rank, w->log_size);
    w->status = w->fn(w->arg);
    snprintf(w->text, sizeof w->text, "%s", w->status == TUTTI_OK ? "" : tutti_last_error());
    atomic_store_explicit(&w->done, 1, memory_order_release);
    tt_futex_wake_all(&w->done);
    return NULL;
}

tutti_status tt_worker_start(tt_worker *w, tutti_status (*fn)(void *arg), void *arg)
{
    w->fn = fn;
    w->arg = arg;
    tt_log_identity_get(&w->log_rank, &w->log_size);
    atomic_store(&w->cancel, false);
    atomic_store(&w->done, 0);
    /* status and text are the thread's from now on, until it has been joined */
    tutti_status status = tt_thread_start(&w->thread, "tt-ckpt", worker_main, w);
    w->running = status == TUTTI_OK;
    if (status != TUTTI_OK) { /* join tells it */
        w->status = status;
        snprintf(w->text, sizeof w->text, "%s", tutti_last_error());
    }
    return status;
}

bool tt_worker_done(tt_worker *w, int64_t wait_ns)
{
    int64_t end = tt_now_ns() + wait_ns;
    while (w->running && atomic_load_explicit(&w->done, memory_order_acquire) == 0) {
        int64_t left = end - tt_now_ns();
        if (left <= 0)
            return false;
        tt_futex_wait(&w->done, 0, left);
    }
    return true;
}

tutti_status tt_worker_join(tt_worker *w)
{
    if (w->running)
        pthread_join(w->thread, NULL);
    w->running = false;
    return w->status == TUTTI_OK ? TUTTI_OK : tt_fail_text(w->status, w->text);
}

void tt_worker_leave(tt_worker *w)
{
    if (w->running)
        pthread_detach(w->thread);
    w->running = false;
}

/* A page that is first touched inside the copy costs ten times the copy. */
static void touch(char *base, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
#ifdef MADV_POPULATE_WRITE
    if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0)
        return;
#endif
    for (size_t i = 0; i < bytes; i += page)
        ((volatile char *)base)[i] = 0;
}

tutti_status tt_stage_reserve(tt_stage *stage, tt_device *dev, size_t bytes)
{
    if (bytes <= stage->bytes)
        return TUTTI_OK;
    tt_stage_free(stage);
    bytes = tt_round_up(bytes, (size_t)2 << 20);
    if (!tt_device_host_memory(dev)) {
        void *locked;
        TT_TRY(dev->ops->host_alloc(dev, bytes, &locked));
        *stage = (tt_stage){locked, bytes, dev};
        return TUTTI_OK;
    }
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return tt_fail_errno(TUTTI_ERR_NO_MEMORY, errno,
                             "no %zu MiB of memory to stage the checkpoint in", bytes >> 20);
    madvise(base, bytes, MADV_HUGEPAGE);
    touch(base, bytes);
    stage->base = base;
    stage->bytes = bytes;
    return TUTTI_OK;
}

void tt_stage_free(tt_stage *stage)
{
    if (stage->locked_by != NULL)
        stage->locked_by->ops->host_free(stage->locked_by, stage->base);
    else if (stage->base != NULL)
        munmap(stage->base, stage->bytes);
    *stage = (tt_stage){0};
}
