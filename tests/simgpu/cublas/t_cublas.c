/* SPDX-License-Identifier: Apache-2.0 */
/* The products against three loops: transposes, leading dimensions, batches, 16-bit types. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "../half.h"

enum { M = 5, N = 7, K = 3, LD = 9, BATCH = 3, STRIDE = LD * 8, FLOATS = STRIDE * BATCH };

static cublasHandle_t handle;
static cudaStream_t stream;

static int setup(void **state)
{
    (void)state;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    assert_int_equal(cublasCreate(&handle), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(cublasSetStream(handle, stream), CUBLAS_STATUS_SUCCESS);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    assert_int_equal(cublasDestroy(handle), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(cudaStreamDestroy(stream), cudaSuccess);
    return 0;
}

static void *to_device(const void *host, size_t bytes)
{
    void *p = NULL;
    assert_int_equal(cudaMalloc(&p, bytes), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(p, host, bytes, cudaMemcpyHostToDevice, stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    return p;
}

static void from_device(void *host, void *device, size_t bytes)
{
    assert_int_equal(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream),
                     cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream), cudaSuccess);
    assert_int_equal(cudaFree(device), cudaSuccess);
}

static float at(const float *m, bool transposed, int row, int col)
{
    return transposed ? m[row * LD + col] : m[col * LD + row];
}

static void reference(const float *a, bool ta, const float *b, bool tb, float beta, float *c)
{
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            float sum = 0;
            for (int k = 0; k < K; k++)
                sum += at(a, ta, i, k) * at(b, tb, k, j);
            c[j * LD + i] = 2.0f * sum + (beta != 0 ? beta * c[j * LD + i] : 0.0f);
        }
}

static float a[FLOATS], b[FLOATS], c[FLOATS], wanted[FLOATS];

/* Small whole numbers: every product is exact in every type. */
static void fill(void)
{
    for (int i = 0; i < FLOATS; i++) {
        a[i] = (float)(i * 7 % 5 - 2);
        b[i] = (float)(i * 3 % 7 - 3);
        c[i] = wanted[i] = (float)(i % 4);
    }
}

static void one(bool ta, bool tb, float beta)
{
    const float alpha = 2.0f;
    fill();
    for (int i = 0; i < BATCH; i++)
        reference(a + i * STRIDE, ta, b + i * STRIDE, tb, beta, wanted + i * STRIDE);
    float *da = to_device(a, sizeof(a)), *db = to_device(b, sizeof(b)),
          *dc = to_device(c, sizeof(c));
    assert_int_equal(cublasSgemmStridedBatched(handle, ta ? CUBLAS_OP_T : CUBLAS_OP_N,
                                               tb ? CUBLAS_OP_T : CUBLAS_OP_N, M, N, K, &alpha, da,
                                               LD, STRIDE, db, LD, STRIDE, &beta, dc, LD, STRIDE,
                                               BATCH),
                     CUBLAS_STATUS_SUCCESS);
    from_device(c, dc, sizeof(c));
    from_device(a, da, sizeof(a));
    from_device(b, db, sizeof(b));
    assert_memory_equal(c, wanted, sizeof(c));
}

static void test_transposes(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++)
        one(i & 1, i & 2, i & 4 ? 1.0f : 0.0f);
}

static void test_16_bits(void **state)
{
    (void)state;
    const float alpha = 2.0f, beta = 0.0f;
    uint16_t wide_a[FLOATS], wide_b[FLOATS], wide_c[FLOATS];
    for (int type = 0; type < 2; type++) {
        uint16_t (*down)(float) = type == 0 ? sg_float_to_bf16 : sg_float_to_f16;
        cudaDataType_t cuda = type == 0 ? CUDA_R_16BF : CUDA_R_16F;
        fill();
        for (int i = 0; i < FLOATS; i++) {
            wide_a[i] = down(a[i]);
            wide_b[i] = down(b[i]);
            wide_c[i] = down(c[i]);
        }
        reference(a, false, b, true, 0, wanted);
        void *da = to_device(wide_a, sizeof(wide_a)), *db = to_device(wide_b, sizeof(wide_b)),
             *dc = to_device(wide_c, sizeof(wide_c));
        assert_int_equal(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_T, M, N, K, &alpha, da, cuda,
                                      LD, db, cuda, LD, &beta, dc, cuda, LD, CUBLAS_COMPUTE_32F,
                                      CUBLAS_GEMM_DEFAULT),
                         CUBLAS_STATUS_SUCCESS);
        from_device(wide_c, dc, sizeof(wide_c));
        from_device(wide_a, da, sizeof(wide_a));
        from_device(wide_b, db, sizeof(wide_b));
        for (int i = 0; i < FLOATS; i++)
            assert_int_equal(wide_c[i], down(wanted[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_transposes),
        cmocka_unit_test(test_16_bits),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
