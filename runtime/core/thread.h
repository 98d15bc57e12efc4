/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads, futex words and the one way to wait for a word in (shared) memory: spin a little, then
 * yield, then sleep in the kernel. On a machine with fewer cores than ranks spinning steals the
 * core that the awaited rank needs, so the spin phase shrinks to nothing there.
 */
#ifndef TT_CORE_THREAD_H
#define TT_CORE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "core/status.h"

tutti_status tt_thread_start(pthread_t *thread_out, const char *name, void *(*fn)(void *),
                             void *arg); /* signals blocked in it, save those of its own faults */

/* Sleeps while *word == seen, at most `ns`; may wake early. Works across processes. */
void tt_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t ns);
void tt_futex_wake_all(_Atomic uint32_t *word);

static inline void tt_cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield" ::: "memory");
#endif
}

/* How patient a waiter is. */
typedef struct tt_patience {
    int64_t spin_ns; /* busy first, for this long */
    int64_t sleep_min_ns, sleep_max_ns; /* then sleeps that double */
} tt_patience;

/* One wait in progress; begin with tt_wait_begin, call tt_wait_once while the condition does not
 * hold. */
typedef struct tt_wait {
    const tt_patience *patience;
    int64_t started_ns; /* 0 until the clock was first read */
    int64_t sleep_ns;
    uint32_t rounds; /* of the phase */
    bool spun; /* the busy phase is over */
} tt_wait;
static inline void tt_wait_begin(tt_wait *wait, const tt_patience *patience)
{
    wait->patience = patience;
    wait->started_ns = 0;
    wait->sleep_ns = patience->sleep_min_ns;
    wait->rounds = 0;
    wait->spun = false;
}
/* The same for what is known to take so long: it sleeps that long at first. */
void tt_wait_begin_asleep(tt_wait *wait, const tt_patience *patience, int64_t sleep_ns);
/* Relaxes, yields or sleeps; with word != NULL sleeps on it while *word == seen. Returns
 * nanoseconds since the wait began (0 between readings of the clock). */
int64_t tt_wait_once(tt_wait *wait, _Atomic uint32_t *word, uint32_t seen);

#endif
