/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files on their way to the disk.
 *
 * Large ones go past the page cache (O_DIRECT) where the file system allows it: half the memory
 * traffic, and nothing is left for fsync. Only whole pages go that way; the last bytes of the file
 * are written at their exact length, for padding would overwrite what lies behind them. Several
 * threads may write blocks of one file. Small files are written, synced and read back.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "ckpt/writer.h"
#include "core/env.h"

enum { DIRECT_MIN_BYTES = 4 << 20, PAGE = TT_FILE_ALIGN, LARGE_PAGE = 2 << 20 };

char *tt_bounce_alloc(uint64_t block_bytes)
{
    size_t align = block_bytes >= LARGE_PAGE ? LARGE_PAGE : PAGE;
    size_t bytes = tt_round_up(block_bytes, align);
    char *bounce = aligned_alloc(align, bytes);
    if (bounce != NULL && align == LARGE_PAGE)
        madvise(bounce, bytes, MADV_HUGEPAGE);
    return bounce;
}

tutti_status tt_out_reserve(tt_out *out, uint64_t bytes)
{
    /* the system call, not posix_fallocate, which writes where a file system cannot do it */
    if (fallocate(out->fd, 0, 0, (off_t)bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "no room for the %llu bytes of %s",
                             (unsigned long long)bytes, out->name);
    return TUTTI_OK;
}

static tutti_status open_direct(tt_out *out, int dir, uint64_t bytes)
{
    bool wanted;
    TT_TRY(tt_env_get_bool(TT_ENV_CKPT_DIRECT, &wanted));
    if (wanted && bytes >= DIRECT_MIN_BYTES)
        out->direct = openat(dir, out->name, O_WRONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
    return TUTTI_OK; /* without it too */
}

tutti_status tt_out_resize(tt_out *out, int dir, uint64_t bytes)
{
    TT_TRY(tt_out_reserve(out, bytes));
    if (ftruncate(out->fd, (off_t)bytes) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot give %s its size", out->name);
    return open_direct(out, dir, bytes);
}

/* Writes whole pages past the page cache; how many bytes of them, fewer where it refuses. */
static tutti_status write_direct(tt_out *out, const char *data, uint64_t begin, uint64_t bytes,
                                 uint64_t *done_out)
{
    uint64_t done = 0;
    while (done < bytes) {
        ssize_t n = pwrite(out->direct, data + done, bytes - done, (off_t)(begin + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EINVAL)
            return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot write %s", out->name);
        if (n <= 0 || n % PAGE != 0) {
            atomic_store(&out->not_direct, true);
            break;
        }
        done += (uint64_t)n;
    }
    *done_out = done;
    return TUTTI_OK;
}

tutti_status tt_out_write(tt_out *out, const char *data, uint64_t begin, uint64_t end)
{
    uint64_t done = 0;
    if (out->direct >= 0 && !atomic_load(&out->not_direct) && (uintptr_t)data % PAGE == 0)
        TT_TRY(write_direct(out, data, begin, (end - begin) / PAGE * PAGE, &done));
    if (begin + done == end)
        return TUTTI_OK;
    TT_TRY(tt_file_write(out->fd, out->name, data + done, end - begin - done, begin + done));
    /* the disk starts on it now instead of at the fsync */
    sync_file_range(out->fd, (off_t)(begin + done), (off_t)(end - begin - done),
                    SYNC_FILE_RANGE_WRITE);
    return TUTTI_OK;
}

tutti_status tt_out_sync(tt_out *out)
{
    if (fsync(out->fd) != 0) /* final: the kernel may have dropped the pages */
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make %s durable", out->name);
    return TUTTI_OK;
}

tutti_status tt_out_close(tt_out *out)
{
    int fd = out->fd;
    out->fd = -1;
    if (close(fd) != 0 && errno != EINTR)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot close %s", out->name);
    return TUTTI_OK;
}

void tt_out_abandon(tt_out *out)
{
    if (out->fd >= 0)
        close(out->fd);
    if (out->direct >= 0)
        close(out->direct);
    out->fd = out->direct = -1;
}

static tutti_status check_small(int fd, const char *name, const void *data, size_t bytes)
{
    char *have;
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* from the disk, not from our own pages */
    TT_TRY(tt_calloc(1, bytes, &have));
    tutti_status status = tt_file_read(fd, name, have, bytes, 0);
    if (status == TUTTI_OK && memcmp(have, data, bytes) != 0)
        status = tt_fail(TUTTI_ERR_IO, "%s does not hold what was written to it", name);
    free(have);
    return status;
}

tutti_status tt_small_file_write(int dir, const char *name, const void *data, size_t bytes)
{
    int fd;
    TT_TRY(tt_file_create(dir, name, &fd));
    tutti_status status = tt_file_write(fd, name, data, bytes, 0);
    if (status == TUTTI_OK && fsync(fd) != 0)
        status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make %s durable", name);
    if (status == TUTTI_OK)
        status = check_small(fd, name, data, bytes);
    if (close(fd) != 0 && errno != EINTR && status == TUTTI_OK)
        status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot close %s", name);
    return status;
}
