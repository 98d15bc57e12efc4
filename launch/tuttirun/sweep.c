/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a job is made to be gone. mpirun kills its ranks when one dies, but a killed mpirun kills
 * nobody, and neither knows what a rank itself has started. A job's processes are known by two
 * marks: the job's name in their environment, which survives whatever forks and execs follow, and,
 * on the machine of tuttirun, by being its children: tuttirun is the subreaper, so an orphan whose
 * environment was wiped becomes its child, and its zombies are reaped rather than left to an init
 * that may not do so (containers).
 *
 * Each pass over /proc kills what it finds; two in a row that find none are the proof. A process
 * that forks while a pass goes by is itself found by it, so another follows; one that is in the
 * middle of an exec shows no environment, so a single empty pass proves nothing.
 */
#include "sweep.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "say.h"
#include "scratch.h"

#define PASS_NS 10000000L
#define PASSES 2 /* that must find nothing */

typedef struct process {
    pid_t pid, parent;
    char name[32];
    char state;
} process;

static char *read_whole(const char *path, size_t *size_out)
{
    size_t cap = 65536, size = 0;
    char *text = malloc(cap);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = -1;

    while (text != NULL && fd >= 0 && (got = read(fd, text + size, cap - 1 - size)) > 0) {
        size += (size_t)got;
        if (size == cap - 1) {
            char *larger = realloc(text, cap *= 2);

            if (larger == NULL)
                break;
            text = larger;
        }
    }
    if (fd >= 0)
        close(fd);
    if (got != 0) {
        free(text);
        return NULL;
    }
    text[size] = '\0';
    *size_out = size;
    return text;
}

/* The name in /proc/PID/stat may hold anything, so what follows is counted from its last ')'. */
static bool read_process(pid_t pid, process *out)
{
    char path[64];
    size_t size;
    char *text, *open_paren, *close_paren;
    bool good = false;
    int parent;

    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    text = read_whole(path, &size);
    if (text == NULL)
        return false;
    open_paren = strchr(text, '(');
    close_paren = strrchr(text, ')');
    if (open_paren != NULL && close_paren != NULL && close_paren[1] == ' ' &&
        sscanf(close_paren + 2, "%c %d", &out->state, &parent) == 2) {
        *close_paren = '\0';
        snprintf(out->name, sizeof(out->name), "%s", open_paren + 1);
        out->pid = pid;
        out->parent = parent;
        good = true;
    }
    free(text);
    return good;
}

static bool carries_mark(pid_t pid, const char *mark)
{
    char path[64];
    size_t size, at;
    char *text;
    bool found = false;

    snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    text = read_whole(path, &size);
    if (text == NULL)
        return false;
    for (at = 0; at < size && !found; at += strlen(text + at) + 1)
        found = strcmp(text + at, mark) == 0;
    free(text);
    return found;
}

static bool is_alive(const process *p)
{
    return p->state != 'Z' && p->state != 'X';
}

static bool belongs(pid_t pid, const char *mark, process *out)
{
    if (pid == getpid() || !read_process(pid, out) || !is_alive(out))
        return false;
    return out->parent == getpid() || carries_mark(pid, mark);
}

/* Sends `sig` (0: none) to what is there; returns how many, and one of them. */
static int pass(const char *job, const pid_t spare[2], int sig, process *one_out)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    char mark[128];
    int found = 0;

    if (proc == NULL)
        return 0;
    snprintf(mark, sizeof(mark), JOB_VARIABLE "=%s", job);
    while ((entry = readdir(proc)) != NULL) {
        pid_t pid = isdigit((unsigned char)entry->d_name[0]) ? (pid_t)atoi(entry->d_name) : 0;
        process p;

        if (pid == 0 || pid == spare[0] || pid == spare[1] || !belongs(pid, mark, &p))
            continue;
        kill(pid, sig);
        *one_out = p;
        found++;
    }
    closedir(proc);
    return found;
}

int sweep_count(const char *job, pid_t spare, pid_t other)
{
    const pid_t spares[2] = {spare, other};
    process one;

    return pass(job, spares, 0, &one);
}

/* The live ones among the numbers in a children file. */
static int count_alive(char *list)
{
    char *rest = list, *word;
    int alive = 0;

    while ((word = strsep(&rest, " ")) != NULL) {
        process p;

        if (*word != '\0' && read_process((pid_t)atoi(word), &p) && is_alive(&p))
            alive++;
    }
    return alive;
}

int sweep_children(pid_t parent)
{
    char path[PATH_MAX];
    struct dirent *entry;
    int alive = -1;
    DIR *threads;

    snprintf(path, sizeof(path), "/proc/%d/task", (int)parent);
    threads = opendir(path);
    if (threads == NULL)
        return -1;
    while ((entry = readdir(threads)) != NULL) {
        size_t size;
        char *list;

        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof(path), "/proc/%d/task/%.20s/children", (int)parent, entry->d_name);
        list = read_whole(path, &size);
        if (list == NULL)
            continue;
        alive = (alive > 0 ? alive : 0) + count_alive(list);
        free(list);
    }
    closedir(threads);
    return alive;
}

static void reap(pid_t spare)
{
    siginfo_t info;

    for (;;) {
        memset(&info, 0, sizeof(info));
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0 ||
            info.si_pid == spare)
            return;
        waitpid(info.si_pid, NULL, 0);
    }
}

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

bool sweep_job(const char *job, pid_t spare, double limit_s)
{
    const struct timespec pause = {0, PASS_NS};
    const pid_t spares[2] = {spare, 0};
    double until = seconds_now() + limit_s;
    process one;
    int left, empty = 0;

    for (;;) {
        left = pass(job, spares, SIGKILL, &one);
        empty = left > 0 ? 0 : empty + 1;
        if (empty == PASSES)
            break;
        if (left > 0 && seconds_now() > until) {
            say("process %d (%s) of the job is still there %.0f s after SIGKILL", (int)one.pid,
                one.name, limit_s);
            break;
        }
        nanosleep(&pause, NULL);
        reap(spare);
    }
    reap(spare);
    return left == 0;
}
