/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index: an HDF5 file that shows every tensor whole, under its own name, to any reader of HDF5
 * 1.10 or newer. Each is a virtual dataset whose parts are boxes in the shards, found by bare file
 * names beside the index. A part that is missing reads as NaN (integers: 0) without an error,
 * which is why the library itself never reads through it: the manifest is the truth.
 *
 * What has been made is opened again, every object of it, before it is written to disk; the next
 * save of the same plan changes step and scalars in it. Scalars, which HDF5 cannot have virtual,
 * are copied into their object's header.
 */
#include <hdf5.h>

#include "ckpt/h5.h"
#include "ckpt/h5util.h"

#include <stdio.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "tutti/version.h"

typedef struct indexer {
    const tt_manifest *m;
    const tt_plan *plan;
    const uint64_t *scalar; /* of the next tensor without dimensions */
    hid_t file, links;
} indexer;

static herr_t set_nan(hid_t create, hid_t type, tutti_dtype dtype)
{
    uint64_t bits = dtype == TUTTI_FLOAT64       ? 0x7ff8000000000000u
                    : dtype == TUTTI_FLOAT32     ? 0x7fc00000u
                    : dtype == TUTTI_BFLOAT16    ? 0x7fc0u
                    : dtype == TUTTI_FLOAT16     ? 0x7e00u
                    : dtype == TUTTI_FLOAT8_E4M3 ? 0x7fu
                                                 : 0x7eu;
    return tt_dtype_is_float(dtype) ? H5Pset_fill_value(create, type, &bits) : 0;
}

/* The box's elements in its shard: the whole of its dataset, or a run of a packed one. */
static hid_t source_space(const tt_ctensor *t, const tt_cbox *box, const tt_dset *dset)
{
    hsize_t dims[TUTTI_CKPT_MAX_DIMS], start, count;
    uint64_t elems = 0;
    if (dset->tensor != NULL) {
        for (int d = 0; d < t->ndim; d++)
            dims[d] = (hsize_t)box->dim[t->ndim + d];
        return H5Screate_simple(t->ndim, dims, NULL);
    }
    dims[0] = dset->elems;
    tt_dims_elems(box->dim + t->ndim, t->ndim, &elems);
    start = box->within / tutti_dtype_size(t->dtype);
    count = elems;
    hid_t space = H5Screate_simple(1, dims, NULL);
    if (space >= 0 && H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &count, NULL) < 0) {
        H5Sclose(space);
        return -1;
    }
    return space;
}

static herr_t map_box(const indexer *x, hid_t create, hid_t whole, const tt_ctensor *t,
                      const tt_cbox *box)
{
    const tt_shard *shard = &x->plan->shard[box->file];
    hsize_t start[TUTTI_CKPT_MAX_DIMS], count[TUTTI_CKPT_MAX_DIMS];
    char path[64];
    for (int d = 0; d < t->ndim; d++) {
        start[d] = (hsize_t)box->dim[d];
        count[d] = (hsize_t)box->dim[t->ndim + d];
    }
    if (H5Sselect_hyperslab(whole, H5S_SELECT_SET, start, NULL, count, NULL) < 0)
        return -1;
    hid_t source = source_space(t, box, &shard->dset[box->dset]);
    if (source < 0)
        return -1;
    tt_h5_dset_path(shard, box->dset, path, sizeof path);
    herr_t result = H5Pset_virtual(create, whole, x->m->cat.file[box->file].name, path, source);
    H5Sclose(source);
    return result;
}

static herr_t map_boxes(const indexer *x, hid_t create, hid_t type, hid_t whole,
                        const tt_ctensor *t)
{
    if (set_nan(create, type, t->dtype) < 0)
        return -1;
    for (size_t i = 0; i < t->nbox; i++)
        if (map_box(x, create, whole, t, &t->box[i]) < 0)
            return -1;
    return t->nbox == 0 ? 0 : H5Sselect_all(whole);
}

static hid_t whole_space(const tt_ctensor *t)
{
    hsize_t dims[TUTTI_CKPT_MAX_DIMS];
    for (int d = 0; d < t->ndim; d++)
        dims[d] = (hsize_t)t->shape[d];
    return t->ndim == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(t->ndim, dims, NULL);
}

static tutti_status make_tensor(const indexer *x, const tt_ctensor *t, hid_t type, hid_t whole,
                                hid_t *id_out)
{
    tutti_status status = TUTTI_OK;
    herr_t ready = -1;
    hid_t id = -1, create = H5Pcreate(H5P_DATASET_CREATE);
    if (create >= 0 && t->ndim > 0)
        ready = map_boxes(x, create, type, whole, t);
    else if (create >= 0)
        ready = H5Pset_layout(create, H5D_COMPACT);
    if (ready >= 0)
        id = H5Dcreate2(x->file, t->name, type, whole, x->links, create, H5P_DEFAULT);
    if (id < 0)
        status = tt_h5_fail("cannot add %s to the index", t->name);
    if (create >= 0)
        H5Pclose(create);
    if (status == TUTTI_OK)
        *id_out = id;
    return status;
}

static tutti_status add_tensor(indexer *x, const tt_ctensor *t)
{
    hid_t id = -1;
    hid_t type = tt_h5_type(t->dtype), whole = whole_space(t);
    tutti_status status = make_tensor(x, t, type, whole, &id);
    if (status == TUTTI_OK && tt_h5_dtype_put(id, t->dtype) < 0)
        status = tt_h5_fail("cannot say the type of %s in the index", t->name);
    if (status == TUTTI_OK && t->ndim == 0 &&
        H5Dwrite(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, x->scalar++) < 0)
        status = tt_h5_fail("cannot write %s into the index", t->name);
    if (id >= 0 && H5Dclose(id) < 0 && status == TUTTI_OK)
        status = tt_h5_fail("cannot close %s in the index", t->name);
    if (whole >= 0)
        H5Sclose(whole);
    if (type >= 0)
        H5Tclose(type);
    return status;
}

static tutti_status add_attributes(const indexer *x)
{
    int64_t world = x->m->world;
    if (tt_h5_attr_ints(x->file, "step", &x->m->step, 0) < 0 ||
        tt_h5_attr_ints(x->file, "world", &world, 0) < 0 ||
        (x->m->mesh[0] != '\0' && tt_h5_attr_text(x->file, "mesh", x->m->mesh) < 0) ||
        tt_h5_attr_text(x->file, "library", "tutti " TUTTI_VERSION_STRING) < 0)
        return tt_h5_fail("cannot add attributes to the index");
    return TUTTI_OK;
}

/* An error's reason is gone with the next call, so each is asked for at once. */
static tutti_status open_index(indexer *x, const char *path, unsigned how)
{
    tutti_status status = TUTTI_OK;
    hid_t access = tt_h5_file_access(true, 0);
    if (access < 0 || H5Pset_alignment(access, 1, 1) < 0)
        return tt_h5_fail("cannot prepare the index");
    x->file = how == H5F_ACC_TRUNC ? H5Fcreate(path, how, H5P_DEFAULT, access)
                                   : H5Fopen(path, how, access);
    if (x->file < 0)
        status = tt_h5_fail(how == H5F_ACC_TRUNC ? "cannot make the index"
                                                 : "the index cannot be opened again");
    H5Pclose(access);
    return status;
}

static tutti_status fill_index(indexer *x, const char *path)
{
    tutti_status status = open_index(x, path, H5F_ACC_TRUNC);
    if (status != TUTTI_OK)
        return status;
    x->links = H5Pcreate(H5P_LINK_CREATE);
    if (x->links < 0 || H5Pset_create_intermediate_group(x->links, 1) < 0)
        status = tt_h5_fail("cannot prepare the index");
    if (status == TUTTI_OK)
        status = add_attributes(x);
    for (size_t i = 0; i < x->m->cat.ntensor && status == TUTTI_OK; i++)
        status = add_tensor(x, &x->m->cat.tensor[i]);
    if (x->links >= 0)
        H5Pclose(x->links);
    if (H5Fclose(x->file) < 0 && status == TUTTI_OK)
        status = tt_h5_fail("cannot finish the index");
    return status;
}

/* Looks at what has been written: every object header carries a checksum. */
static tutti_status check_index(indexer *x, const char *path)
{
    tutti_status status = open_index(x, path, H5F_ACC_RDONLY);
    if (status != TUTTI_OK)
        return status;
    for (size_t i = 0; i < x->m->cat.ntensor && status == TUTTI_OK; i++) {
        H5O_info_t info;
        if (H5Oget_info_by_name2(x->file, x->m->cat.tensor[i].name, &info, H5O_INFO_BASIC,
                                 H5P_DEFAULT) < 0 ||
            info.type != H5O_TYPE_DATASET)
            status = tt_h5_fail("%s cannot be found in the index again", x->m->cat.tensor[i].name);
    }
    if (H5Fclose(x->file) < 0 && status == TUTTI_OK)
        status = tt_h5_fail("cannot close the index");
    return status;
}

static tutti_status renew_scalar(indexer *x, const tt_ctensor *t)
{
    tutti_status status = TUTTI_OK;
    hid_t type = tt_h5_type(t->dtype), id = H5Dopen2(x->file, t->name, H5P_DEFAULT);
    if (id < 0 || type < 0 || H5Dwrite(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, x->scalar++) < 0)
        status = tt_h5_fail("cannot write %s into the index", t->name);
    if (id >= 0 && H5Dclose(id) < 0 && status == TUTTI_OK)
        status = tt_h5_fail("cannot close %s in the index", t->name);
    if (type >= 0)
        H5Tclose(type);
    return status;
}

/* What differs between two saves of one plan. */
static tutti_status renew_index(indexer *x, const char *path)
{
    tutti_status status = open_index(x, path, H5F_ACC_RDWR);
    if (status != TUTTI_OK)
        return status;
    hid_t attr = H5Aopen(x->file, "step", H5P_DEFAULT);
    if (attr < 0 || H5Awrite(attr, H5T_NATIVE_INT64, &x->m->step) < 0)
        status = tt_h5_fail("cannot write the step into the index");
    if (attr >= 0)
        H5Aclose(attr);
    for (size_t i = 0; i < x->m->cat.ntensor && status == TUTTI_OK; i++)
        if (x->m->cat.tensor[i].ndim == 0)
            status = renew_scalar(x, &x->m->cat.tensor[i]);
    if (H5Fclose(x->file) < 0 && status == TUTTI_OK)
        status = tt_h5_fail("cannot finish the index");
    return status;
}

static tutti_status make_index(indexer *x, int *memory_out)
{
    char path[64];
    int memory;
    TT_TRY(tt_h5_memory(TT_INDEX_NAME, &memory, path, sizeof path));
    tutti_status status = fill_index(x, path);
    if (status == TUTTI_OK)
        status = check_index(x, path);
    if (status != TUTTI_OK) {
        close(memory);
        return status;
    }
    *memory_out = memory;
    return TUTTI_OK;
}

tutti_status tt_h5_index_make(const tt_manifest *m, const tt_plan *plan, const uint64_t *scalar,
                              int *memory_inout)
{
    tt_h5_scope scope;
    char path[64];
    indexer x = {m, plan, scalar, -1, -1};
    tt_h5_enter(&scope);
    snprintf(path, sizeof path, "/proc/self/fd/%d", *memory_inout);
    tutti_status status = *memory_inout < 0 ? make_index(&x, memory_inout) : renew_index(&x, path);
    tt_h5_leave(&scope);
    return status;
}
