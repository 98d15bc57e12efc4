/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing one shard.
 *
 * The space on disk is reserved before all else, with an allowance for HDF5's own bytes, so that a
 * full file system or a limit says so at once. HDF5 makes the file in memory, where the datasets'
 * space stays a hole, and is closed: it never sees the disk, and no lock of its is held while the
 * bulk goes there. Then the file is written block by
 * block: one that lies in a dataset straight from the staging memory, one that also holds HDF5's
 * own bytes (they may be anywhere, also in a dataset's tail) from a bounce buffer in which the two
 * are laid over each other. The hashes are of what was meant to be written, not of what a later
 * read happens to give. At last HDF5 opens the file, and every dataset must be where it was made.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "ckpt/h5.h"
#include "ckpt/writer.h"

typedef struct segment {
    uint64_t at, bytes; /* in the file */
    const char *data;
} segment;

typedef struct walk {
    int fd;
    int memory; /* HDF5's part */
    const char *name;
    segment *seg; /* by place in the file */
    size_t nseg, next; /* next: the first that does not end before the block */
    char *bounce; /* a block */
} walk;

void tt_shard_report_free(tt_shard_report *report)
{
    free(report->offset);
    free(report->hash);
    *report = (tt_shard_report){0};
}

static int compare_segment(const void *a, const void *b)
{
    const segment *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

static tutti_status make_segments(walk *w, const tt_shard *shard, const tt_stage *stage,
                                  const uint64_t *offset)
{
    TT_TRY(tt_calloc(shard->ndset, sizeof *w->seg, &w->seg));
    for (size_t i = 0; i < shard->ndset; i++)
        w->seg[i] = (segment){offset[i], shard->dset[i].bytes, stage->base + shard->dset[i].stage};
    w->nseg = shard->ndset;
    qsort(w->seg, w->nseg, sizeof *w->seg, compare_segment);
    for (size_t i = 1; i < w->nseg; i++)
        if (w->seg[i].at < w->seg[i - 1].at + w->seg[i - 1].bytes)
            return tt_fail(TUTTI_ERR_INTERNAL, "HDF5 gave two datasets of %s the same bytes",
                           w->name);
    return TUTTI_OK;
}

static tutti_status mix_block(walk *w, uint64_t begin, uint64_t end)
{
    TT_TRY(tt_file_read(w->memory, w->name, w->bounce, end - begin, begin));
    for (size_t i = w->next; i < w->nseg && w->seg[i].at < end; i++) {
        const segment *s = &w->seg[i];
        uint64_t low = s->at > begin ? s->at : begin;
        uint64_t high = s->at + s->bytes < end ? s->at + s->bytes : end;
        if (low < high)
            memcpy(w->bounce + (low - begin), s->data + (low - s->at), high - low);
    }
    return TUTTI_OK;
}

static tutti_status write_block(walk *w, uint64_t begin, uint64_t end, tt_hash128 *hash_out)
{
    while (w->next < w->nseg && w->seg[w->next].at + w->seg[w->next].bytes <= begin)
        w->next++;
    const segment *s = w->next < w->nseg ? &w->seg[w->next] : NULL;
    const char *data = w->bounce;
    if (s != NULL && s->at <= begin && s->at + s->bytes >= end)
        data = s->data + (begin - s->at);
    else
        TT_TRY(mix_block(w, begin, end));
    TT_TRY(tt_file_write(w->fd, w->name, data, end - begin, begin));
    *hash_out = tt_hash128_of(data, end - begin);
    /* the disk starts on it now instead of at the fsync */
    sync_file_range(w->fd, (off_t)begin, (off_t)(end - begin), SYNC_FILE_RANGE_WRITE);
    return TUTTI_OK;
}

static tutti_status write_blocks(walk *w, uint64_t block_bytes, const _Atomic bool *cancel,
                                 tt_shard_report *report)
{
    report->blocks = (report->bytes + block_bytes - 1) / block_bytes;
    TT_TRY(tt_calloc(report->blocks, sizeof *report->hash, &report->hash));
    for (size_t i = 0; i < report->blocks; i++) {
        uint64_t begin = i * block_bytes, end = begin + block_bytes;
        if (atomic_load_explicit(cancel, memory_order_relaxed))
            return tt_fail(TUTTI_ERR_STATE, "the save was given up");
        TT_TRY(write_block(w, begin, end < report->bytes ? end : report->bytes, &report->hash[i]));
    }
    return TUTTI_OK;
}

static tutti_status reserve(int fd, const char *name, uint64_t bytes)
{
    /* the system call, not posix_fallocate, which writes where a file system cannot do it */
    if (fallocate(fd, 0, 0, (off_t)bytes) != 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "no room for the %llu bytes of %s",
                             (unsigned long long)bytes, name);
    return TUTTI_OK;
}

/* Of HDF5's metadata: about half of this is used. */
static uint64_t allowance(const tt_shard *shard)
{
    return (64 << 10) + (2 << 10) * (uint64_t)shard->ndset;
}

static tutti_status fill(walk *w, const tt_shard_input *in, tt_shard_report *report)
{
    struct stat st;
    if (fstat(w->memory, &st) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "no size of %s", w->name);
    report->bytes = (uint64_t)st.st_size;
    TT_TRY(reserve(w->fd, w->name, report->bytes));
    if (ftruncate(w->fd, (off_t)report->bytes) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot give %s its size", w->name);
    TT_TRY(make_segments(w, in->shard, in->stage, report->offset));
    TT_TRY(tt_calloc(1, in->block_bytes, &w->bounce));
    return write_blocks(w, in->block_bytes, in->cancel, report);
}

static tutti_status write_shard(int dir, walk *w, const tt_shard_input *in, tt_shard_report *report)
{
    TT_TRY(tt_calloc(in->shard->ndset, sizeof *report->offset, &report->offset));
    TT_TRY(tt_file_create(dir, w->name, &w->fd));
    tutti_status status = reserve(w->fd, w->name, in->shard->stage_bytes + allowance(in->shard));
    if (status == TUTTI_OK)
        status = tt_h5_shard_make(w->name, in->shard, report->offset, &w->memory);
    if (status == TUTTI_OK) {
        status = fill(w, in, report);
        close(w->memory);
    }
    if (status == TUTTI_OK)
        status = tt_h5_shard_check(dir, w->name, in->shard, report->offset);
    if (status != TUTTI_OK) {
        close(w->fd);
        return status;
    }
    TT_TRY(tt_file_sync_close(w->fd, w->name));
    return tt_dir_sync(dir, "the checkpoint's directory");
}

tutti_status tt_shard_write(int dir, const char *name, const tt_shard_input *in,
                            tt_shard_report *report_out)
{
    tt_shard_report report = {0};
    walk w = {.fd = -1, .memory = -1, .name = name};
    tutti_status status = write_shard(dir, &w, in, &report);
    free(w.seg);
    free(w.bounce);
    if (status != TUTTI_OK) {
        tt_shard_report_free(&report);
        return status;
    }
    *report_out = report;
    return TUTTI_OK;
}

tutti_status tt_small_file_write(int dir, const char *name, const void *data, size_t bytes)
{
    int fd;
    TT_TRY(tt_file_create(dir, name, &fd));
    tutti_status status = tt_file_write(fd, name, data, bytes, 0);
    if (status == TUTTI_OK)
        return tt_file_sync_close(fd, name);
    close(fd);
    return status;
}

tutti_status tt_blocks_hash(const void *data, size_t bytes, uint64_t block_bytes,
                            tt_hash128 **hash_out, size_t *blocks_out)
{
    size_t blocks = (bytes + block_bytes - 1) / block_bytes;
    tt_hash128 *hash;
    TT_TRY(tt_calloc(blocks, sizeof *hash, &hash));
    for (size_t i = 0; i < blocks; i++) {
        size_t begin = i * block_bytes;
        hash[i] =
            tt_hash128_of((const char *)data + begin, tt_min_size(block_bytes, bytes - begin));
    }
    *hash_out = hash;
    *blocks_out = blocks;
    return TUTTI_OK;
}
