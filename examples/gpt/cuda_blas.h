/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLAS, loaded when it is needed. For device_cuda.cu alone. */
#ifndef GPT_CUDA_BLAS_H
#define GPT_CUDA_BLAS_H

#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdio.h>

// In C++ this one has overloads.
typedef cublasStatus_t (*gemm_ex_fn)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                     int, const void *, const void *, cudaDataType, int,
                                     const void *, cudaDataType, int, const void *, void *,
                                     cudaDataType, int, cublasComputeType_t, cublasGemmAlgo_t);

static struct {
    decltype(&cublasCreate) create;
    decltype(&cublasDestroy) destroy;
    decltype(&cublasSetStream) set_stream;
    decltype(&cublasSgemm) sgemm;
    gemm_ex_fn gemm_ex;
    decltype(&cublasSgemmStridedBatched) sgemm_batched;
} blas;

// The macros' names are those of the library: cublasCreate is cublasCreate_v2.
#define NAME_OF(name) NAME_TEXT(name)
#define NAME_TEXT(name) #name
#define LOAD(to, name) ((to) = (decltype(to))dlsym(library, NAME_OF(name)), (to) != NULL)

static bool load_blas(char *problem, size_t cap)
{
    char name[32];
    void *library;

    snprintf(name, sizeof name, "libcublas.so.%d", CUDART_VERSION / 1000);
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        snprintf(problem, cap, "cuBLAS cannot be loaded: %.200s", dlerror());
        return false;
    }
    if (LOAD(blas.create, cublasCreate) && LOAD(blas.destroy, cublasDestroy) &&
        LOAD(blas.set_stream, cublasSetStream) && LOAD(blas.sgemm, cublasSgemm) &&
        LOAD(blas.gemm_ex, cublasGemmEx) && LOAD(blas.sgemm_batched, cublasSgemmStridedBatched))
        return true;
    snprintf(problem, cap, "%s lacks a function", name);
    return false;
}

#endif
