/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the h5*.c only. */
#ifndef TT_CKPT_H5UTIL_H
#define TT_CKPT_H5UTIL_H

#ifndef H5_VERS_MAJOR
#error "only runtime/ckpt/h5*.c, which include hdf5.h, may include this"
#endif

#include "ckpt/plan.h"

/* Takes the process-wide lock and silences HDF5's own printing; leave puts both back. */
typedef struct tt_h5_scope {
    H5E_auto2_t print;
    void *print_arg;
} tt_h5_scope;
void tt_h5_enter(tt_h5_scope *scope);
void tt_h5_leave(tt_h5_scope *scope);

/* Records the innermost message of HDF5's error stack behind the text; NO_SPACE where that is its
 * reason. */
tutti_status tt_h5_fail(const char *fmt, ...) TT_PRINTF(1, 2);

/* Access lists: format 1.10, large objects aligned, no file locks; for memory files the driver that
 * takes their paths. */
hid_t tt_h5_file_access(bool memory, size_t objects); /* about so many are to be made */
tutti_status tt_h5_memory(const char *name, int *fd_out, char *path, size_t cap);
/* Through /proc, so that HDF5, which takes only paths, stays in the directory that is open. */
void tt_h5_path(int dir, const char *name, char *path, size_t cap);
void tt_h5_dset_path(const tt_shard *shard, size_t i, char *path, size_t cap);
hid_t tt_h5_type(tutti_dtype dtype); /* to be closed with H5Tclose */
/* The attribute `dtype` of a dataset whose type in HDF5 does not say it all. */
herr_t tt_h5_dtype_put(hid_t dataset, tutti_dtype dtype);
tutti_dtype tt_h5_dtype_get(hid_t dataset); /* 0: none of ours */
herr_t tt_h5_attr_text(hid_t object, const char *name, const char *text);
herr_t tt_h5_attr_ints(hid_t object, const char *name, const int64_t *value, int n); /* n 0: one */

#endif
