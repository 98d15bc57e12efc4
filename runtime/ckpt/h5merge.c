/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plain HDF5 file of whole tensors, for programs that want one file and no virtual datasets. HDF5
 * makes its structure in memory and learns where each dataset lies; the data is streamed there by
 * the caller, so that a file of any size takes the memory of its metadata.
 */
#include <hdf5.h>

#include "ckpt/h5.h"
#include "ckpt/h5util.h"

#include <unistd.h>

#include "tutti/version.h"

typedef struct plain {
    hid_t file, create, links;
} plain;

static hid_t shape_space(const tt_ctensor *t)
{
    hsize_t dims[TUTTI_CKPT_MAX_DIMS];
    for (int d = 0; d < t->ndim; d++)
        dims[d] = (hsize_t)t->shape[d];
    return t->ndim == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(t->ndim, dims, NULL);
}

static tutti_status add_tensor(const plain *p, const tt_ctensor *t, uint64_t *offset_out)
{
    hid_t type = tt_h5_type(t->dtype), space = shape_space(t), id = -1;
    haddr_t at = 0;
    tutti_status status = TUTTI_OK;
    if (type >= 0 && space >= 0)
        id = H5Dcreate2(p->file, t->name, type, space, p->links, p->create, H5P_DEFAULT);
    if (id >= 0 && tt_h5_dtype_put(id, t->dtype) < 0)
        at = HADDR_UNDEF;
    else if (id >= 0 && t->elems > 0)
        at = H5Dget_offset(id);
    if (id < 0 || at == HADDR_UNDEF)
        status = tt_h5_fail("cannot make dataset %s", t->name);
    if (id >= 0 && H5Dclose(id) < 0 && status == TUTTI_OK)
        status = tt_h5_fail("cannot close dataset %s", t->name);
    if (space >= 0)
        H5Sclose(space);
    if (type >= 0)
        H5Tclose(type);
    *offset_out = (uint64_t)at;
    return status;
}

static tutti_status open_plain(plain *p, const char *path, const tt_manifest *m)
{
    tutti_status status = TUTTI_OK;
    hid_t access = tt_h5_file_access(true, 0);
    p->create = H5Pcreate(H5P_DATASET_CREATE);
    p->links = H5Pcreate(H5P_LINK_CREATE);
    if (access < 0 || p->create < 0 || p->links < 0 ||
        H5Pset_layout(p->create, H5D_CONTIGUOUS) < 0 ||
        H5Pset_alloc_time(p->create, H5D_ALLOC_TIME_EARLY) < 0 ||
        H5Pset_fill_time(p->create, H5D_FILL_TIME_NEVER) < 0 ||
        H5Pset_create_intermediate_group(p->links, 1) < 0)
        status = tt_h5_fail("cannot prepare the file");
    else if ((p->file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access)) < 0)
        status = tt_h5_fail("cannot make the file");
    else if (tt_h5_attr_ints(p->file, "step", &m->step, 0) < 0 ||
             tt_h5_attr_text(p->file, "library", "tutti " TUTTI_VERSION_STRING) < 0)
        status = tt_h5_fail("cannot add attributes");
    if (access >= 0)
        H5Pclose(access);
    return status;
}

tutti_status tt_h5_plain_make(const tt_manifest *m, const tt_ctensor *const *list, size_t n,
                              uint64_t *offset_out, int *memory_out)
{
    tt_h5_scope scope;
    char path[64];
    int memory;
    plain p = {-1, -1, -1};
    TT_TRY(tt_h5_memory("merged.h5", &memory, path, sizeof path));
    tt_h5_enter(&scope);
    tutti_status status = open_plain(&p, path, m);
    for (size_t i = 0; i < n && status == TUTTI_OK; i++)
        status = add_tensor(&p, list[i], &offset_out[i]);
    if (p.file >= 0 && H5Fclose(p.file) < 0 && status == TUTTI_OK)
        status = tt_h5_fail("cannot finish the file");
    if (p.create >= 0)
        H5Pclose(p.create);
    if (p.links >= 0)
        H5Pclose(p.links);
    tt_h5_leave(&scope);
    if (status != TUTTI_OK) {
        close(memory);
        return status;
    }
    *memory_out = memory;
    return TUTTI_OK;
}
