/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The job's name and its two private directories: one under TMPDIR for mpirun's session, one in
 * /dev/shm for the segments of MPI's shared memory. Both are named after the job, so that they can
 * be found on every machine, and removed whole when it ends.
 */
#ifndef TUTTIRUN_SCRATCH_H
#define TUTTIRUN_SCRATCH_H

#include <limits.h>
#include <stdbool.h>

#define JOB_VARIABLE "TUTTIRUN_JOB" /* in the environment of every process of the job */

typedef struct scratch {
    char job[64];
    char session[PATH_MAX];
    char shm[PATH_MAX]; /* "" where there is no /dev/shm to write to */
} scratch;

void scratch_name(scratch *s); /* makes a fresh name and the paths; touches no file */
bool scratch_make(scratch *s); /* false after saying why */
void scratch_remove(const scratch *s);

/*
 * Each rank of this machine leaves a file in the session directory before it becomes the program.
 * Until all have, there is nothing to save, and a signal would be lost on those that are not there.
 * scratch_started counts the files of ranks 0 ... ranks-1.
 */
#define SESSION_VARIABLE "OMPI_MCA_orte_tmpdir_base"
void scratch_rank_started(const char *rank); /* in a rank */
long scratch_started(const scratch *s, long ranks);

/* Removes a directory and all in it; one that does not exist is fine. */
void scratch_remove_tree(const char *path);

#endif
