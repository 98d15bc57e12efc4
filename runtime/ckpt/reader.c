/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading boxes out of what other boxes were written.
 *
 * Each part that a wanted box shares with a stored one becomes a job: rows of bytes that lie
 * regularly in the file and regularly in memory. Jobs are sorted by their place; the file is then
 * walked once, block by block, skipping blocks that nobody wants. A block is read whole, verified,
 * and every job copies its rows out of it and remembers where it stopped, so a row may cross
 * blocks. However finely a tensor is cut, reads stay as large as a block, in ascending order, and
 * no byte is read twice by a rank.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/block.h"

typedef struct job {
    uint64_t at; /* place of the next byte in the file */
    uint64_t row_left; /* bytes left of its row */
    uint64_t row; /* bytes of every row */
    char *to; /* of the next byte */
    uint32_t file;
    int axes; /* outer ones, along which rows are repeated */
    bool ended;
    int64_t count[TUTTI_CKPT_MAX_DIMS], index[TUTTI_CKPT_MAX_DIMS];
    /* from one row to the next along each axis */
    int64_t file_stride[TUTTI_CKPT_MAX_DIMS], to_stride[TUTTI_CKPT_MAX_DIMS];
} job;

typedef struct job_list {
    job *job;
    size_t n, cap;
} job_list;

/* part: what box (stored) and want share. */
static void make_job(job *j, const tt_want *want, const tt_cbox *box, const int64_t *part)
{
    int n = want->tensor->ndim, inner = n;
    int64_t size = (int64_t)tutti_dtype_size(want->tensor->dtype);
    int64_t file_step = size, to_step = size, row = size;
    const int64_t *stored = box->dim, *wanted = want->dim;
    bool whole = true; /* so far the part spans both boxes: the row goes on */
    *j = (job){.file = box->file, .at = box->at, .to = want->to};
    for (int d = n - 1; d >= 0; d--) {
        j->at += (uint64_t)((part[d] - stored[d]) * file_step);
        j->to += (part[d] - wanted[d]) * to_step;
        if (whole) {
            row *= part[n + d];
            inner = d;
        } else {
            j->count[d] = part[n + d];
            j->file_stride[d] = file_step;
            j->to_stride[d] = to_step;
        }
        whole = whole && part[n + d] == stored[n + d] && part[n + d] == wanted[n + d];
        file_step *= stored[n + d];
        to_step *= wanted[n + d];
    }
    j->axes = inner;
    j->row = j->row_left = (uint64_t)row;
}

/* The next row, or the end. */
static void next_row(job *j)
{
    j->at -= j->row;
    j->to -= j->row;
    j->row_left = j->row;
    for (int d = j->axes - 1; d >= 0; d--) {
        j->at += (uint64_t)j->file_stride[d];
        j->to += j->to_stride[d];
        if (++j->index[d] < j->count[d])
            return;
        j->at -= (uint64_t)(j->count[d] * j->file_stride[d]);
        j->to -= j->count[d] * j->to_stride[d];
        j->index[d] = 0;
    }
    j->ended = true;
}

/* Copies what the job wants of the block. */
static void serve(job *j, const tt_block *b)
{
    while (!j->ended && j->at < b->end) {
        uint64_t take = b->end - j->at < j->row_left ? b->end - j->at : j->row_left;
        memcpy(j->to, b->data + (j->at - b->begin), take);
        j->at += take;
        j->to += take;
        j->row_left -= take;
        if (j->row_left == 0)
            next_row(j);
    }
}

static tutti_status add_jobs(job_list *list, const tt_want *want)
{
    const tt_ctensor *t = want->tensor;
    int64_t part[2 * TUTTI_CKPT_MAX_DIMS];
    uint64_t elems = 0;
    tt_dims_elems(want->dim + t->ndim, t->ndim, &elems);
    for (size_t i = 0; i < t->nbox && elems > 0; i++) {
        if (t->ndim > 0 && t->box[i].dim[0] >= want->dim[0] + want->dim[t->ndim])
            break; /* sorted by the first axis */
        if (!tt_box_intersect(want->dim, t->box[i].dim, t->ndim, part))
            continue;
        TT_TRY(tt_grow(&list->job, &list->cap, list->n + 1, sizeof *list->job));
        make_job(&list->job[list->n++], want, &t->box[i], part);
    }
    return TUTTI_OK;
}

static int compare_job(const void *a, const void *b)
{
    const job *x = a, *y = b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

/* Serves the jobs [0, n) of one file. active: room for n. */
static tutti_status walk_file(tt_block *b, job *jobs, size_t n, job **active)
{
    uint64_t block_bytes = b->src->m.block_bytes;
    size_t next = 0, live = 0;
    while (next < n || live > 0) {
        uint64_t at = next < n ? jobs[next].at : UINT64_MAX;
        for (size_t i = 0; i < live; i++)
            at = active[i]->at < at ? active[i]->at : at;
        TT_TRY(tt_block_read(b, at / block_bytes));
        while (next < n && jobs[next].at < b->end)
            active[live++] = &jobs[next++];
        size_t kept = 0;
        for (size_t i = 0; i < live; i++) {
            serve(active[i], b);
            if (!active[i]->ended)
                active[kept++] = active[i];
        }
        live = kept;
    }
    return TUTTI_OK;
}

static tutti_status walk_files(const tt_source *src, job_list *list, char *data, job **active)
{
    for (size_t i = 0, end; i < list->n; i = end) {
        tt_block b = {.data = data};
        for (end = i + 1; end < list->n && list->job[end].file == list->job[i].file;)
            end++;
        TT_TRY(tt_block_open(&b, src, &src->m.cat.file[list->job[i].file]));
        tutti_status status = walk_file(&b, list->job + i, end - i, active);
        close(b.fd);
        if (status != TUTTI_OK)
            return status;
    }
    return TUTTI_OK;
}

tutti_status tt_source_read(const tt_source *src, const tt_want *want, size_t n)
{
    job_list list = {0};
    job **active = NULL;
    char *data = NULL;
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < n && status == TUTTI_OK; i++)
        status = add_jobs(&list, &want[i]);
    if (status == TUTTI_OK && list.n > 0) {
        qsort(list.job, list.n, sizeof *list.job, compare_job);
        status = tt_calloc(list.n, sizeof *active, &active);
        if (status == TUTTI_OK)
            status = tt_calloc(1, src->m.block_bytes, &data);
        if (status == TUTTI_OK)
            status = walk_files(src, &list, data, active);
    }
    free(data);
    free(active);
    free(list.job);
    return status == TUTTI_OK ? TUTTI_OK : tt_fail_more(status, "%s", src->name);
}
