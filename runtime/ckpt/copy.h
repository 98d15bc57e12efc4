/* SPDX-License-Identifier: Apache-2.0 */
/* The second tier: committed checkpoints are copied into another folder. */
#ifndef TT_CKPT_COPY_H
#define TT_CKPT_COPY_H

#include <sys/types.h>

#include "ckpt/loader.h"
#include "ckpt/saver.h"

/* The same on all ranks between two calls. */
typedef enum tt_copy_phase {
    TT_COPY_NONE,
    TT_COPY_OPENING, /* rank 0's worker: the folder, its lock, the temporary directory */
    TT_COPY_WRITING, /* every rank's: the files that it wrote */
    TT_COPY_SEALING, /* rank 0's: index, manifest, commit, retention */
    TT_COPY_CLEANING /* rank 0's: it failed, what is there goes */
} tt_copy_phase;

/* A checkpoint that is to be copied. */
struct tt_copy_job {
    char *to;
    int64_t step;
    int from; /* its directory; node-local, the part that this rank wrote into */
    dev_t dev;
    ino_t ino; /* of the folder that it is in */
    tt_cfile file; /* this rank's shard, name "" if it has none; the checksums are owned */
    uint64_t block_bytes;
    tt_retention keep;
    bool best;
    int64_t committed_ns;
};

struct tt_copier {
    tutti_ctx *ctx;
    tt_copy_phase phase;
    tt_copy_job *job, *waiting; /* NULL: none */
    bool ending; /* nothing is begun any more */
    bool waited; /* as long as a job waits at its end */
    tt_worker worker;
    tt_save_note *notes; /* of all ranks */
    _Atomic bool saving; /* a save is being written: it goes first */
    tutti_ckpt_copy_info info;

    /* the copy under way; the worker's while it runs */
    int dir, temp, owner; /* descriptors */
    char temp_name[TT_TEMP_NAME_MAX];
    tt_folder_lock *lock; /* rank 0's, kept from copy to copy */
    tt_buf manifest; /* rank 0's: the text, and what it says */
    tt_source src;
};

/* Local work, in the worker. */
tutti_status tt_copy_open(void *copier);
tutti_status tt_copy_write(void *copier);
tutti_status tt_copy_seal(void *copier);
tutti_status tt_copy_clean(void *copier);

/* The saver's side. Before the snapshot: what commit's options want; local. */
tutti_status tt_copy_prepare(tt_saver *s, const tutti_ckpt_save_opts *opts);
void tt_copy_discard(tt_copy_job *job); /* takes NULL */
/* The save is committed, on all ranks. */
void tt_copy_offer(tt_saver *s);
void tt_copy_spare(const tt_saver *s, tt_retention *keep); /* what is being copied or waits */
void tt_copy_give_way(tt_saver *s, bool saving);
/* Looks once, collective. */
tutti_status tt_copy_progress(tt_saver *s);
/* Until no copy is pending, at most so long (below 0: as the environment says); last: and then
 * gives up what is. Collective. */
tutti_status tt_copy_finish(tt_saver *s, double seconds, bool last);
void tt_copy_free(tt_copier *copier); /* takes NULL */

#endif
