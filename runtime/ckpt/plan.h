/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan of a save: which rank writes which box to which place of its shard. Every rank computes
 * the whole plan from the descriptions of all ranks, so nobody has to be told.
 */
#ifndef TT_CKPT_PLAN_H
#define TT_CKPT_PLAN_H

#include "boot/exchange.h"
#include "ckpt/catalog.h"

enum {
    TT_PACK_BYTES = 64 * 1024, /* smaller boxes of one dtype share a dataset */
    TT_FILE_ALIGN = 4096 /* of datasets in the file and in the staging buffer */
};

/* What the program added on this rank. */
typedef struct tt_item {
    const char *name; /* as in the catalog */
    const int64_t *shape; /* then offset, then extent */
    const void *data;
    uint64_t bytes_total; /* of the box */
    tutti_dtype dtype;
    int ndim;
    bool bytes, same;
} tt_item;

tutti_status tt_plan_describe(const tt_item *items, size_t n, tt_buf *out);

typedef struct tt_dset {
    const tt_ctensor *tensor; /* NULL: boxes packed behind one another */
    const tt_cbox *box;
    uint64_t elems, bytes;
    uint64_t stage; /* first byte in the staging buffer */
    tutti_dtype dtype;
} tt_dset;

typedef struct tt_shard {
    int rank; /* that writes it */
    tt_dset *dset;
    size_t ndset, dset_cap;
    uint64_t stage_bytes;
    int64_t packed[TT_DTYPES]; /* dataset of each dtype, -1: none yet */
} tt_shard;

/* An item's way into the staging buffer. */
typedef struct tt_copy {
    const tt_cbox *box; /* its place: that of its dataset, then box->within */
    uint64_t bytes;
    uint64_t from; /* first byte in the item's data */
    uint32_t item;
} tt_copy;

typedef struct tt_plan {
    tt_catalog cat; /* files: the shards in order of rank, then the index */
    tt_shard *shard;
    size_t nshard;
    int mine; /* this rank's shard, -1: it writes none */
    tt_copy *copy; /* of this rank */
    size_t ncopy, copy_cap;
} tt_plan;

/* `described` has one description of each rank. ARG names what overlaps, is missing or differs. A
 * replica of twice slice_bytes or more is written in slices. */
tutti_status tt_plan_make(const tt_blobs *described, int rank, uint64_t slice_bytes,
                          tt_plan *plan_out);
void tt_plan_free(tt_plan *plan); /* takes one that is all zero */

#endif
