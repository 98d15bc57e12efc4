/* SPDX-License-Identifier: Apache-2.0 */
/* Finding programs before they are run. */
#ifndef TUTTIRUN_FIND_H
#define TUTTIRUN_FIND_H

#include <limits.h>

/* Where execvp would find `name`. Returns 0, EXIT_NOT_FOUND or EXIT_CANNOT_RUN; says nothing. */
int find_program(const char *name, char path_out[PATH_MAX]);

/* The mpirun to use (`given` may be NULL), known to be Open MPI's. Returns 0, or the exit status
 * after one sentence. */
int find_mpirun(const char *given, char path_out[PATH_MAX]);

#endif
