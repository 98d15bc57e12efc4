/* SPDX-License-Identifier: Apache-2.0 */
/* The saver of a context: one save at a time, from tutti_ckpt_begin to its commit on disk. */
#ifndef TT_CKPT_SAVER_H
#define TT_CKPT_SAVER_H

#include "boot/context.h"
#include "ckpt/dir.h"
#include "ckpt/writer.h"

/* When the next save is due, on rank 0. */
typedef struct tt_schedule {
    bool on;
    tutti_ckpt_schedule_opts opts;
    double mtbf_s;
    int64_t began_ns; /* the last save; or the schedule */
    int64_t began_step; /* -1: the first call of tutti_step since counts as 0 */
    int64_t asked_step; /* asked for and not yet begun; -1: not */
    double cost_s,
        durable_s; /* of the last save: that it stopped the program, until it was durable */
    int runs; /* the folder that learns; -1: none */
} tt_schedule;

/* The same on all ranks between two calls. */
typedef enum tt_save_phase {
    TT_SAVE_NONE,
    TT_SAVE_OPEN, /* begun: the program adds tensors */
    TT_SAVE_WRITING, /* every rank's worker writes its shard */
    TT_SAVE_SEALING /* rank 0's worker writes index and manifest, and commits */
} tt_save_phase;

/* Added by the program so far. */
struct tutti_ckpt {
    tutti_ctx *ctx;
    tt_arena arena; /* names, dims, values */
    tt_item *item;
    size_t nitem, item_cap;
    tutti_status status; /* of a failed add, repeated by commit on all ranks */
    char text[TT_ERROR_TEXT_MAX];
};

typedef struct tt_save_note {
    int32_t status;
    uint32_t done;
} tt_save_note;

/* What stays after a commit: the newest `last` that are whole, every step that `every` divides
 * (0: none), and `step` in any case (-1: none). */
typedef struct tt_retention {
    int64_t last, every;
    /* Which count as whole; NULL: those with a manifest and files of the right size, which is
     * cheap enough for a save. */
    bool (*whole)(int dir, int64_t step);
} tt_retention;

typedef struct tt_saver {
    tutti_ctx *ctx;
    tt_save_phase phase;
    tutti_ckpt *open;
    uint64_t block_bytes;
    int64_t last_durable;
    bool merged; /* a save was asked for while this one runs, and is to be asked for again */

    /* the save in progress */
    char *path; /* as the program named it */
    int dir, temp, owner; /* descriptors; owner: rank 0's lock */
    tt_folder_lock *lock; /* rank 0's, kept from save to save */
    char temp_name[TT_TEMP_NAME_MAX];
    int64_t step;
    tt_retention keep;
    bool best;
    char mesh[TT_MESH_MAX + 1];

    /* kept from save to save: a program saves the same tensors again */
    tt_plan plan;
    tt_hash128 *plan_key; /* of each rank's description; NULL: no plan yet */
    tt_form shard_form, index_form; /* of the plan */
    char index_mesh[TT_MESH_MAX + 1];
    tt_stage stage;
    tt_event *staged; /* passed when the copies have been made; NULL: inline */
    bool wait_staged;
    tt_shard_piece *piece; /* of a save that is waited for: the program's memory; else NULL */

    tt_schedule schedule;
    tt_save_note *notes; /* of all ranks */
    tt_worker worker;
    tutti_status snapshot; /* of queueing the copies */
    char snapshot_text[TT_ERROR_TEXT_MAX];
    tt_shard_report report;
    tt_blobs reports; /* of all ranks, for rank 0 */
} tt_saver;

tutti_status tt_saver_get(tutti_ctx *ctx, tt_saver **saver_out); /* made at the first call */

/* Waits for the save in progress (wait) or looks once whether all are done; its error. Collective.
 */
tutti_status tt_saver_progress(tt_saver *s, bool wait);

/* Ends the save in progress: rank 0 removes what is there. No worker may run. Returns `status`,
 * its text still this thread's last error. */
tutti_status tt_saver_drop(tt_saver *s, tutti_status status);
void tt_ckpt_discard(tutti_ckpt *ck); /* takes NULL */

/* Whether all holders of a box hold the same; ARG names the first that do not. Waits for the
 * stream. Collective. */
tutti_status tt_replicas_compare(tutti_ctx *ctx, const tutti_ckpt *ck, tutti_stream stream);

void tt_schedule_step(tt_saver *s, int64_t step); /* asks for a save when one is due */
void tt_schedule_began(tt_saver *s);
void tt_schedule_end(tt_saver *s); /* of the job: it went well unless the context failed */

/* Local work, in the worker. */
tutti_status tt_save_write(void *saver); /* this rank's shard */
tutti_status tt_save_seal(void *saver); /* rank 0: index, manifest, commit, retention */

void tt_retain(int dir, const char *path, int64_t step, const tt_retention *keep);
/* The steps that would go, newest first; the caller frees. */
tutti_status tt_retain_plan(int dir, int64_t step, const tt_retention *keep, int64_t **steps_out,
                            size_t *n_out);

#endif
