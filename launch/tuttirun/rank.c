/* SPDX-License-Identifier: Apache-2.0 */
#include "rank.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpus.h"
#include "say.h"
#include "scratch.h"
#include "sweep.h"

#define SWEEP_LIMIT_S 20.0

static int number_of(const char *name, int fallback)
{
    const char *text = getenv(name);

    return text != NULL ? atoi(text) : fallback;
}

/* tuttirun made the job's directories on its own machine only. The locks stay with the program. */
static void hold_dirs(void)
{
    static const char *const names[] = {SESSION_VARIABLE, SHM_VARIABLE, SHM_VARIABLE_2};
    const char *last = "";
    bool there = true;
    int i, lock;

    for (i = 0; i < 3; i++) {
        const char *path = getenv(names[i]);

        if (path == NULL || !scratch_is_of_a_job(path))
            continue; /* mpirun's or the user's choice */
        if (strcmp(path, last) != 0) {
            if (access(path, F_OK) != 0)
                scratch_remove_old(path);
            there = scratch_hold(path, false, &lock);
        }
        if (!there)
            unsetenv(names[i]); /* MPI's own choice then */
        last = path;
    }
}

int rank_exec(bool bind, char **program)
{
    int index = number_of("OMPI_COMM_WORLD_LOCAL_RANK", 0);
    int count = number_of("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
    int error;

    /* A waiting rank that spins takes the core from the one it waits for. mpirun counts what it was
     * told to start, not the CPUs that the ranks may use. */
    if (bind && count > cpus_bind_share(index, count))
        setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    hold_dirs();
    scratch_rank_started(getenv("OMPI_COMM_WORLD_RANK"));
    execvp(program[0], program);
    error = errno;
    if (index == 0)
        say("cannot run '%s': %s", program[0], strerror(error));
    return error == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
}

int rank_sweep(int argc, char **argv)
{
    bool gone;

    if (argc != 3)
        return EXIT_USAGE;
    gone = sweep_job(argv[0], 0, SWEEP_LIMIT_S);
    scratch_remove_tree(argv[1]);
    scratch_remove_tree(argv[2]);
    return gone ? 0 : 1;
}
