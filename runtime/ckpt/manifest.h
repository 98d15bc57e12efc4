/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The manifest: the truth about a checkpoint. JSON whose first member is the XXH3-128 of every byte
 * behind it, so that damage is found before anything is parsed.
 */
#ifndef TT_CKPT_MANIFEST_H
#define TT_CKPT_MANIFEST_H

#include "ckpt/catalog.h"
#include "core/mem.h"

enum { TT_MESH_MAX = 100 };

#define TT_MANIFEST_MAX_BYTES ((size_t)256 << 20)

typedef struct tt_manifest {
    int64_t step;
    int world; /* ranks that wrote it */
    uint64_t block_bytes; /* covered by one checksum */
    int64_t time; /* seconds since 1970 */
    char save_id[256];
    char mesh[TT_MESH_MAX + 1]; /* how the ranks divided the model, "" unknown */
    bool in_parts; /* saved node-local: every file but the index is of a part */
    tt_catalog cat;
} tt_manifest;

/* Owned by the caller, appended to out. */
tutti_status tt_manifest_write(const tt_manifest *m, tt_buf *out);
/* Its list of tensors, which is most of the text and the same in every save of one plan; and the
 * manifest with a list that is at hand. */
tutti_status tt_manifest_tensors(const tt_manifest *m, tt_buf *out);
tutti_status tt_manifest_write_with(const tt_manifest *m, const tt_buf *tensors, tt_buf *out);

/* Trusts nothing: CORRUPT says what is wrong. step < 0: any. */
tutti_status tt_manifest_read(const void *text, size_t bytes, int64_t step, tt_manifest *m_out);
void tt_manifest_free(tt_manifest *m); /* takes one that is all zero */

bool tt_mesh_ok(const char *mesh); /* short and printable */
tutti_dtype tt_dtype_by_name(const char *name); /* 0: none */
void tt_hash_text(tt_hash128 hash, char text[33]);
bool tt_hash_parse(const char *text, tt_hash128 *hash_out); /* 32 lower-case hex digits */

#endif
