/* SPDX-License-Identifier: Apache-2.0 */
/* `tutti bench ckpt`: its options, and the raw disk that it is held against. */
#ifndef BENCH_CKPT_H
#define BENCH_CKPT_H

#include "bench.h"

enum { CKPT_PATH_MAX = 512 };

typedef struct ckpt_bench {
    bench_job job;
    const char *dir;
    size_t bytes; /* of this rank */
    int mib, tensors, rounds, ranks;
    bool save, load, stall, copies, alone, json;
    bool made; /* dir */
    char *data, *copy;
} ckpt_bench;

/* All collective: of as many files as there are ranks. *seconds_out is the slowest rank's. */
tutti_status ckpt_raw_save(ckpt_bench *b, bool direct, double *seconds_out);
tutti_status ckpt_raw_make(ckpt_bench *b); /* the files that are read */
tutti_status ckpt_raw_load(ckpt_bench *b, bool cold, double *seconds_out);

/* Of this rank alone. */
tutti_status ckpt_remove(const char *path); /* a folder with all that is in it */
void ckpt_drop_cache(const char *path); /* no such file is nothing to drop */
/* The path's last part and all in front of it, in a buffer of CKPT_PATH_MAX. */
void ckpt_path(const ckpt_bench *b, char *path, const char *fmt, ...) TT_PRINTF(3, 4);

/* From now on, when all ranks are here; what it took on the slowest when all have come. */
tutti_status ckpt_clock_start(ckpt_bench *b, int64_t *from_out);
tutti_status ckpt_clock_stop(ckpt_bench *b, int64_t from, tutti_status mine, double *seconds_out);

int bench_ckpt(int argc, char **argv);

#endif
