/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that is done with HDF5 (serial; one lock of ours around every use, for the library may be
 * built without its own). Paths are made of a directory's descriptor and a name.
 */
#ifndef TT_CKPT_H5_H
#define TT_CKPT_H5_H

#include "ckpt/manifest.h"
#include "ckpt/plan.h"

/* Makes the file with space for every dataset and closes it; offset_out: where each dataset's data
 * begins in the file. */
tutti_status tt_h5_shard_create(int dir, const char *name, const tt_shard *shard,
                                uint64_t *offset_out);
/* Opens it again: every dataset must be where it was. */
tutti_status tt_h5_shard_check(int dir, const char *name, const tt_shard *shard,
                               const uint64_t *offset);

/* Makes the index in dir: every tensor of the manifest whole, as a virtual dataset over the shards.
 * Scalars are read from them. */
tutti_status tt_h5_index_write(int dir, const tt_manifest *m, const tt_plan *plan);

#endif
