/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two hooks for tutti_reducer_hook, which reduce gradients in the library's place. Each keeps
 * something for every part of every bucket; make one with _create, give it as `arg`.
 */
#ifndef HOOKS_H
#define HOOKS_H

#include <stdint.h>

#include <tutti/tutti.h>

enum { PARTS_MAX = 256 };

/* Gradients travel as bfloat16: half the bytes. */
typedef struct bfloat bfloat;
bfloat *bfloat_create(tutti_ctx *ctx);
void bfloat_destroy(bfloat *b);
tutti_status bfloat_hook(void *arg, const tutti_bucket *bucket);

/* PowerSGD (Vogels, Karimireddy, Jaggi 2019, algorithms 1 and 2): a part is seen as a square
 * matrix, of which a product of two thin ones travels; what that leaves out is added to the next
 * step's gradient. */
typedef struct power_sgd power_sgd;
power_sgd *power_sgd_create(tutti_ctx *ctx, int rank);
void power_sgd_destroy(power_sgd *p);
tutti_status power_sgd_hook(void *arg, const tutti_bucket *bucket);

/* Bytes given to collectives so far. */
uint64_t bfloat_bytes(const bfloat *b);
uint64_t power_sgd_bytes(const power_sgd *p);

#endif
