/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: OpenBLAS where the build found it, else plain loops. */
#include "simd.h"

#ifdef GPT_OPENBLAS
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

const char *matmul_setup(void)
{
    static char text[64];

    /* One thread per rank: the ranks are the parallelism, and a result does not then depend on how
     * many threads there are. */
    openblas_set_num_threads(1);
    snprintf(text, sizeof text, "OpenBLAS (%s kernels)", openblas_get_corename());
    return text;
}

const char *matmul_better_kernels(void)
{
#if defined(__x86_64__)
    static const char *const old[] = {"Prescott",   "Core2",   "Penryn",
                                      "Dunnington", "Nehalem", "Sandybridge"};
    bool is_old = false;

    if (getenv("OPENBLAS_CORETYPE") != NULL)
        return NULL; /* chosen by the user, or by us before */
    for (size_t i = 0; i < sizeof old / sizeof old[0]; i++)
        is_old = is_old || strcmp(openblas_get_corename(), old[i]) == 0;
    if (is_old && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    if (is_old && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return "Haswell";
#endif
    return NULL;
}

void matmul(product_size size, matrix a, matrix b, real alpha, real *c, int c_stride, bool add)
{
    CBLAS_TRANSPOSE ta = a.transposed ? CblasTrans : CblasNoTrans;
    CBLAS_TRANSPOSE tb = b.transposed ? CblasTrans : CblasNoTrans;

#ifdef GPT_DOUBLE
    cblas_dgemm(CblasRowMajor, ta, tb, size.m, size.n, size.k, alpha, a.data, a.stride, b.data,
                b.stride, add ? 1.0 : 0.0, c, c_stride);
#else
    cblas_sgemm(CblasRowMajor, ta, tb, size.m, size.n, size.k, alpha, a.data, a.stride, b.data,
                b.stride, add ? 1.0f : 0.0f, c, c_stride);
#endif
}

#else

const char *matmul_setup(void)
{
    return "plain C loops (built without OpenBLAS: several times slower)";
}

/* c[0 ... n-1] += scale * row of b. */
static void add_row(real scale, const real *restrict b, real *restrict c, int n)
{
    for (int j = 0; j < n; j++)
        c[j] += scale * b[j];
}

const char *matmul_better_kernels(void)
{
    return NULL;
}

/* Sums of a row of a with the stored rows of b (b^T), or of b's rows weighted by a row of a: both
 * run over memory in order. */
HOT void matmul(product_size size, matrix a, matrix b, real alpha, real *c, int c_stride, bool add)
{
    for (int i = 0; i < size.m; i++) {
        real *row = c + (size_t)i * (size_t)c_stride;

        if (!add)
            memset(row, 0, (size_t)size.n * sizeof *row);
        for (int k = 0; k < size.k && !b.transposed; k++) {
            size_t at = a.transposed ? (size_t)k * (size_t)a.stride + (size_t)i
                                     : (size_t)i * (size_t)a.stride + (size_t)k;

            add_row(alpha * a.data[at], b.data + (size_t)k * (size_t)b.stride, row, size.n);
        }
        for (int j = 0; j < size.n && b.transposed; j++) {
            const real *x = a.data + (size_t)i * (size_t)a.stride;
            const real *y = b.data + (size_t)j * (size_t)b.stride;
            real sum = 0;

#pragma omp simd reduction(+ : sum)
            for (int k = 0; k < size.k; k++)
                sum += x[k] * y[k];
            row[j] += alpha * sum;
        }
    }
}
#endif
