/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HDF5 side of a shard: /boxes/NNNNNN for each large box, with attributes that say which part
 * of which tensor it is, and /packed/DTYPE for the small ones behind one another. Only metadata is
 * written here; datasets get their space at once and no fill values.
 */
#include <hdf5.h>

#include "ckpt/h5.h"
#include "ckpt/h5util.h"

#include <string.h>
#include <unistd.h>

enum { LOOK_AT = 64 };

typedef struct maker {
    const char *name;
    const tt_shard *shard;
    hid_t file, create, links;
} maker;

static hid_t space_of(const tt_dset *dset)
{
    hsize_t dims[TUTTI_CKPT_MAX_DIMS] = {dset->elems};
    int ndim = dset->tensor == NULL ? 1 : dset->tensor->ndim;
    if (ndim == 0)
        return H5Screate(H5S_SCALAR);
    for (int d = 0; dset->tensor != NULL && d < ndim; d++)
        dims[d] = (hsize_t)dset->box->dim[ndim + d];
    return H5Screate_simple(ndim, dims, NULL);
}

static herr_t describe(hid_t id, const tt_dset *dset)
{
    const tt_ctensor *t = dset->tensor;
    if (tt_h5_dtype_put(id, dset->dtype) < 0)
        return -1;
    if (t == NULL)
        return 0;
    if (tt_h5_attr_text(id, "tensor", t->name) < 0)
        return -1;
    if (t->ndim == 0)
        return 0;
    return tt_h5_attr_ints(id, "shape", t->shape, t->ndim) < 0
               ? -1
               : tt_h5_attr_ints(id, "offset", dset->box->dim, t->ndim);
}

static tutti_status make_dataset(maker *m, size_t i, uint64_t *offset_out)
{
    const tt_dset *dset = &m->shard->dset[i];
    char path[64];
    tutti_status status = TUTTI_OK;
    hid_t type = tt_h5_type(dset->dtype), space = space_of(dset), id = -1;
    haddr_t at = HADDR_UNDEF;
    tt_h5_dset_path(m->shard, i, path, sizeof path);
    if (type >= 0 && space >= 0)
        id = H5Dcreate2(m->file, path, type, space, m->links, m->create, H5P_DEFAULT);
    if (id >= 0 && describe(id, dset) >= 0)
        at = H5Dget_offset(id);
    if (at == HADDR_UNDEF)
        status = tt_h5_fail("cannot make dataset %s of %s", path, m->name);
    if (id >= 0 && H5Dclose(id) < 0 && status == TUTTI_OK)
        status = tt_h5_fail("cannot close dataset %s of %s", path, m->name);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    if (status == TUTTI_OK)
        *offset_out = (uint64_t)at;
    return status;
}

static tutti_status make_lists(maker *m)
{
    m->create = H5Pcreate(H5P_DATASET_CREATE);
    m->links = H5Pcreate(H5P_LINK_CREATE);
    if (m->create < 0 || m->links < 0 || H5Pset_layout(m->create, H5D_CONTIGUOUS) < 0 ||
        H5Pset_alloc_time(m->create, H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(m->create, H5D_FILL_TIME_NEVER) < 0 ||
        H5Pset_create_intermediate_group(m->links, 1) < 0)
        return tt_h5_fail("cannot prepare %s", m->name);
    return TUTTI_OK;
}

static tutti_status make_file(maker *m, const char *path, uint64_t *offset_out)
{
    hid_t access = tt_h5_file_access(true, m->shard->ndset);
    tutti_status status = TUTTI_OK;
    if (access < 0)
        return tt_h5_fail("cannot prepare %s", m->name);
    m->file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    if (m->file < 0)
        status = tt_h5_fail("cannot make %s", m->name);
    H5Pclose(access);
    if (status != TUTTI_OK)
        return status;
    for (size_t i = 0; i < m->shard->ndset && status == TUTTI_OK; i++)
        status = make_dataset(m, i, &offset_out[i]);
    if (H5Fclose(m->file) < 0 && status == TUTTI_OK)
        status = tt_h5_fail("cannot close %s", m->name);
    return status;
}

static tutti_status check_dataset(hid_t file, const char *name, const tt_shard *shard, size_t i,
                                  uint64_t offset)
{
    char path[64];
    tt_h5_dset_path(shard, i, path, sizeof path);
    hid_t id = H5Dopen2(file, path, H5P_DEFAULT);
    if (id < 0)
        return tt_h5_fail("dataset %s of %s cannot be opened again", path, name);
    haddr_t at = H5Dget_offset(id);
    H5Dclose(id);
    if (at != (haddr_t)offset)
        return tt_fail(TUTTI_ERR_IO, "dataset %s of %s is not where it was made", path, name);
    return TUTTI_OK;
}

/* Looks at every `stride`-th dataset and the last. */
static tutti_status check_file(const char *path, const char *name, const tt_shard *shard,
                               const uint64_t *offset, size_t stride)
{
    tutti_status status = TUTTI_OK;
    hid_t access = tt_h5_file_access(
        strncmp(path, "/proc/self/fd/", 14) == 0 && strchr(path + 14, '/') == NULL, 0);
    hid_t file = access < 0 ? -1 : H5Fopen(path, H5F_ACC_RDONLY, access);
    if (file < 0)
        status = tt_h5_fail("%s cannot be opened again", name);
    if (access >= 0)
        H5Pclose(access);
    for (size_t i = 0; i < shard->ndset && status == TUTTI_OK; i += stride)
        status = check_dataset(file, name, shard, i, offset[i]);
    if (status == TUTTI_OK && shard->ndset > 0)
        status = check_dataset(file, name, shard, shard->ndset - 1, offset[shard->ndset - 1]);
    if (file >= 0 && H5Fclose(file) < 0 && status == TUTTI_OK)
        status = tt_h5_fail("cannot close %s", name);
    return status;
}

tutti_status tt_h5_shard_check(int dir, const char *name, const tt_shard *shard,
                               const uint64_t *offset)
{
    char path[128];
    tt_h5_scope scope;
    tt_h5_path(dir, name, path, sizeof path);
    tt_h5_enter(&scope);
    tutti_status status = check_file(path, name, shard, offset, shard->ndset / LOOK_AT + 1);
    tt_h5_leave(&scope);
    return status;
}

tutti_status tt_h5_shard_make(const char *name, const tt_shard *shard, uint64_t *offset_out,
                              int *memory_out)
{
    char path[64];
    int memory;
    tt_h5_scope scope;
    maker m = {name, shard, -1, -1, -1};
    TT_TRY(tt_h5_memory(name, &memory, path, sizeof path));
    tt_h5_enter(&scope);
    tutti_status status = make_lists(&m);
    if (status == TUTTI_OK)
        status = make_file(&m, path, offset_out);
    if (status == TUTTI_OK)
        status = check_file(path, name, shard, offset_out, 1);
    if (m.create >= 0)
        H5Pclose(m.create);
    if (m.links >= 0)
        H5Pclose(m.links);
    tt_h5_leave(&scope);
    if (status != TUTTI_OK) {
        close(memory);
        return status;
    }
    *memory_out = memory;
    return TUTTI_OK;
}
