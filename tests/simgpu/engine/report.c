/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Findings. Each is one line: on stderr, and in the file SIMGPU_REPORT, opened for appending so
 * that the processes of a job may share it (one write per line). The same finding again is only
 * counted: a loop that races a thousand times says so once.
 *
 * A process with findings ends with 96 in place of 0. This happens in an on_exit handler that is
 * registered when the library is loaded, so it runs after the program's own handlers; leaks are
 * looked for there too, and only if the program itself ended well.
 */
#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_FINDINGS = 96, EXIT_FATAL = 97, MAX_KEPT = 256, LINE = 2048 };

static int report_fd = -1;
static size_t found;
static uint64_t kept[MAX_KEPT];
static size_t n_kept;
static void (*at_exit[16])(void);
static size_t n_at_exit;

void *sg_must(void *ptr)
{
    if (ptr == NULL) {
        static const char text[] = "simgpu: out of memory\n";
        ssize_t ignored = write(2, text, sizeof(text) - 1);
        (void)ignored;
        _exit(EXIT_FATAL);
    }
    return ptr;
}

sg_text *sg_text_new(const char *s)
{
    size_t n = strlen(s) + 1;
    sg_text *text = sg_must(malloc(sizeof(*text) + n));
    text->refs = 1;
    memcpy(text->s, s, n);
    return text;
}

sg_text *sg_text_keep(sg_text *text)
{
    text->refs++;
    return text;
}

void sg_text_drop(sg_text *text)
{
    if (text != NULL && --text->refs == 0) {
        free(text);
    }
}

void sg_report_open(void)
{
    if (sg_set.report == NULL) {
        return;
    }
    report_fd = open(sg_set.report, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (report_fd < 0) {
        fprintf(stderr, "simgpu: cannot open SIMGPU_REPORT=%s: %s\n", sg_set.report,
                strerror(errno));
        _exit(EXIT_FATAL);
    }
}

static void write_line(const char *line, size_t n)
{
    ssize_t ignored = write(2, line, n);
    if (report_fd >= 0) {
        ignored = write(report_fd, line, n);
    }
    (void)ignored;
}

static bool said_before(const char *line)
{
    uint64_t h = 1469598103934665603u;
    for (const char *c = line; *c != '\0'; c++) {
        h = (h ^ (unsigned char)*c) * 1099511628211u;
    }
    for (size_t i = 0; i < n_kept; i++) {
        if (kept[i] == h) {
            return true;
        }
    }
    if (n_kept < MAX_KEPT) {
        kept[n_kept++] = h;
    }
    return false;
}

static void say(const char *id, const char *fmt, va_list args)
{
    char line[LINE], rank[24] = "";
    if (sg_set.rank >= 0) {
        snprintf(rank, sizeof(rank), " rank %d", sg_set.rank);
    }
    int n = snprintf(line, sizeof(line), "simgpu[%d%s]: %s: ", (int)getpid(), rank, id);
    int m = vsnprintf(line + n, sizeof(line) - (size_t)n - 1, fmt, args);
    size_t end = (size_t)n + (m > 0 ? (size_t)m : 0);
    if (end > sizeof(line) - 2) {
        end = sizeof(line) - 2;
    }
    line[end] = '\0';
    found++;
    if (!said_before(line)) {
        line[end] = '\n';
        write_line(line, end + 1);
    }
}

void sg_finding(const char *id, const char *fmt, ...)
{
    va_list args;
    sg_lock();
    va_start(args, fmt);
    say(id, fmt, args);
    va_end(args);
    sg_unlock();
    if (sg_set.on_finding == SG_FINDING_ABORT) {
        abort();
    }
}

void sg_fatal(const char *id, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say(id, fmt, args);
    va_end(args);
    if (sg_set.on_finding == SG_FINDING_ABORT) {
        abort();
    }
    _exit(EXIT_FATAL);
}

void sg_refuse(const char *name)
{
    sg_fatal("unknown-call", "%s is not simulated: the process ends", name);
}

size_t sg_findings(void)
{
    sg_lock();
    size_t n = found;
    sg_unlock();
    return n;
}

void sg_at_exit(void (*fn)(void))
{
    sg_lock();
    if (n_at_exit < sizeof(at_exit) / sizeof(at_exit[0])) {
        at_exit[n_at_exit++] = fn;
    }
    sg_unlock();
}

void sg_report_last(int status)
{
    if (status != 0 || sg_set.on_finding == SG_FINDING_IGNORE) {
        return;
    }
    sg_lock();
    while (n_at_exit > 0) {
        at_exit[--n_at_exit]();
    }
    sg_streams_left();
    sg_memory_leaks();
    size_t n = found;
    sg_unlock();
    if (n > 0) {
        fflush(NULL);
        _exit(EXIT_FINDINGS);
    }
}
