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
    TT_SAVE_SEALING, /* rank 0's worker writes index and manifest, and, in one folder, commits */
    /* node-local, in the worker of each part's leader: */
    TT_SAVE_PREPARING, /* index and manifest into its part */
    TT_SAVE_RENAMING, /* all parts are prepared: the commit of each */
    TT_SAVE_PRUNING, /* all are committed: what is old goes */
    TT_SAVE_GIVEN_UP /* too late: it has failed, but a worker hangs in the disk; late.c */
} tt_save_phase;

/* Which ranks share a folder, of a save whose nodes have folders of their own; parts.c. */
typedef struct tt_parts {
    int *of; /* part of each rank; NULL: not yet known */
    int *leader; /* the first rank of each part; parts are numbered in that order */
    int n;
} tt_parts;

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
    uint16_t done, late; /* late: rank 0's, what its clock says */
} tt_save_note;

/* Waiting ranks meet ever more rarely, but so often that a slow disk is no time-out. */
enum { TT_MEET_MIN_NS = 500000 };
int64_t tt_meet_wait(int64_t wait_ns, bool moved); /* the next wait; moved: all had ended theirs */

/* What stays after a commit: the newest `last` that are whole, every step that `every` divides
 * (0: none), and `step` in any case (-1: none). */
typedef struct tt_retention {
    int64_t last, every;
    /* Which count as whole; NULL: those with a manifest and files of the right size, which is
     * cheap enough for a save. */
    bool (*whole)(int dir, int64_t step);
    const int64_t *known; /* only these count; NULL: all */
    size_t nknown;
    int64_t spare[2]; /* these stay: they are being copied */
    size_t nspare;
} tt_retention;

/* The second tier; copy.h. */
typedef struct tt_copier tt_copier;
typedef struct tt_copy_job tt_copy_job;

typedef struct tt_saver {
    tutti_ctx *ctx;
    tt_save_phase phase;
    tutti_ckpt *open;
    uint64_t block_bytes;
    int64_t last_durable;
    bool merged; /* a save was asked for while this one runs, and is to be asked for again */

    /* the save in progress */
    double timeout_s;
    int64_t deadline_ns;
    tt_save_phase given_up_in;
    char *path; /* as the program named it */
    int dir, temp, owner; /* descriptors; owner: the leader's lock */
    tt_folder_lock *lock; /* the leader's, kept from save to save */
    char temp_name[TT_TEMP_NAME_MAX];
    int64_t step;
    tt_retention keep;
    bool best;
    char mesh[TT_MESH_MAX + 1];
    bool node_local;
    tt_parts parts;
    tt_buf index, manifest; /* what rank 0 made, for all parts */
    bool renamed; /* this part is committed */
    char old_name[TT_TEMP_NAME_MAX]; /* its step's version before, "" none */
    int64_t *steps; /* in this part's folder; then those in all of them */
    size_t nsteps;

    /* kept from save to save: a program saves the same tensors again */
    tt_plan plan;
    tt_hash128 *plan_key; /* of each rank's description; NULL: no plan yet */
    tt_form shard_form, index_form; /* of the plan */
    char index_mesh[TT_MESH_MAX + 1];
    tt_buf tensors; /* the manifest's list of them, once it has been read back */
    uint64_t tensors_key;
    tt_stage stage;
    tt_event *staged; /* passed when the copies have been made; NULL: inline */
    bool wait_staged;
    tt_shard_piece *piece; /* of a save that is waited for: the program's memory; else NULL */

    tt_copier *copier; /* NULL: nothing was ever to be copied */
    tt_copy_job *copy; /* of this save, once it is committed; NULL: none */

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

/* Too late; late.c. give_up: the notes of all ranks have been exchanged; TIMEOUT on all. committed:
 * it was given up, and has become a checkpoint all the same. ended: whether no worker runs any
 * more, after waiting some time for it; else what it uses is to be left alone. */
void tt_late_start(tt_saver *s, double timeout_s); /* 0: the default */
bool tt_late(const tt_saver *s);
tutti_status tt_late_give_up(tt_saver *s);
bool tt_late_committed(const tt_saver *s);
bool tt_late_ended(tt_saver *s);

/* Whether this rank makes, commits and removes the directory that it writes into. */
bool tt_saver_leads(const tt_saver *s);

/* Finds who shares a folder, and tells the ranks the name of the temporary directory that the
 * leader of their part has made. Collective. */
tutti_status tt_parts_find(tt_saver *s);
tutti_status tt_parts_tell_temp(tt_saver *s);
void tt_parts_free(tt_parts *parts);

/* Node-local: gives rank 0's index and manifest to all; then the steps that all parts have.
 * Collective. */
tutti_status tt_node_spread(tt_saver *s);
tutti_status tt_node_meet_steps(tt_saver *s);
/* Takes a commit of this part back, whose fellows failed. */
void tt_node_undo(tt_saver *s);

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
tutti_status tt_save_read_scalars(tt_saver *s); /* from this rank's shard into its report */
tutti_status tt_save_check_shard(const tt_saver *s, size_t i, uint64_t bytes); /* is there */
tutti_status tt_save_prune(tt_saver *s); /* the tag, retention */
tutti_status tt_node_prepare(void *saver); /* leaders of parts */
tutti_status tt_node_rename(void *saver);
tutti_status tt_node_prune(void *saver);

void tt_retain(int dir, const char *path, int64_t step, const tt_retention *keep);
/* The steps that would go, newest first; the caller frees. */
tutti_status tt_retain_plan(int dir, int64_t step, const tt_retention *keep, int64_t **steps_out,
                            size_t *n_out);
/* Removes them as far as that can be done; the last failure, each of which is told. */
tutti_status tt_retain_remove(int dir, const char *path, const int64_t *steps, size_t n);

#endif
