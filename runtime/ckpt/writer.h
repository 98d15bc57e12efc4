/* SPDX-License-Identifier: Apache-2.0 */
/* A thread for local work, staging memory, and the writing of one shard. */
#ifndef TT_CKPT_WRITER_H
#define TT_CKPT_WRITER_H

#include <pthread.h>
#include <stdatomic.h>

#include "ckpt/manifest.h"
#include "ckpt/plan.h"
#include "device/device.h"

/* One piece of work in a thread, of low priority unless the program waits for it. */
typedef struct tt_worker {
    pthread_t thread;
    tutti_status (*fn)(void *arg);
    void *arg;
    int log_rank, log_size;
    bool urgent; /* set before the start */
    bool running; /* a thread that must be joined */
    _Atomic bool cancel; /* asks fn to end early */
    _Atomic uint32_t done; /* futex word */
    tutti_status status; /* after the join */
    char text[TT_ERROR_TEXT_MAX];
} tt_worker;
tutti_status tt_worker_start(tt_worker *w, tutti_status (*fn)(void *arg), void *arg);
bool tt_worker_done(tt_worker *w, int64_t wait_ns); /* done, perhaps after waiting so long */
/* Its status, its text as this thread's last error, also when asked again. */
tutti_status tt_worker_join(tt_worker *w);
void tt_worker_leave(tt_worker *w); /* never joins it: the thread goes on using *w */

/* Host memory that grows, is touched when it does, and is used again by the next save. Where `dev`
 * has memory of its own it is page-locked, so that a copy from there runs beside the training. */
typedef struct tt_stage {
    char *base;
    size_t bytes;
    tt_device *locked_by; /* NULL: plain memory */
} tt_stage;
tutti_status tt_stage_reserve(tt_stage *stage, tt_device *dev, size_t bytes);
void tt_stage_free(tt_stage *stage);

/* What a shard became; hashes of every block of the file. */
typedef struct tt_shard_report {
    uint64_t bytes;
    uint64_t *offset; /* of each dataset */
    tt_hash128 *hash;
    size_t blocks;
    uint64_t *scalar; /* the values of its scalars, in the catalog's order, read back */
    size_t nscalar;
} tt_shard_report;
void tt_shard_report_free(tt_shard_report *report);

/* Data of a shard that lies in the program's memory. */
typedef struct tt_shard_piece {
    uint32_t dset;
    uint64_t within, bytes;
    const char *data;
} tt_shard_piece;

/* HDF5's part of a file: a memory file in which the data is a hole. The same for every save of one
 * plan, and kept, for HDF5 takes a good part of a millisecond for each dataset. */
typedef struct tt_form {
    int memory; /* -1: not yet made */
    uint64_t *offset; /* of each dataset of a shard */
} tt_form;
void tt_form_free(tt_form *form); /* back to not made */

typedef struct tt_shard_input {
    const tt_shard *shard;
    tt_form *form;
    const tt_stage *stage; /* its data; NULL: the pieces */
    const tt_shard_piece *piece;
    size_t npiece;
    uint64_t block_bytes;
    bool urgent; /* the program waits */
    const _Atomic bool *cancel; /* asks to end early */
} tt_shard_input;

/* Writes and makes durable the shard `name` in directory dir. */
tutti_status tt_shard_write(int dir, const char *name, const tt_shard_input *in,
                            tt_shard_report *report_out);

/* A file that is being written, block by block, past the page cache where that goes. */
typedef struct tt_out {
    int fd; /* -1: not open */
    int direct; /* the same file, past the page cache; -1: not there */
    const char *name;
    _Atomic bool not_direct;
} tt_out;
tutti_status tt_out_reserve(tt_out *out, uint64_t bytes); /* NO_SPACE before anything is written */
tutti_status tt_out_resize(tt_out *out, int dir,
                           uint64_t bytes); /* of its final size from now on */
tutti_status tt_out_write(tt_out *out, const char *data, uint64_t begin, uint64_t end);
tutti_status tt_out_sync(tt_out *out);
tutti_status tt_out_close(tt_out *out); /* before tt_out_abandon, where it is to be kept */
void tt_out_abandon(tt_out *out);
/* Room for a block, in large pages where it has them: the kernel gives the disk few long pieces
 * instead of a thousand, which is 12 % of the time of a save. NULL: no memory. */
char *tt_bounce_alloc(uint64_t block_bytes);

/* Writes a small file from memory, makes it durable and reads it back. */
tutti_status tt_small_file_write(int dir, const char *name, const void *data, size_t bytes);
/* Hashes a file's image block by block. */
tutti_status tt_blocks_hash(const void *data, size_t bytes, uint64_t block_bytes,
                            tt_hash128 **hash_out, size_t *blocks_out);

#endif
