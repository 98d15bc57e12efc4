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
 * Threads take the blocks in turn, two beside the training and four where the program waits, so
 * that some hash while the others' blocks are on their way to the disk (out.c).
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
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "ckpt/h5.h"
#include "ckpt/writer.h"

enum { HELPER_MIN_BLOCKS = 8, HELPERS = 1, HELPERS_URGENT = 3 };

typedef struct segment {
    uint64_t at, bytes; /* in the file */
    const char *data;
} segment;

typedef struct walk {
    tt_out out;
    int memory; /* HDF5's part, the form's */
    segment *seg; /* by place in the file */
    size_t nseg;
    bool staged; /* the segments are ours: nobody changes them between hash and write */
    uint64_t block_bytes;
    bool urgent;
    const _Atomic bool *cancel;
    tt_shard_report *report;
    _Atomic size_t next; /* block to write */
    _Atomic bool failed;
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
                           w->out.name);
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
        TT_TRY(tt_file_read(w->memory, w->out.name, to + (done - begin), low - done, done));
        memcpy(to + (low - begin), s->data + (low - s->at), high - low);
        done = high;
    }
    return tt_file_read(w->memory, w->out.name, to + (done - begin), end - done, done);
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
    return tt_out_write(&w->out, data, begin, end);
}

/* Takes blocks until none is left: in the writer and its helper at once. */
static tutti_status write_some(void *arg)
{
    walk *w = arg;
    char *bounce = tt_bounce_alloc(w->block_bytes);
    tutti_status status = TUTTI_OK;
    if (bounce == NULL)
        status = tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for a block of %s", w->out.name);
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

/* Compares bytes of the file, from the disk, with what they are to be. */
static tutti_status compare_back(const walk *w, uint64_t begin, uint64_t end, char *want,
                                 char *have)
{
    posix_fadvise(w->out.fd, (off_t)begin, (off_t)(end - begin), POSIX_FADV_DONTNEED);
    TT_TRY(lay(w, begin, end, want));
    TT_TRY(tt_file_read(w->out.fd, w->out.name, have, end - begin, begin));
    if (memcmp(want, have, end - begin) != 0)
        return tt_fail(TUTTI_ERR_IO, "%s does not hold what was written to it at byte %llu",
                       w->out.name, (unsigned long long)begin);
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

/* Of HDF5's metadata: about half of this is used. */
static uint64_t allowance(const tt_shard *shard)
{
    return (64 << 10) + (2 << 10) * (uint64_t)shard->ndset;
}

static tutti_status fill(walk *w, int dir, const tt_shard_input *in)
{
    struct stat st;
    if (fstat(w->memory, &st) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "no size of %s", w->out.name);
    w->report->bytes = (uint64_t)st.st_size;
    TT_TRY(tt_out_resize(&w->out, dir, w->report->bytes));
    TT_TRY(make_segments(w, in, w->report->offset));
    TT_TRY(write_blocks(w));
    TT_TRY(tt_out_sync(&w->out));
    TT_TRY(read_back(w));
    return tt_h5_shard_check(dir, w->out.name, in->shard, w->report->offset);
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
        tutti_status status = tt_h5_shard_make(w->out.name, in->shard, form.offset, &form.memory);
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
    TT_TRY(tt_file_create(dir, w->out.name, &w->out.fd));
    TT_TRY(tt_out_reserve(&w->out, in->shard->stage_bytes + allowance(in->shard)));
    TT_TRY(take_form(w, in));
    TT_TRY(fill(w, dir, in));
    TT_TRY(tt_out_close(&w->out));
    return tt_dir_sync(dir, "the checkpoint's directory");
}

tutti_status tt_shard_write(int dir, const char *name, const tt_shard_input *in,
                            tt_shard_report *report_out)
{
    tt_shard_report report = {0};
    walk w = {.out = {.fd = -1, .direct = -1, .name = name},
              .memory = -1,
              .staged = in->stage != NULL,
              .block_bytes = in->block_bytes,
              .urgent = in->urgent,
              .cancel = in->cancel,
              .report = &report};
    tutti_status status = write_shard(dir, &w, in);
    tt_out_abandon(&w.out);
    free(w.seg);
    if (status != TUTTI_OK) {
        tt_shard_report_free(&report);
        return status;
    }
    *report_out = report;
    return TUTTI_OK;
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
