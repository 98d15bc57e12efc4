/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A description of any format from a file or from memory. The format is told by the content: the
 * name of the first XML element, the magic number of an archive, else a matrix. Nothing goes by the
 * file's name. A directory is a recorded root with sys/ in it.
 *
 * The whole file is read first, with a cap: descriptions are small, and a device file or a pipe
 * that never ends must not hang or fill memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/mem.h"
#include "topo/read.h"

/* The first element's name in `name`, past declarations and comments; "" if there is none. */
static void first_element(const char *text, size_t bytes, char name[32])
{
    const char *at = text, *end = text + bytes;
    size_t n = 0;

    name[0] = 0;
    while (at != NULL && at < end && (at = memchr(at, '<', (size_t)(end - at))) != NULL) {
        size_t left = (size_t)(end - at);

        if (left >= 4 && memcmp(at, "<!--", 4) == 0) {
            at = memmem(at + 4, left - 4, "-->", 3);
            continue;
        }
        at++;
        if (left < 2 || *at == '?' || *at == '!')
            continue;
        while (at + n < end && n < 31 && strchr(" \t\r\n/>", at[n]) == NULL)
            n++;
        memcpy(name, at, n);
        name[n] = 0;
        return;
    }
}

static bool begins(const char *text, size_t bytes, const char *with)
{
    size_t length = strlen(with);

    return bytes >= length && memcmp(text, with, length) == 0;
}

static bool is_tar(const char *text, size_t bytes)
{
    return bytes > 262 && memcmp(text + 257, "ustar", 5) == 0;
}

tutti_status tt_topo_read_text(const char *name, const char *text, size_t bytes,
                               tutti_topo **topo_out)
{
    size_t skip = 0;
    char element[32];

    if (begins(text, bytes, "\xef\xbb\xbf")) /* a byte order mark */
        skip = 3;
    while (skip < bytes && strchr(" \t\r\n", text[skip]) != NULL && text[skip] != 0)
        skip++;
    if (skip == bytes)
        return tt_fail(TUTTI_ERR_CORRUPT, "%s: empty", name);
    if (begins(text, bytes, "BZh") || begins(text, bytes, "\x1f\x8b") || is_tar(text, bytes))
        return tt_fail(TUTTI_ERR_UNSUPPORTED,
                       "%s: an archive; unpack it, and give the directory that holds its sys/",
                       name);
    if (text[skip] != '<') {
        if (begins(text + skip, bytes - skip, "Machine ("))
            return tt_fail(TUTTI_ERR_UNSUPPORTED,
                           "%s: what lstopo prints; save the machine with lstopo FILE.xml", name);
        return tt_topo_read_matrix(name, text, bytes, topo_out);
    }
    first_element(text, bytes, element);
    if (strcmp(element, "topology") == 0)
        return tt_topo_read_hwloc(name, text, bytes, topo_out);
    return tt_topo_read_nccl(name, text, bytes, topo_out);
}

static tutti_status read_whole(const char *path, int fd, tt_buf *buf)
{
    static const size_t piece = 65536;

    for (;;) {
        char chunk[65536];
        ssize_t n = read(fd, chunk, piece);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return tt_fail_errno(TUTTI_ERR_IO, errno, "%s", path);
        if (n == 0)
            return TUTTI_OK;
        if (buf->size + (size_t)n > TT_TOPO_FILE_MAX)
            return tt_fail(TUTTI_ERR_UNSUPPORTED, "%s: larger than %d MiB", path,
                           TT_TOPO_FILE_MAX >> 20);
        tt_buf_put(buf, chunk, (size_t)n);
        if (buf->failed)
            return tt_fail(TUTTI_ERR_NO_MEMORY, "%s: out of memory", path);
    }
}

tutti_status tt_topo_read_file(const char *path, tutti_topo **topo_out)
{
    tt_buf buf = {0};
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    tutti_status status;

    if (fd < 0)
        return tt_fail_errno(errno == ENOENT ? TUTTI_ERR_NOT_FOUND : TUTTI_ERR_IO, errno, "%s",
                             path);
    if (fstat(fd, &info) != 0) {
        status = tt_fail_errno(TUTTI_ERR_IO, errno, "%s", path);
        goto close_file;
    }
    if (S_ISDIR(info.st_mode)) {
        status = tt_topo_read_root(path, topo_out);
        goto close_file;
    }
    if (!S_ISREG(info.st_mode) && !S_ISFIFO(info.st_mode)) {
        status = tt_fail(TUTTI_ERR_ARG, "%s: neither a file nor a directory", path);
        goto close_file;
    }
    (void)fcntl(fd, F_SETFL, 0); /* a pipe is waited for */
    status = read_whole(path, fd, &buf);
    if (status == TUTTI_OK)
        status = tt_topo_read_text(path, buf.size != 0 ? (const char *)buf.data : "", buf.size,
                                   topo_out);
    tt_buf_free(&buf);

close_file:
    (void)close(fd);
    return status;
}
