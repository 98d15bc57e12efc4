/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks for the tests of the NCCL stand-in: threads of this process (world_threads), or the
 * processes of an MPI job (world_mpi). Programs here know CUDA and NCCL only, as a user's would.
 */
#ifndef SIMGPU_WORLD_H
#define SIMGPU_WORLD_H

#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

typedef struct world_rank {
    int rank, size;
    ncclComm_t comm; /* of all; destroyed by the runner unless the body made it NULL */
    cudaStream_t stream;
    ncclUniqueId id, spare[4]; /* the same on every rank; `spare` are not used yet */
    void *arg;
    bool failed;
    char message[256];
} world_rank;
typedef void (*world_body)(world_rank *r);

void world_say(world_rank *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
#define EXPECT(r, cond)                                                                            \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            world_say((r), "%s:%d: %s (NCCL: %s)", __FILE__, __LINE__, #cond,                      \
                      ncclGetLastError(NULL));                                                     \
            return;                                                                                \
        }                                                                                          \
    } while (0)
#define NCCL_OK(r, call) EXPECT(r, (call) == ncclSuccess)
#define CUDA_OK(r, call) EXPECT(r, (call) == cudaSuccess)

/* Each returns "" or what failed first. bare: no communicator is made. */
const char *world_threads(int n, world_body body, void *arg);
const char *world_threads_bare(int n, world_body body, void *arg);
const char *world_mpi(int *argc, char ***argv, world_body body, void *arg);

/* The body between ncclCommInitRank by `id` and ncclCommDestroy. */
void world_with_comm(world_rank *r, world_body body);
/* A barrier of the threads, that the simulated GPUs know nothing of. */
void world_barrier(void);
/* Copies by the rank's stream, and waits. */
void world_put(world_rank *r, void *device, const void *host, size_t bytes);
void world_get(world_rank *r, void *host, const void *device, size_t bytes);

#endif
