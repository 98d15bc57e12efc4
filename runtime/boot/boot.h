/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bootstrap seam: point-to-point messages between the ranks of a job, over MPI (mpi.c) or
 * between the threads of a process (threads.c). Everything collective is built on it in exchange.c.
 * Messages between two ranks on one channel with one tag arrive in the order they were sent. No
 * slot blocks except create and destroy.
 */
#ifndef TT_BOOT_BOOT_H
#define TT_BOOT_BOOT_H

#include <stdatomic.h>

#include "core/status.h"
#include "tutti/context.h"

typedef struct tt_boot tt_boot;

/* Independent message spaces. */
typedef enum tt_channel {
    TT_CH_CONTROL, /* blocking exchanges of the calling thread */
    TT_CH_STEP, /* the step agreement, driven by the progress thread */
    TT_CH_WATCH, /* failures, quiet announcements */
    TT_CH_DATA, /* collectives between nodes */
    TT_CH_P2P, /* tutti_send and tutti_recv */
    TT_CH_COUNT
} tt_channel;

enum { TT_ANY = -1 }; /* as peer of irecv */

typedef struct tt_req {
    void *ptr; /* NULL: inactive */
    uint64_t word[3]; /* the bootstrap's own */
} tt_req;

typedef struct tt_boot_ops {
    size_t size;
    const char *name; /* "mpi", "threads" */
    /* The buffer belongs to the bootstrap until test says done. peer is a world rank. */
    tutti_status (*isend)(tt_boot *boot, tt_channel ch, int peer, uint32_t tag, const void *buf,
                          size_t bytes, tt_req *req);
    /* Receives at most cap bytes; a longer message fails in test with MISMATCH. */
    tutti_status (*irecv)(tt_boot *boot, tt_channel ch, int peer, uint32_t tag, void *buf,
                          size_t cap, tt_req *req);
    /* *done_out; of a finished receive also the message's size and source (either may be NULL). An
     * inactive request is done. */
    tutti_status (*test)(tt_boot *boot, tt_req *req, bool *done_out, size_t *bytes_out,
                         int *source_out);
    /* Gives up a request; its buffer may be reused after this. Only for contexts that have failed
     * and for receives that nothing can meet any more: a large message that is half-way through may
     * still be written to the receiver, with any content. */
    void (*cancel)(tt_boot *boot, tt_req *req);
    /* Ends all processes of the job as fast as the launcher can; may return. */
    void (*abort)(tt_boot *boot, int exit_code);
    void (*destroy)(
        tt_boot *boot,
        bool failed); /* failed: other ranks may be gone, nothing collective may be called */
} tt_boot_ops;

/* Every bootstrap's struct begins with this. */
struct tt_boot {
    const tt_boot_ops *ops;
    int rank, size; /* of the world */
    bool any_thread; /* calls may come from several threads at once (always so under threads;
                        MPI_THREAD_MULTIPLE) */
    bool one_process; /* all ranks are threads of this process */
    uint32_t tag_limit; /* tags are below it */
    const char *thread_level; /* text for messages: "MPI_THREAD_SERIALIZED" ... */
    int fake_node; /* the node that this rank plays (TUTTI_NODES), -1: the machine's own */
    /* Change, with a wake, when a request may have finished: watch_bell on the channels of the
     * progress thread (STEP, WATCH), bell on the others. NULL: poll. */
    _Atomic uint32_t *bell, *watch_bell;
};

/* Joins the job's processes. A job that its launcher made of several tasks but MPI sees as size 1
 * is refused (UNSUPPORTED). */
tutti_status tt_boot_mpi_create(const void *mpi_comm, tt_boot **boot_out);
tutti_status tt_boot_threads_create(tutti_threads *threads, int rank, tt_boot **boot_out);

#endif
