/* SPDX-License-Identifier: Apache-2.0 */
/* Ends every process of a job that is left on this machine. */
#ifndef TUTTIRUN_SWEEP_H
#define TUTTIRUN_SWEEP_H

#include <stdbool.h>
#include <sys/types.h>

/* Live children of a process; -1 where the system does not tell. Cheap. */
int sweep_children(pid_t parent);

/* Processes that sweep_job would kill, save `spare` and `other`. Looks at every process. */
int sweep_count(const char *job, pid_t spare, pid_t other);

/*
 * Kills (SIGKILL) every process that carries TUTTIRUN_JOB=`job` in its environment or is a child of
 * this process, save `spare`, and waits until none is left. False, after naming one, when some
 * are still there after `limit_s` seconds.
 */
bool sweep_job(const char *job, pid_t spare, double limit_s);

#endif
