/* SPDX-License-Identifier: Apache-2.0 */
/* One run of the job: start mpirun, pass a stop on, wait for the end. */
#ifndef TUTTIRUN_JOB_H
#define TUTTIRUN_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "command.h"

typedef struct job_end {
    int status; /* exit status of the job, 128 + signal for a rank or an mpirun that was killed */
    bool mpirun_died; /* mpirun itself was killed, by signal status - 128 */
    bool stopped; /* we were asked to stop it */
} job_end;

/* Blocks the signals that the job is steered by; from here on they only wait to be read. Call it
 * once, before the first job_run. */
void job_take_signals(void);

/* A stop was asked for while no run was on. */
bool job_stop_pending(void);

/* What job_run needs to know of the job besides its command. */
typedef struct job_view {
    const scratch *dirs;
    long ranks; /* all on this machine; 0 where they are not, or not all */
    pid_t janitor;
    double grace_s;
    bool clearing; /* it only clears other machines: a stop ends it at once */
} job_view;

/* Runs the command to its end. */
job_end job_run(const command *c, const job_view *view);

/* "a rank was killed by SIGKILL (status 137)" */
void job_describe(const job_end *end, char *text, size_t cap);

#endif
