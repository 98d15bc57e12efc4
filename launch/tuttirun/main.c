/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tuttirun: mpirun for training jobs. The parts, each with the reason why it is needed:
 *
 *   options  the command line          command  what mpirun is told
 *   find     programs                  job      one run: start, stop, wait
 *   scratch  the job's directories     sweep    the end of every process of the job
 *   janitor  sweeps if we are killed   rank     what is done on the ranks' machines
 *   cpus     binding                   say      messages
 *
 * A job goes through runs: each run is one mpirun, followed by a sweep that proves that no process
 * of it is left, on this machine and, where the job had others, there too. Only then does
 * --restarts begin the next: two generations of ranks writing one checkpoint is what it prevents.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command.h"
#include "find.h"
#include "janitor.h"
#include "job.h"
#include "notice.h"
#include "options.h"
#include "rank.h"
#include "say.h"
#include "scratch.h"
#include "sweep.h"

#define SWEEP_LIMIT_S 30.0

typedef struct launch {
    options opts;
    scratch dirs;
    char mpirun[PATH_MAX];
    janitor janitor;
} launch;

/* On another machine the program is looked for by its own rank-exec. */
static int check_program(const options *opts)
{
    char path[PATH_MAX];
    int status = options_other_hosts(opts) ? 0 : find_program(opts->program[0], path);

    if (status == EXIT_NOT_FOUND)
        say("there is no program '%s'", opts->program[0]);
    else if (status != 0)
        say("'%s' is not a program that can be run", opts->program[0]);
    return status;
}

/* Shows the command without the job's directories, which whoever copies it would have to remove. */
static int dry_run(launch *l)
{
    command c;

    l->dirs.session[0] = l->dirs.shm[0] = '\0';
    if (!command_job(&l->opts, &l->dirs, l->mpirun, 0, &c))
        return EXIT_CANNOT_RUN;
    command_print(&c);
    command_free(&c);
    return 0;
}

/* Sweeps every machine of the job through a short mpirun of its own. */
static bool sweep_machines(const launch *l, bool *stopped_out)
{
    command c;
    job_end end;

    *stopped_out = false;
    if (!command_sweep(&l->opts, &l->dirs, l->mpirun, &c))
        return false;
    end = job_run(&c, &(job_view){.dirs = &l->dirs, .clearing = true});
    command_free(&c);
    *stopped_out = end.stopped;
    if (end.status != 0)
        say("cannot make sure that nothing of the job is left on its other machines");
    return end.status == 0;
}

/* Proves that nothing of the last run is left, on other machines even when it ended well: neither
 * what ranks have started there nor the job's directories are mpirun's to remove. */
static bool clear_away(const launch *l, bool *stopped_out)
{
    bool gone = sweep_job(l->dirs.job, l->janitor.pid, SWEEP_LIMIT_S);

    *stopped_out = false;
    if (options_other_hosts(&l->opts))
        gone = sweep_machines(l, stopped_out) && gone;
    return gone;
}

/* A program that cannot be run will not run next time, and 143 is a stop that all ranks agreed on,
 * whoever asked for it. */
static bool worth_restarting(const job_end *end)
{
    return end->status != 0 && !end->stopped && end->status != EXIT_CANNOT_RUN &&
           end->status != EXIT_NOT_FOUND && end->status != EXIT_STOPPED;
}

static job_end run_once(launch *l, long restart)
{
    job_end end = {.status = EXIT_CANNOT_RUN};
    command c;

    if (!scratch_make(&l->dirs))
        return end;
    if (command_job(&l->opts, &l->dirs, l->mpirun, restart, &c)) {
        job_view view = {.dirs = &l->dirs, .janitor = l->janitor.pid, .grace_s = l->opts.grace_s};

        if (!options_other_hosts(&l->opts))
            view.ranks = l->opts.ranks;
        pid_t watcher = notice_start(l->opts.notice);

        end = job_run(&c, &view);
        notice_end(watcher);
        command_free(&c);
    }
    return end;
}

static int run_all(launch *l)
{
    long restart = 0;

    for (;;) {
        job_end end = run_once(l, restart);
        bool stopped, gone = clear_away(l, &stopped);
        char why[96];

        scratch_remove(&l->dirs);
        if (!worth_restarting(&end) || l->opts.restarts == 0)
            return end.status;
        job_describe(&end, why, sizeof(why));
        if (restart == l->opts.restarts) {
            say("%s; no restart is left of %ld", why, l->opts.restarts);
            return end.status;
        }
        if (!gone) {
            say("%s; not starting again beside what is left of the job", why);
            return end.status;
        }
        if (stopped || job_stop_pending()) {
            say("%s; told to stop, so not starting again", why);
            return EXIT_STOPPED;
        }
        restart++;
        say("%s; starting again (restart %ld of %ld)", why, restart, l->opts.restarts);
    }
}

/* A descriptor of ours in the place of a closed 0, 1 or 2 would be taken for standard output by
 * whoever we start. */
static void open_standard(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd > STDERR_FILENO)
        close(fd);
}

int main(int argc, char **argv)
{
    launch l = {0};
    int status;

    open_standard();
    if (argc > 2 && strcmp(argv[1], RANK_EXEC) == 0)
        return rank_exec(true, argv + 2);
    if (argc > 2 && strcmp(argv[1], RANK_EXEC_UNBOUND) == 0)
        return rank_exec(false, argv + 2);
    if (argc > 2 && strcmp(argv[1], SWEEP_EXEC) == 0)
        return rank_sweep(argc - 2, argv + 2);

    status = options_parse(argc, argv, &l.opts);
    if (status >= 0)
        return status;
    status = check_program(&l.opts);
    if (status == 0)
        status = find_mpirun(l.opts.mpirun, l.mpirun);
    if (status != 0)
        return status;
    scratch_name(&l.dirs);
    if (l.opts.dry_run)
        return dry_run(&l);

    prctl(PR_SET_CHILD_SUBREAPER, 1);
    job_take_signals();
    janitor_start(&l.dirs, &l.janitor);
    scratch_remove_old(l.dirs.session);
    scratch_remove_old(l.dirs.shm);
    status = run_all(&l);
    janitor_dismiss(&l.janitor);
    return status;
}
