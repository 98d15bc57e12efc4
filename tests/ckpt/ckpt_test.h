/* SPDX-License-Identifier: Apache-2.0 */
/* What the checkpoint tests share: scratch directories, patterns of bytes, small checkpoints. */
#ifndef CKPT_TEST_H
#define CKPT_TEST_H

#include "tt_test.h"

enum { PATH_CAP = 512 };

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { TT_SANITIZED = 1 };
#else
enum { TT_SANITIZED = 0 };
#endif

/* In $TMPDIR; else in memory where there is room, for most tests would wait for the disk and learn
 * nothing from it. */
void scratch_make(char path[PATH_CAP]);
void scratch_make_on_disk(char path[PATH_CAP]); /* in $TMPDIR or /tmp, unless sanitized */
void scratch_make_shared(char path[PATH_CAP]); /* in $TMPDIR or /tmp, which all nodes see */
void scratch_remove(const char *path); /* with all that is in it */
int count_entries(const char *path,
                  const char *prefix); /* names that begin with it; "" all but the lock */
/* Reads or replaces a whole file; the caller frees. */
unsigned char *file_get(const char *path, size_t *bytes_out);
void file_put(const char *path, const void *data, size_t bytes);

/* Byte i of element-addressed content that depends on seed: the same wherever a box of it lies. */
unsigned char pattern(uint64_t seed, uint64_t byte);
/* Fills a dense box of a tensor with the pattern of its bytes in the whole, or compares. */
void box_fill(const tutti_tensor *t, uint64_t seed);
bool box_check(const tutti_tensor *t, uint64_t seed);
size_t box_bytes(const tutti_tensor *t);
/* The same for a box whose data lies where the backend has it (support/tt_memory.h): t->data is
 * made, and filled unless fill is false. */
tutti_status box_make(tt_rank *r, tutti_tensor *t, bool fill, uint64_t seed);
bool box_same(tt_rank *r, const tutti_tensor *t, uint64_t seed);
void box_free(tt_rank *r, tutti_tensor *t);

tutti_tensor tensor_1d(const char *name, tutti_dtype dtype, int64_t n, int64_t offset,
                       int64_t extent, void *data);

/* Saves or checks one checkpoint of two tensors ("w" split over the ranks, "v" a replica), the
 * bytes "state" (same) and "rng" (per rank); content depends on the step. Collective. */
tutti_status small_save(tt_rank *r, const char *dir, int64_t step,
                        const tutti_ckpt_save_opts *opts);
tutti_status small_save_with(tt_rank *r, const char *dir, int64_t step,
                             const tutti_ckpt_begin_opts *begin, const tutti_ckpt_save_opts *opts);
tutti_status small_check(tt_rank *r, tutti_ckpt_reader *rd, int64_t step); /* CORRUPT: differs */
/* The same of whatever step was opened, *step_out; closes the reader. */
tutti_status small_check_opened(tt_rank *r, tutti_ckpt_reader *rd, int64_t *step_out);

/* A job of n ranks that saves `step` and waits; "" or what failed. */
const char *small_job_save(int n, const char *dir, int64_t step);
/* Opens `step` (-1: newest) with n ranks and checks the content; *step_out the one it got. Every
 * rank must have the same status: that is *status_out. */
const char *small_job_load(int n, const char *dir, int64_t step, tutti_status *status_out,
                           int64_t *step_out, char text_out[1024]);

#endif
