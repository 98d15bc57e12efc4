/* SPDX-License-Identifier: Apache-2.0 */
#include "core/thread.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"

#define NS 1000000000

tutti_status tt_thread_start(pthread_t *thread_out, const char *name, void *(*fn)(void *),
                             void *arg)
{
    /* these tell of a fault in the thread itself: blocked, they kill past any handler */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
    sigset_t all, old;
    char short_name[16]; /* the kernel's limit */
    pthread_t thread;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int err = pthread_create(&thread, NULL, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (err != 0)
        return tt_fail_errno(TUTTI_ERR_NO_MEMORY, err, "cannot start thread %s", name);
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(thread, short_name);
    *thread_out = thread;
    return TUTTI_OK;
}

/* Not FUTEX_PRIVATE: the word may lie in memory shared with other processes. */
void tt_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t ns)
{
    struct timespec limit = {ns / NS, ns % NS};
    syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}

void tt_futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

enum { SPINS_PER_CLOCK = 64, YIELDS = 2 };

void tt_wait_begin_asleep(tt_wait *wait, const tt_patience *patience, int64_t sleep_ns)
{
    *wait = (tt_wait){.patience = patience,
                      .started_ns = tt_now_ns(),
                      .sleep_ns = sleep_ns,
                      .rounds = YIELDS,
                      .spun = true};
}

int64_t tt_wait_once(tt_wait *wait, _Atomic uint32_t *word, uint32_t seen)
{
    const tt_patience *patience = wait->patience;
    if (!wait->spun && patience->spin_ns > 0 && ++wait->rounds % SPINS_PER_CLOCK != 0) {
        tt_cpu_relax();
        return 0;
    }
    int64_t now = tt_now_ns();
    if (wait->started_ns == 0)
        wait->started_ns = now;
    int64_t waited = now - wait->started_ns;
    if (!wait->spun) {
        if (waited < patience->spin_ns)
            return waited;
        wait->spun = true;
        wait->rounds = 0;
    }
    if (wait->rounds < YIELDS) {
        wait->rounds++;
        sched_yield();
        return waited;
    }
    if (word != NULL)
        tt_futex_wait(word, seen, wait->sleep_ns);
    else
        tt_sleep_ns(wait->sleep_ns);
    wait->sleep_ns *= 2;
    if (wait->sleep_ns > patience->sleep_max_ns)
        wait->sleep_ns = patience->sleep_max_ns;
    return waited;
}
