/* SPDX-License-Identifier: Apache-2.0 */
#include "janitor.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>
#include <sys/wait.h>

#include "sweep.h"

#define JANITOR_LIMIT_S 30.0

static void detach(int keep_fd)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    sigset_t all;

    setsid();
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    if (null >= 0) {
        /* whoever reads our output must see its end when tuttirun is gone */
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
    }
    if (keep_fd != STDERR_FILENO + 1)
        dup2(keep_fd, STDERR_FILENO + 1);
    close_range(STDERR_FILENO + 2, ~0u, 0);
}

static void wait_and_clean(scratch *s)
{
    char byte;
    ssize_t got;

    do
        got = read(STDERR_FILENO + 1, &byte, 1);
    while (got < 0 && errno == EINTR);
    if (got == 1)
        return;
    sweep_job(s->job, 0, JANITOR_LIMIT_S);
    scratch_remove(s);
}

void janitor_start(scratch *s, janitor *out)
{
    int fds[2];
    pid_t pid;

    *out = (janitor){0, -1};
    if (pipe2(fds, O_CLOEXEC) != 0)
        return;
    pid = fork();
    if (pid == 0) {
        close(fds[1]);
        detach(fds[0]);
        wait_and_clean(s);
        _exit(0);
    }
    close(fds[0]);
    if (pid < 0) {
        close(fds[1]);
        return;
    }
    *out = (janitor){pid, fds[1]};
}

void janitor_dismiss(janitor *j)
{
    ssize_t sent;

    if (j->pid == 0)
        return;
    sent = write(j->fd, "k", 1); /* one that is gone already (EPIPE) needs no word */
    (void)sent;
    close(j->fd);
    waitpid(j->pid, NULL, 0);
    j->pid = 0;
}
