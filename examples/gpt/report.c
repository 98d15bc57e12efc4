/* SPDX-License-Identifier: Apache-2.0 */
#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Where a process's stdout goes; "" if that cannot be seen. */
static void stdout_of(long pid, char to[128])
{
    char link[64];
    ssize_t length;

    snprintf(link, sizeof link, "/proc/%ld/fd/1", pid);
    length = readlink(link, to, 127);
    to[length < 0 ? 0 : length] = '\0';
}

static long parent_of(long pid)
{
    char path[64], line[512] = "";
    const char *after_name;
    long parent = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%ld/stat", pid);
    f = fopen(path, "re");
    if (f == NULL)
        return 0;
    after_name = fgets(line, sizeof line, f) == NULL ? NULL : strrchr(line, ')');
    if (after_name == NULL || sscanf(after_name, ") %*c %ld", &parent) != 1)
        parent = 0;
    fclose(f);
    return parent;
}

/* Whether the stdout of the first ancestor that has another one than this process, which is the
 * launcher, is a terminal. */
static bool launcher_on_terminal(void)
{
    char own[128], other[128];
    long pid = (long)getppid();

    stdout_of((long)getpid(), own);
    for (stdout_of(pid, other); pid > 1 && strcmp(own, other) == 0; stdout_of(pid, other))
        pid = parent_of(pid);
    return strncmp(other, "/dev/pts/", 9) == 0 || strncmp(other, "/dev/tty", 8) == 0;
}

/* Open MPI gives every rank a pseudo-terminal, of no size, even where its own output goes to a
 * file. */
static bool on_terminal(void)
{
    const char *kind = getenv("TERM");
    struct winsize size = {0};

    if (isatty(STDOUT_FILENO) != 1 || kind == NULL || strcmp(kind, "dumb") == 0)
        return false;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return true;
    return launcher_on_terminal();
}

void report_start(report *p, bool speaks, int64_t first_step, int64_t steps, int64_t tokens)
{
    memset(p, 0, sizeof *p);
    p->speaks = speaks;
    p->terminal = on_terminal();
    p->first_step = first_step;
    p->steps = steps;
    p->tokens_per_step = tokens;
    p->lap = now();
}

void report_lap(report *p, phase to)
{
    report_lap_split(p, to, to, 0);
}

void report_lap_split(report *p, phase to, phase other, double moved)
{
    double t = now(), spent = t - p->lap;

    p->lap = t;
    if (moved > spent)
        moved = spent;
    p->seconds[to] += spent - moved;
    p->seconds[other] += moved;
}

void report_skip(report *p)
{
    p->lap = now();
}

static double total_seconds(const report *p)
{
    double sum = 0;

    for (int i = 0; i < PHASE_COUNT; i++)
        sum += p->seconds[i];
    return sum > 0 ? sum : 1e-9;
}

/* On a terminal the line is redrawn at most ten times a second: writing is not free. */
static bool too_soon(report *p, int64_t step)
{
    double t = now();

    if (!p->terminal)
        return false;
    if (step < p->steps && t - p->drawn < 0.1)
        return true;
    p->drawn = t;
    return false;
}

void report_step(report *p, int64_t step, double loss)
{
    double total = total_seconds(p), done = (double)(step - p->first_step);
    long left = (long)(total / done * (double)(p->steps - step) + 0.5);

    if (!p->speaks || too_soon(p, step))
        return;
    printf("%sstep %lld loss %.6f  %.0f tokens/s  exposed comm %.1f %%  %ld:%02ld left",
           p->terminal ? "\r" : "", (long long)step, loss,
           done * (double)p->tokens_per_step / total, 100 * p->seconds[PHASE_EXPOSED] / total,
           left / 60, left % 60);
    fputs(p->terminal ? "\033[K" : "\n", stdout);
    p->line_open = p->terminal;
    fflush(stdout);
}

void report_say(report *p, const char *format, ...)
{
    va_list arguments;

    if (!p->speaks)
        return;
    if (p->line_open)
        putchar('\n');
    p->line_open = false;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

void report_table(report *p, int64_t steps_done)
{
    static const char *const name[PHASE_COUNT] = {
        "forward",          "backward", "waiting for stages", "exposed communication", "optimizer",
        "checkpoint stall", "other"};
    double total = total_seconds(p), n = (double)(steps_done - p->first_step);

    if (n <= 0)
        return;
    report_say(
        p, "\nwhere the time of a step went (mean of %.0f steps on rank 0, evaluation left out)",
        n);
    for (int i = 0; i < PHASE_COUNT; i++)
        if (i != PHASE_STAGES || p->seconds[i] > 0)
            report_say(p, "  %-22s %9.2f ms %6.1f %%", name[i], 1e3 * p->seconds[i] / n,
                       100 * p->seconds[i] / total);
    report_say(p, "  %-22s %9.2f ms   %.0f tokens/s", "a step", 1e3 * total / n,
               n * (double)p->tokens_per_step / total);
}
