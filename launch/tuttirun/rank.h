/* SPDX-License-Identifier: Apache-2.0 */
/* What tuttirun does on the machines of the ranks. */
#ifndef TUTTIRUN_RANK_H
#define TUTTIRUN_RANK_H

#include <stdbool.h>

/* `tuttirun --rank-exec PROGRAM...`: prepares a rank and becomes the program. Returns an exit
 * status on failure. */
int rank_exec(bool bind, char **program);

/* `tuttirun --sweep-exec JOB SESSION SHM`: ends what is left of a job on this machine. */
int rank_sweep(int argc, char **argv);

#endif
