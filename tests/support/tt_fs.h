/* SPDX-License-Identifier: Apache-2.0 */
/*
 * File operations below one folder, counted; at one of them something happens: an error, a short
 * write, a call (which may end the process). Or all are recorded, for tt_crash.h. A program that
 * links this has its open, write, fsync, rename and so on replaced.
 */
#ifndef TT_FS_H
#define TT_FS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TT_FS_WRITE = 1, /* write, pwrite */
    TT_FS_SYNC = 2, /* fsync, fdatasync */
    TT_FS_NAME = 4, /* open that makes a file, rename, link, unlink, mkdir */
    TT_FS_SPACE = 8, /* fallocate, ftruncate */
    TT_FS_READ = 16, /* pread */
    TT_FS_OPEN = 32 /* open of what is there */
};

typedef struct tt_fs_plan {
    const char *root;
    unsigned kinds; /* that count */
    uint64_t at; /* the event at which it happens, from 1; 0: never */
    int error; /* it fails so; 0: not */
    bool cut; /* a write writes less than it should */
    bool stays; /* every event from then on fails too */
    void (*call)(void); /* before the operation */
    bool record;
} tt_fs_plan;
void tt_fs_begin(const tt_fs_plan *plan);
uint64_t tt_fs_end(void); /* how many events there were */
const char *tt_fs_hit(void); /* what it happened to: "fsync of shard-00000.h5"; "" nothing */

typedef enum tt_fs_op_kind {
    TT_FS_OP_CREATE, /* name in dir is now the file */
    TT_FS_OP_MKDIR,
    TT_FS_OP_WRITE,
    TT_FS_OP_SIZE, /* ftruncate */
    TT_FS_OP_SYNC, /* of a file or a directory */
    TT_FS_OP_RENAME, /* name of dir becomes to of to_dir */
    TT_FS_OP_EXCHANGE,
    TT_FS_OP_REMOVE, /* name of dir */
    TT_FS_OP_NOTE /* the test's own: at */
} tt_fs_op_kind;
typedef struct tt_fs_op {
    tt_fs_op_kind kind;
    int file, dir, to_dir; /* numbers of inodes; the root is 0 */
    char *name, *to;
    int64_t at;
    size_t bytes;
    unsigned char *data;
} tt_fs_op;
void tt_fs_note(int64_t value); /* into the record */
const tt_fs_op *tt_fs_record(size_t *n_out); /* kept until the next recording begins */

#endif
