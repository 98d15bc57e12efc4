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
 *
 * A long row is cut at the blocks' edges. A block that goes to one place whole is read and verified
 * there, without a copy. Jobs that share no block are groups, which two threads take in turn: one
 * hashes while the other reads.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/block.h"
#include "core/thread.h"

enum { HELPER_MIN_GROUPS = 8 };

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

/* One row in the file, cut where blocks end. */
static tutti_status add_row(job_list *list, job j, uint64_t block_bytes)
{
    while (j.row > 0) {
        uint64_t take = block_bytes - j.at % block_bytes;
        take = take < j.row ? take : j.row;
        TT_TRY(tt_grow(&list->job, &list->cap, list->n + 1, sizeof *list->job));
        list->job[list->n] = j;
        list->job[list->n].row = list->job[list->n].row_left = take;
        list->n++;
        j.at += take;
        j.to += take;
        j.row -= take;
    }
    return TUTTI_OK;
}

static tutti_status add_jobs(job_list *list, const tt_want *want, uint64_t block_bytes)
{
    const tt_ctensor *t = want->tensor;
    int64_t part[2 * TUTTI_CKPT_MAX_DIMS];
    uint64_t elems = 0;
    job j;
    tt_dims_elems(want->dim + t->ndim, t->ndim, &elems);
    for (size_t i = 0; i < t->nbox && elems > 0; i++) {
        if (t->ndim > 0 && t->box[i].dim[0] >= want->dim[0] + want->dim[t->ndim])
            break; /* sorted by the first axis */
        if (!tt_box_intersect(want->dim, t->box[i].dim, t->ndim, part))
            continue;
        make_job(&j, want, &t->box[i], part);
        if (j.axes == 0) {
            TT_TRY(add_row(list, j, block_bytes));
            continue;
        }
        TT_TRY(tt_grow(&list->job, &list->cap, list->n + 1, sizeof *list->job));
        list->job[list->n++] = j;
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

/* The byte behind the last that the job wants. */
static uint64_t job_end(const job *j)
{
    uint64_t end = j->at + j->row;
    for (int d = 0; d < j->axes; d++)
        end += (uint64_t)((j->count[d] - 1) * j->file_stride[d]);
    return end;
}

/* Jobs that share blocks with each other and with no others: where each group begins. */
static size_t make_groups(const job_list *list, uint64_t block_bytes, size_t *start)
{
    uint64_t last = 0; /* block of the group so far */
    size_t n = 0;
    for (size_t i = 0; i < list->n; i++) {
        const job *j = &list->job[i];
        if (i == 0 || j->file != list->job[i - 1].file || j->at / block_bytes > last) {
            start[n++] = i;
            last = 0;
        }
        uint64_t end = (job_end(j) - 1) / block_bytes;
        last = end > last ? end : last;
    }
    start[n] = list->n;
    return n;
}

typedef struct reading {
    const tt_source *src;
    job_list *list;
    size_t *start; /* of each group, and the end */
    size_t groups;
    job **active;
    _Atomic size_t next; /* group */
    _Atomic bool failed;
    char text[TT_ERROR_TEXT_MAX]; /* of the helper */
    tutti_status status;
} reading;

/* One job that wants exactly one block. */
static bool whole_block(const tt_block *b, const job *j)
{
    uint64_t bytes = b->src->m.block_bytes;
    return j->axes == 0 && j->at % bytes == 0 &&
           (j->row == bytes || j->at + j->row == b->file->bytes);
}

static tutti_status read_group(reading *r, tt_block *b, size_t group)
{
    size_t from = r->start[group], n = r->start[group + 1] - from;
    job *jobs = r->list->job + from;
    const tt_cfile *file = &r->src->m.cat.file[jobs[0].file];
    if (b->file != file) {
        if (b->file != NULL)
            close(b->fd);
        tutti_status status = tt_block_open(b, r->src, file);
        if (status != TUTTI_OK) {
            b->file = NULL; /* nothing is open */
            return status;
        }
    }
    if (n == 1 && whole_block(b, jobs))
        return tt_block_read_to(b, jobs[0].at / r->src->m.block_bytes, jobs[0].to);
    return walk_file(b, jobs, n, r->active + from);
}

static tutti_status read_some(reading *r)
{
    tt_block b = {.fd = -1};
    tutti_status status = tt_calloc(1, r->src->m.block_bytes, &b.data);
    while (status == TUTTI_OK && !atomic_load(&r->failed)) {
        size_t i = atomic_fetch_add(&r->next, 1);
        if (i >= r->groups)
            break;
        status = read_group(r, &b, i);
    }
    if (status != TUTTI_OK)
        atomic_store(&r->failed, true);
    if (b.file != NULL)
        close(b.fd);
    free(b.data);
    return status;
}

static void *help(void *arg)
{
    reading *r = arg;
    r->status = read_some(r);
    snprintf(r->text, sizeof r->text, "%s", r->status == TUTTI_OK ? "" : tutti_last_error());
    return NULL;
}

static tutti_status read_groups(reading *r)
{
    pthread_t thread;
    if (r->groups < HELPER_MIN_GROUPS || tt_thread_start(&thread, "tt-read", help, r) != TUTTI_OK)
        return read_some(r);
    tutti_status status = read_some(r);
    pthread_join(thread, NULL);
    return status != TUTTI_OK || r->status == TUTTI_OK ? status : tt_fail_text(r->status, r->text);
}

static tutti_status read_jobs(const tt_source *src, job_list *list)
{
    reading r = {.src = src, .list = list};
    qsort(list->job, list->n, sizeof *list->job, compare_job);
    tutti_status status = tt_calloc(list->n, sizeof *r.active, &r.active);
    if (status == TUTTI_OK)
        status = tt_calloc(list->n + 1, sizeof *r.start, &r.start);
    if (status == TUTTI_OK) {
        r.groups = make_groups(list, src->m.block_bytes, r.start);
        status = read_groups(&r);
    }
    free(r.start);
    free(r.active);
    return status;
}

tutti_status tt_source_read(const tt_source *src, const tt_want *want, size_t n)
{
    job_list list = {0};
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < n && status == TUTTI_OK; i++)
        status = add_jobs(&list, &want[i], src->m.block_bytes);
    if (status == TUTTI_OK && list.n > 0)
        status = read_jobs(src, &list);
    free(list.job);
    return status == TUTTI_OK ? TUTTI_OK : tt_fail_more(status, "%s", src->name);
}
