/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files for users, written beside their place as NAME.tutti-XXXXXXXX and renamed.
 *
 * The writer holds a lock (flock) on the file for as long as it has that name. The kernel drops it
 * with the process, so the next writer of the same file can tell what a killed one left from what
 * one writes right now, on whatever machine, and removes the former. Whoever removes holds the lock
 * meanwhile; a writer whose file was removed before it had its lock makes another. O_TMPFILE, which
 * leaves nothing at all, cannot replace a file and is not there on NFS. Where there are no locks
 * nothing is removed.
 */
#include "core/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"

/* What `path` stands for, with the links followed; a name of nothing stands for itself. */
static tutti_status resolve(const char *path, bool stream, bool *file_out, tt_output *out)
{
    char *real = out->path;
    struct stat st;
    if (stat(path, &st) != 0) {
        if (errno != ENOENT || path[0] == '\0')
            return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot write '%s'", path);
        if (lstat(path, &st) == 0)
            return tt_fail(TUTTI_ERR_IO, "cannot write %s: a link to nothing", path);
        if (strlen(path) >= PATH_MAX)
            return tt_fail_errno(TUTTI_ERR_ARG, ENAMETOOLONG, "cannot write %.100s...", path);
        memcpy(real, path, strlen(path) + 1);
        *file_out = true;
        return TUTTI_OK;
    }
    *file_out = S_ISREG(st.st_mode);
    if (!*file_out && (!stream || S_ISDIR(st.st_mode)))
        return tt_fail(TUTTI_ERR_IO, "cannot write %s: it is no file", path);
    if (*file_out && (st.st_mode & 0222) == 0)
        return tt_fail(TUTTI_ERR_IO, "cannot write %s: it is read-only", path);
    if (access(path, W_OK) != 0 || (*file_out && realpath(path, real) == NULL))
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot write %s", path);
    out->mode = *file_out ? st.st_mode & 0777 : 0;
    return TUTTI_OK;
}

enum { MARK_BYTES = 15 }; /* .tutti-XXXXXXXX */

/* Whether a name is that of a file being written for `base`. */
static bool is_temp(const char *name, const char *base)
{
    size_t bytes = strlen(base);
    return strlen(name) == bytes + MARK_BYTES && strncmp(name, base, bytes) == 0 &&
           strncmp(name + bytes, ".tutti-", 7) == 0 &&
           strspn(name + bytes + 7, "0123456789abcdef") == 8;
}

static void remove_dead(int dir, const char *name)
{
    struct stat st;
    int fd = openat(dir, name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(dir, name, 0);
    close(fd);
}

/* What killed writers of the same file left. */
static void sweep(const tt_output *out)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(out->path, '/');
    const char *base = slash == NULL ? out->path : slash + 1;
    struct dirent *entry;
    memcpy(folder, out->path, sizeof folder);
    DIR *list = opendir(dirname(folder));
    while (list != NULL && (entry = readdir(list)) != NULL)
        if (is_temp(entry->d_name, base))
            remove_dead(dirfd(list), entry->d_name);
    if (list != NULL)
        closedir(list);
}

/* A new file, locked. -1: errno says why not. */
static int make_temp(tt_output *out)
{
    for (;;) {
        struct stat st;
        unsigned random = 0;
        if (getrandom(&random, sizeof random, 0) < 0)
            return -1;
        int n = snprintf(out->temp, sizeof out->temp, "%s.tutti-%08x", out->path, random);
        if (n >= (int)sizeof out->temp) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(out->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd < 0 && errno == EEXIST)
            continue;
        if (fd < 0 || flock(fd, LOCK_EX) != 0 || fstat(fd, &st) != 0 || st.st_nlink > 0)
            return fd;
        close(fd); /* someone took it for a dead one's */
    }
}

tutti_status tt_output_open(const char *path, bool stream, tt_output *out)
{
    bool file = false;
    out->fd = -1;
    out->temp[0] = '\0';
    out->mode = 0;
    TT_TRY(resolve(path, stream, &file, out));
    /* A pipe has no name that could be opened: /dev/stdout is opened as it was given. */
    if (!file) {
        snprintf(out->path, sizeof out->path, "%s", path);
        out->fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        sweep(out);
        out->fd = make_temp(out);
    }
    if (out->fd < 0) {
        out->temp[0] = '\0';
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot write %.200s", path);
    }
    if (file && out->mode != 0) /* before there is anything in it that others may not read */
        (void)fchmod(out->fd, out->mode);
    return TUTTI_OK;
}

tutti_status tt_output_write(tt_output *out, const void *data, size_t bytes)
{
    const char *at = data;
    while (bytes > 0) {
        ssize_t n = write(out->fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot write %s", out->path);
        at += n;
        bytes -= (size_t)n;
    }
    return TUTTI_OK;
}

static tutti_status sync_folder(const tt_output *out)
{
    char folder[PATH_MAX];
    memcpy(folder, out->path, sizeof folder);
    int dir = open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot open the folder of %s", out->path);
    int err = fsync(dir) == 0 || errno == EINVAL ? 0 : errno;
    close(dir);
    return err == 0 ? TUTTI_OK
                    : tt_fail_errno(TUTTI_ERR_IO, err, "cannot make %s durable", out->path);
}

/* With its lock until it has its name: `kept` holds that over the close, which may fail. */
static int rename_closed(tt_output *out)
{
    int fd = out->fd, kept = dup(fd), error = 0;
    out->fd = -1;
    if (close(fd) != 0 || rename(out->temp, out->path) != 0) {
        error = errno;
        unlink(out->temp);
    }
    if (kept >= 0)
        close(kept);
    return error;
}

tutti_status tt_output_commit(tt_output *out, bool sync)
{
    int error = 0;
    sync = sync && out->temp[0] != '\0';
    if (sync && fsync(out->fd) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make %s durable", out->path);
    if (out->temp[0] != '\0') {
        error = rename_closed(out);
    } else {
        error = close(out->fd) != 0 ? errno : 0;
        out->fd = -1;
    }
    if (error != 0)
        return tt_fail_errno(TUTTI_ERR_IO, error, "cannot write %s", out->path);
    return sync ? sync_folder(out) : TUTTI_OK;
}

void tt_output_drop(tt_output *out)
{
    if (out->fd < 0)
        return;
    close(out->fd);
    if (out->temp[0] != '\0')
        unlink(out->temp);
    out->fd = -1;
}
