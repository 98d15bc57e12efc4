/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that is inside MPI, shared memory included, until it is killed. Writes its process id to
 * $WORK/upRANK when all ranks are there. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    const char *work = getenv("WORK");
    char path[4096];
    FILE *file;
    int rank;

    if (MPI_Init(&argc, &argv) != MPI_SUCCESS || work == NULL)
        return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(path, sizeof(path), "%s/.up%d", work, rank);
    file = fopen(path, "w");
    if (file == NULL || fprintf(file, "%d\n", (int)getpid()) < 0 || fclose(file) != 0)
        return 1;
    /* the file appears with its content */
    {
        char final[4096];

        snprintf(final, sizeof(final), "%s/up%d", work, rank);
        if (rename(path, final) != 0)
            return 1;
    }
    for (;;)
        pause();
}
