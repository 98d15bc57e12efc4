/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The raw disk beside checkpoints: the least that a durable save of the same bytes has to do, and
 * the least that a load has to.
 *
 * Writing keeps the protocol and leaves out the work: a temporary directory, one file of each rank,
 * given its space, written in large pieces and synced, two small files, the directory synced,
 * renamed, the parent synced; through the page cache or past it. Reading is the same files in large
 * pieces. No checksum, no manifest, no check of anything.
 */
#include "ckpt.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"

enum { PIECE = 4 << 20, SMALL = 4096 };

void ckpt_path(const ckpt_bench *b, char *path, const char *fmt, ...)
{
    va_list args;
    int at = snprintf(path, CKPT_PATH_MAX, "%s/", b->dir);
    va_start(args, fmt);
    vsnprintf(path + at, (size_t)(CKPT_PATH_MAX - at), fmt, args);
    va_end(args);
}

static tutti_status failed(const char *path)
{
    return tt_fail_errno(TUTTI_ERR_IO, errno, "tutti bench ckpt: %s", path);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st, (void)type, (void)at;
    return remove(path);
}

tutti_status ckpt_remove(const char *path)
{
    return nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) == 0 ? TUTTI_OK : failed(path);
}

void ckpt_drop_cache(const char *path)
{
    int fd = open(path, O_RDONLY);
    if (fd < 0)
        return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
}

tutti_status ckpt_clock_start(ckpt_bench *b, int64_t *from_out)
{
    TT_TRY(tutti_barrier(b->job.world));
    *from_out = tt_now_ns();
    return TUTTI_OK;
}

tutti_status ckpt_clock_stop(ckpt_bench *b, int64_t from, tutti_status mine, double *seconds_out)
{
    double took = 1e-9 * (double)(tt_now_ns() - from);
    TT_TRY(tt_agree(&b->job.ctx->world, "tutti bench ckpt", mine));
    TT_TRY(tutti_all_reduce_host(b->job.world, &took, 1, TUTTI_MAX));
    *seconds_out = took;
    return TUTTI_OK;
}

static tutti_status write_all(int fd, const char *path, const char *data, size_t bytes)
{
    if (fallocate(fd, 0, 0, (off_t)bytes) != 0 && errno != EOPNOTSUPP)
        return failed(path);
    for (size_t at = 0; at < bytes;) {
        size_t take = bytes - at < PIECE ? bytes - at : PIECE;
        ssize_t n = pwrite(fd, data + at, take, (off_t)at);
        if (n <= 0)
            return failed(path);
        at += (size_t)n;
    }
    return fsync(fd) == 0 ? TUTTI_OK : failed(path);
}

static tutti_status write_file(const char *path, const char *data, size_t bytes, bool direct)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | (direct ? O_DIRECT : 0), 0666);
    if (fd < 0)
        return failed(path);
    tutti_status status = write_all(fd, path, data, bytes);
    close(fd);
    return status;
}

static tutti_status read_file(const char *path, char *to, size_t bytes)
{
    int fd = open(path, O_RDONLY);
    size_t at = 0;
    ssize_t n = 1;
    if (fd < 0)
        return failed(path);
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (; at < bytes && n > 0; at += n > 0 ? (size_t)n : 0)
        n = pread(fd, to + at, bytes - at < PIECE ? bytes - at : PIECE, (off_t)at);
    tutti_status status = at == bytes ? TUTTI_OK : failed(path);
    close(fd);
    return status;
}

static tutti_status sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    tutti_status status = fd < 0 || fsync(fd) != 0 ? failed(path) : TUTTI_OK;
    if (fd >= 0)
        close(fd);
    return status;
}

static tutti_status commit(ckpt_bench *b, const char *temp, const char *final)
{
    char path[CKPT_PATH_MAX];
    for (int i = 0; i < 2; i++) {
        ckpt_path(b, path, "raw.tmp/small-%d", i);
        TT_TRY(write_file(path, b->data, SMALL, false));
    }
    TT_TRY(sync_dir(temp));
    if (rename(temp, final) != 0)
        return failed(final);
    return sync_dir(b->dir);
}

static tutti_status save_parts(ckpt_bench *b, const char *temp, const char *final, bool direct)
{
    tt_group *world = &b->job.ctx->world;
    char path[CKPT_PATH_MAX];
    tutti_status status = b->job.rank == 0 && mkdir(temp, 0777) != 0 ? failed(temp) : TUTTI_OK;
    TT_TRY(tt_agree(world, "tutti bench ckpt", status));
    ckpt_path(b, path, "raw.tmp/raw-%d", b->job.rank);
    TT_TRY(tt_agree(world, "tutti bench ckpt", write_file(path, b->data, b->bytes, direct)));
    return b->job.rank == 0 ? commit(b, temp, final) : TUTTI_OK;
}

tutti_status ckpt_raw_save(ckpt_bench *b, bool direct, double *seconds_out)
{
    char temp[CKPT_PATH_MAX], final[CKPT_PATH_MAX];
    int64_t from;
    ckpt_path(b, temp, "raw.tmp");
    ckpt_path(b, final, "raw");
    TT_TRY(ckpt_clock_start(b, &from));
    TT_TRY(ckpt_clock_stop(b, from, save_parts(b, temp, final, direct), seconds_out));
    tutti_status status = b->job.rank == 0 ? ckpt_remove(final) : TUTTI_OK;
    return tt_agree(&b->job.ctx->world, "tutti bench ckpt", status);
}

tutti_status ckpt_raw_make(ckpt_bench *b)
{
    char path[CKPT_PATH_MAX];
    ckpt_path(b, path, "raw-%d", b->job.rank);
    return tt_agree(&b->job.ctx->world, "tutti bench ckpt",
                    write_file(path, b->data, b->bytes, false));
}

tutti_status ckpt_raw_load(ckpt_bench *b, bool cold, double *seconds_out)
{
    char path[CKPT_PATH_MAX];
    int64_t from;
    ckpt_path(b, path, "raw-%d", b->job.rank);
    if (cold)
        ckpt_drop_cache(path);
    TT_TRY(ckpt_clock_start(b, &from));
    return ckpt_clock_stop(b, from, read_file(path, b->copy, b->bytes), seconds_out);
}
