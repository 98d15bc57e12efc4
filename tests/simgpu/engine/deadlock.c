/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deadlock: nothing can run, and every thread that could change that waits too. A thread counts as
 * waiting if it is in a wait of the engine; or, after a second in which nothing moved, if it polls
 * (200 queries in a row that found nothing) or has slept in one futex all the time (a join, a lock:
 * somebody must wake it). Threads that never called the engine count too, for they may be about to:
 * those that wait for files or sockets (the helpers of an MPI library) do not. A thread that sleeps
 * for a time will wake up.
 *
 * Where that cannot be told, or a peer is in another process, a wait in which nothing moves is
 * reported after SIMGPU_PATIENCE. After an injected hang or loss nothing is reported: waits without
 * end are then what the program is tested with.
 */
#include "internal.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>

static bool (*suspects)(bool tell); /* sg_at_deadlock */

enum { POLLS = 200, STRANGERS = 64 };
static const double ASLEEP = 1.0;
static sg_thread_entry strangers[STRANGERS];

/* The system call that a thread of this process sleeps in; -1: it runs, or cannot be asked. */
static long syscall_of(int tid)
{
    char path[64], line[64] = "";
    snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", tid);
    FILE *f = fopen(path, "r");
    if (f == NULL) {
        return -1;
    }
    bool read = fgets(line, sizeof(line), f) != NULL;
    fclose(f);
    char *end;
    long number = strtol(line, &end, 10);
    return read && end != line ? number : -1;
}

static long switches_of(int tid)
{
    char path[64], line[128];
    long n = -1;
    snprintf(path, sizeof(path), "/proc/self/task/%d/status", tid);
    FILE *f = fopen(path, "r");
    while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "voluntary_ctxt_switches: %ld", &n) == 1) {
            break;
        }
    }
    if (f != NULL) {
        fclose(f);
    }
    return n;
}

/* A thread outside has slept in one futex for a second. Asked again and again while others wait. */
static bool asleep(sg_thread_entry *t)
{
    double now = sg_now();
    if (now - t->looked > ASLEEP / 4) {
        long switches = switches_of(t->tid);
        if (switches < 0 || switches != t->switches || syscall_of(t->tid) != SYS_futex) {
            t->asleep_since = now;
        }
        t->switches = switches;
        t->looked = now;
    }
    return now - t->asleep_since > ASLEEP;
}

static bool stuck(sg_thread_entry *t, bool quiet)
{
    if (t->call != NULL) {
        return t->seen_stamp == sg_stamp && !t->bounded;
    }
    if (t->fruitless >= POLLS) {
        return quiet && t->seen_stamp == sg_stamp;
    }
    return quiet && asleep(t);
}

static bool waits_for_events(int tid)
{
    switch (syscall_of(tid)) {
    case SYS_epoll_pwait:
    case SYS_ppoll:
    case SYS_pselect6:
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
    case SYS_poll:
    case SYS_select:
#endif
        return true;
    default:
        return false;
    }
}

static bool is_known(int tid)
{
    const sg_thread_entry *t = sg_threads;
    while (t != NULL && t->tid != tid) {
        t = t->next;
    }
    return t != NULL || tid == sg_ticker_tid;
}

static sg_thread_entry *stranger(int tid)
{
    sg_thread_entry *spare = &strangers[0];
    for (size_t i = 0; i < STRANGERS; i++) {
        if (strangers[i].tid == tid) {
            return &strangers[i];
        }
        spare = strangers[i].looked < spare->looked ? &strangers[i] : spare;
    }
    *spare = (sg_thread_entry){.tid = tid, .asleep_since = sg_now()};
    return spare;
}

static bool strangers_stuck(bool quiet)
{
    DIR *tasks = opendir("/proc/self/task");
    bool all = tasks != NULL;
    const struct dirent *entry;
    while (tasks != NULL && (entry = readdir(tasks)) != NULL) {
        int tid = atoi(entry->d_name);
        if (tid > 0 && !is_known(tid) && !waits_for_events(tid)) {
            all = quiet && asleep(stranger(tid)) && all;
        }
    }
    if (tasks != NULL) {
        closedir(tasks);
    }
    return all;
}

static bool all_stuck(void)
{
    bool quiet = sg_now() - sg_last_change > ASLEEP, all = true;
    if (sg_unlocked_running()) {
        return false;
    }
    for (sg_thread_entry *t = sg_threads; t != NULL; t = t->next) {
        all = stuck(t, quiet) && all;
    }
    return all && strangers_stuck(quiet);
}

static size_t add(char *buf, size_t cap, size_t n, const char *text)
{
    int more = n < cap ? snprintf(buf + n, cap - n, "; %s", text) : 0;
    return more > 0 ? n + (size_t)more : n;
}

static void report_deadlock(const char *how)
{
    char text[1600] = "", one[400];
    size_t n = 0;
    for (const sg_thread_entry *t = sg_threads; t != NULL; t = t->next) {
        if (t->call != NULL) {
            snprintf(one, sizeof(one), "thread %d waits in %s for %s", t->tid, t->call, t->what);
            n = add(text, sizeof(text), n, one);
        } else if (t->fruitless >= POLLS) {
            snprintf(one, sizeof(one), "thread %d polls for %s", t->tid, t->what);
            n = add(text, sizeof(text), n, one);
        }
    }
    for (const sg_stream *s = sg_streams; s != NULL; s = s->next) {
        if (s->head != NULL) {
            n = add(text, sizeof(text), n, sg_op_blocked_text(s->head, one, sizeof(one)));
        }
    }
    if (suspects != NULL) {
        (void)suspects(true);
    }
    sg_fatal("deadlock", "%s%s", how, text);
}

void sg_at_deadlock(bool (*fn)(bool tell))
{
    suspects = fn;
}

static bool out_of_patience(void)
{
    double still = sg_now() - sg_last_change, patience = 1e-3 * (double)sg_set.patience_ms;
    return still > patience || (still > patience / 4 && suspects != NULL && suspects(false));
}

void sg_consider_deadlock(bool remote)
{
    sg_me()->seen_stamp = sg_stamp;
    if (!sg_set.deadlock || sg_fault_seen()) {
        return;
    }
    if (!remote && !sg_remote_blocked() && all_stuck()) {
        report_deadlock("no operation can run and every thread waits");
    } else if (!sg_me()->bounded && out_of_patience()) {
        report_deadlock("nothing has moved for SIMGPU_PATIENCE");
    }
}
