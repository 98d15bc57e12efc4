/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handler for faults in device memory. A host thread that touches device memory, or a kernel
 * that leaves the ranges its table entry states, faults at the published address; the handler names
 * the allocation and ends the process with a finding. Other faults go to whoever had the signal
 * before. The process ends in any case, so the handler may look into the tables without the lock.
 */
#include "internal.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

static struct sigaction before[2]; /* SIGSEGV, SIGBUS */
static __thread const char *running;
static __thread bool passing; /* whoever had the signal before may pass it back to us */

void sg_guard_running(const char *label)
{
    running = label;
}

static bool is_write(const void *context)
{
#if defined(__x86_64__)
    const ucontext_t *uc = context;
    return (uc->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
    (void)context;
    return false;
#endif
}

static void tell(const char *address, bool write, bool pinned)
{
    const sg_alloc *a = sg_alloc_peek(address);
    const char *verb = write ? "writes" : "reads";
    char where[160] = "no allocation";
    if (a != NULL) {
        snprintf(where, sizeof(where), "%s%s, byte %zu of %zu", a->freed ? "freed " : "", a->origin,
                 (size_t)(address - a->base), a->bytes);
    }
    if (running != NULL) {
        sg_fatal("kernel-bounds", "%s %s %p outside of the ranges it states: %s", running, verb,
                 (const void *)address, where);
    } else if (a != NULL && a->freed) {
        sg_fatal("use-after-free", "the host %s %p: %s", verb, (const void *)address, where);
    } else {
        sg_fatal("host-access", "the host %s %s memory at %p: %s", verb,
                 pinned ? "pinned" : "device", (const void *)address, where);
    }
}

static void pass_on(int signal, siginfo_t *info, void *context)
{
    const struct sigaction *old = &before[signal == SIGBUS];
    if (passing) {
        struct sigaction none = {.sa_handler = SIG_DFL};
        sigaction(signal, &none, NULL);
        return;
    }
    passing = true;
    if ((old->sa_flags & SA_SIGINFO) != 0) {
        old->sa_sigaction(signal, info, context);
    } else if (old->sa_handler == SIG_DFL || old->sa_handler == SIG_IGN) {
        sigaction(signal, old, NULL); /* the fault comes again and is taken as it would have been */
    } else {
        old->sa_handler(signal);
    }
    passing = false;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    bool pinned;
    char why[512];
    if (!sg_memory_window(info->si_addr, &pinned)) {
        pass_on(signal, info, context);
        return;
    }
    bool write = is_write(context);
    if (!pinned || running != NULL) {
        tell(info->si_addr, write, pinned);
        return;
    }
    sg_lock();
    bool guilty = sg_pinned_fault(info->si_addr, write, why, sizeof(why));
    sg_unlock();
    if (guilty) {
        sg_fatal("host-race", "%s", why);
    }
}

static void take(int signal, struct sigaction *old)
{
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK}, now;
    action.sa_sigaction = on_fault;
    sigemptyset(&action.sa_mask);
    if (sigaction(signal, NULL, &now) == 0 &&
        ((now.sa_flags & SA_SIGINFO) == 0 || now.sa_sigaction != on_fault)) {
        sigaction(signal, &action, old);
    }
}

/* Called at every allocation: MPI libraries take the signals for themselves when they start. */
void sg_guard_start(void)
{
    take(SIGSEGV, &before[0]);
    take(SIGBUS, &before[1]);
}
