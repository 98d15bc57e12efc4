/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "core/mem.h"

/* The kernel moves at most 2 GiB less a page per call. */
enum { CALL_BYTES = 1 << 30 };

tutti_status tt_file_open(int dir, const char *name, int *fd_out, uint64_t *bytes_out)
{
    struct stat st;
    /* O_NONBLOCK: a FIFO put in a file's place must not hang us */
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return tt_fail(TUTTI_ERR_CORRUPT, "%s is missing", name);
    if (fd < 0 && errno == ELOOP)
        return tt_fail(TUTTI_ERR_CORRUPT, "%s is a symbolic link", name);
    if (fd < 0) /* EIO: see tt_file_read */
        return tt_fail_errno(errno == EIO ? TUTTI_ERR_CORRUPT : TUTTI_ERR_IO, errno,
                             "cannot open %s", name);
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return tt_fail(TUTTI_ERR_CORRUPT, "%s is not a regular file", name);
    }
    *fd_out = fd;
    *bytes_out = (uint64_t)st.st_size;
    return TUTTI_OK;
}

tutti_status tt_file_create(int dir, const char *name, int *fd_out)
{
    int fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make %s", name);
    *fd_out = fd;
    return TUTTI_OK;
}

tutti_status tt_file_read(int fd, const char *name, void *buf, size_t bytes, uint64_t at)
{
    char *to = buf;
    while (bytes > 0) {
        ssize_t n = pread(fd, to, tt_min_size(bytes, CALL_BYTES), (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) /* EIO: the disk has lost it, which is damage like any other */
            return tt_fail_errno(errno == EIO ? TUTTI_ERR_CORRUPT : TUTTI_ERR_IO, errno,
                                 "cannot read %s", name);
        if (n == 0)
            return tt_fail(TUTTI_ERR_CORRUPT, "%s ends at byte %llu, too early", name,
                           (unsigned long long)at);
        to += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return TUTTI_OK;
}

tutti_status tt_file_write(int fd, const char *name, const void *buf, size_t bytes, uint64_t at)
{
    const char *from = buf;
    while (bytes > 0) {
        ssize_t n = pwrite(fd, from, tt_min_size(bytes, CALL_BYTES), (off_t)at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return tt_fail_errno(TUTTI_ERR_IO, n < 0 ? errno : EIO, "cannot write %s", name);
        from += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return TUTTI_OK;
}
