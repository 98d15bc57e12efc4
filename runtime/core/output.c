/* SPDX-License-Identifier: Apache-2.0 */
#include "core/output.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/status.h"

/* What `path` stands for, with the links followed; a name of nothing stands for itself. */
static tutti_status resolve(const char *path, bool stream, bool *file_out, char real[PATH_MAX])
{
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
    return TUTTI_OK;
}

tutti_status tt_output_open(const char *path, bool stream, tt_output *out)
{
    bool file = false;
    out->fd = -1;
    out->temp[0] = '\0';
    TT_TRY(resolve(path, stream, &file, out->path));
    /* A pipe has no name that could be opened: /dev/stdout is opened as it was given. */
    if (!file) {
        snprintf(out->path, sizeof out->path, "%s", path);
        out->fd = open(path, O_WRONLY | O_CLOEXEC);
    } else {
        int n = snprintf(out->temp, sizeof out->temp, "%s.tmp-%d", out->path, (int)getpid());
        if (n >= (int)sizeof out->temp) {
            out->temp[0] = '\0';
            return tt_fail_errno(TUTTI_ERR_ARG, ENAMETOOLONG, "cannot write %.100s...", path);
        }
        out->fd = open(out->temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    return out->fd >= 0 ? TUTTI_OK : tt_fail_errno(TUTTI_ERR_IO, errno, "cannot write %s", path);
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

tutti_status tt_output_commit(tt_output *out, bool sync)
{
    int fd = out->fd;
    sync = sync && out->temp[0] != '\0';
    if (sync && fsync(fd) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make %s durable", out->path);
    out->fd = -1;
    if (close(fd) != 0 || (out->temp[0] != '\0' && rename(out->temp, out->path) != 0)) {
        tutti_status status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot write %s", out->path);
        if (out->temp[0] != '\0')
            unlink(out->temp);
        return status;
    }
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
