/* SPDX-License-Identifier: Apache-2.0 */
/* The library's kernels for the simulated GPUs: their bodies, compiled for the host, the sizes of
 * their arguments, and the bytes that a launch reads and writes. */
#include <stdlib.h>

#include "device_code.h"

#include "cuda/kernels_body.h"

#define ARG(type, i) (*(type *)args[i])

static size_t element(int type)
{
    return type == TT_K_F64 ? 8 : type == TT_K_F32 ? 4 : 2;
}

static void cast(void *const *args)
{
    tt_k_cast_body(ARG(tt_k_cast_args, 0));
}

static void cast_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    tt_k_cast_args a = ARG(tt_k_cast_args, 0);
    (void)launch;
    sg_writes(out, a.out, a.n * element(a.out_type));
    sg_reads(out, a.in, a.n * element(a.in_type));
}

static void scale_d(void *const *args)
{
    tt_k_scale_d_body(ARG(double *, 0), ARG(const double *, 1), ARG(size_t, 2), ARG(double, 3));
}

static void scale_d_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    (void)launch;
    sg_writes(out, ARG(double *, 0), ARG(size_t, 2) * sizeof(double));
    sg_reads(out, ARG(const double *, 1), ARG(size_t, 2) * sizeof(double));
}

static void add(void *const *args)
{
    tt_k_add_body(ARG(float *, 0), ARG(const float *, 1), ARG(const float *, 2), ARG(size_t, 3),
                  ARG(int, 4));
}

static void add_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    (void)launch;
    sg_writes(out, ARG(float *, 0), ARG(size_t, 3) * sizeof(float));
    sg_reads(out, ARG(const float *, 1), ARG(size_t, 3) * sizeof(float));
    sg_reads(out, ARG(const float *, 2), ARG(size_t, 3) * sizeof(float));
}

static void add_d(void *const *args)
{
    tt_k_add_d_body(ARG(double *, 0), ARG(const double *, 1), ARG(const double *, 2),
                    ARG(size_t, 3));
}

static void add_d_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    (void)launch;
    sg_writes(out, ARG(double *, 0), ARG(size_t, 3) * sizeof(double));
    sg_reads(out, ARG(const double *, 1), ARG(size_t, 3) * sizeof(double));
    sg_reads(out, ARG(const double *, 2), ARG(size_t, 3) * sizeof(double));
}

static void squares(void *const *args)
{
    static int64_t digits[TT_EXACT_WORDS]; /* one block runs at a time */
    tt_k_squares_body(ARG(int64_t *, 0), ARG(const void *, 1), ARG(int, 2), ARG(size_t, 3), digits);
}

static void squares_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    (void)launch;
    sg_writes(out, ARG(int64_t *, 0), TT_EXACT_WORDS * sizeof(int64_t));
    sg_reads(out, ARG(const void *, 1), ARG(size_t, 3) * element(ARG(int, 2)));
}

static void exact_add(void *const *args)
{
    tt_k_exact_add_body(ARG(int64_t *, 0), ARG(const float *, 1), ARG(size_t, 2));
}

static void exact_add_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    (void)launch;
    sg_writes(out, ARG(int64_t *, 0), ARG(size_t, 2) * TT_EXACT_WORDS * sizeof(int64_t));
    if (ARG(const float *, 1) != NULL)
        sg_reads(out, ARG(const float *, 1), ARG(size_t, 2) * sizeof(float));
}

static void exact_get(void *const *args)
{
    tt_k_exact_get_body(ARG(float *, 0), ARG(const int64_t *, 1), ARG(size_t, 2), ARG(double, 3),
                        ARG(int, 4));
}

static void exact_get_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    (void)launch;
    sg_writes(out, ARG(float *, 0), ARG(size_t, 2) * sizeof(float));
    sg_reads(out, ARG(const int64_t *, 1), ARG(size_t, 2) * TT_EXACT_WORDS * sizeof(int64_t));
}

static void tree(void *const *args)
{
    tt_k_tree_body(ARG(tt_k_tree_args, 0));
}

static void tree_d(void *const *args)
{
    tt_k_tree_d_body(ARG(tt_k_tree_args, 0));
}

static void tree_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    tt_k_tree_args a = ARG(tt_k_tree_args, 0);
    size_t bytes = element(a.type);
    (void)launch;
    sg_writes(out, a.out, a.n * bytes);
    for (int r = 0; r < a.parts; r++)
        sg_reads(out, (const char *)a.part + (size_t)r * a.stride * bytes, a.n * bytes);
}

static void entropy_max(void *const *args)
{
    tt_k_entropy_max_body(ARG(tt_k_entropy_args, 0));
}

static void entropy_max_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    tt_k_entropy_args a = ARG(tt_k_entropy_args, 0);
    (void)launch;
    sg_writes(out, a.max, a.rows * sizeof(float));
    sg_reads(out, a.logits, a.rows * a.count * sizeof(float));
}

static void entropy_sums(void *const *args)
{
    tt_k_entropy_sums_body(ARG(tt_k_entropy_args, 0));
}

static void entropy_sums_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    tt_k_entropy_args a = ARG(tt_k_entropy_args, 0);
    (void)launch;
    sg_writes(out, a.logits, a.rows * a.count * sizeof(float));
    sg_writes(out, a.sums, 3 * a.rows * sizeof(float));
    sg_reads(out, a.max, a.rows * sizeof(float));
    sg_reads(out, a.targets, a.rows * sizeof(int32_t));
}

static void entropy_end(void *const *args)
{
    tt_k_entropy_end_body(ARG(tt_k_entropy_args, 0));
}

static void entropy_end_ranges(void *const *args, const sg_launch *launch, sg_ranges *out)
{
    tt_k_entropy_args a = ARG(tt_k_entropy_args, 0);
    (void)launch;
    sg_writes(out, a.logits, a.rows * a.count * sizeof(float));
    sg_writes(out, a.loss, a.rows * sizeof(float));
    sg_reads(out, a.sums, 3 * a.rows * sizeof(float));
}

enum { P = sizeof(void *), Z = sizeof(size_t), I = sizeof(int), D = sizeof(double) };
static const size_t cast_sizes[] = {sizeof(tt_k_cast_args)}, scale_sizes[] = {P, P, Z, D},
                    add_sizes[] = {P, P, P, Z, I}, squares_sizes[] = {P, P, I, Z},
                    exact_add_sizes[] = {P, P, Z}, exact_get_sizes[] = {P, P, Z, D, I},
                    tree_sizes[] = {sizeof(tt_k_tree_args)},
                    entropy_sizes[] = {sizeof(tt_k_entropy_args)};

static const sg_kernel table[] = {
    {"tt_k_cast", 1, cast_sizes, cast, cast_ranges, 0},
    {"tt_k_scale_d", 4, scale_sizes, scale_d, scale_d_ranges, 0},
    {"tt_k_add", 5, add_sizes, add, add_ranges, 0},
    {"tt_k_add_d", 4, add_sizes, add_d, add_d_ranges, 0},
    {"tt_k_squares", 4, squares_sizes, squares, squares_ranges, SG_KERNEL_SYNCS},
    {"tt_k_exact_add", 3, exact_add_sizes, exact_add, exact_add_ranges, 0},
    {"tt_k_exact_get", 5, exact_get_sizes, exact_get, exact_get_ranges, 0},
    {"tt_k_tree", 1, tree_sizes, tree, tree_ranges, 0},
    {"tt_k_tree_d", 1, tree_sizes, tree_d, tree_ranges, 0},
    {"tt_k_entropy_max", 1, entropy_sizes, entropy_max, entropy_max_ranges, SG_KERNEL_SYNCS},
    {"tt_k_entropy_sums", 1, entropy_sizes, entropy_sums, entropy_sums_ranges, SG_KERNEL_SYNCS},
    {"tt_k_entropy_end", 1, entropy_sizes, entropy_end, entropy_end_ranges, 0},
};

__attribute__((constructor)) static void list_kernels(void)
{
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        sg_kernel_register(&table[i]);
}
