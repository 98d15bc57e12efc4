/* SPDX-License-Identifier: Apache-2.0 */
/* The settings, all from SIMGPU_* variables, read once when the library is loaded. */
#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

sg_settings sg_set;
bool sg_noop;

static pthread_mutex_t lock;

void sg_lock(void)
{
    pthread_mutex_lock(&lock);
}

void sg_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

pthread_mutex_t *sg_mutex(void)
{
    return &lock;
}

static const char *text(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

static long number(const char *name, long otherwise)
{
    const char *value = text(name);
    if (value == NULL) {
        return otherwise;
    }
    char *end;
    long n = strtol(value, &end, 10);
    if (*end != '\0') {
        sg_fatal("setting", "%s=%s is no number", name, value);
    }
    return n;
}

static void read_schedule(void)
{
    const char *value = text("SIMGPU_SCHEDULE");
    sg_set.seed = 1;
    if (value == NULL || strcmp(value, "late") == 0) {
        sg_set.schedule = SG_LATE;
    } else if (strcmp(value, "eager") == 0) {
        sg_set.schedule = SG_EAGER;
    } else if (strncmp(value, "random", 6) == 0 && (value[6] == ':' || value[6] == '\0')) {
        sg_set.schedule = SG_RANDOM;
        sg_set.seed = value[6] == ':' ? strtoull(value + 7, NULL, 10) : 1;
    } else {
        sg_fatal("setting", "SIMGPU_SCHEDULE=%s: late, eager or random:SEED", value);
    }
}

static void read_on_finding(void)
{
    const char *value = text("SIMGPU_ON_FINDING");
    if (value == NULL || strcmp(value, "exit") == 0) {
        sg_set.on_finding = SG_FINDING_EXIT;
    } else if (strcmp(value, "abort") == 0) {
        sg_set.on_finding = SG_FINDING_ABORT;
    } else if (strcmp(value, "ignore") == 0) {
        sg_set.on_finding = SG_FINDING_IGNORE;
    } else {
        sg_fatal("setting", "SIMGPU_ON_FINDING=%s: exit, abort or ignore", value);
    }
}

static int read_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (text(names[i]) != NULL) {
            return (int)number(names[i], -1);
        }
    }
    return -1;
}

void sg_config_read(void)
{
    sg_set.report = text("SIMGPU_REPORT");
    sg_set.log = text("SIMGPU_LOG");
    sg_set.rank = read_rank();
    sg_report_open();
    read_schedule();
    read_on_finding();
    sg_set.patience_ms = number("SIMGPU_PATIENCE", 20000);
    sg_set.deadlock = number("SIMGPU_DEADLOCK", 1) != 0;
    sg_set.fault = text("SIMGPU_FAULT");
    sg_set.skip = text("SIMGPU_SKIP");
    sg_set.machine = text("SIMGPU_MACHINE");
    sg_set.kernels = text("SIMGPU_KERNELS");
    sg_set.mig = text("SIMGPU_MIG");
    sg_set.host = (int)number("SIMGPU_HOST", 0);
    sg_set.hosts = (int)number("SIMGPU_HOSTS", 1);
    sg_noop = number("SIMGPU_NOOP", 0) != 0;
}

long sg_patience_ms(void)
{
    return sg_set.patience_ms;
}

double sg_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* splitmix64; one counter per salt, so that one user's draws do not move another's. */
uint64_t sg_random(const char *salt)
{
    enum { USERS = 64 };
    static struct {
        uint64_t salt, n;
    } users[USERS];
    uint64_t h = 1469598103934665603u;
    for (const char *c = salt; *c != '\0'; c++) {
        h = (h ^ (unsigned char)*c) * 1099511628211u;
    }
    h |= 1;
    sg_lock();
    size_t i = 0;
    while (i < USERS - 1 && users[i].salt != 0 && users[i].salt != h) {
        i++;
    }
    users[i].salt = h;
    uint64_t x = sg_set.seed * 0x9e3779b97f4a7c15u + h + ++users[i].n * 0xbf58476d1ce4e5b9u;
    sg_unlock();
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static void leave(int status, void *unused)
{
    (void)unused;
    sg_report_last(status);
}

/* Recursive, so that stand-ins may hold it over several calls and use it for their own state. */
__attribute__((constructor)) static void start(void)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &attr);
    pthread_mutexattr_destroy(&attr);
    sg_config_read();
    sg_fault_read();
    sg_memory_start();
    sg_guard_start();
    on_exit(leave, NULL);
}
