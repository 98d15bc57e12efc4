/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include <mpi.h>
#include <stdio.h>
#include <string.h>

const char *world_mpi(int *argc, char ***argv, world_body body, void *arg)
{
    static world_rank r;
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &r.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &r.size);
    r.arg = arg;
    if (r.rank == 0 && ncclGetUniqueId(&r.id) != ncclSuccess)
        world_say(&r, "ncclGetUniqueId");
    MPI_Bcast(&r.id, sizeof(r.id), MPI_BYTE, 0, MPI_COMM_WORLD);
    if (cudaSetDevice(r.rank) != cudaSuccess)
        world_say(&r, "cudaSetDevice(%d)", r.rank);
    else
        world_with_comm(&r, body);
    if (r.failed) {
        fprintf(stderr, "rank %d: %s\n", r.rank, r.message);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Finalize();
    return r.message;
}
