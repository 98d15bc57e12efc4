/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduction along a tree.
 *
 * The elements are taken in blocks that fit the first-level cache, and for each block the tree is
 * walked: an inner node's value is made in a scratch block, a leaf's is the operand itself (widened
 * to fp32 if it has 16 bits), and the root writes to `out`. Only the root's loop reads the divisor
 * and touches `out`, so that `out` may be an operand. Every operand is read once and the result
 * written once, whatever the tree. Two operands need no scratch and no blocks.
 *
 * The left child's value goes to the scratch block of its parent, the right child's to the next
 * one: a path uses as many blocks as it has right turns, at most about log2 of the operands.
 *
 * The instruction set is chosen by what the CPU can do, or by TUTTI_SIMD. Function multiversioning
 * by the compiler (target_clones) was rejected: its resolvers run before the sanitizers are ready,
 * musl has none, and a test could not ask for a given version.
 */
#include "host/kernels.h"

#include <stdatomic.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <emmintrin.h>
#endif

#include "core/env.h"
#include "core/mem.h"
#include "host/kernels_loops.h"

enum { BLOCK_BYTES = 4096, LEVELS = 40 };

typedef struct walk {
    const tt_reduce_job *job;
    const tt_loops *loops;
    tt_acc acc;
    tt_half half;
    tt_fn fn;
    size_t in_size, acc_size, out_size; /* of an operand that is not partial, ... */
    size_t at, n; /* the block */
    unsigned char (*scratch)[BLOCK_BYTES]; /* LEVELS of them */
} walk;

extern const tt_loops tt_loops_plain, tt_loops_avx2, tt_loops_avx512;

#if defined(__x86_64__)
/* Older compilers do not know this name in __builtin_cpu_supports. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;

    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

const tt_loops *const *tt_loops_here(size_t *n_out)
{
    static const tt_loops *const all[] = {
        &tt_loops_plain,
#if defined(__x86_64__)
        &tt_loops_avx2,
        &tt_loops_avx512,
#endif
    };
    *n_out = 1;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && has_f16c())
        *n_out = 2;
    if (*n_out == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        *n_out = 3;
#endif
    return all;
}

static _Atomic(const tt_loops *) chosen; /* of the process */

tutti_status tt_kernels_choose(void)
{
    const char *name;
    size_t n;
    const tt_loops *const *here = tt_loops_here(&n);
    const tt_loops *loops = here[n - 1];

    TT_TRY(tt_env_get_string(TT_ENV_SIMD, &name));
    for (size_t i = 0; i < n; i++)
        if (strcmp(here[i]->name, name) == 0)
            loops = here[i];
    atomic_store_explicit(&chosen, loops, memory_order_relaxed);
    return TUTTI_OK;
}

static const tt_loops *best_loops(void)
{
    const tt_loops *loops = atomic_load_explicit(&chosen, memory_order_relaxed);

    if (loops == NULL) { /* the same whoever finds it */
        size_t n;
        const tt_loops *const *here = tt_loops_here(&n);
        loops = here[n - 1];
        atomic_store_explicit(&chosen, loops, memory_order_relaxed);
    }
    return loops;
}

static const tt_tree_node *node_of(const walk *w, int node)
{
    return &w->job->tree->node[node];
}

static bool is_half(const walk *w, int node)
{
    int leaf = node_of(w, node)->leaf;

    return leaf >= 0 && w->half != TT_HALF_NONE && !w->job->in[leaf].partial;
}

static const void *operand(const walk *w, int leaf)
{
    const tt_operand *in = &w->job->in[leaf];

    return (const char *)in->data + w->at * (in->partial ? w->acc_size : w->in_size);
}

/* The value of a node in accumulators: an operand, or made in scratch block `level`. */
static const void *value_of(const walk *w, int node, int level)
{
    const tt_tree_node *nd = node_of(w, node);
    tt_loop_args x = {.out = w->scratch[level], .n = w->n, .divisor = 1};

    TT_ASSERT(level < LEVELS - 1, "a summation tree is too deep");
    if (nd->leaf >= 0 && !is_half(w, node))
        return operand(w, nd->leaf);
    if (nd->leaf >= 0) {
        x.a = operand(w, nd->leaf);
        w->loops->half[w->half].widen(&x);
    } else if (w->fn == TT_FN_SUM && is_half(w, nd->left) && is_half(w, nd->right)) {
        x.a = operand(w, node_of(w, nd->left)->leaf);
        x.b = operand(w, node_of(w, nd->right)->leaf);
        w->loops->half[w->half].sum_inner(&x);
    } else {
        x.a = value_of(w, nd->left, level);
        x.b = value_of(w, nd->right, level + 1);
        w->loops->inner[w->acc][w->fn](&x);
    }
    return x.out;
}

/* One operand: nothing is combined, so bits are kept unless they must change. */
static void single(const walk *w, tt_loop_args *x)
{
    bool from_half = is_half(w, w->job->tree->root);
    bool to_half = w->half != TT_HALF_NONE && !w->job->out_partial;

    if (from_half == to_half && x->divisor <= 1) {
        x->a = operand(w, node_of(w, w->job->tree->root)->leaf);
        if (x->a != x->out)
            memcpy(x->out, x->a, x->n * w->out_size);
        return;
    }
    x->a = value_of(w, w->job->tree->root, 0);
    if (to_half)
        w->loops->half[w->half].narrow(x);
    else
        w->loops->divide[w->acc](x);
}

static void root_to_half(const walk *w, const tt_tree_node *root, tt_loop_args *x)
{
    const tt_half_loops *half = &w->loops->half[w->half];
    tt_loop_args wide = {.out = w->scratch[0], .n = x->n, .divisor = 1};

    if (w->fn == TT_FN_SUM && is_half(w, root->left) && is_half(w, root->right)) {
        x->a = operand(w, node_of(w, root->left)->leaf);
        x->b = operand(w, node_of(w, root->right)->leaf);
        half->sum_last(x);
        return;
    }
    wide.a = value_of(w, root->left, 0);
    wide.b = value_of(w, root->right, 1);
    if (w->fn == TT_FN_SUM) {
        x->a = wide.a;
        x->b = wide.b;
        half->sum_wide_last(x);
    } else {
        w->loops->inner[w->acc][w->fn](&wide);
        x->a = wide.out;
        half->narrow(x);
    }
}

static void reduce_block(const walk *w)
{
    const tt_tree_node *root = node_of(w, w->job->tree->root);
    tt_loop_args x = {
        .out = (char *)w->job->out + w->at * w->out_size, .n = w->n, .divisor = w->job->divisor};

    if (root->leaf >= 0) {
        single(w, &x);
    } else if (w->half != TT_HALF_NONE && !w->job->out_partial) {
        root_to_half(w, root, &x);
    } else {
        x.a = value_of(w, root->left, 0);
        x.b = value_of(w, root->right, 1);
        w->loops->last[w->acc][w->fn](&x);
    }
}

/* Whether the root reads nothing but operands as they are. */
static bool needs_no_scratch(const walk *w)
{
    const tt_tree_node *root = node_of(w, w->job->tree->root);
    bool to_half = w->half != TT_HALF_NONE && !w->job->out_partial;

    if (root->leaf >= 0 || node_of(w, root->left)->leaf < 0 || node_of(w, root->right)->leaf < 0)
        return false;
    if (to_half && w->fn != TT_FN_SUM)
        return false;
    return is_half(w, root->left) == is_half(w, root->right) && is_half(w, root->left) == to_half;
}

static tt_acc acc_of(tutti_dtype dtype)
{
    static const tt_acc acc[] = {
        [TUTTI_FLOAT32] = TT_ACC_F32, [TUTTI_BFLOAT16] = TT_ACC_F32, [TUTTI_UINT8] = TT_ACC_U8,
        [TUTTI_INT64] = TT_ACC_I64,   [TUTTI_FLOAT64] = TT_ACC_F64,  [TUTTI_FLOAT16] = TT_ACC_F32,
        [TUTTI_INT8] = TT_ACC_I8,     [TUTTI_INT32] = TT_ACC_I32,    [TUTTI_UINT32] = TT_ACC_U32,
        [TUTTI_UINT64] = TT_ACC_U64};

    return acc[dtype];
}

static tt_half half_of(tutti_dtype dtype)
{
    if (dtype == TUTTI_BFLOAT16)
        return TT_HALF_BF16;
    return dtype == TUTTI_FLOAT16 ? TT_HALF_F16 : TT_HALF_NONE;
}

static tt_fn fn_of(tutti_op op)
{
    static const tt_fn fn[] = {[TUTTI_SUM] = TT_FN_SUM,
                               [TUTTI_AVG] = TT_FN_SUM,
                               [TUTTI_MAX] = TT_FN_MAX,
                               [TUTTI_MIN] = TT_FN_MIN,
                               [TUTTI_PROD] = TT_FN_PROD};

    return fn[op];
}

void tt_reduce_with(const tt_loops *loops, const tt_reduce_job *job)
{
    unsigned char scratch[LEVELS][BLOCK_BYTES] __attribute__((aligned(64)));
    walk w = {.job = job,
              .loops = loops,
              .acc = acc_of(job->dtype),
              .half = half_of(job->dtype),
              .fn = fn_of(job->op),
              .in_size = tutti_dtype_size(job->dtype),
              .acc_size = tt_operand_size(job->dtype, true),
              .out_size = tt_operand_size(job->dtype, job->out_partial),
              .scratch = scratch};
    size_t block = needs_no_scratch(&w) ? job->n : BLOCK_BYTES / w.acc_size;

    for (w.at = 0; w.at < job->n; w.at += w.n) {
        w.n = tt_min_size(block, job->n - w.at);
        reduce_block(&w);
    }
}

/* Two operands and one loop: nothing to plan, which shows when there are few elements. */
static bool reduce_pair(const tt_loops *loops, const tt_reduce_job *job, bool *both_out)
{
    const tt_tree_node *node = job->tree->node, *root = &node[job->tree->root];
    const tt_half half = half_of(job->dtype);
    const tt_fn fn = fn_of(job->op);

    if (job->tree->nodes != 3 || (half != TT_HALF_NONE && fn != TT_FN_SUM))
        return false;
    const tt_operand *a = &job->in[node[root->left].leaf], *b = &job->in[node[root->right].leaf];
    if (half != TT_HALF_NONE && (job->out_partial || a->partial || b->partial))
        return false;
    tt_loop_args x = {job->out, a->data, b->data, job->n, job->divisor, job->out2};
    const tt_acc acc = acc_of(job->dtype);
    if (half != TT_HALF_NONE)
        loops->half[half].sum_last(&x);
    else
        loops->last[acc][fn](&x);
    *both_out = half == TT_HALF_BF16 || (half == TT_HALF_NONE && acc <= TT_ACC_F64);
    return true;
}

void tt_reduce(const tt_reduce_job *job)
{
    const tt_loops *loops = best_loops();
    bool both = false;

    if (!reduce_pair(loops, job, &both))
        tt_reduce_with(loops, job);
    if (job->out2 != NULL && !both)
        memcpy(job->out2, job->out, job->n * tt_operand_size(job->dtype, job->out_partial));
}

bool tt_reduce_past_with(const tt_loops *loops, const tt_reduce_job *job)
{
    enum { LINE = 64 };
    const tt_tree_node *node = job->tree->node, *root = &node[job->tree->root];
    const bool aligned = ((uintptr_t)job->out | (uintptr_t)job->out2) % LINE == 0;
    const bool bf16 = job->dtype == TUTTI_BFLOAT16;
    const tt_loop loop = bf16 ? loops->past.bf16 : loops->past.f32;

    if (job->tree->nodes != 3 || fn_of(job->op) != TT_FN_SUM || !aligned || loop == NULL ||
        (!bf16 && job->dtype != TUTTI_FLOAT32))
        return false;
    const tt_operand *a = &job->in[node[root->left].leaf], *b = &job->in[node[root->right].leaf];
    if (bf16 && (job->out_partial || a->partial || b->partial))
        return false;
    loop(&(tt_loop_args){job->out, a->data, b->data, job->n, job->divisor, job->out2});
    return true;
}

bool tt_reduce_past_cache(const tt_reduce_job *job)
{
    return tt_reduce_past_with(best_loops(), job);
}

#if defined(__x86_64__)
void tt_copy_past_cache(void *to, const void *from, size_t bytes)
{
    enum { LINE = 64, STEP = 16 };
    const size_t head = tt_min_size(-(uintptr_t)to % LINE, bytes);
    const size_t lines = (bytes - head) / LINE;
    const char *in = (const char *)from + head;
    char *out = (char *)to + head;

    memcpy(to, from, head);
    for (size_t i = 0; i < lines; i++, in += LINE, out += LINE)
        for (int k = 0; k < LINE; k += STEP)
            _mm_stream_si128((__m128i *)(void *)(out + k),
                             _mm_loadu_si128((const __m128i *)(const void *)(in + k)));
    memcpy(out, in, bytes - head - lines * LINE);
}

void tt_copy_past_cache_end(void)
{
    _mm_sfence();
}
#else
void tt_copy_past_cache(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

void tt_copy_past_cache_end(void)
{
}
#endif

void tt_fold_host_doubles(const tt_tree *tree, const tt_operand *in, size_t n, tutti_op op,
                          int divisor, double *out)
{
    tt_reduce_job job = {.tree = tree,
                         .in = in,
                         .n = n,
                         .dtype = TUTTI_FLOAT64,
                         .op = op,
                         .out = out,
                         .divisor = divisor};

    tt_reduce(&job);
}
