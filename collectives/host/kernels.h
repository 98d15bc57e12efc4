/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduction on host memory. The order of the sums is a tree that the caller gives; the result
 * depends on the tree and the operands alone: it is bitwise the same however the elements are cut
 * into calls and whatever instruction set is used. NaN results have one bit pattern.
 */
#ifndef TT_HOST_KERNELS_H
#define TT_HOST_KERNELS_H

#include "core/status.h"

/* A binary tree over operands. leaf >= 0: that operand; else left and right are nodes. */
typedef struct tt_tree_node {
    int left, right, leaf;
} tt_tree_node;
typedef struct tt_tree {
    int root, nodes;
    tt_tree_node *node;
} tt_tree;

/* Operands on the left of a balanced tree over n >= 2: the largest power of two below n. */
int tt_tree_left(int n);
/* The balanced tree over the operands first_leaf ... first_leaf + n - 1, n >= 1. */
tutti_status tt_tree_balanced(int first_leaf, int n, tt_tree *out);
/* The balanced tree whose n leaves are the trees part[0 ... n-1] (copied). */
tutti_status tt_tree_over(const tt_tree *part, int n, tt_tree *out);
void tt_tree_free(tt_tree *tree); /* takes one that is all zero */

/* partial: the values are fp32 and stand for a 16-bit dtype (ignored for other dtypes). */
typedef struct tt_operand {
    const void *data;
    bool partial;
} tt_operand;

/*
 * out[i] = the operands' i-th elements, combined along the tree, i < n. 16-bit types are combined
 * in fp32 and rounded to nearest even once, into out, or not at all when out_partial is set.
 * divisor > 1 is applied once at the end: a multiplication by 1/divisor, for integers a division
 * that truncates toward zero. AVG combines as SUM does. Pointers may have any alignment. out may be
 * exactly one of the operands (the same element size); else it does not overlap them. So may out2,
 * which gets the same result if it is not NULL (a call of few kilobytes: see sum.c).
 */
typedef struct tt_reduce_job {
    const tt_tree *tree;
    const tt_operand *in;
    size_t n;
    tutti_dtype dtype;
    tutti_op op;
    void *out, *out2;
    bool out_partial;
    int divisor;
} tt_reduce_job;
void tt_reduce(const tt_reduce_job *job);

/* Takes the instruction set that TUTTI_SIMD names, for the process. */
tutti_status tt_kernels_choose(void);

/* The bytes that an element takes as an operand or a result. */
static inline size_t tt_operand_size(tutti_dtype dtype, bool partial)
{
    size_t size = tutti_dtype_size(dtype);
    return partial && size == 2 ? sizeof(float) : size;
}

/* The same with the results written past the cache (see below); false, and nothing was done, if
 * there is no such loop for the job or its results are not aligned to a line. */
bool tt_reduce_past_cache(const tt_reduce_job *job);

/* Copies to memory that is not read soon: around the cache, where the CPU can. The end comes before
 * others are told of the data. */
void tt_copy_past_cache(void *to, const void *from, size_t bytes);
void tt_copy_past_cache_end(void);

/* Doubles on the host (tutti_all_reduce_host), in the order of the same tree. */
void tt_fold_host_doubles(const tt_tree *tree, const tt_operand *in, size_t n, tutti_op op,
                          int divisor, double *out);

#endif
