/* SPDX-License-Identifier: Apache-2.0 */
/* A committed checkpoint, open for reading by the manifest and pread. Nothing here knows HDF5. */
#ifndef TT_CKPT_LOADER_H
#define TT_CKPT_LOADER_H

#include "ckpt/dir.h"
#include "ckpt/manifest.h"

typedef struct tt_source {
    int dir; /* of the step */
    char name[TT_STEP_NAME_MAX];
    tt_manifest m;
    bool *absent; /* files of parts that are not in this directory; NULL: all are here */
    int spool; /* holds blocks of those, fetched from where they are; -1: nothing is fetched */
    uint64_t *spool_at; /* place of each file in it */
} tt_source;

/* Opens the step's directory in dir. `text` empty: reads the manifest into it, and compares the
 * sizes of all files with it; else takes the manifest from there. */
tutti_status tt_source_open(int dir, int64_t step, tt_buf *text, tt_source *src_out);
void tt_source_close(tt_source *src); /* takes one that is not open: all zero */
/* The directory `name` in dir, which is the step's or held an older version of it. */
tutti_status tt_source_open_as(int dir, const char *name, int64_t step, tt_buf *text,
                               tt_source *src_out);

/* Whether file i is in another part, on another node. */
static inline bool tt_source_absent(const tt_source *src, size_t i)
{
    return src->absent != NULL && src->absent[i];
}

/* Bytes of the files that are here, and how many are not. */
uint64_t tt_source_bytes(const tt_source *src, size_t *absent_out);

/* A checkpoint saved node-local whose files `absent` are nowhere to be found: CORRUPT, which names
 * the parts and the tensors. */
tutti_status tt_source_lacks(const tt_source *src, const bool *absent);

/* Compares the checksums of share `part` of `parts` of all blocks that are here (also called by
 * programs that report their progress: many parts, one after the other). */
tutti_status tt_source_verify(const tt_source *src, int part, int parts);

bool tt_step_looks_whole(int dir, int64_t step); /* manifest and sizes, not the data */

/* A box wanted of a tensor, dense at `to`. */
typedef struct tt_want {
    const tt_ctensor *tensor;
    const int64_t *dim; /* offset, then extent: inside the tensor's shape */
    void *to;
} tt_want;

/* Reads the boxes; every block that is touched is verified before anything of it is handed out. */
tutti_status tt_source_read(const tt_source *src, const tt_want *want, size_t n);

/*
 * Hands out the tensors `list` in that order, each in dense pieces of rising place, with at most
 * about `limit` bytes in memory: small tensors many at a time, large ones slab by slab. Every byte
 * is verified. An empty tensor comes once, with 0 bytes.
 */
typedef struct tt_piece {
    const tt_ctensor *tensor;
    uint64_t at, bytes; /* in the dense tensor */
    const void *data;
} tt_piece;
typedef tutti_status (*tt_scan_fn)(void *arg, const tt_piece *piece);
tutti_status tt_source_scan(const tt_source *src, const tt_ctensor *const *list, size_t n,
                            uint64_t limit, tt_scan_fn fn, void *arg);
uint64_t tt_tensor_bytes(const tt_ctensor *tensor);

#endif
