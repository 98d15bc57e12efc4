/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The products themselves, by OpenBLAS in fp32: 16-bit inputs are widened first, and the result is
 * rounded once, which is what a GPU does that accumulates in fp32 (its order of sums differs).
 */
#include "gemm.h"

#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../half.h"

size_t cb_element(cudaDataType_t type)
{
    switch (type) {
    case CUDA_R_32F:
        return 4;
    case CUDA_R_16F:
    case CUDA_R_16BF:
        return 2;
    default:
        return 0;
    }
}

static size_t elements(const cb_matrix *m)
{
    return m->rows > 0 && m->cols > 0 ? (size_t)m->ld * (size_t)(m->cols - 1) + (size_t)m->rows : 0;
}

size_t cb_span(const cb_matrix *m, int batch)
{
    size_t one = elements(m);
    if (one == 0 || batch < 1)
        return 0;
    return ((size_t)m->stride * (size_t)(batch - 1) + one) * cb_element(m->type);
}

static void *must(size_t bytes)
{
    void *p = malloc(bytes > 0 ? bytes : 1);
    if (p == NULL)
        sg_fatal("memory", "out of memory for %zu bytes of a product", bytes);
    return p;
}

/* The matrix packed as fp32, columns of `rows`. */
static float *widen(const cb_matrix *m, int index)
{
    size_t rows = (size_t)m->rows, cols = (size_t)m->cols, size = cb_element(m->type);
    const char *from = (const char *)sg_view(m->ptr) + (size_t)m->stride * (size_t)index * size;
    float *wide = must(rows * cols * sizeof(float));
    for (size_t j = 0; j < cols; j++) {
        const char *column = from + j * (size_t)m->ld * size;
        for (size_t i = 0; i < rows; i++) {
            uint16_t half = 0;
            if (size == 4) {
                memcpy(&wide[j * rows + i], column + 4 * i, 4);
                continue;
            }
            memcpy(&half, column + 2 * i, 2);
            wide[j * rows + i] =
                m->type == CUDA_R_16F ? sg_f16_to_float(half) : sg_bf16_to_float(half);
        }
    }
    return wide;
}

static void narrow(const cb_matrix *m, int index, const float *wide)
{
    size_t rows = (size_t)m->rows, size = cb_element(m->type);
    char *to = (char *)sg_view(m->ptr) + (size_t)m->stride * (size_t)index * size;
    for (size_t j = 0; j < (size_t)m->cols; j++) {
        char *column = to + j * (size_t)m->ld * size;
        for (size_t i = 0; i < rows; i++) {
            float value = wide[j * rows + i];
            uint16_t half =
                m->type == CUDA_R_16F ? sg_float_to_f16(value) : sg_float_to_bf16(value);
            if (size == 4)
                memcpy(column + 4 * i, &value, 4);
            else
                memcpy(column + 2 * i, &half, 2);
        }
    }
}

static void product(const cb_gemm *g, int index)
{
    float *a = widen(&g->a, index), *b = widen(&g->b, index), *c = NULL;
    size_t n = (size_t)g->c.rows * (size_t)g->c.cols;
    /* With beta = 0 what stands in C is not read: it may be anything, NaN too. */
    if (g->beta == 0.0f) {
        c = must(n * sizeof(float));
        memset(c, 0, n * sizeof(float));
    } else {
        c = widen(&g->c, index);
    }
    cblas_sgemm(CblasColMajor, g->transpose_a ? CblasTrans : CblasNoTrans,
                g->transpose_b ? CblasTrans : CblasNoTrans, g->m, g->n, g->k, g->alpha, a,
                g->a.rows > 0 ? g->a.rows : 1, b, g->b.rows > 0 ? g->b.rows : 1, g->beta, c,
                g->c.rows);
    narrow(&g->c, index, c);
    free(a);
    free(b);
    free(c);
}

static sg_step run(void *arg, sg_op *op)
{
    const cb_gemm *g = arg;
    (void)op;
    for (int i = 0; i < g->batch; i++)
        product(g, i);
    return SG_DONE;
}

static void *again(void *arg)
{
    cb_gemm *copy = must(sizeof(*copy));
    *copy = *(const cb_gemm *)arg;
    return copy;
}

int cb_enqueue(sg_stream *stream, const cb_gemm *gemm, const void *site)
{
    char label[96];
    sg_range ranges[3];
    size_t n = 0;
    cb_gemm *copy = again((void *)gemm);
    ranges[n++] = (sg_range){gemm->c.ptr, cb_span(&gemm->c, gemm->batch), true};
    if (gemm->k > 0) {
        ranges[n++] = (sg_range){gemm->a.ptr, cb_span(&gemm->a, gemm->batch), false};
        ranges[n++] = (sg_range){gemm->b.ptr, cb_span(&gemm->b, gemm->batch), false};
    }
    snprintf(label, sizeof(label), "cublas gemm %dx%dx%d batch %d", gemm->m, gemm->n, gemm->k,
             gemm->batch);
    int error = sg_enqueue(stream, &(sg_op_desc){.label = label,
                                                 .site = site,
                                                 .ranges = ranges,
                                                 .n_ranges = n,
                                                 .run = run,
                                                 .arg = copy,
                                                 .release = free,
                                                 .again = again});
    if (error != SG_OK)
        free(copy);
    return error;
}

__attribute__((constructor)) static void one_thread(void)
{
    openblas_set_num_threads(1);
}
