/* SPDX-License-Identifier: Apache-2.0 */
/* merge: one plain HDF5 file, streamed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/h5.h"
#include "core/output.h"

#include "ckpt.h"

typedef struct merger {
    const tt_ctensor **list;
    uint64_t *offset;
    size_t n, at;
    tt_output out;
    ckpt_progress progress;
} merger;

static tutti_status write_piece(void *arg, const tt_piece *piece)
{
    merger *w = arg;
    while (w->list[w->at] != piece->tensor)
        w->at++;
    TT_TRY(tt_file_write(w->out.fd, w->out.path, piece->data, piece->bytes,
                         w->offset[w->at] + piece->at));
    ckpt_progress_add(&w->progress, piece->bytes);
    return TUTTI_OK;
}

/* HDF5's own bytes: what is no hole in the memory file. Before the data, which may share pages. */
static tutti_status copy_structure(merger *w, int memory)
{
    struct stat st;
    char page[4096];
    if (fstat(memory, &st) != 0 || ftruncate(w->out.fd, st.st_size) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot give %s its size", w->out.path);
    for (off_t at = 0; at < st.st_size;) {
        off_t data = lseek(memory, at, SEEK_DATA);
        if (data < 0)
            break;
        at = data / (off_t)sizeof page * (off_t)sizeof page;
        size_t take =
            st.st_size - at < (off_t)sizeof page ? (size_t)(st.st_size - at) : sizeof page;
        TT_TRY(tt_file_read(memory, w->out.path, page, take, (uint64_t)at));
        TT_TRY(tt_file_write(w->out.fd, w->out.path, page, take, (uint64_t)at));
        at += (off_t)take;
    }
    return TUTTI_OK;
}

/* Before HDF5 makes its memory file, which is subject to the same limit on the size of files: one
 * that it cannot finish ends the process at its exit. At most a page of padding, and its own bytes,
 * come with each tensor. */
static tutti_status try_size(const merger *w)
{
    const uint64_t each = 5120, own = 65536;
    if (ftruncate(w->out.fd, (off_t)(ckpt_bytes(w->list, w->n) + w->n * each + own)) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot give %s its size", w->out.path);
    return TUTTI_OK;
}

static tutti_status merge(const ckpt_args *a, const ckpt_file *file, merger *w)
{
    int memory;
    TT_TRY(ckpt_select(a, file, 2, &w->list, &w->n));
    TT_TRY(tt_calloc(w->n, sizeof *w->offset, &w->offset));
    TT_TRY(tt_output_open(a->word[1], false, &w->out));
    TT_TRY(try_size(w));
    TT_TRY(tt_h5_plain_make(&file->src.m, w->list, w->n, w->offset, &memory));
    tutti_status status = copy_structure(w, memory);
    close(memory);
    w->progress = (ckpt_progress){.what = "merging", .total = ckpt_bytes(w->list, w->n)};
    if (status == TUTTI_OK)
        status = tt_source_scan(&file->src, w->list, w->n, CKPT_SCAN_BYTES, write_piece, w);
    ckpt_progress_end(&w->progress);
    return status == TUTTI_OK ? tt_output_commit(&w->out, true) : status;
}

static int say(const ckpt_args *a, const merger *w)
{
    char size[32];
    uint64_t bytes = ckpt_bytes(w->list, w->n);
    if (!a->json) {
        printf("%s: %zu tensors, %s\n", a->word[1], w->n, ckpt_size_text(bytes, size));
        return 0;
    }
    return ckpt_print_json(json_pack("{s:s, s:I, s:I}", "file", a->word[1], "tensors",
                                     (json_int_t)w->n, "bytes", (json_int_t)bytes));
}

int ckpt_merge(const ckpt_args *a)
{
    ckpt_file file;
    merger w = {.out.fd = -1};
    tutti_status status = ckpt_open(a, a->word[0], &file);
    if (status != TUTTI_OK)
        return ckpt_fail(a, status);
    status = merge(a, &file, &w);
    tt_output_drop(&w.out);
    int result = status == TUTTI_OK ? say(a, &w) : ckpt_fail(a, status);
    free(w.offset);
    free(w.list);
    ckpt_close(&file);
    return result;
}
