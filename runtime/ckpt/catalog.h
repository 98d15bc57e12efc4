/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checkpoint holds: named tensors, each a set of boxes, each box at a place in a file. The
 * saver fills one from the plan of a save, the loader from a manifest.
 */
#ifndef TT_CKPT_CATALOG_H
#define TT_CKPT_CATALOG_H

#include "core/hash.h"
#include "core/status.h"
#include "tutti/ckpt.h"

enum {
    TT_CKPT_VERSION = 1, /* of the format on disk */
    TT_CKPT_NAME_MAX = 200, /* bytes of a name that a program gives */
    TT_CKPT_FULL_NAME_MAX = 224, /* with "rank/N/" in front */
    TT_CKPT_FILE_NAME_MAX = 32,
    TT_CKPT_BOX_TEXT = 400
};

/* Memory that is given back all at once. */
typedef struct tt_arena_chunk tt_arena_chunk;
typedef struct tt_arena {
    tt_arena_chunk *chunk;
    size_t used, cap; /* of the newest chunk */
} tt_arena;
tutti_status tt_arena_alloc(tt_arena *arena, size_t bytes, void *ptr_out); /* 8-byte aligned */
tutti_status tt_arena_text(tt_arena *arena, const char *text, size_t bytes, const char **copy_out);
void tt_arena_free(tt_arena *arena);

typedef struct tt_cbox {
    const int64_t *dim; /* offset[ndim], then extent[ndim] */
    uint64_t at; /* first byte in the file */
    uint64_t within; /* first byte in the shard's dataset (saving) */
    uint32_t file; /* index of the file */
    uint32_t dset; /* index of the dataset in the shard (saving) */
} tt_cbox;

typedef struct tt_ctensor {
    const char *name; /* a value kept per rank is called "rank/N/name" here */
    const int64_t *shape;
    tt_cbox *box; /* sorted by offset; none is empty */
    size_t nbox;
    uint64_t elems;
    tutti_dtype dtype;
    int ndim;
    bool bytes; /* a value of tutti_ckpt_add_bytes */
} tt_ctensor;

typedef struct tt_cfile {
    char name[TT_CKPT_FILE_NAME_MAX];
    uint32_t part; /* of a checkpoint whose parts lie on the nodes' own disks */
    uint64_t bytes;
    size_t blocks;
    tt_hash128 *hash; /* of every block */
} tt_cfile;

typedef struct tt_catalog {
    tt_arena arena; /* names and dims */
    tt_ctensor *tensor; /* sorted by name, names distinct */
    size_t ntensor, tensor_cap;
    tt_cbox *box; /* of all tensors */
    size_t nbox, box_cap;
    tt_cfile *file;
    size_t nfile;
} tt_catalog;
void tt_catalog_free(tt_catalog *cat);
const tt_ctensor *tt_catalog_find(const tt_catalog *cat, const char *name);

/* Names: [A-Za-z0-9._/-], no empty, "." or ".." part. */
bool tt_name_ok(const char *name, size_t max);
/* The name of a tensor that is also a part of another's path ("a" beside "a/b"), or NULL. */
const char *tt_catalog_name_clash(const tt_catalog *cat, const char **longer_out);
enum { TT_DTYPES = TUTTI_FLOAT8_E5M2 + 1 }; /* 1 ... TT_DTYPES - 1 */
bool tt_dtype_ok(tutti_dtype dtype);
bool tt_dtype_is_f8(tutti_dtype dtype);
bool tt_dtype_is_float(tutti_dtype dtype);

/* Boxes. Dimensions are checked: 0 <= offset, 0 <= extent, offset + extent <= shape. */
bool tt_dims_elems(const int64_t *dim, int ndim, uint64_t *elems_out); /* false: overflow */
bool tt_box_inside(const int64_t *dim, const int64_t *shape, int ndim);
bool tt_box_intersect(const int64_t *a, const int64_t *b, int ndim, int64_t *dim_out);
int tt_box_compare(const int64_t *a, const int64_t *b, int ndim);
const char *tt_box_text(const int64_t *dim, int ndim, char *buf, size_t cap); /* "[0:4, 8:16]" */
const char *tt_shape_text(const int64_t *shape, int ndim, char *buf, size_t cap); /* "[4, 16]" */

/* Whether the tensor's sorted boxes hold every element exactly once. */
typedef enum tt_cover { TT_COVER_EXACT, TT_COVER_OVERLAP, TT_COVER_HOLE } tt_cover;
typedef struct tt_cover_fault {
    size_t a, b; /* the boxes that overlap */
    int64_t hole[TUTTI_CKPT_MAX_DIMS]; /* the first element that is in no box */
} tt_cover_fault;
/* fault_out NULL: what is wrong is not searched for, and called a hole; then it takes time linear
 * in the boxes. */
tt_cover tt_boxes_cover(const tt_ctensor *tensor, tt_cover_fault *fault_out);

#endif
