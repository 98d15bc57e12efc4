/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory between the ranks of a node. A segment is an unnamed file (O_TMPFILE) in
 * TUTTI_SHM_DIR: it never has a name, so a killed job leaves nothing behind. Peers open it through
 * /proc/PID/fd/FD. Ranks that are threads of one process share the one mapping.
 */
#ifndef TT_DEVICE_SHM_H
#define TT_DEVICE_SHM_H

#include "core/status.h"

typedef struct tt_shm_mapping
    tt_shm_mapping; /* one of this process, with the number of its users */

typedef struct tt_shm {
    void *base;
    size_t bytes; /* page multiple */
    int fd; /* the creator's until tt_shm_seal; -1 for one that was attached */
    tt_shm_mapping *mapping; /* the last tt_shm_close unmaps it. NULL: never unmapped (made over the
                                caller's own pages) */
} tt_shm;

/* What a peer needs to attach; plain data, sent over the bootstrap. */
typedef struct tt_shm_handle {
    uint64_t pid, fd, device, inode, bytes;
    uint64_t base, mapping; /* of the creator, used by threads of the same process; mapping: its
                               number, 0 if it is never unmapped */
    uint64_t process; /* identifies the process instance (pid, start time, boot id hash) */
} tt_shm_handle;

/*
 * Makes, reserves (posix_fallocate) and touches `bytes`. `at` != NULL: maps over exactly that
 * page-aligned range, replacing what was there and keeping its content. NO_MEMORY says how much is
 * needed and how much the directory has free.
 */
tutti_status tt_shm_create(size_t bytes, void *at, tt_shm *shm_out, tt_shm_handle *handle_out);
/* Maps a peer's segment. UNSUPPORTED says why two processes cannot share. The creator keeps its own
 * open meanwhile; if it did not, because it has failed, that is an error. */
tutti_status tt_shm_attach(const tt_shm_handle *handle, tt_shm *shm_out);
void tt_shm_seal(tt_shm *shm); /* all peers have attached: closes the descriptor */
void tt_shm_close(tt_shm *shm); /* takes one that is all zero, and makes it so */

/* Replaces the shared pages [ptr, ptr + bytes) by private ones with the same content. NO_MEMORY
 * leaves them shared. */
tutti_status tt_shm_unshare(void *ptr, size_t bytes);

#endif
