/* SPDX-License-Identifier: Apache-2.0 */
/* One product, or a batch of them: C = alpha op(A) op(B) + beta C, columns first. */
#ifndef SIMGPU_CUBLAS_GEMM_H
#define SIMGPU_CUBLAS_GEMM_H

#include <stddef.h>

#include <library_types.h>

#include "../engine.h"

typedef struct cb_matrix {
    const void *ptr;
    cudaDataType_t type;
    int rows, cols; /* as stored */
    long long ld, stride; /* stride: between the matrices of a batch */
} cb_matrix;

typedef struct cb_gemm {
    bool transpose_a, transpose_b;
    int m, n, k, batch;
    float alpha, beta;
    cb_matrix a, b, c;
} cb_gemm;

size_t cb_element(cudaDataType_t type); /* bytes; 0: not simulated */
/* The bytes from the first to the last element of all its matrices. */
size_t cb_span(const cb_matrix *m, int batch);
/* As an operation of the stream. An error of CUDA, or SG_OK. */
int cb_enqueue(sg_stream *stream, const cb_gemm *gemm, const void *site);

#endif
