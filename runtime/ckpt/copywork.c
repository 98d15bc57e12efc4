/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the workers of a copy do.
 *
 * The first tier is not trusted: the manifest is read by the loader's reader, and every block must
 * have the checksum that its writer computed when it had the data in memory, so a disk that goes
 * bad does not spread. The manifest is copied byte for byte: the copy is the same version of the
 * same checkpoint, which the hash of the manifest's text says. Of a node-local checkpoint it still
 * lists the parts, but there are no part- files, and so the directory must hold, and does hold,
 * all.
 *
 * Pages are dropped behind the copy in both folders. While a save is being written a block is
 * copied every so often only, which keeps the copy alive where saves follow close upon each other.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/copy.h"
#include "core/clock.h"
#include "core/env.h"
#include "core/log.h"

enum { POLL_NS = 5000000, POLITE_NS = 100000000, LOCK_POLL_NS = 200000000 };

static tutti_status given_up(const tt_copier *c)
{
    return atomic_load(&c->worker.cancel)
               ? tt_fail(TUTTI_ERR_STATE, "it was given up: the job ends")
               : TUTTI_OK;
}

/* As a save does, but a job that ends need not wait for it. */
static tutti_status lock_folder(tt_copier *c)
{
    double wait_s;
    bool said = false;
    if (tt_folder_lock_is_of(c->lock, c->dir) && tt_folder_lock_check(c->lock) == TUTTI_OK)
        return TUTTI_OK;
    tt_folder_lock_release(c->lock);
    c->lock = NULL;
    TT_TRY(tt_env_get_seconds(TT_ENV_CKPT_WAIT_LOCK, &wait_s));
    const int64_t end = tt_end_of(wait_s);
    for (;;) {
        tutti_status status = tt_folder_lock_take(c->dir, c->job->to, 0, &c->lock);
        if (status != TUTTI_ERR_STATE || tt_now_ns() >= end || atomic_load(&c->worker.cancel))
            return status;
        if (!said)
            tt_log_warn(TT_CKPT, "%s; the copy waits up to %.0f s for it", tutti_last_error(),
                        wait_s);
        said = true;
        tt_sleep_ns(LOCK_POLL_NS);
    }
}

static tutti_status check_other_folder(const tt_copier *c)
{
    struct stat st;
    if (fstat(c->dir, &st) == 0 && st.st_dev == c->job->dev && st.st_ino == c->job->ino)
        return tt_fail(TUTTI_ERR_ARG, "%s is the folder that the checkpoints are in", c->job->to);
    return TUTTI_OK;
}

static tutti_status check_space(const tt_copier *c)
{
    uint64_t need = c->manifest.size, have;
    for (size_t i = 0; i < c->src.m.cat.nfile; i++)
        need += c->src.m.cat.file[i].bytes;
    if (!tt_dir_space(c->dir, &have) || need <= have)
        return TUTTI_OK;
    return tt_fail(TUTTI_ERR_NO_SPACE, "%llu KiB are to be copied, the file system has %llu left",
                   (unsigned long long)(need >> 10), (unsigned long long)(have >> 10));
}

tutti_status tt_copy_open(void *copier)
{
    tt_copier *c = copier;
    TT_TRY(tt_source_open_as(c->job->from, ".", c->job->step, &c->manifest, &c->src));
    TT_TRY(tt_dir_make(c->job->to));
    TT_TRY(tt_dir_open(c->job->to, &c->dir));
    TT_TRY(check_other_folder(c));
    TT_TRY(lock_folder(c));
    TT_TRY(tt_owner_make_temp(c->dir, c->job->to, c->job->step, c->temp_name, &c->temp, &c->owner));
    TT_TRY(tt_leftovers_remove_idle(c->dir, c->job->to, c->temp));
    return check_space(c);
}

static void give_way(const tt_copier *c)
{
    for (int64_t slept = 0; slept < POLITE_NS; slept += POLL_NS) {
        if (!atomic_load(&c->saving) || atomic_load(&c->worker.cancel))
            return;
        tt_sleep_ns(POLL_NS);
    }
}

static tutti_status copy_block(const tt_copier *c, const tt_cfile *file, size_t i, int from,
                               tt_out *out, char *data)
{
    uint64_t bytes = c->job->block_bytes, begin = i * bytes;
    uint64_t end = file->bytes - begin < bytes ? file->bytes : begin + bytes;
    TT_TRY(given_up(c));
    give_way(c);
    TT_TRY(tt_file_read(from, file->name, data, end - begin, begin));
    tt_hash128 have = tt_hash128_of(data, end - begin), want = file->hash[i];
    if (have.low != want.low || have.high != want.high)
        return tt_fail(TUTTI_ERR_CORRUPT,
                       "%s of the first tier: bytes %llu to %llu are not what was written: their "
                       "checksum differs",
                       file->name, (unsigned long long)begin, (unsigned long long)end - 1);
    posix_fadvise(from, (off_t)begin, (off_t)(end - begin), POSIX_FADV_DONTNEED);
    return tt_out_write(out, data, begin, end);
}

static tutti_status copy_open_file(const tt_copier *c, const tt_cfile *file, int from, tt_out *out)
{
    char *data = tt_bounce_alloc(c->job->block_bytes);
    tutti_status status = TUTTI_OK;
    if (data == NULL)
        status = tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for a block of %s", file->name);
    if (status == TUTTI_OK)
        status = tt_file_create(c->temp, file->name, &out->fd);
    if (status == TUTTI_OK)
        status = tt_out_resize(out, c->temp, file->bytes);
    posix_fadvise(from, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (size_t i = 0; i < file->blocks && status == TUTTI_OK; i++)
        status = copy_block(c, file, i, from, out, data);
    free(data);
    if (status == TUTTI_OK)
        status = tt_out_sync(out);
    if (status == TUTTI_OK) {
        posix_fadvise(out->fd, 0, 0, POSIX_FADV_DONTNEED);
        status = tt_out_close(out);
    }
    return status;
}

static tutti_status copy_file(const tt_copier *c, const tt_cfile *file)
{
    tt_out out = {.fd = -1, .direct = -1, .name = file->name};
    uint64_t bytes;
    int from;
    TT_TRY(tt_file_open(c->job->from, file->name, &from, &bytes));
    tutti_status status = TUTTI_OK;
    if (bytes != file->bytes)
        status = tt_fail(TUTTI_ERR_CORRUPT,
                         "%s of the first tier has %llu bytes, not the %llu that were written",
                         file->name, (unsigned long long)bytes, (unsigned long long)file->bytes);
    if (status == TUTTI_OK)
        status = copy_open_file(c, file, from, &out);
    tt_out_abandon(&out);
    close(from);
    return status;
}

tutti_status tt_copy_write(void *copier)
{
    tt_copier *c = copier;
    if (c->job->file.name[0] == '\0')
        return TUTTI_OK;
    if (c->ctx->world.rank != 0 && !tt_owner_sees_temp(c->job->to, c->temp_name, &c->dir, &c->temp))
        return tt_fail(TUTTI_ERR_IO,
                       "it cannot see what rank 0 made in %s: all ranks must share that folder",
                       c->job->to);
    TT_TRY(copy_file(c, &c->job->file));
    return tt_dir_sync(c->temp, c->temp_name);
}

static tutti_status check_there(const tt_copier *c, const tt_cfile *file)
{
    struct stat st;
    if (fstatat(c->temp, file->name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) ||
        (uint64_t)st.st_size != file->bytes)
        return tt_fail(TUTTI_ERR_IO, "%s is not there as it was written", file->name);
    return TUTTI_OK;
}

tutti_status tt_copy_seal(void *copier)
{
    tt_copier *c = copier;
    const tt_catalog *cat = &c->src.m.cat;
    tt_commit commit = {.dir = c->dir,
                        .temp = c->temp,
                        .path = c->job->to,
                        .temp_name = c->temp_name,
                        .step = c->job->step,
                        .lock = c->lock};
    for (size_t i = 0; i + 1 < cat->nfile; i++)
        TT_TRY(check_there(c, &cat->file[i]));
    TT_TRY(copy_file(c, &cat->file[cat->nfile - 1]));
    TT_TRY(tt_small_file_write(c->temp, TT_MANIFEST_NAME, c->manifest.data, c->manifest.size));
    TT_TRY(given_up(c));
    TT_TRY(tt_commit_rename(&commit));
    if (c->job->best)
        TT_TRY(tt_tag_write(c->dir, TT_BEST_NAME, c->job->step));
    if (c->job->keep.last > 0)
        tt_retain(c->dir, c->job->to, c->job->step, &c->job->keep);
    return TUTTI_OK;
}

tutti_status tt_copy_clean(void *copier)
{
    tt_copier *c = copier;
    if (c->temp_name[0] == '\0')
        return TUTTI_OK;
    TT_TRY(tt_dir_remove(c->dir, c->temp_name));
    c->temp_name[0] = '\0';
    return TUTTI_OK;
}
