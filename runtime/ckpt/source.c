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

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 256 << 10 };

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

typedef struct part_search {
    tt_source *src;
    bool any; /* the directory is a part */
} part_search;

static tutti_status note_part(void *arg, const char *name)
{
    part_search *s = arg;
    const tt_catalog *cat = &s->src->m.cat;
    uint32_t part;
    if (!tt_part_parse(name, &part))
        return TUTTI_OK;
    s->any = true;
    for (size_t i = 0; i + 1 < cat->nfile; i++)
        if (cat->file[i].part == part)
            s->src->absent[i] = false;
    return TUTTI_OK;
}

/* In a node's own folder files of other parts may lack; in one that is of no part, none may. */
static tutti_status find_absent(tt_source *src)
{
    const tt_catalog *cat = &src->m.cat;
    part_search search = {.src = src};
    bool any = false;
    if (!src->m.in_parts)
        return TUTTI_OK;
    TT_TRY(tt_calloc(cat->nfile, sizeof *src->absent, &src->absent));
    for (size_t i = 0; i + 1 < cat->nfile; i++)
        src->absent[i] = true;
    TT_TRY(tt_dir_each(src->dir, note_part, &search));
    for (size_t i = 0; i + 1 < cat->nfile; i++) {
        if (faccessat(src->dir, cat->file[i].name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            src->absent[i] = false;
        any = any || src->absent[i];
    }
    if (!any || !search.any) {
        free(src->absent);
        src->absent = NULL;
    }
    return TUTTI_OK;
}

static tutti_status check_sizes(tt_source *src)
{
    TT_TRY(find_absent(src));
    for (size_t i = 0; i < src->m.cat.nfile; i++) {
        int fd = -1;
        if (tt_source_absent(src, i))
            continue;
        TT_TRY(check_size(src, &src->m.cat.file[i], &fd));
        close(fd);
    }
    return TUTTI_OK;
}

uint64_t tt_source_bytes(const tt_source *src, size_t *absent_out)
{
    uint64_t bytes = 0;
    *absent_out = 0;
    for (size_t i = 0; i < src->m.cat.nfile; i++) {
        if (tt_source_absent(src, i))
            ++*absent_out;
        else
            bytes += src->m.cat.file[i].bytes;
    }
    return bytes;
}

static void put_text(char *buf, size_t cap, size_t *at, const char *text)
{
    if (*at < cap)
        *at += (size_t)snprintf(buf + *at, cap - *at, "%s%s", *at > 0 ? ", " : "", text);
}

tutti_status tt_source_lacks(const tt_source *src, const bool *absent)
{
    const tt_catalog *cat = &src->m.cat;
    char files[200] = "", tensors[400] = "";
    size_t files_at = 0, tensors_at = 0, n = 0;
    for (size_t i = 0; i + 1 < cat->nfile; i++) {
        char text[2 * TT_CKPT_FILE_NAME_MAX];
        snprintf(text, sizeof text, "%s of part %u", cat->file[i].name, cat->file[i].part);
        if (absent[i])
            put_text(files, sizeof files, &files_at, text);
    }
    for (size_t i = 0; i < cat->ntensor; i++) {
        const tt_ctensor *t = &cat->tensor[i];
        bool lacks = false;
        for (size_t k = 0; k < t->nbox; k++)
            lacks = lacks || absent[t->box[k].file];
        if (lacks && n++ < 8)
            put_text(tensors, sizeof tensors, &tensors_at, t->name);
    }
    return tt_fail(TUTTI_ERR_CORRUPT,
                   "it was saved node-local, and %s cannot be found: %zu of %zu tensors are "
                   "incomplete (%s%s)",
                   files, n, cat->ntensor, tensors, n > 8 ? ", ..." : "");
}

static tutti_status open_source(int dir, const char *name, int64_t step, tt_buf *text,
                                tt_source *src)
{
    bool first = text->size == 0;
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
    char name[TT_TEMP_NAME_MAX];
    TT_TRY(tt_step_find(dir, step, name));
    return tt_source_open_as(dir, name, step, text, src_out);
}

tutti_status tt_source_open_as(int dir, const char *name, int64_t step, tt_buf *text,
                               tt_source *src_out)
{
    tt_source src = {.dir = -1, .spool = -1};
    tt_step_name(step, src.name);
    tutti_status status = open_source(dir, name, step, text, &src);
    if (status != TUTTI_OK) {
        if (status != TUTTI_ERR_NOT_FOUND || src.dir >= 0)
            status = tt_fail_more(status, "%s", src.name);
        if (src.dir >= 0)
            close(src.dir);
        free(src.absent);
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
    if (src->dir >= 0)
        close(src->dir);
    if (src->spool >= 0)
        close(src->spool);
    free(src->absent);
    free(src->spool_at);
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
    size_t i = (size_t)(file - src->m.cat.file);
    b->src = src;
    b->file = file;
    b->base = 0;
    if (!tt_source_absent(src, i))
        return check_size(src, file, &b->fd);
    if (src->spool < 0)
        return tt_fail(TUTTI_ERR_CORRUPT, "%s is not here: it is in part %u, on another node",
                       file->name, file->part);
    b->base = src->spool_at[i];
    b->fd = fcntl(src->spool, F_DUPFD_CLOEXEC, 0);
    return b->fd >= 0 ? TUTTI_OK
                      : tt_fail_errno(TUTTI_ERR_IO, errno, "cannot open what was fetched of %s",
                                      file->name);
}

tutti_status tt_block_read(tt_block *b, uint64_t index)
{
    return tt_block_read_to(b, index, b->data);
}

/* Piece by piece, so that what is hashed is still in the core's own cache. */
static tutti_status read_and_hash(const tt_block *b, char *to, tt_hash128 *hash_out)
{
    uint64_t bytes = b->end - b->begin;
    tt_hasher hasher;
    tt_hasher_begin(&hasher);
    for (uint64_t at = 0; at < bytes; at += PIECE_BYTES) {
        uint64_t take = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        TT_TRY(tt_file_read(b->fd, b->file->name, to + at, take, b->base + b->begin + at));
        tt_hasher_add(&hasher, to + at, take);
    }
    *hash_out = tt_hasher_end(&hasher);
    return TUTTI_OK;
}

tutti_status tt_block_read_to(tt_block *b, uint64_t index, char *to)
{
    tt_hash128 have, want = b->file->hash[index];
    uint64_t bytes = b->src->m.block_bytes;
    b->begin = index * bytes;
    b->end = b->file->bytes - b->begin < bytes ? b->file->bytes : b->begin + bytes;
    TT_TRY(read_and_hash(b, to, &have));
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
        blocks += tt_source_absent(src, i) ? 0 : cat->file[i].blocks;
    size_t from = blocks / (size_t)parts * (size_t)part +
                  blocks % (size_t)parts * (size_t)part / (size_t)parts;
    size_t to = blocks / (size_t)parts * ((size_t)part + 1) +
                blocks % (size_t)parts * ((size_t)part + 1) / (size_t)parts;
    TT_TRY(tt_calloc(1, src->m.block_bytes, &data));
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < cat->nfile && status == TUTTI_OK; i++) {
        size_t n = tt_source_absent(src, i) ? 0 : cat->file[i].blocks;
        size_t low = from > before ? from - before : 0, high = to > before ? to - before : 0;
        if (low < n && high > low)
            status = verify_file(src, &cat->file[i], low, high < n ? high : n, data);
        before += n;
    }
    free(data);
    return status == TUTTI_OK ? TUTTI_OK : tt_fail_more(status, "%s", src->name);
}
