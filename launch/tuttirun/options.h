/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of tuttirun. */
#ifndef TUTTIRUN_OPTIONS_H
#define TUTTIRUN_OPTIONS_H

#include <stdbool.h>

typedef struct options {
    long ranks;
    const char *hosts; /* "a:2,b:2", or NULL */
    bool hosts_have_slots; /* at least one of them names its number of ranks */
    const char *hostfile; /* or NULL */
    long restarts;
    double grace_s;
    const char *notice; /* the command of --notice-cmd, or NULL */
    const char *mpirun; /* as given, or NULL */
    bool bind;
    bool dry_run;
    char **program; /* the program and its arguments, NULL at the end; borrowed from argv */
} options;

/*
 * Reads argv into *opts. Returns -1 when the job should run, else the exit status: 0 after --help
 * or --version, EXIT_USAGE after one sentence about what is wrong.
 */
int options_parse(int argc, char **argv, options *opts);

/* The job may have ranks on other machines than this one. */
bool options_other_hosts(const options *opts);

#endif
