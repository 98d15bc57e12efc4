/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that is done with HDF5 (serial; one lock of ours around every use, for the library may be
 * built without its own). HDF5 only ever writes into memory files (memfd), whose bytes we then
 * write: a full file system leaves it with a file that it can neither close nor forget, and the
 * process dies of that at its exit.
 */
#ifndef TT_CKPT_H5_H
#define TT_CKPT_H5_H

#include "ckpt/manifest.h"
#include "ckpt/plan.h"

/* Makes the file with space for every dataset, which stays a hole in *memory_out (the caller closes
 * it); offset_out: where each dataset's data begins. It is opened again, every dataset found there.
 */
tutti_status tt_h5_shard_make(const char *name, const tt_shard *shard, uint64_t *offset_out,
                              int *memory_out);
/* Opens the file as it was written: datasets must be where they were made (of many, some are looked
 * at: its bytes are compared with those made). */
tutti_status tt_h5_shard_check(int dir, const char *name, const tt_shard *shard,
                               const uint64_t *offset);

/* Makes the index: every tensor of the manifest whole, as a virtual dataset over the shards.
 * scalar: the values of its tensors without dimensions, in order. *memory_inout: an index of the
 * same plan and mesh, in which only step and scalars are changed, or -1. */
tutti_status tt_h5_index_make(const tt_manifest *m, const tt_plan *plan, const uint64_t *scalar,
                              int *memory_inout);

/* Checks the HDF5 side of a checkpoint: every file opens, shards hold contiguous datasets without
 * filters or storage outside, at the places and of the types that the manifest says, the index only
 * whole virtual datasets over shards beside it. HDF5's parser is not made for hostile files: call
 * it in a process that may die. */
tutti_status tt_h5_verify(int dir, const tt_manifest *m, const bool *absent); /* NULL: none */

/* Makes a plain HDF5 file with room for the tensors, as a memory file whose datasets are holes:
 * offset_out says where each one's data belongs. The caller closes *memory_out. */
tutti_status tt_h5_plain_make(const tt_manifest *m, const tt_ctensor *const *list, size_t n,
                              uint64_t *offset_out, int *memory_out);

#endif
