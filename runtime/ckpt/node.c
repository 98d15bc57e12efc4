/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The commit of a node-local save.
 *
 * Every part gets the whole manifest and the whole index, so that each can say what the checkpoint
 * is and what of it lies elsewhere. No rename can be atomic over several disks; so all parts are
 * prepared first, complete and synced under their temporary names, and renamed when all have been.
 * A failure meanwhile takes the renames back. A crash between them leaves the step on some disks
 * only: a load passes it over, for it takes what all parts are there of, and finds the one before
 * it, for nothing old is removed until all have renamed. That holds too for an earlier version of
 * the same step, which is set aside here, never exchanged, and kept through a restart: what is
 * the older version on one disk may be the only one on another.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/identity.h"
#include "ckpt/saver.h"
#include "core/log.h"

static const char call[] = "save of a checkpoint";

static tutti_status give_to_all(tt_saver *s, tt_buf *made)
{
    tt_buf got = {0};
    TT_TRY(tt_bcast_blob(&s->ctx->world, call, 0, made->data, made->size, &got));
    if (s->ctx->world.rank == 0 || !tt_saver_leads(s)) {
        tt_buf_free(&got);
        return TUTTI_OK;
    }
    tt_buf_free(made);
    *made = got;
    return TUTTI_OK;
}

tutti_status tt_node_spread(tt_saver *s)
{
    TT_TRY(give_to_all(s, &s->index));
    return give_to_all(s, &s->manifest);
}

static tutti_status check_shards(const tt_saver *s)
{
    for (size_t i = 0; i < s->plan.nshard; i++) {
        int rank = s->plan.shard[i].rank;
        uint64_t bytes;
        if (s->parts.of[rank] != s->parts.of[s->ctx->world.rank])
            continue;
        memcpy(&bytes, tt_blob(&s->reports, rank), sizeof bytes);
        TT_TRY(tt_save_check_shard(s, i, bytes));
    }
    return TUTTI_OK;
}

tutti_status tt_node_prepare(void *saver)
{
    tt_saver *s = saver;
    char part[TT_STEP_NAME_MAX];
    TT_TRY(check_shards(s));
    if (s->ctx->world.rank != 0) {
        TT_TRY(tt_small_file_write(s->temp, TT_INDEX_NAME, s->index.data, s->index.size));
        TT_TRY(tt_small_file_write(s->temp, TT_MANIFEST_NAME, s->manifest.data, s->manifest.size));
    }
    tt_part_name((uint32_t)s->parts.of[s->ctx->world.rank], part);
    TT_TRY(tt_small_file_write(s->temp, part, "", 0));
    return tt_dir_sync(s->temp, s->temp_name);
}

static tutti_status set_aside(tt_saver *s, const char *name)
{
    char old[TT_TEMP_NAME_MAX];
    TT_TRY(tt_owner_temp_name(s->step, TT_OLD_HEAD, old));
    if (renameat(s->dir, name, s->dir, old) != 0)
        return errno == ENOENT ? TUTTI_OK
                               : tt_fail_errno(TUTTI_ERR_IO, errno, "cannot replace %s", name);
    memcpy(s->old_name, old, sizeof s->old_name);
    /* or a power cut could leave the new version's name, and that of neither for the old one */
    return tt_dir_sync(s->dir, s->path);
}

tutti_status tt_node_rename(void *saver)
{
    tt_saver *s = saver;
    char name[TT_STEP_NAME_MAX];
    tt_step_name(s->step, name);
    if (atomic_load(&s->worker.cancel))
        return tt_fail(TUTTI_ERR_STATE, "the save was given up");
    TT_TRY(tt_folder_lock_check(s->lock));
    TT_TRY(set_aside(s, name));
    if (renameat(s->dir, s->temp_name, s->dir, name) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot rename to %s", name);
    s->renamed = true;
    TT_TRY(tt_dir_sync(s->dir, s->path));
    return tt_dir_steps(s->dir, &s->steps, &s->nsteps);
}

void tt_node_undo(tt_saver *s)
{
    char name[TT_STEP_NAME_MAX];
    tt_step_name(s->step, name);
    if (s->renamed && renameat(s->dir, name, s->dir, s->temp_name) != 0)
        tt_log_warn(TT_CKPT, "%s: %s stays, though other nodes have no part of it", s->path, name);
    else if (s->old_name[0] != '\0' && renameat(s->dir, s->old_name, s->dir, name) != 0)
        tt_log_warn(TT_CKPT, "%s: %s has become %s", s->path, name, s->old_name);
    if ((s->renamed || s->old_name[0] != '\0') && tt_dir_sync(s->dir, s->path) != TUTTI_OK)
        tt_log_warn(TT_CKPT, "%s", tutti_last_error());
    s->renamed = false;
}

static bool has_step(const tt_blobs *lists, int rank, int64_t step)
{
    size_t n = tt_blob_bytes(lists, rank) / sizeof step;
    const unsigned char *at = tt_blob(lists, rank);
    for (size_t i = 0; i < n; i++)
        if (memcmp(at + i * sizeof step, &step, sizeof step) == 0)
            return true;
    return false;
}

tutti_status tt_node_meet_steps(tt_saver *s)
{
    tt_blobs lists = {0};
    size_t n = 0;
    TT_TRY(
        tt_all_gather_blobs(&s->ctx->world, call, s->steps, s->nsteps * sizeof *s->steps, &lists));
    for (size_t i = 0; i < s->nsteps; i++) {
        bool everywhere = true;
        for (int p = 0; p < s->parts.n; p++)
            everywhere = everywhere && has_step(&lists, s->parts.leader[p], s->steps[i]);
        if (everywhere)
            s->steps[n++] = s->steps[i];
    }
    s->nsteps = n;
    tt_blobs_free(&lists);
    return TUTTI_OK;
}

/* Versions that were set aside, by this save or by one that was cut off. */
static tutti_status drop_old(void *arg, const char *name)
{
    const tt_saver *s = arg;
    tt_identity owner;
    int64_t step;
    if (tt_identity_parse(name, TT_OLD_HEAD, &owner, &step) &&
        tt_dir_remove(s->dir, name) != TUTTI_OK)
        tt_log_warn(TT_CKPT, "%s: %s", s->path, tutti_last_error());
    return TUTTI_OK;
}

tutti_status tt_node_prune(void *saver)
{
    tt_saver *s = saver;
    s->temp_name[0] = '\0';
    unlinkat(s->temp, TT_OWNER_NAME, 0);
    TT_TRY(tt_dir_each(s->dir, drop_old, s));
    s->keep.known = s->steps;
    s->keep.nknown = s->nsteps;
    return tt_save_prune(s);
}
