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
    int held[2]; /* locks on them, -1: none */
} scratch;

void scratch_name(scratch *s); /* makes a fresh name and the paths; touches no file */
bool scratch_make(scratch *s); /* false after saying why */
void scratch_remove(scratch *s);

/*
 * Makes the directory if it is not there, false if that cannot be, and locks it (shared): *lock_out
 * is -1 where the file system has no locks. tuttirun holds the lock until the end, and every rank
 * for as long as it or a process that it started lives, unless they close it.
 */
bool scratch_hold(const char *path, bool cloexec, int *lock_out);

/* Removes what jobs have left whose tuttirun and janitor were both killed, or whose other machines
 * were out of reach: this user's directories beside `dir` that nobody holds. */
void scratch_remove_old(const char *dir);

/* Whether a path is named as scratch_name does it. mpirun sets SESSION_VARIABLE for its ranks to
 * its own choice, such as /tmp, where tuttirun has not. */
bool scratch_is_of_a_job(const char *path);

/*
 * Each rank of this machine leaves a file in the session directory before it becomes the program.
 * Until all have, there is nothing to save, and a signal would be lost on those that are not there.
 * scratch_started counts the files of ranks 0 ... ranks-1.
 */
#define SESSION_VARIABLE "OMPI_MCA_orte_tmpdir_base"
#define SHM_VARIABLE "OMPI_MCA_btl_vader_backing_directory"
#define SHM_VARIABLE_2 "OMPI_MCA_osc_rdma_backing_directory"
void scratch_rank_started(const char *rank); /* in a rank */
long scratch_started(const scratch *s, long ranks);

/* Removes a directory and all in it; one that does not exist is fine. */
void scratch_remove_tree(const char *path);

#endif
