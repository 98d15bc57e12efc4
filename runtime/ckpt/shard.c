/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writing one shard.
 *
 * The space on disk is reserved before all else, with an allowance for HDF5's own bytes, so that a
 * full file system or a limit says so at once. HDF5 makes the file in memory, where the datasets'
 * space stays a hole, and is closed: it never sees the disk, and no lock of its is held while the
 * bulk goes there. What it makes depends on the plan alone and is kept for the next save. Then the
 * file is written block by block: one that lies in a dataset straight from the staging memory, one
 * that also holds HDF5's own bytes (they may be anywhere, also in a dataset's tail) from a bounce
 * buffer in which the two are laid over each other.
 *
 * Large shards go past the page cache (O_DIRECT) where the file system allows it: half the memory
 * traffic, and nothing is left for fsync. Threads take the blocks in turn, two beside the training
 * and four where the program waits, so that some hash while the others' blocks are on their way.
 * Only whole pages go that way; the last bytes of the file
 * are written at their exact length, for padding would overwrite metadata that lies behind them.
 *
 * A save that the program waits for takes no staging memory: blocks are put together from the
 * program's own. They go through the bounce buffer too, so that hash and disk see the same bytes
 * whatever other threads do to them meanwhile.
 *
 * The hashes are of what was meant to be written, not of what a later read happens to give. HDF5's
 * own bytes, in which every dataset has been found at its place, are read back from the disk and
 * compared, and HDF5 opens the file there.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "ckpt/h5.h"
#include "ckpt/writer.h"
#include "core/env.h"

enum {
    DIRECT_MIN_BYTES = 4 << 20,
    HELPER_MIN_BLOCKS = 8,
    PAGE = TT_FILE_ALIGN,
    LARGE_PAGE = 2 << 20
};
enum { HELPERS = 1, HELPERS_URGENT = 3 };

typedef struct segment {
    uint64_t at, bytes; /* in the file */
    const char *data;
} segment;

typedef struct walk {
    int fd;
    int direct; /* the same file, past the page cache; -1: not there */
    int memory; /* HDF5's part, the form's */
    const char *name;
    segment *seg; /* by place in the file */
    size_t nseg;
    bool staged; /* the segments are ours: nobody changes them between hash and write */
    uint64_t block_bytes;
    bool urgent;
    const _Atomic bool *cancel;
    tt_shard_report *report;
    _Atomic size_t next; /* block to write */
    _Atomic bool failed, not_direct;
} walk;

void tt_shard_report_free(tt_shard_report *report)
{
    free(report->offset);
    free(report->hash);
    free(report->scalar);
    *report = (tt_shard_report){0};
}

static int compare_segment(const void *a, const void *b)
{
    const segment *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* Whole datasets from the staging memory, or the program's pieces of them. */
static tutti_status list_segments(walk *w, const tt_shard_input *in, const uint64_t *offset)
{
    const tt_shard *shard = in->shard;
    w->nseg = in->stage != NULL ? shard->ndset : in->npiece;
    TT_TRY(tt_calloc(w->nseg, sizeof *w->seg, &w->seg));
    for (size_t i = 0; i < w->nseg && in->stage != NULL; i++)
        w->seg[i] =
            (segment){offset[i], shard->dset[i].bytes, in->stage->base + shard->dset[i].stage};
    for (size_t i = 0; i < w->nseg && in->stage == NULL; i++) {
        const tt_shard_piece *piece = &in->piece[i];
        w->seg[i] = (segment){offset[piece->dset] + piece->within, piece->bytes, piece->data};
    }
    return TUTTI_OK;
}

static tutti_status make_segments(walk *w, const tt_shard_input *in, const uint64_t *offset)
{
    TT_TRY(list_segments(w, in, offset));
    qsort(w->seg, w->nseg, sizeof *w->seg, compare_segment);
    for (size_t i = 1; i < w->nseg; i++)
        if (w->seg[i].at < w->seg[i - 1].at + w->seg[i - 1].bytes)
            return tt_fail(TUTTI_ERR_INTERNAL, "HDF5 gave two datasets of %s the same bytes",
                           w->name);
    return TUTTI_OK;
}

/* The first segment that ends behind `at`. */
static size_t segment_at(const walk *w, uint64_t at)
{
    size_t low = 0, high = w->nseg;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (w->seg[middle].at + w->seg[middle].bytes <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* What the file is to hold from begin to end, HDF5's bytes and ours laid over each other. */
static tutti_status lay(const walk *w, uint64_t begin, uint64_t end, char *to)
{
    uint64_t done = begin;
    for (size_t i = segment_at(w, begin); i < w->nseg && w->seg[i].at < end; i++) {
        const segment *s = &w->seg[i];
        uint64_t low = s->at > begin ? s->at : begin;
        uint64_t high = s->at + s->bytes < end ? s->at + s->bytes : end;
        TT_TRY(tt_file_read(w->memory, w->name, to + (done - begin), low - done, done));
        memcpy(to + (low - begin), s->data + (low - s->at), high - low);
        done = high;
    }
    return tt_file_read(w->memory, w->name, to + (done - begin), end - done, done);
}

/* Writes whole pages past the page cache; how many bytes of them, fewer where it refuses. */
static tutti_status write_direct(walk *w, const char *data, uint64_t begin, uint64_t bytes,
                                 uint64_t *done_out)
{
    uint64_t done = 0;
    while (done < bytes) {
        ssize_t n = pwrite(w->direct, data + done, bytes - done, (off_t)(begin + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EINVAL)
            return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot write %s", w->name);
        if (n <= 0 || n % PAGE != 0) {
            atomic_store(&w->not_direct, true);
            break;
        }
        done += (uint64_t)n;
    }
    *done_out = done;
    return TUTTI_OK;
}

static tutti_status write_bytes(walk *w, const char *data, uint64_t begin, uint64_t end)
{
    uint64_t done = 0;
    if (w->direct >= 0 && !atomic_load(&w->not_direct) && (uintptr_t)data % PAGE == 0)
        TT_TRY(write_direct(w, data, begin, (end - begin) / PAGE * PAGE, &done));
    if (begin + done == end)
        return TUTTI_OK;
    TT_TRY(tt_file_write(w->fd, w->name, data + done, end - begin - done, begin + done));
    /* the disk starts on it now instead of at the fsync */
    sync_file_range(w->fd, (off_t)(begin + done), (off_t)(end - begin - done),
                    SYNC_FILE_RANGE_WRITE);
    return TUTTI_OK;
}

static tutti_status write_block(walk *w, size_t i, char *bounce)
{
    uint64_t begin = i * w->block_bytes, end = begin + w->block_bytes;
    if (end > w->report->bytes)
        end = w->report->bytes;
    size_t k = segment_at(w, begin);
    const char *data = bounce;
    if (w->staged && k < w->nseg && w->seg[k].at <= begin && w->seg[k].at + w->seg[k].bytes >= end)
        data = w->seg[k].data + (begin - w->seg[k].at);
    else
        TT_TRY(lay(w, begin, end, bounce));
    w->report->hash[i] = tt_hash128_of(data, end - begin);
    return write_bytes(w, data, begin, end);
}

/* In large pages where a block has them: the kernel gives the disk few long pieces of a block
 * instead of a thousand, which is 12 % of the time of a save. */
static char *bounce_alloc(uint64_t block_bytes)
{
    size_t align = block_bytes >= LARGE_PAGE ? LARGE_PAGE : PAGE;
    size_t bytes = tt_round_up(block_bytes, align);
    char *bounce = aligned_alloc(align, bytes);
    if (bounce != NULL && align == LARGE_PAGE)
        madvise(bounce, bytes, MADV_HUGEPAGE);
    return bounce;
}

/* Takes blocks until none is left: in the writer and its helper at once. */
static tutti_status write_some(void *arg)
{
    walk *w = arg;
    char *bounce = bounce_alloc(w->block_bytes);
    tutti_status status = TUTTI_OK;
    if (bounce == NULL)
        status = tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for a block of %s", w->name);
    while (status == TUTTI_OK && !atomic_load(&w->failed)) {
        size_t i = atomic_fetch_add(&w->next, 1);
        if (i >= w->report->blocks)
            break;
        if (atomic_load_explicit(w->cancel, memory_order_relaxed))
            status = tt_fail(TUTTI_ERR_STATE, "the save was given up");
        else
            status = write_block(w, i, bounce);
    }
    if (status != TUTTI_OK)
        atomic_store(&w->failed, true);
    free(bounce);
    return status;
}

/* The first failure's, but that the disk is full is told before all else. */
static tutti_status join_helpers(tt_worker *helper, int n, tutti_status status)
{
    char text[TT_ERROR_TEXT_MAX];
    snprintf(text, sizeof text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
    for (int i = 0; i < n; i++) {
        tutti_status other = tt_worker_join(&helper[i]);
        if (other == TUTTI_OK ||
            (status != TUTTI_OK && (other != TUTTI_ERR_NO_SPACE || status == TUTTI_ERR_NO_SPACE)))
            continue;
        status = other;
        snprintf(text, sizeof text, "%s", tutti_last_error());
    }
    return status == TUTTI_OK ? TUTTI_OK : tt_fail_text(status, text);
}

static tutti_status write_blocks(walk *w)
{
    tt_shard_report *report = w->report;
    tt_worker helper[HELPERS_URGENT] = {{0}};
    tutti_status status = TUTTI_OK;
    int n = 0, want = w->urgent ? HELPERS_URGENT : HELPERS;
    report->blocks = (report->bytes + w->block_bytes - 1) / w->block_bytes;
    TT_TRY(tt_calloc(report->blocks, sizeof *report->hash, &report->hash));
    while (report->blocks >= HELPER_MIN_BLOCKS && n < want && status == TUTTI_OK) {
        helper[n].urgent = w->urgent;
        status = tt_worker_start(&helper[n], write_some, w);
        n += status == TUTTI_OK;
    }
    if (status == TUTTI_OK)
        status = write_some(w);
    else
        atomic_store(&w->failed, true);
    return join_helpers(helper, n, status);
}

static tutti_status open_direct(walk *w, int dir)
{
    bool wanted;
    TT_TRY(tt_env_get_bool(TT_ENV_CKPT_DIRECT, &wanted));
    if (wanted && w->report->bytes >= DIRECT_MIN_BYTES)
        w->direct = openat(dir, w->name, O_WRONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
    return TUTTI_OK; /* without it too */
}

/* Compares bytes of the file, from the disk, with what they are to be. */
static tutti_status compare_back(const walk *w, uint64_t begin, uint64_t end, char *want,
                                 char *have)
{
    posix_fadvise(w->fd, (off_t)begin, (off_t)(end - begin), POSIX_FADV_DONTNEED);
    TT_TRY(lay(w, begin, end, want));
    TT_TRY(tt_file_read(w->fd, w->name, have, end - begin, begin));
    if (memcmp(want, have, end - begin) != 0)
        return tt_fail(TUTTI_ERR_IO, "%s does not hold what was written to it at byte %llu",
                       w->name, (unsigned long long)begin);
    return TUTTI_OK;
}

/* Reads HDF5's bytes back, which are where the memory file is not a hole. */
static tutti_status read_back(const walk *w)
{
    char *both;
    tutti_status status = TUTTI_OK;
    uint64_t at = 0, size = w->report->bytes;
    TT_TRY(tt_calloc(2, w->block_bytes, &both));
    while (at < size && status == TUTTI_OK) {
        off_t data = lseek(w->memory, (off_t)at, SEEK_DATA);
        if (data < 0)
            break;
        off_t hole = lseek(w->memory, data, SEEK_HOLE);
        uint64_t end = hole < 0 || (uint64_t)hole > size ? size : (uint64_t)hole;
        at = (uint64_t)data;
        if (end - at > w->block_bytes)
            end = at + w->block_bytes;
        status = compare_back(w, at, end, both, both + w->block_bytes);
        at = end;
    }
    free(both);
    return status;
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

static tutti_status fill(walk *w, int dir, const tt_shard_input *in)
{
    struct stat st;
    if (fstat(w->memory, &st) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "no size of %s", w->name);
    w->report->bytes = (uint64_t)st.st_size;
    TT_TRY(reserve(w->fd, w->name, w->report->bytes));
    if (ftruncate(w->fd, (off_t)w->report->bytes) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot give %s its size", w->name);
    TT_TRY(make_segments(w, in, w->report->offset));
    TT_TRY(open_direct(w, dir));
    TT_TRY(write_blocks(w));
    if (fsync(w->fd) != 0) /* final: the kernel may have dropped the pages */
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make %s durable", w->name);
    TT_TRY(read_back(w));
    return tt_h5_shard_check(dir, w->name, in->shard, w->report->offset);
}

void tt_form_free(tt_form *form)
{
    if (form->memory >= 0)
        close(form->memory);
    free(form->offset);
    *form = (tt_form){-1, NULL};
}

static tutti_status take_form(walk *w, const tt_shard_input *in)
{
    size_t bytes = in->shard->ndset * sizeof *w->report->offset;
    if (in->form->memory < 0) {
        tt_form form = {-1, NULL};
        TT_TRY(tt_calloc(in->shard->ndset, sizeof *form.offset, &form.offset));
        tutti_status status = tt_h5_shard_make(w->name, in->shard, form.offset, &form.memory);
        if (status != TUTTI_OK) {
            tt_form_free(&form);
            return status;
        }
        *in->form = form;
    }
    w->memory = in->form->memory;
    if (bytes > 0)
        memcpy(w->report->offset, in->form->offset, bytes);
    return TUTTI_OK;
}

static tutti_status write_shard(int dir, walk *w, const tt_shard_input *in)
{
    TT_TRY(tt_calloc(in->shard->ndset, sizeof *w->report->offset, &w->report->offset));
    TT_TRY(tt_file_create(dir, w->name, &w->fd));
    TT_TRY(reserve(w->fd, w->name, in->shard->stage_bytes + allowance(in->shard)));
    TT_TRY(take_form(w, in));
    TT_TRY(fill(w, dir, in));
    int fd = w->fd;
    w->fd = -1;
    if (close(fd) != 0 && errno != EINTR)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot close %s", w->name);
    return tt_dir_sync(dir, "the checkpoint's directory");
}

static void close_all(const int *fd, int n)
{
    for (int i = 0; i < n; i++)
        if (fd[i] >= 0)
            close(fd[i]);
}

tutti_status tt_shard_write(int dir, const char *name, const tt_shard_input *in,
                            tt_shard_report *report_out)
{
    tt_shard_report report = {0};
    walk w = {.fd = -1,
              .direct = -1,
              .memory = -1,
              .name = name,
              .staged = in->stage != NULL,
              .block_bytes = in->block_bytes,
              .urgent = in->urgent,
              .cancel = in->cancel,
              .report = &report};
    tutti_status status = write_shard(dir, &w, in);
    close_all((int[]){w.fd, w.direct}, 2);
    free(w.seg);
    if (status != TUTTI_OK) {
        tt_shard_report_free(&report);
        return status;
    }
    *report_out = report;
    return TUTTI_OK;
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
