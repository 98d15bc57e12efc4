/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An open checkpoint: its directory, its manifest, and blocks of its files with their checksums.
 *
 * The directory stays open from the first look at it, so that all that is read later is of the same
 * checkpoint, even if retention renames and empties it meanwhile: then files are missing, and that
 * is said. Files are opened when they are read and compared with their recorded size each time; a
 * job of a thousand shards needs no thousand descriptors.
 */
#include "ckpt/block.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static tutti_status read_manifest(int dir, tt_buf *text)
{
    uint64_t bytes;
    int fd;
    TT_TRY(tt_file_open(dir, TT_MANIFEST_NAME, &fd, &bytes));
    tutti_status status = TUTTI_OK;
    if (bytes > TT_MANIFEST_MAX_BYTES)
        status = tt_fail(TUTTI_ERR_CORRUPT, TT_MANIFEST_NAME ": %llu MiB are too many",
                         (unsigned long long)(bytes >> 20));
    if (status == TUTTI_OK)
        status = tt_grow(&text->data, &text->cap, bytes, 1);
    if (status == TUTTI_OK)
        status = tt_file_read(fd, TT_MANIFEST_NAME, text->data, bytes, 0);
    if (status == TUTTI_OK)
        text->size = bytes;
    close(fd);
    return status;
}

static tutti_status check_size(const tt_source *src, const tt_cfile *file, int *fd_out)
{
    uint64_t bytes;
    int fd;
    TT_TRY(tt_file_open(src->dir, file->name, &fd, &bytes));
    if (bytes != file->bytes) {
        close(fd);
        return tt_fail(TUTTI_ERR_CORRUPT, "%s has %llu bytes, not the %llu that were written",
                       file->name, (unsigned long long)bytes, (unsigned long long)file->bytes);
    }
    *fd_out = fd;
    return TUTTI_OK;
}

static tutti_status check_sizes(const tt_source *src)
{
    for (size_t i = 0; i < src->m.cat.nfile; i++) {
        int fd = -1;
        TT_TRY(check_size(src, &src->m.cat.file[i], &fd));
        close(fd);
    }
    return TUTTI_OK;
}

static tutti_status open_source(int dir, int64_t step, tt_buf *text, tt_source *src)
{
    bool first = text->size == 0;
    char name[TT_TEMP_NAME_MAX];
    TT_TRY(tt_step_find(dir, step, name));
    tutti_status status = tt_dir_open_at(dir, name, &src->dir);
    if (status == TUTTI_OK && first)
        status = read_manifest(src->dir, text);
    if (status == TUTTI_OK)
        status = tt_manifest_read(text->data, text->size, step, &src->m);
    if (status == TUTTI_OK && first)
        status = check_sizes(src);
    return status;
}

tutti_status tt_source_open(int dir, int64_t step, tt_buf *text, tt_source *src_out)
{
    tt_source src = {.dir = -1};
    tt_step_name(step, src.name);
    tutti_status status = open_source(dir, step, text, &src);
    if (status != TUTTI_OK) {
        if (status != TUTTI_ERR_NOT_FOUND || src.dir >= 0)
            status = tt_fail_more(status, "%s", src.name);
        if (src.dir >= 0)
            close(src.dir);
        tt_manifest_free(&src.m);
        return status;
    }
    *src_out = src;
    return TUTTI_OK;
}

void tt_source_close(tt_source *src)
{
    if (src->name[0] == '\0')
        return;
    close(src->dir);
    tt_manifest_free(&src->m);
    *src = (tt_source){0};
}

bool tt_step_looks_whole(int dir, int64_t step)
{
    tt_buf text = {0};
    tt_source src = {0};
    bool whole = tt_source_open(dir, step, &text, &src) == TUTTI_OK;
    tt_source_close(&src);
    tt_buf_free(&text);
    return whole;
}

tutti_status tt_block_open(tt_block *b, const tt_source *src, const tt_cfile *file)
{
    b->src = src;
    b->file = file;
    return check_size(src, file, &b->fd);
}

tutti_status tt_block_read(tt_block *b, uint64_t index)
{
    return tt_block_read_to(b, index, b->data);
}

tutti_status tt_block_read_to(tt_block *b, uint64_t index, char *to)
{
    uint64_t bytes = b->src->m.block_bytes;
    b->begin = index * bytes;
    b->end = b->file->bytes - b->begin < bytes ? b->file->bytes : b->begin + bytes;
    TT_TRY(tt_file_read(b->fd, b->file->name, to, b->end - b->begin, b->begin));
    tt_hash128 have = tt_hash128_of(to, b->end - b->begin), want = b->file->hash[index];
    if (have.low != want.low || have.high != want.high)
        return tt_fail(TUTTI_ERR_CORRUPT,
                       "%s: bytes %llu to %llu are not what was written: their checksum differs",
                       b->file->name, (unsigned long long)b->begin, (unsigned long long)b->end - 1);
    return TUTTI_OK;
}

static tutti_status verify_file(const tt_source *src, const tt_cfile *file, size_t from, size_t to,
                                char *data)
{
    tt_block b = {.data = data};
    TT_TRY(tt_block_open(&b, src, file));
    posix_fadvise(b.fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    tutti_status status = TUTTI_OK;
    for (size_t i = from; i < to && status == TUTTI_OK; i++)
        status = tt_block_read(&b, i);
    close(b.fd);
    return status;
}

tutti_status tt_source_verify(const tt_source *src, int part, int parts)
{
    const tt_catalog *cat = &src->m.cat;
    size_t blocks = 0, before = 0;
    char *data;
    for (size_t i = 0; i < cat->nfile; i++)
        blocks += cat->file[i].blocks;
    size_t from = blocks / (size_t)parts * (size_t)part +
                  blocks % (size_t)parts * (size_t)part / (size_t)parts;
    size_t to = blocks / (size_t)parts * ((size_t)part + 1) +
                blocks % (size_t)parts * ((size_t)part + 1) / (size_t)parts;
    TT_TRY(tt_calloc(1, src->m.block_bytes, &data));
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < cat->nfile && status == TUTTI_OK; i++) {
        size_t n = cat->file[i].blocks;
        size_t low = from > before ? from - before : 0, high = to > before ? to - before : 0;
        if (low < n && high > low)
            status = verify_file(src, &cat->file[i], low, high < n ? high : n, data);
        before += n;
    }
    free(data);
    return status == TUTTI_OK ? TUTTI_OK : tt_fail_more(status, "%s", src->name);
}
