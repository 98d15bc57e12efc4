/* SPDX-License-Identifier: Apache-2.0 */
/* The mpirun command of a job: its words and what it adds to the environment. */
#ifndef TUTTIRUN_COMMAND_H
#define TUTTIRUN_COMMAND_H

#include <stdbool.h>

#include "options.h"
#include "scratch.h"

#define RANK_EXEC "--rank-exec"
#define RANK_EXEC_UNBOUND "--rank-exec-unbound"
#define SWEEP_EXEC "--sweep-exec"

typedef struct words {
    char **at; /* NULL at the end */
    int count, cap;
} words;

typedef struct command {
    words argv;
    words env; /* NAME=VALUE */
} command;

#define RESTART_VARIABLE "TUTTIRUN_RESTART"

/* The job itself, started again `restart` times before. False when there is no memory (said). */
bool command_job(const options *opts, const scratch *s, const char *mpirun, long restart,
                 command *out);

/* One process on each of the job's machines that runs `tuttirun --sweep-exec`. */
bool command_sweep(const options *opts, const scratch *s, const char *mpirun, command *out);

void command_free(command *c);

/* As a line for a shell. */
void command_print(const command *c);

/* In a child: sets the environment and becomes the command; returns only on failure (said). */
void command_exec(const command *c);

#endif
