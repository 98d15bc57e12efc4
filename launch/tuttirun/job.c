/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One run of the job. Signals are blocked and read with sigtimedwait, so there are no handlers and
 * no races. mpirun runs in a session of its own: Ctrl-C and a terminal that hangs up reach only
 * tuttirun, which turns them into what mpirun forwards to the ranks, SIGUSR1. (SIGTERM to mpirun
 * kills the ranks one second later, in the middle of their save.)
 *
 * The first stop starts the grace. A second one, or the end of the grace, kills mpirun; the caller
 * then sweeps the ranks away. Two signals of one kind within half a second are one: `timeout` and
 * batch systems signal both the process and its group.
 */
#include "job.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "say.h"
#include "sweep.h"

#define SAME_SIGNAL_S 0.5
#define WATCH_S 2.0
#define CHILDLESS_S 3.0

static const int stop_signals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2};

typedef struct run {
    const job_view *view;
    pid_t mpirun;
    double childless_since; /* INFINITY while mpirun has ranks */
    double deadline; /* of the grace; INFINITY before a stop */
    double stop_time;
    int stop_signal; /* the first; 0 before */
    int verdict; /* the exit status once we have killed it; 0 before */
} run;

static sigset_t taken, before;

static double seconds_now(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static bool is_ignored(int sig)
{
    struct sigaction now;

    return sigaction(sig, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

void job_take_signals(void)
{
    size_t i;

    sigemptyset(&taken);
    sigaddset(&taken, SIGCHLD);
    for (i = 0; i < sizeof(stop_signals) / sizeof(stop_signals[0]); i++) {
        int sig = stop_signals[i];

        /* nohup and the shell's & ask for these to be ignored */
        if ((sig == SIGINT || sig == SIGHUP) && is_ignored(sig))
            continue;
        sigaddset(&taken, sig);
    }
    signal(SIGCHLD, SIG_DFL); /* ignored by some callers, which would lose the exit status */
    signal(SIGPIPE, SIG_IGN);
    sigprocmask(SIG_BLOCK, &taken, &before);
}

bool job_stop_pending(void)
{
    sigset_t pending;
    size_t i;

    sigpending(&pending);
    for (i = 0; i < sizeof(stop_signals) / sizeof(stop_signals[0]); i++)
        if (sigismember(&pending, stop_signals[i]) == 1)
            return true;
    return false;
}

/* A program that reads the terminal would do so behind the back of the shell's job control. */
static void leave_terminal(void)
{
    int null;

    if (!isatty(STDIN_FILENO))
        return;
    null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
}

static pid_t start(const command *c)
{
    pid_t parent = getpid(), pid = fork();

    if (pid != 0)
        return pid;
    /* Until the exec it does not carry the job's name, so the janitor would not find it. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(EXIT_CANNOT_RUN);
    setsid();
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    leave_terminal();
    command_exec(c);
    _exit(EXIT_CANNOT_RUN);
}

static void kill_now(run *r, int verdict, const char *why, const char *what)
{
    say("%s: %s", why, what);
    kill(r->mpirun, SIGKILL);
    r->verdict = verdict;
}

static void on_stop(run *r, int sig)
{
    double now = seconds_now();

    if (r->verdict != 0 || (sig == r->stop_signal && now - r->stop_time < SAME_SIGNAL_S))
        return;
    if (r->view->clearing) {
        r->stop_signal = sig;
        kill_now(r, EXIT_STOPPED, signal_name(sig), "not waiting for the other machines");
        return;
    }
    if (r->stop_signal != 0) {
        kill_now(r, 128 + SIGKILL, signal_name(sig), "killing the ranks");
        return;
    }
    r->stop_signal = sig;
    r->stop_time = now;
    if (scratch_started(r->view->dirs, r->view->ranks) < r->view->ranks) {
        kill_now(r, EXIT_STOPPED, signal_name(sig),
                 "not all ranks have started yet, so nothing is lost");
        return;
    }
    r->deadline = now + r->view->grace_s;
    say("%s: asking the ranks to save and stop; they have %g s (a second signal kills them)",
        signal_name(sig), r->view->grace_s);
    kill(r->mpirun, SIGUSR1);
}

/* Waits for a signal, until the grace ends or mpirun should be looked at; 0 when there was none. */
static int next_signal(const run *r)
{
    double left = r->deadline - seconds_now();
    double pause = r->verdict == 0 && left < WATCH_S ? fmax(left, 0) : WATCH_S;
    struct timespec wait = {(time_t)pause, (long)((pause - floor(pause)) * 1e9)};
    int sig = sigtimedwait(&taken, NULL, &wait);

    return sig > 0 ? sig : 0;
}

/* Reaps whatever has ended: mpirun, and orphans of the job, whose reaper we are. True when mpirun
 * was among them. */
static bool reap(const run *r, int *wait_status_out)
{
    int wait_status;
    pid_t pid;
    bool ended = false;

    while ((pid = waitpid(-1, &wait_status, WNOHANG)) > 0) {
        if (pid == r->mpirun) {
            *wait_status_out = wait_status;
            ended = true;
        }
    }
    return ended;
}

static job_end conclude(const run *r, int wait_status)
{
    job_end end = {.stopped = r->stop_signal != 0};

    if (WIFSIGNALED(wait_status)) {
        end.mpirun_died = true;
        end.status = 128 + WTERMSIG(wait_status);
    } else {
        end.status = WEXITSTATUS(wait_status);
    }
    if (r->verdict != 0)
        end.status = r->verdict;
    else if (end.stopped && end.status == 128 + SIGUSR1)
        end.status = EXIT_STOPPED; /* it had not yet come to where a signal is listened to */
    return end;
}

/*
 * mpirun 4.1 can hang in its own end when a rank dies inside MPI_Init (its PMIx server waits for a
 * lock). Without ranks, and with no other process of the job left (one that holds the ranks'
 * output open keeps mpirun waiting rightly), nothing can come of it any more.
 */
static void watch_mpirun(run *r)
{
    const job_view *view = r->view;
    double now = seconds_now();

    if (scratch_started(view->dirs, view->ranks) == 0 || sweep_children(r->mpirun) != 0) {
        r->childless_since = INFINITY;
        return;
    }
    if (!isfinite(r->childless_since))
        r->childless_since = now;
    if (now - r->childless_since < CHILDLESS_S)
        return;
    if (sweep_count(view->dirs->job, r->mpirun, view->janitor) > 0)
        r->childless_since = INFINITY;
    else
        kill_now(r, r->stop_signal != 0 ? EXIT_STOPPED : 128 + SIGKILL, "mpirun",
                 "hangs although all ranks have ended; killing it");
}

job_end job_run(const command *c, const job_view *view)
{
    run r = {.view = view, .deadline = INFINITY, .childless_since = INFINITY};
    int wait_status = 0;

    r.mpirun = start(c);
    if (r.mpirun < 0) {
        say("cannot start a process: the system is out of processes or memory");
        return (job_end){.status = EXIT_CANNOT_RUN};
    }
    while (!reap(&r, &wait_status)) {
        int sig = next_signal(&r);

        if (sig != 0 && sig != SIGCHLD)
            on_stop(&r, sig);
        else if (r.verdict == 0 && seconds_now() >= r.deadline)
            kill_now(&r, 128 + SIGKILL, "the grace is over", "killing the ranks");
        else if (r.verdict == 0)
            watch_mpirun(&r);
    }
    return conclude(&r, wait_status);
}

void job_describe(const job_end *end, char *text, size_t cap)
{
    int sig = end->status - 128;

    if (end->mpirun_died)
        snprintf(text, cap, "mpirun was killed by %s", signal_name(sig));
    else if (sig > 0 && sig < NSIG && sigabbrev_np(sig) != NULL)
        snprintf(text, cap, "a rank was killed by %s", signal_name(sig));
    else
        snprintf(text, cap, "the job ended with status %d", end->status);
}
