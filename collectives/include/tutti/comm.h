/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Communicators and the memory that collectives work on.
 *
 * World rank i is rank i of the caller's MPI communicator, always. Calls on one communicator are
 * carried out in the order of issue, whatever their streams; ranks issue them in the same order.
 *
 * Without MPI_THREAD_MULTIPLE only the thread that called tutti_init may make the calls that block
 * the host for other ranks; elsewhere they are UNSUPPORTED.
 */
#ifndef TUTTI_COMM_H
#define TUTTI_COMM_H

#include "tutti/context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tutti_comm tutti_comm;

enum { TUTTI_COLOR_NONE = -1 }; /* tutti_comm_split: this rank joins no new communicator */
enum { TUTTI_COMM_REPRODUCIBLE = 1u << 0 };

/* Zero in any field means its default; begin with TUTTI_COMM_OPTS_INIT. */
typedef struct tutti_comm_opts {
    size_t size; /* sizeof(tutti_comm_opts) */
    const char *name; /* appears in messages, copied; NULL: "world.N" */
    uint32_t flags; /* TUTTI_COMM_... */
} tutti_comm_opts;
#define TUTTI_COMM_OPTS_INIT                                                                       \
    {                                                                                              \
        sizeof(tutti_comm_opts), NULL, 0                                                           \
    }

/*
 * The communicator of all ranks of the job, borrowed from the context; NULL of NULL.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API tutti_comm *tutti_world(const tutti_ctx *ctx);

/*
 * This rank within the communicator, the number of its ranks, and its name (borrowed, never NULL).
 * Of NULL, which a rank that joined none has: -1, 0 and "none".
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API int tutti_rank(const tutti_comm *comm);
TUTTI_API int tutti_size(const tutti_comm *comm);
TUTTI_API const char *tutti_comm_name(const tutti_comm *comm);

/*
 * Splits a communicator as MPI_Comm_split does: ranks of equal colour (>= 0) form one, ordered by
 * key, then by rank; a rank with TUTTI_COLOR_NONE gets NULL. opts may be NULL. The caller owns
 * *comm_out. Errors: ARG, NO_MEMORY, TIMEOUT, MISMATCH, REMOTE.
 * Collective: yes, over comm. Blocks: host. Stream: none. Threads: one at a time per communicator.
 * Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_comm_split(tutti_comm *comm, int color, int key,
                                                        const tutti_comm_opts *opts,
                                                        tutti_comm **comm_out);

/*
 * Waits for this rank's pending work on the communicator, then destroys it. NULL and the world
 * communicator are ignored. Memory registered over it must have been freed or deregistered.
 * Collective: yes, over comm, logically (does not wait for the others). Blocks: host. Stream: none.
 * Threads: one. Graph-capture: refused. After a failure: allowed.
 */
TUTTI_API void tutti_comm_destroy(tutti_comm *comm);

/*
 * Memory that collectives reach without copies. `bytes` must be equal on all ranks (0 is an
 * argument error). On the host backend it is shared memory that the ranks of a node map, page
 * aligned, reserved and touched (zero filled); when /dev/shm is too small the error says how much
 * is needed. It belongs to the communicator and to those split from it. Errors: ARG, MISMATCH,
 * NO_MEMORY, TIMEOUT, REMOTE.
 * Collective: yes, over comm. Blocks: host. Stream: none. Threads: one at a time per communicator.
 * Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_alloc(tutti_comm *comm, size_t bytes, void **ptr_out);

/*
 * Frees what tutti_alloc gave, after this rank's pending work on the communicator. NULL is TUTTI_OK
 * when NULL on all ranks. Errors: ARG (not from tutti_alloc on this communicator), TIMEOUT, REMOTE.
 * Collective: yes, over comm. Blocks: host. Stream: none. Threads: one at a time per communicator.
 * Graph-capture: refused. After a failure: local; on CUDA the memory goes once this rank's
 * communicators are aborted and its streams are empty, and with the process if that takes long.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_free(tutti_comm *comm, void *ptr);

/*
 * The same for memory of the program's own. On the host backend ptr must be page aligned, private
 * and writable, and the whole of its last page the program's (posix_memalign, mmap; not plain
 * malloc): its pages are replaced by shared ones with the same content, so no thread may touch them
 * during the call. Contents and addresses stay. Errors: ARG, MISMATCH (bytes differ), NO_MEMORY,
 * TIMEOUT, REMOTE.
 * Collective: yes, over comm. Blocks: host. Stream: none. Threads: one at a time per communicator.
 * Graph-capture: refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_register(tutti_comm *comm, void *ptr, size_t bytes);

/*
 * Undoes tutti_register after this rank's pending work on the communicator; contents and address
 * stay. Do it before free(). Errors: ARG, TIMEOUT, REMOTE, NO_MEMORY.
 * Collective: yes, over comm. Blocks: host. Stream: none. Threads: one at a time per communicator.
 * Graph-capture: refused. After a failure: local; on CUDA other ranks' GPUs may read the memory
 * until their communicators are aborted too, so a process that goes on keeps it for that long.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_deregister(tutti_comm *comm, void *ptr);

#ifdef __cplusplus
}
#endif
#endif
