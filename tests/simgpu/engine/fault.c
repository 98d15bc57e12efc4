/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The start of every call: counting, the log, and the two tables that tests write. SIMGPU_FAULT
 * makes the n-th call of a name fail, hang, wait, or lose the current GPU; SIMGPU_SKIP makes it do
 * nothing and say success, which patches a wait or a check out of a program that was not built for
 * it.
 *
 * Calls are counted per name, and per name and current device: with ranks as threads only the
 * second count is the same in every run (`NAME:N@D`).
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef enum action { ACT_SKIP, ACT_ERROR, ACT_HANG, ACT_WAIT, ACT_LOSE } action;

typedef struct rule {
    char name[64];
    long nth; /* 0: every call */
    int device; /* -1: any */
    action act;
    int error;
} rule;

typedef struct counter {
    char name[64];
    long calls;
    long on_device[SG_MAX_DEVICES];
} counter;

enum { MAX_RULES = 32, COUNTERS = 1024 };
static rule rules[MAX_RULES];
static size_t n_rules;
static counter *counters[COUNTERS];
static int log_fd = -1;
static unsigned long log_line;
static bool unbounded;
static unsigned released[SG_MAX_DEVICES]; /* how often those that wait were let go */

bool sg_fault_seen(void)
{
    return unbounded;
}

static void parse_action(rule *r, const char *text, const char *all)
{
    if (strncmp(text, "error", 5) == 0 && (text[5] == '\0' || text[5] == ',')) {
        r->act = ACT_ERROR;
        r->error = text[5] == ',' ? atoi(text + 6) : -1;
    } else if (strcmp(text, "hang") == 0) {
        r->act = ACT_HANG;
    } else if (strcmp(text, "wait") == 0) {
        r->act = ACT_WAIT;
    } else if (strcmp(text, "lost") == 0) {
        r->act = ACT_LOSE;
    } else {
        sg_fatal("setting", "SIMGPU_FAULT=%s: \"%s\" is not error[,N], hang, wait or lost", all,
                 text);
    }
}

static void parse_rule(char *text, bool skip, const char *all)
{
    const char *variable = skip ? "SIMGPU_SKIP" : "SIMGPU_FAULT";
    if (n_rules == MAX_RULES) {
        sg_fatal("setting", "%s has more than %d entries", variable, MAX_RULES);
    }
    rule *r = &rules[n_rules++];
    *r = (rule){.device = -1, .act = ACT_SKIP, .error = -1};
    char *equals = strchr(text, '=');
    if (!skip && equals != NULL) {
        *equals = '\0';
        parse_action(r, equals + 1, all);
    }
    char *at = strchr(text, '@');
    if (at != NULL) {
        *at = '\0';
        r->device = atoi(at + 1);
    }
    char *colon = strchr(text, ':');
    if (colon == NULL || (skip != (equals == NULL))) {
        sg_fatal("setting", "%s=%s: entries are NAME:N%s", variable, all,
                 skip ? "[@DEVICE]" : "[@DEVICE]=ACTION");
    }
    *colon = '\0';
    r->nth = strcmp(colon + 1, "*") == 0 ? 0 : atol(colon + 1);
    snprintf(r->name, sizeof(r->name), "%s", text);
}

static void parse(const char *all, bool skip)
{
    if (all == NULL) {
        return;
    }
    char *copy = sg_must(strdup(all)), *rest = NULL;
    for (char *one = strtok_r(copy, ";", &rest); one != NULL; one = strtok_r(NULL, ";", &rest)) {
        parse_rule(one, skip, all);
    }
    free(copy);
}

void sg_fault_read(void)
{
    parse(sg_set.fault, false);
    parse(sg_set.skip, true);
    if (sg_set.log != NULL) {
        log_fd = open(sg_set.log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
        if (log_fd < 0) {
            sg_fatal("setting", "SIMGPU_LOG=%s: %s", sg_set.log, strerror(errno));
        }
    }
}

static counter *count(const char *name)
{
    uint64_t h = 1469598103934665603u;
    for (const char *c = name; *c != '\0'; c++) {
        h = (h ^ (unsigned char)*c) * 1099511628211u;
    }
    size_t i = h % COUNTERS;
    while (counters[i] != NULL && strcmp(counters[i]->name, name) != 0) {
        i = (i + 1) % COUNTERS;
    }
    if (counters[i] == NULL) {
        counters[i] = sg_must(calloc(1, sizeof(counter)));
        snprintf(counters[i]->name, sizeof(counters[i]->name), "%s", name);
    }
    counters[i]->calls++;
    counters[i]->on_device[sg_current_device()]++;
    return counters[i];
}

static const rule *match(const counter *c)
{
    int device = sg_current_device();
    for (size_t i = 0; i < n_rules; i++) {
        const rule *r = &rules[i];
        long n = r->device >= 0 ? c->on_device[device] : c->calls;
        if ((r->device < 0 || r->device == device) && (r->nth == 0 || r->nth == n) &&
            strcmp(r->name, c->name) == 0) {
            return r;
        }
    }
    return NULL;
}

static void log_args(const char *fmt, va_list args)
{
    char line[1024];
    int n = snprintf(line, sizeof(line), "%lu dev%d ", ++log_line, sg_current_device());
    int m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, args);
    size_t end = (size_t)n + (m > 0 ? (size_t)m : 0);
    end = end > sizeof(line) - 2 ? sizeof(line) - 2 : end;
    line[end] = '\n';
    ssize_t ignored = write(log_fd, line, end + 1);
    (void)ignored;
}

bool sg_logging(void)
{
    return log_fd >= 0;
}

void sg_log(const char *fmt, ...)
{
    va_list args;
    if (log_fd < 0) {
        return;
    }
    va_start(args, fmt);
    sg_lock();
    log_args(fmt, args);
    sg_unlock();
    va_end(args);
}

static void log_call(const char *name, const char *fmt, va_list args)
{
    char text[900];
    vsnprintf(text, sizeof(text), fmt, args);
    sg_log("%s(%s)", name, text);
}

/* Without the lock meanwhile. */
static void wait_for_release(int device)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    unsigned before = released[device];
    while (released[device] == before) {
        sg_unlock();
        nanosleep(&pause, NULL);
        sg_lock();
    }
}

void sg_fault_release(int device)
{
    sg_lock();
    released[device]++;
    sg_unlock();
}

static sg_verdict apply(const rule *r, const char *name, int *error_out)
{
    sg_log("%s: injected", name);
    if (r->act == ACT_SKIP) {
        return SG_SKIP;
    }
    if (r->act == ACT_ERROR) {
        *error_out = r->error;
        return SG_FAIL;
    }
    unbounded = true;
    if (r->act == ACT_LOSE) {
        sg_device_lose(sg_current_device());
        *error_out = -1;
        return SG_GO;
    }
    if (r->act == ACT_WAIT) {
        wait_for_release(sg_current_device());
        *error_out = -1;
        return SG_FAIL;
    }
    sg_unlock();
    for (;;) {
        pause();
    }
}

sg_verdict sg_call(int *error_out, const char *name, const char *fmt, ...)
{
    sg_verdict verdict = SG_GO;
    sg_lock();
    if (log_fd >= 0) {
        va_list args;
        va_start(args, fmt);
        log_call(name, fmt, args);
        va_end(args);
    }
    sg_thread_called(name);
    if (sg_in_host_function()) {
        sg_finding("host-function", "%s is called from a host function on a stream", name);
        *error_out = SG_ERR_NOT_PERMITTED;
        verdict = SG_FAIL;
    }
    if (verdict == SG_GO) {
        const rule *r = n_rules > 0 ? match(count(name)) : NULL;
        verdict = r != NULL ? apply(r, name, error_out) : SG_GO;
        sg_schedule_called();
    }
    sg_unlock();
    return verdict;
}
