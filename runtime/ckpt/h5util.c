/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files that use HDF5 share: the lock, errors, types, attributes.
 *
 * The lock is one for the process, not one per file, for a library built without thread safety
 * breaks when two threads are in it at all. bf16 and f16 are floats of 16 bits that HDF5 1.10 has
 * no name for; described by their fields they are read as floats by every tool. The 8-bit floats
 * are bytes with an attribute: described by its fields e4m3 is read wrongly, for HDF5 takes its
 * largest exponent for infinity and NaN. (The library itself never has HDF5 convert a value: it
 * stores and reads bits.)
 */
#include <hdf5.h>

#include "ckpt/h5util.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "ckpt/plan.h"

/* Of an object, about: one run of metadata is read back from the disk in one go. */
enum { META_BYTES = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void tt_h5_enter(tt_h5_scope *scope)
{
    pthread_mutex_lock(&lock);
    H5Eget_auto2(H5E_DEFAULT, &scope->print, &scope->print_arg);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
}

void tt_h5_leave(tt_h5_scope *scope)
{
    H5Eset_auto2(H5E_DEFAULT, scope->print, scope->print_arg);
    pthread_mutex_unlock(&lock);
}

typedef struct reason {
    char text[400];
    bool no_space;
} reason;

static herr_t note_reason(unsigned n, const H5E_error2_t *error, void *arg)
{
    reason *why = arg;
    if (n == 0 && error->desc != NULL) /* upward walk: 0 is the innermost */
        snprintf(why->text, sizeof why->text, "%s", error->desc);
    if (error->desc != NULL && (strstr(error->desc, "No space left") != NULL ||
                                strstr(error->desc, "quota exceeded") != NULL))
        why->no_space = true;
    return 0;
}

tutti_status tt_h5_fail(const char *fmt, ...)
{
    char text[400];
    reason why = {"no reason given", false};
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, note_reason, &why);
    H5Eclear2(H5E_DEFAULT);
    return tt_fail(why.no_space ? TUTTI_ERR_NO_SPACE : TUTTI_ERR_IO, "%s: HDF5: %s", text,
                   why.text);
}

/* The default driver resolves links, which a file without a name does not survive. */
tutti_status tt_h5_memory(const char *name, int *fd_out, char *path, size_t cap)
{
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0)
        return tt_fail_errno(TUTTI_ERR_NO_MEMORY, errno, "no memory for the metadata of %s", name);
    snprintf(path, cap, "/proc/self/fd/%d", fd);
    *fd_out = fd;
    return TUTTI_OK;
}

void tt_h5_path(int dir, const char *name, char *path, size_t cap)
{
    snprintf(path, cap, "/proc/self/fd/%d/%s", dir, name);
}

void tt_h5_dset_path(const tt_shard *shard, size_t i, char *path, size_t cap)
{
    if (shard->dset[i].tensor == NULL)
        snprintf(path, cap, "/packed/%s", tutti_dtype_name(shard->dset[i].dtype));
    else
        snprintf(path, cap, "/boxes/%06zu", i);
}

hid_t tt_h5_file_access(bool memory, size_t objects)
{
    hid_t list = H5Pcreate(H5P_FILE_ACCESS);
    if (list < 0)
        return list;
    if (H5Pset_libver_bounds(list, H5F_LIBVER_V110, H5F_LIBVER_V110) < 0 ||
        H5Pset_alignment(list, TT_PACK_BYTES, TT_FILE_ALIGN) < 0 ||
        H5Pset_meta_block_size(list, 4096 + objects * META_BYTES) < 0 ||
        H5Pset_fclose_degree(list, H5F_CLOSE_SEMI) < 0 || (memory && H5Pset_fapl_stdio(list) < 0)
#if H5_VERSION_GE(1, 10, 7)
        || H5Pset_file_locking(list, 0, 1) < 0
#endif
    ) {
        H5Pclose(list);
        return -1;
    }
    return list;
}

/* A little-endian float of 16 bits; h5py and h5dump read it as a float. */
static hid_t small_float(size_t exponent, size_t mantissa, size_t bias)
{
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    if (type >= 0 && (H5Tset_fields(type, 15, mantissa, exponent, 0, mantissa) < 0 ||
                      H5Tset_size(type, 2) < 0 || H5Tset_ebias(type, bias) < 0)) {
        H5Tclose(type);
        return -1;
    }
    return type;
}

hid_t tt_h5_type(tutti_dtype dtype)
{
    switch (dtype) {
    case TUTTI_FLOAT32:
        return H5Tcopy(H5T_IEEE_F32LE);
    case TUTTI_FLOAT64:
        return H5Tcopy(H5T_IEEE_F64LE);
    case TUTTI_BFLOAT16:
        return small_float(8, 7, 127);
    case TUTTI_FLOAT16:
        return small_float(5, 10, 15);
    case TUTTI_FLOAT8_E4M3:
    case TUTTI_FLOAT8_E5M2:
    case TUTTI_UINT8:
        return H5Tcopy(H5T_STD_U8LE);
    case TUTTI_INT8:
        return H5Tcopy(H5T_STD_I8LE);
    case TUTTI_INT32:
        return H5Tcopy(H5T_STD_I32LE);
    case TUTTI_UINT32:
        return H5Tcopy(H5T_STD_U32LE);
    case TUTTI_INT64:
        return H5Tcopy(H5T_STD_I64LE);
    case TUTTI_UINT64:
        return H5Tcopy(H5T_STD_U64LE);
    }
    return -1;
}

static herr_t attr_write(hid_t object, const char *name, hid_t type, hid_t space, const void *data)
{
    herr_t result = -1;
    hid_t attr = H5Acreate2(object, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (attr >= 0) {
        result = H5Awrite(attr, type, data);
        if (H5Aclose(attr) < 0)
            result = -1;
    }
    return result;
}

herr_t tt_h5_attr_text(hid_t object, const char *name, const char *text)
{
    herr_t result = -1;
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    if (type >= 0 && space >= 0 && H5Tset_size(type, strlen(text) + 1) >= 0)
        result = attr_write(object, name, type, space, text);
    if (type >= 0)
        H5Tclose(type);
    if (space >= 0)
        H5Sclose(space);
    return result;
}

herr_t tt_h5_attr_ints(hid_t object, const char *name, const int64_t *value, int n)
{
    hsize_t dims = (hsize_t)n;
    hid_t space = n == 0 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &dims, NULL);
    if (space < 0)
        return -1;
    herr_t result = attr_write(object, name, H5T_STD_I64LE, space, value);
    H5Sclose(space);
    return result;
}

/* The names that ml_dtypes, PyTorch and JAX give these types. */
static const char *f8_name(tutti_dtype dtype)
{
    return dtype == TUTTI_FLOAT8_E4M3 ? "float8_e4m3fn" : "float8_e5m2";
}

herr_t tt_h5_dtype_put(hid_t dataset, tutti_dtype dtype)
{
    return tt_dtype_is_f8(dtype) ? tt_h5_attr_text(dataset, "dtype", f8_name(dtype)) : 0;
}

static tutti_dtype f8_of(hid_t dataset)
{
    char text[32] = "";
    hid_t attr = H5Aopen(dataset, "dtype", H5P_DEFAULT), type = attr < 0 ? -1 : H5Aget_type(attr);
    bool read = type >= 0 && H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0 &&
                H5Tget_size(type) < sizeof text && H5Aread(attr, type, text) >= 0;
    if (type >= 0)
        H5Tclose(type);
    if (attr >= 0)
        H5Aclose(attr);
    for (int d = TUTTI_FLOAT8_E4M3; d <= TUTTI_FLOAT8_E5M2; d++)
        if (read && strcmp(text, f8_name((tutti_dtype)d)) == 0)
            return (tutti_dtype)d;
    return (tutti_dtype)0;
}

tutti_dtype tt_h5_dtype_get(hid_t dataset)
{
    tutti_dtype dtype = (tutti_dtype)0;
    hid_t type = H5Dget_type(dataset);
    for (int d = TUTTI_FLOAT32; d <= TUTTI_UINT64 && type >= 0 && dtype == 0; d++) {
        hid_t ours = tt_h5_type((tutti_dtype)d);
        if (ours >= 0 && H5Tequal(ours, type) > 0)
            dtype = (tutti_dtype)d;
        if (ours >= 0)
            H5Tclose(ours);
    }
    if (type >= 0)
        H5Tclose(type);
    return dtype == TUTTI_UINT8 && H5Aexists(dataset, "dtype") > 0 ? f8_of(dataset) : dtype;
}
