/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a checkpoint's files say to HDF5 what the manifest says to us. A load never asks HDF5;
 * this is for those who hand the files to other programs. Every link is looked at before it is
 * followed: only hard links are ours. Shards: contiguous, no filter, no external storage, and every
 * box of the manifest inside a dataset of its type. Index: virtual over shards beside it, or
 * compact.
 */
#include <hdf5.h>

#include "ckpt/h5.h"
#include "ckpt/h5util.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/dir.h"

typedef struct extent {
    uint64_t at, bytes;
    tutti_dtype dtype;
} extent;

typedef struct checker {
    const tt_manifest *m;
    const char *name; /* of the file */
    bool index;
    extent *found; /* datasets of a shard */
    size_t n, cap;
    tutti_status status;
} checker;

static herr_t bad(checker *c, tutti_status status)
{
    c->status = status;
    return -1;
}

#define BAD(c, object, text)                                                                       \
    bad((c), tt_fail(TUTTI_ERR_CORRUPT, "%s: %.200s " text, (c)->name, (object)))

static bool shard_listed(const checker *c, const char *name)
{
    for (size_t i = 0; i + 1 < c->m->cat.nfile; i++)
        if (strcmp(c->m->cat.file[i].name, name) == 0)
            return true;
    return false;
}

static herr_t check_virtual(checker *c, const char *object, hid_t create)
{
    size_t n = 0;
    char file[TT_CKPT_FILE_NAME_MAX];
    if (H5Pget_virtual_count(create, &n) < 0)
        return BAD(c, object, "has a broken mapping");
    for (size_t i = 0; i < n; i++)
        if (H5Pget_virtual_filename(create, i, file, sizeof file) < 0 || !shard_listed(c, file))
            return BAD(c, object, "maps a file that is no shard of the checkpoint");
    return 0;
}

static herr_t check_index_dataset(checker *c, const char *object, hid_t id, hid_t create)
{
    const tt_ctensor *t = tt_catalog_find(&c->m->cat, object);
    H5D_layout_t layout = H5Pget_layout(create);
    if (t == NULL || tt_h5_dtype_get(id) != t->dtype)
        return BAD(c, object, "is not a tensor of the manifest, or of another type");
    c->n++;
    if (layout == H5D_VIRTUAL)
        return check_virtual(c, object, create);
    return layout == H5D_COMPACT || t->elems == 0 ? 0 : BAD(c, object, "is stored in the index");
}

static herr_t check_shard_dataset(checker *c, const char *object, hid_t id, hid_t create)
{
    tutti_dtype dtype = tt_h5_dtype_get(id);
    haddr_t at = H5Dget_offset(id);
    hsize_t bytes = H5Dget_storage_size(id);
    if (H5Pget_layout(create) != H5D_CONTIGUOUS || dtype == 0 || at == HADDR_UNDEF)
        return BAD(c, object, "is not a contiguous dataset of a type of ours");
    if (tt_grow(&c->found, &c->cap, c->n + 1, sizeof *c->found) != TUTTI_OK)
        return bad(c, TUTTI_ERR_NO_MEMORY);
    c->found[c->n++] = (extent){(uint64_t)at, (uint64_t)bytes, dtype};
    return 0;
}

static herr_t check_dataset(checker *c, hid_t file, const char *object)
{
    herr_t result = -1;
    hid_t id = H5Dopen2(file, object, H5P_DEFAULT);
    hid_t create = id < 0 ? -1 : H5Dget_create_plist(id);
    if (create < 0)
        BAD(c, object, "cannot be opened");
    else if (H5Pget_external_count(create) != 0 || H5Pget_nfilters(create) != 0)
        BAD(c, object, "has filters or lies in another file");
    else
        result = c->index ? check_index_dataset(c, object, id, create)
                          : check_shard_dataset(c, object, id, create);
    if (create >= 0)
        H5Pclose(create);
    if (id >= 0)
        H5Dclose(id);
    return result;
}

static herr_t visit(hid_t file, const char *object, const H5L_info_t *link, void *arg)
{
    checker *c = arg;
    H5O_info_t info;
    if (link->type != H5L_TYPE_HARD)
        return BAD(c, object, "is a link that leads elsewhere");
    if (H5Oget_info_by_name2(file, object, &info, H5O_INFO_BASIC, H5P_DEFAULT) < 0)
        return BAD(c, object, "cannot be looked at");
    if (info.type == H5O_TYPE_GROUP)
        return 0;
    return info.type == H5O_TYPE_DATASET ? check_dataset(c, file, object)
                                         : BAD(c, object, "is neither group nor dataset");
}

static int compare_extent(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    return (x->at > y->at) - (x->at < y->at);
}

/* The last dataset that begins at `at` or before. */
static const extent *extent_at(const checker *c, uint64_t at)
{
    size_t low = 0, high = c->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c->found[middle].at <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low == 0 ? NULL : &c->found[low - 1];
}

static tutti_status check_boxes(checker *c, uint32_t file)
{
    if (c->n > 0)
        qsort(c->found, c->n, sizeof *c->found, compare_extent);
    for (size_t i = 0; i < c->m->cat.ntensor; i++) {
        const tt_ctensor *t = &c->m->cat.tensor[i];
        for (size_t k = 0; k < t->nbox; k++) {
            uint64_t elems = 0, bytes;
            if (t->box[k].file != file)
                continue;
            tt_dims_elems(t->box[k].dim + t->ndim, t->ndim, &elems);
            bytes = elems * tutti_dtype_size(t->dtype);
            const extent *e = extent_at(c, t->box[k].at);
            if (e == NULL || e->dtype != t->dtype || bytes > e->bytes ||
                t->box[k].at - e->at > e->bytes - bytes)
                return tt_fail(TUTTI_ERR_CORRUPT, "%s: a box of %s is not in a dataset of its type",
                               c->name, t->name);
        }
    }
    return TUTTI_OK;
}

static tutti_status check_file(checker *c, int dir, uint32_t file)
{
    char path[128];
    tt_h5_path(dir, c->name, path, sizeof path);
    hid_t access = tt_h5_file_access(false, 0);
    hid_t id = access < 0 ? -1 : H5Fopen(path, H5F_ACC_RDONLY, access);
    if (access >= 0)
        H5Pclose(access);
    if (id < 0)
        return tt_fail(TUTTI_ERR_CORRUPT, "%s: HDF5 cannot open it", c->name);
    herr_t result = H5Lvisit(id, H5_INDEX_NAME, H5_ITER_NATIVE, visit, c);
    H5Fclose(id);
    if (result < 0)
        return c->status != TUTTI_OK
                   ? c->status
                   : tt_fail(TUTTI_ERR_CORRUPT, "%s: HDF5 cannot list it", c->name);
    if (!c->index)
        return check_boxes(c, file);
    return c->n == c->m->cat.ntensor
               ? TUTTI_OK
               : tt_fail(TUTTI_ERR_CORRUPT, "%s: it lacks tensors of the manifest", c->name);
}

tutti_status tt_h5_verify(int dir, const tt_manifest *m, const bool *absent)
{
    tt_h5_scope scope;
    tutti_status status = TUTTI_OK;
    tt_h5_enter(&scope);
    for (size_t i = 0; i < m->cat.nfile && status == TUTTI_OK; i++) {
        if (absent != NULL && absent[i])
            continue;
        checker c = {.m = m, .name = m->cat.file[i].name, .index = i + 1 == m->cat.nfile};
        status = check_file(&c, dir, (uint32_t)i);
        free(c.found);
    }
    tt_h5_leave(&scope);
    return status;
}
