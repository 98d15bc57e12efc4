/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0's last steps, in its worker: index, manifest, the rename that is the commit, retention.
 * (Node-local, commit and retention are node.c's.)
 *
 * Nothing is trusted that can be looked at again: each shard must have the size its writer
 * reported, and the manifest's text is read back by the loader's own reader before it is written.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/h5.h"
#include "ckpt/saver.h"

static bool is_scalar_of(const tt_ctensor *t, size_t file)
{
    return t->ndim == 0 && t->box[0].file == file;
}

static size_t count_scalars(const tt_catalog *cat, size_t file)
{
    size_t n = 0;
    for (size_t i = 0; i < cat->ntensor; i++)
        n += is_scalar_of(&cat->tensor[i], file);
    return n;
}

tutti_status tt_save_read_scalars(tt_saver *s)
{
    const tt_catalog *cat = &s->plan.cat;
    size_t mine = (size_t)s->plan.mine, n = count_scalars(cat, mine);
    tt_shard_report *report = &s->report;
    uint64_t bytes;
    int fd;
    if (n == 0)
        return TUTTI_OK;
    TT_TRY(tt_calloc(n, sizeof *report->scalar, &report->scalar));
    TT_TRY(tt_file_open(s->temp, cat->file[mine].name, &fd, &bytes));
    tutti_status status = TUTTI_OK;
    for (size_t i = 0; i < cat->ntensor && status == TUTTI_OK; i++) {
        const tt_ctensor *t = &cat->tensor[i];
        if (is_scalar_of(t, mine))
            status = tt_file_read(fd, cat->file[mine].name, &report->scalar[report->nscalar++],
                                  tutti_dtype_size(t->dtype),
                                  report->offset[t->box[0].dset] + t->box[0].within);
    }
    close(fd);
    return status;
}

/* In the catalog's order, from the reports. */
static tutti_status collect_scalars(const tt_saver *s, uint64_t **scalar_out)
{
    const tt_catalog *cat = &s->plan.cat;
    size_t n = 0, *taken;
    uint64_t *scalar;
    TT_TRY(tt_calloc(s->plan.nshard + 1, sizeof *taken, &taken));
    tutti_status status = tt_calloc(cat->ntensor, sizeof *scalar, &scalar);
    for (size_t i = 0; i < cat->ntensor && status == TUTTI_OK; i++) {
        if (cat->tensor[i].ndim != 0)
            continue;
        uint32_t file = cat->tensor[i].box[0].file;
        const unsigned char *at = tt_blob(&s->reports, s->plan.shard[file].rank);
        at += 2 * sizeof(uint64_t) + cat->file[file].blocks * sizeof *cat->file[file].hash;
        memcpy(&scalar[n++], at + taken[file]++ * sizeof *scalar, sizeof *scalar);
    }
    free(taken);
    if (status == TUTTI_OK)
        *scalar_out = scalar;
    return status;
}

tutti_status tt_save_check_shard(const tt_saver *s, size_t i, uint64_t bytes)
{
    const char *name = s->plan.cat.file[i].name;
    struct stat st;
    if (fstatat(s->temp, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode) ||
        (uint64_t)st.st_size != bytes)
        return tt_fail(TUTTI_ERR_IO, "%s is not there as rank %d wrote it", name,
                       s->plan.shard[i].rank);
    return TUTTI_OK;
}

static tutti_status take_report(tt_saver *s, size_t i)
{
    tt_shard *shard = &s->plan.shard[i];
    tt_cfile *file = &s->plan.cat.file[i];
    size_t scalars = count_scalars(&s->plan.cat, i);
    tt_buf in =
        tt_buf_view(tt_blob(&s->reports, shard->rank), tt_blob_bytes(&s->reports, shard->rank));
    file->bytes = tt_buf_get_u64(&in);
    file->blocks = tt_buf_get_u64(&in);
    if (in.failed || file->blocks > in.size / sizeof *file->hash)
        return tt_fail(TUTTI_ERR_INTERNAL, "rank %d sent a report that is cut off", shard->rank);
    free(file->hash);
    file->hash = NULL;
    TT_TRY(tt_calloc(file->blocks, sizeof *file->hash, &file->hash));
    tt_buf_get(&in, file->hash, file->blocks * sizeof *file->hash);
    if (in.failed || in.size - in.at != (scalars + shard->ndset) * sizeof(uint64_t))
        return tt_fail(TUTTI_ERR_INTERNAL, "rank %d sent a report that is cut off", shard->rank);
    if (!s->node_local)
        return tt_save_check_shard(s, i, file->bytes);
    file->part = (uint32_t)s->parts.of[shard->rank]; /* whose leader looks */
    return TUTTI_OK;
}

/* Absolute places of all boxes, from where HDF5 put each dataset. */
static void place_boxes(tt_saver *s)
{
    for (size_t i = 0; i < s->plan.cat.nbox; i++) {
        tt_cbox *box = &s->plan.cat.box[i];
        int rank = s->plan.shard[box->file].rank;
        size_t ndset = s->plan.shard[box->file].ndset;
        uint64_t offset;
        const unsigned char *end = tt_blob(&s->reports, rank);
        end += tt_blob_bytes(&s->reports, rank) - (ndset - box->dset) * sizeof offset;
        memcpy(&offset, end, sizeof offset);
        box->at = offset + box->within;
    }
}

static tutti_status copy_index(tt_saver *s, tt_cfile *file, int memory)
{
    struct stat st;
    char *image;
    if (fstat(memory, &st) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot read the index");
    file->bytes = (uint64_t)st.st_size;
    TT_TRY(tt_calloc(1, file->bytes, &image));
    tutti_status status = tt_file_read(memory, TT_INDEX_NAME, image, file->bytes, 0);
    if (status == TUTTI_OK)
        status = tt_blocks_hash(image, file->bytes, s->block_bytes, &file->hash, &file->blocks);
    if (status == TUTTI_OK)
        status = tt_small_file_write(s->temp, TT_INDEX_NAME, image, file->bytes);
    if (s->node_local)
        tt_buf_put(&s->index, image, file->bytes);
    free(image);
    return status;
}

static tutti_status write_index(tt_saver *s, tt_manifest *m)
{
    tt_cfile *file = &s->plan.cat.file[s->plan.cat.nfile - 1];
    free(file->hash);
    file->hash = NULL;
    if (strcmp(s->index_mesh, s->mesh) != 0)
        tt_form_free(&s->index_form);
    snprintf(s->index_mesh, sizeof s->index_mesh, "%s", s->mesh);
    uint64_t *scalar = NULL;
    tutti_status status = collect_scalars(s, &scalar);
    if (status == TUTTI_OK)
        status = tt_h5_index_make(m, &s->plan, scalar, &s->index_form.memory);
    free(scalar);
    if (status == TUTTI_OK)
        status = copy_index(s, file, s->index_form.memory);
    if (status != TUTTI_OK) /* nobody knows how far it came */
        tt_form_free(&s->index_form);
    return status;
}

/* Of what the list of tensors depends on beside the plan. */
static uint64_t places_key(const tt_catalog *cat)
{
    uint64_t key = 1;
    for (size_t i = 0; i < cat->nbox; i++)
        key = tt_hash64(&cat->box[i].at, sizeof cat->box[i].at, key);
    for (size_t i = 0; i + 1 < cat->nfile; i++)
        key = tt_hash64(&cat->file[i].bytes, sizeof cat->file[i].bytes, key);
    return key;
}

static tutti_status read_again(const tt_saver *s, const tt_buf *text)
{
    tt_manifest again = {0};
    tutti_status status = tt_manifest_read(text->data, text->size, s->step, &again);
    tt_manifest_free(&again);
    return status;
}

/* A list of tensors that has been read back once is kept, and the rest read back with none. */
static tutti_status check_manifest(tt_saver *s, const tt_manifest *m, bool known,
                                   const tt_buf *text)
{
    const tt_buf none = tt_buf_view("[]", 2);
    tt_buf rest = {0};
    if (!known)
        return read_again(s, text);
    tutti_status status = tt_manifest_write_with(m, &none, &rest);
    if (status == TUTTI_OK)
        status = read_again(s, &rest);
    tt_buf_free(&rest);
    return status;
}

static tutti_status write_manifest(tt_saver *s, const tt_manifest *m)
{
    tt_buf text = {0};
    tutti_status status = TUTTI_OK;
    uint64_t key = places_key(&m->cat);
    bool known = s->tensors.size > 0 && s->tensors_key == key;
    if (!known) {
        tt_buf_free(&s->tensors);
        status = tt_manifest_tensors(m, &s->tensors);
        s->tensors_key = key;
    }
    if (status == TUTTI_OK)
        status = tt_manifest_write_with(m, &s->tensors, &text);
    if (status == TUTTI_OK)
        status = check_manifest(s, m, known, &text);
    if (status != TUTTI_OK)
        tt_buf_free(&s->tensors);
    if (status == TUTTI_OK)
        status = tt_small_file_write(s->temp, TT_MANIFEST_NAME, text.data, text.size);
    if (status == TUTTI_OK && s->node_local)
        tt_buf_put(&s->manifest, text.data, text.size);
    if (s->index.failed || s->manifest.failed)
        status = tt_fail(TUTTI_ERR_NO_MEMORY, "no memory for the index of all parts");
    tt_buf_free(&text);
    return status;
}

static tutti_status rename_in(tt_saver *s)
{
    if (atomic_load(&s->worker.cancel))
        return tt_fail(TUTTI_ERR_STATE, "the save was given up");
    tt_commit c = {.dir = s->dir,
                   .temp = s->temp,
                   .path = s->path,
                   .temp_name = s->temp_name,
                   .step = s->step,
                   .lock = s->lock};
    return tt_commit_rename(&c);
}

tutti_status tt_save_seal(void *saver)
{
    tt_saver *s = saver;
    tt_manifest m = {.step = s->step,
                     .world = s->ctx->world.size,
                     .block_bytes = s->block_bytes,
                     .in_parts = s->node_local,
                     .time = (int64_t)time(NULL)};
    snprintf(m.mesh, sizeof m.mesh, "%s", s->mesh);
    snprintf(m.save_id, sizeof m.save_id, "%s", s->temp_name);
    for (size_t i = 0; i < s->plan.nshard; i++)
        TT_TRY(take_report(s, i));
    place_boxes(s);
    m.cat = s->plan.cat; /* borrowed */
    TT_TRY(write_index(s, &m));
    TT_TRY(write_manifest(s, &m));
    if (s->node_local)
        return TUTTI_OK;
    TT_TRY(rename_in(s));
    return tt_save_prune(s);
}

tutti_status tt_save_prune(tt_saver *s)
{
    if (s->best)
        TT_TRY(tt_tag_write(s->dir, TT_BEST_NAME, s->step));
    if (s->keep.last > 0)
        tt_retain(s->dir, s->path, s->step, &s->keep);
    return TUTTI_OK;
}
