/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What reads checkpoints and other programs' model files, on any bytes. A checkpoint is an archive
 * here: knobs, then its manifest and its files.
 */
#ifndef TT_FUZZ_CKPT_H
#define TT_FUZZ_CKPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TT_FUZZ_MANIFEST, /* its text behind a right checksum */
    TT_FUZZ_FOLDER, /* a load of a step's folder, export and merge */
    TT_FUZZ_VERIFY, /* `tutti ckpt verify`: HDF5 in a child */
    TT_FUZZ_NODES, /* two nodes' folders, opened by both */
    TT_FUZZ_SAFETENSORS,
    TT_FUZZ_LLMC,
    TT_FUZZ_CKPT_READERS
};

enum { TT_FUZZ_CKPT_BYTES = 1 << 16 };

/* 1: it was taken. Aborts where an answer is wrong. */
int tt_fuzz_ckpt_one(int reader, const uint8_t *data, size_t bytes);

/* Seed i of the reader, which the caller frees; 0: there is none of that number. */
size_t tt_fuzz_ckpt_seed(int reader, int i, uint8_t **data_out);

/* Changes one part of the input by `change` and keeps its frame: lengths that name other lengths.
 */
typedef size_t (*tt_fuzz_change)(uint8_t *data, size_t bytes, size_t cap);
size_t tt_fuzz_ckpt_mutate(int reader, uint8_t *data, size_t bytes, size_t cap, unsigned seed,
                           tt_fuzz_change change);

/* An archive: KNOBS bytes, the parts' lengths (4 bytes each), the parts. */
enum {
    TT_ARC_MANIFEST, /* without its hash */
    TT_ARC_SHARD_0,
    TT_ARC_SHARD_1,
    TT_ARC_INDEX,
    TT_ARC_PARTS,
    TT_ARC_KNOBS = 8
};
typedef struct tt_arc {
    uint8_t knob[TT_ARC_KNOBS];
    const uint8_t *data[TT_ARC_PARTS];
    size_t bytes[TT_ARC_PARTS];
} tt_arc;
/* knob[0] */
enum {
    TT_ARC_FIX_HASHES = 1, /* the manifest's list of checksums is made right for the files */
    TT_ARC_FIX_SIZES = 2, /* and its sizes */
    TT_ARC_FIX_H5 = 4, /* HDF5's own checksums in the files are made right */
    TT_ARC_ONE_SHARD = 8, /* there is no second shard */
    TT_ARC_NO_INDEX = 16,
    TT_ARC_EXPORT = 32, /* a load goes on with export and merge */
};
bool tt_arc_read(const uint8_t *data, size_t bytes, tt_arc *arc_out); /* its parts are in data */
size_t tt_arc_write(const tt_arc *arc, uint8_t *data, size_t cap); /* 0: it does not fit */

/* Where its files are made: a folder in memory, one for the process. */
const char *tt_fuzz_root(void);
/* Makes the archive's files in root/NAME, which is emptied first: what was written stays readable
 * in *made_out until the next call. `which`: bits of the parts that are made. */
bool tt_arc_make(const tt_arc *arc, const char *name, unsigned which, tt_arc *made_out);

/* The seeds' checkpoints, saved by the library: 0 of one rank, 1 of two, 2 of two nodes. */
void tt_fuzz_save(int kind, const char *folder);

#endif
