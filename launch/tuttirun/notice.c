/* SPDX-License-Identifier: Apache-2.0 */
#include "notice.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "say.h"

/* A notice comes two minutes ahead; a command that hangs must not eat them up. */
enum { EVERY_S = 5, LIMIT_S = 10 };

static void pause_s(double seconds)
{
    struct timespec wait = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&wait, NULL);
}

static void become_command(const char *command)
{
    int null = open("/dev/null", O_RDWR);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setpgid(0, 0);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
    }
    execl("/bin/sh", "sh", "-c", command, (char *)NULL);
    _exit(127);
}

/* Its exit status; -1 when it was killed, or took too long. */
static int run_once(const char *command)
{
    int wait_status = 0;
    double waited = 0;
    pid_t pid = fork(), ended = 0;

    if (pid == 0)
        become_command(command);
    while (pid > 0 && waited < LIMIT_S && (ended = waitpid(pid, &wait_status, WNOHANG)) == 0) {
        pause_s(0.05);
        waited += 0.05;
    }
    if (pid > 0 && ended == 0) {
        say("--notice-cmd takes longer than %d s: ended", LIMIT_S);
        kill(-pid, SIGKILL);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    return ended > 0 && WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1;
}

static void watch(const char *command, pid_t parent)
{
    bool said = false;

    for (;;) {
        int status = run_once(command);

        if (status == 0) {
            say("--notice-cmd gave notice");
            kill(parent, SIGUSR1);
            return;
        }
        if (status == 127 && !said)
            say("--notice-cmd: sh cannot find the command; it is tried again every %d s", EVERY_S);
        said = said || status == 127;
        pause_s(EVERY_S);
    }
}

pid_t notice_start(const char *command)
{
    pid_t parent = getpid(), pid;
    sigset_t none;

    if (command == NULL)
        return 0;
    pid = fork();
    if (pid < 0)
        say("cannot start a process for --notice-cmd: %s", strerror(errno));
    if (pid != 0)
        return pid > 0 ? pid : 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    if (getppid() == parent)
        watch(command, parent);
    _exit(0);
}

void notice_end(pid_t watcher)
{
    /* it may have ended, and been reaped with the orphans of the job */
    if (watcher > 0 && waitpid(watcher, NULL, WNOHANG) == 0) {
        kill(watcher, SIGKILL);
        waitpid(watcher, NULL, 0);
    }
}
