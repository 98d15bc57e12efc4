/* SPDX-License-Identifier: Apache-2.0 */
/* The cases' kernels for the simulated GPUs: bodies, sizes of arguments, ranges. */
#include "kernels_body.h"

#define ARG(type, i) (*(type *)args[i])

static void scale(void *const *args)
{
    scale_body(ARG(float *, 0), ARG(float, 1), ARG(size_t, 2));
}

static void scale_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    (void)launch;
    sg_writes(out, ARG(float *, 0), ARG(size_t, 2) * sizeof(float));
}

static void sum(void *const *args)
{
    sum_body(ARG(float *, 0), ARG(const float *, 1), ARG(size_t, 2));
}

static void sum_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    (void)launch;
    sg_writes(out, ARG(float *, 0), sizeof(float));
    sg_reads(out, ARG(const float *, 1), ARG(size_t, 2) * sizeof(float));
}

static void poke(void *const *args)
{
    poke_body(ARG(float *, 0), ARG(size_t, 1));
}

static void diverge(void *const *args)
{
    diverge_body(ARG(float *, 0));
}

static void first_element(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    (void)launch;
    sg_writes(out, ARG(float *, 0), sizeof(float));
}

static const size_t scale_sizes[] = {sizeof(float *), sizeof(float), sizeof(size_t)};
static const size_t sum_sizes[] = {sizeof(float *), sizeof(float *), sizeof(size_t)};
static const size_t poke_sizes[] = {sizeof(float *), sizeof(size_t)};

static const sg_kernel table[] = {
    {"scale", 3, scale_sizes, scale, scale_ranges, 0},
    {"sum", 3, sum_sizes, sum, sum_ranges, SG_KERNEL_SYNCS},
    {"poke", 2, poke_sizes, poke, first_element, 0},
    {"diverge", 1, poke_sizes, diverge, first_element, SG_KERNEL_SYNCS},
};

__attribute__((constructor)) static void add(void)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        sg_kernel_register(&table[i]);
    }
}
