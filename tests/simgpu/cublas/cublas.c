/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcublas: handles and the products in fp32 arithmetic that examples/gpt uses. Scalars lie on the
 * host (CUBLAS_POINTER_MODE_HOST); any other call is refused by name.
 */
#include <stdio.h>
#include <stdlib.h>

#include <cublas_v2.h>

#include "gemm.h"

struct cublasContext {
    struct cublasContext *next;
    int device;
    void *stream;
    cublasMath_t math;
    bool destroyed;
};

static struct cublasContext *handles;

static void leaks(void)
{
    for (const struct cublasContext *h = handles; h != NULL; h = h->next)
        if (!h->destroyed)
            sg_finding("cublas-leak", "a cuBLAS handle of device %d was never destroyed",
                       h->device);
}

__attribute__((constructor)) static void start(void)
{
    sg_at_exit(leaks);
}

/* False: *out is what the call returns. */
static bool stop(sg_verdict verdict, const int *error, cublasStatus_t *out)
{
    *out = verdict == SG_FAIL && *error > 0 ? (cublasStatus_t)*error
           : verdict == SG_FAIL             ? CUBLAS_STATUS_EXECUTION_FAILED
                                            : CUBLAS_STATUS_SUCCESS;
    return verdict != SG_GO;
}

static cublasStatus_t check(cublasHandle_t handle, const char *call)
{
    const struct cublasContext *h = handles;
    while (h != NULL && h != handle)
        h = h->next;
    if (h == NULL || h->destroyed) {
        sg_finding("cublas-handle", "%s: %s", call,
                   h == NULL ? "no handle of cuBLAS" : "the handle was destroyed");
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    return CUBLAS_STATUS_SUCCESS;
}

#define BEGIN(call, ...)                                                                           \
    int error = -1;                                                                                \
    cublasStatus_t status;                                                                         \
    if (stop(sg_call(&error, call, __VA_ARGS__), &error, &status))                                 \
    return status

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    BEGIN("cublasCreate", " ");
    if (handle == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    struct cublasContext *h = calloc(1, sizeof(*h));
    if (h == NULL)
        return CUBLAS_STATUS_ALLOC_FAILED;
    h->device = sg_current_device();
    if (sg_device(h->device) == NULL) {
        free(h);
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    sg_lock();
    h->next = handles;
    handles = h;
    sg_unlock();
    *handle = h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    BEGIN("cublasDestroy", "handle=%p", (void *)handle);
    sg_lock();
    status = check(handle, "cublasDestroy");
    if (status == CUBLAS_STATUS_SUCCESS)
        handle->destroyed = true;
    sg_unlock();
    return status;
}

/* What sets or asks one thing of a handle. */
#define SIMPLE(call, parameter, action)                                                            \
    cublasStatus_t call(cublasHandle_t handle, parameter)                                          \
    {                                                                                              \
        BEGIN(#call, "handle=%p", (void *)handle);                                                 \
        sg_lock();                                                                                 \
        status = check(handle, #call);                                                             \
        if (status == CUBLAS_STATUS_SUCCESS) {                                                     \
            action;                                                                                \
        }                                                                                          \
        sg_unlock();                                                                               \
        return status;                                                                             \
    }
SIMPLE(cublasSetStream_v2, cudaStream_t stream, handle->stream = stream)
SIMPLE(cublasGetStream_v2, cudaStream_t *stream, *stream = handle->stream)
SIMPLE(cublasSetMathMode, cublasMath_t mode, handle->math = mode)
SIMPLE(cublasGetMathMode, cublasMath_t *mode, *mode = handle->math)
SIMPLE(cublasSetPointerMode_v2, cublasPointerMode_t mode,
       if (mode != CUBLAS_POINTER_MODE_HOST) status = CUBLAS_STATUS_NOT_SUPPORTED)
SIMPLE(cublasGetVersion_v2, int *version, *version = CUBLAS_VERSION)

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes)
{
    BEGIN("cublasSetWorkspace", "workspace=%p bytes=%zu", workspace, bytes);
    return check(handle, "cublasSetWorkspace");
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_SUCCESS:
        return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
        return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED:
        return "an internal allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an invalid value was passed";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality is not supported";
    default:
        return "unknown cuBLAS status";
    }
}

const char *cublasGetStatusName(cublasStatus_t status)
{
    return cublasGetStatusString(status);
}

/* ---- products ---- */

static cublasStatus_t matrix_check(const struct cublasContext *h, const char *call, char which,
                                   const cb_matrix *m, int batch)
{
    char who[64];
    sg_memory mem;
    if (m->ld < (m->rows > 1 ? m->rows : 1)) {
        sg_finding("cublas-argument", "%s: the leading dimension of %c is %lld, below its %d rows",
                   call, which, m->ld, m->rows);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (cb_element(m->type) == 0) {
        sg_finding("cublas-argument", "%s: type %d of %c is not simulated", call, (int)m->type,
                   which);
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (!sg_memory_find(m->ptr, &mem)) {
        sg_finding("cublas-host-pointer", "%s: %c (%p) is host memory", call, which, m->ptr);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    snprintf(who, sizeof(who), "%s (%c)", call, which);
    if (mem.kind == SG_MEM_DEVICE && cb_span(m, batch) > 0 &&
        !sg_check_device_range(m->ptr, cb_span(m, batch), h->device, who))
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

typedef struct product {
    const char *call;
    cublasOperation_t transa, transb;
    const void *alpha, *beta;
    const void *site;
    cb_gemm gemm;
} product;

static cublasStatus_t arguments(const struct cublasContext *h, product *p)
{
    cb_gemm *g = &p->gemm;
    if (g->m < 0 || g->n < 0 || g->k < 0 || g->batch < 0 || p->alpha == NULL || p->beta == NULL)
        return CUBLAS_STATUS_INVALID_VALUE;
    g->transpose_a = p->transa != CUBLAS_OP_N;
    g->transpose_b = p->transb != CUBLAS_OP_N;
    g->a.rows = g->transpose_a ? g->k : g->m;
    g->a.cols = g->transpose_a ? g->m : g->k;
    g->b.rows = g->transpose_b ? g->n : g->k;
    g->b.cols = g->transpose_b ? g->k : g->n;
    g->c.rows = g->m;
    g->c.cols = g->n;
    sg_memory mem;
    if (sg_memory_find(p->alpha, &mem) && mem.kind == SG_MEM_DEVICE) {
        sg_finding("cublas-argument", "%s: alpha lies on the device", p->call);
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    g->alpha = *(const float *)p->alpha;
    g->beta = *(const float *)p->beta;
    if (g->m == 0 || g->n == 0 || g->batch == 0)
        return CUBLAS_STATUS_SUCCESS;
    cublasStatus_t status = matrix_check(h, p->call, 'C', &g->c, g->batch);
    if (status == CUBLAS_STATUS_SUCCESS && g->k > 0)
        status = matrix_check(h, p->call, 'A', &g->a, g->batch);
    if (status == CUBLAS_STATUS_SUCCESS && g->k > 0)
        status = matrix_check(h, p->call, 'B', &g->b, g->batch);
    return status;
}

static cublasStatus_t multiply(cublasHandle_t handle, product *p)
{
    cb_gemm *g = &p->gemm;
    BEGIN(p->call, "m=%d n=%d k=%d batch=%d types=%d,%d,%d", g->m, g->n, g->k, g->batch,
          (int)g->a.type, (int)g->b.type, (int)g->c.type);
    sg_lock();
    status = check(handle, p->call);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = arguments(handle, p);
    if (status == CUBLAS_STATUS_SUCCESS && g->m > 0 && g->n > 0 && g->batch > 0) {
        sg_stream *stream = sg_stream_get(handle->stream, p->call);
        if (stream == NULL || sg_stream_check(stream, p->call) != SG_OK)
            status = CUBLAS_STATUS_EXECUTION_FAILED;
        else if (sg_stream_device(stream) != handle->device) {
            sg_finding("cublas-device", "%s: the handle is of device %d and its stream of %d",
                       p->call, handle->device, sg_stream_device(stream));
            status = CUBLAS_STATUS_EXECUTION_FAILED;
        } else if (cb_enqueue(stream, g, p->site) != SG_OK) {
            status = CUBLAS_STATUS_EXECUTION_FAILED;
        }
    }
    sg_unlock();
    return status;
}

static bool fp32(const char *call, cublasComputeType_t compute)
{
    switch (compute) {
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
    case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
    case CUBLAS_COMPUTE_32F_FAST_TF32:
        return true;
    default:
        sg_finding("cublas-argument", "%s: compute type %d is not simulated", call, (int)compute);
        return false;
    }
}

#define SITE() __builtin_return_address(0)
#define PRODUCT(name, count, ta, tb, tc, sa, sb, sc)                                               \
    {                                                                                              \
        .call = name, .transa = transa, .transb = transb, .alpha = alpha, .beta = beta,            \
        .site = SITE(), .gemm = {                                                                  \
            .m = m,                                                                                \
            .n = n,                                                                                \
            .k = k,                                                                                \
            .batch = count,                                                                        \
            .a = {.ptr = A, .type = ta, .ld = lda, .stride = sa},                                  \
            .b = {.ptr = B, .type = tb, .ld = ldb, .stride = sb},                                  \
            .c = {.ptr = C, .type = tc, .ld = ldc, .stride = sc}                                   \
        }                                                                                          \
    }

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa,
                              cublasOperation_t transb, int m, int n, int k, const float *alpha,
                              const float *A, int lda, const float *B, int ldb, const float *beta,
                              float *C, int ldc)
{
    product p = PRODUCT("cublasSgemm", 1, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, 0, 0, 0);
    return multiply(handle, &p);
}

cublasStatus_t cublasSgemmEx(cublasHandle_t handle, cublasOperation_t transa,
                             cublasOperation_t transb, int m, int n, int k, const float *alpha,
                             const void *A, cudaDataType Atype, int lda, const void *B,
                             cudaDataType Btype, int ldb, const float *beta, void *C,
                             cudaDataType Ctype, int ldc)
{
    product p = PRODUCT("cublasSgemmEx", 1, Atype, Btype, Ctype, 0, 0, 0);
    return multiply(handle, &p);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa,
                                         cublasOperation_t transb, int m, int n, int k,
                                         const float *alpha, const float *A, int lda,
                                         long long strideA, const float *B, int ldb,
                                         long long strideB, const float *beta, float *C, int ldc,
                                         long long strideC, int batchCount)
{
    product p = PRODUCT("cublasSgemmStridedBatched", batchCount, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F,
                        strideA, strideB, strideC);
    return multiply(handle, &p);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void *alpha,
                            const void *A, cudaDataType Atype, int lda, const void *B,
                            cudaDataType Btype, int ldb, const void *beta, void *C,
                            cudaDataType Ctype, int ldc, cublasComputeType_t computeType,
                            cublasGemmAlgo_t algo)
{
    (void)algo;
    product p = PRODUCT("cublasGemmEx", 1, Atype, Btype, Ctype, 0, 0, 0);
    return fp32(p.call, computeType) ? multiply(handle, &p) : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                          cublasOperation_t transb, int m, int n, int k,
                                          const void *alpha, const void *A, cudaDataType Atype,
                                          int lda, long long strideA, const void *B,
                                          cudaDataType Btype, int ldb, long long strideB,
                                          const void *beta, void *C, cudaDataType Ctype, int ldc,
                                          long long strideC, int batchCount,
                                          cublasComputeType_t computeType, cublasGemmAlgo_t algo)
{
    (void)algo;
    product p = PRODUCT("cublasGemmStridedBatchedEx", batchCount, Atype, Btype, Ctype, strideA,
                        strideB, strideC);
    return fp32(p.call, computeType) ? multiply(handle, &p) : CUBLAS_STATUS_NOT_SUPPORTED;
}
