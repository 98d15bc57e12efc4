// SPDX-License-Identifier: Apache-2.0
// The GPU's device table: cuBLAS for products, the kernels of cuda_body.h for the rest, all on one
// stream. What fails is kept until the trainer asks; work after it is given out as before, since
// the step's end asks in any case. cuBLAS is loaded when a GPU is used: it is large, and a machine
// without it can run this program on the host.
//
// In 16 bits the factors of a linear layer are copied to scratch in that type for each product,
// which sums in fp32 and gives fp32: weights, gradients and everything between products stay as
// they are.
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <string.h>

#include "cuda_blas.h"
#include "cuda_body.h"
#include "device.h"

#define KERNEL(name)                                                                               \
    extern "C" __global__ void gpt_k_##name(gpt_k k)                                               \
    {                                                                                              \
        gpt_k_##name##_body(k);                                                                    \
    }
KERNEL(spread_bias)
KERNEL(norm)
KERNEL(norm_back)
KERNEL(gelu)
KERNEL(gelu_back)
KERNEL(causal)
KERNEL(causal_back)
KERNEL(entropy_max)
KERNEL(entropy_sums)
KERNEL(entropy_end)
KERNEL(entropy_back)
KERNEL(embed)
KERNEL(embed_tokens)
KERNEL(embed_positions)
KERNEL(adamw)
KERNEL(cast)

extern "C" __global__ void gpt_k_sum_columns(gpt_k k)
{
    __shared__ float shared[GPT_K_THREADS];
    gpt_k_sum_columns_body(k, shared);
}

extern "C" __global__ void gpt_k_norm_params(gpt_k k)
{
    __shared__ float shared[2 * GPT_K_THREADS];
    gpt_k_norm_params_body(k, shared);
}

extern "C" __global__ void gpt_k_mean(gpt_k k)
{
    __shared__ double shared[GPT_K_THREADS];
    gpt_k_mean_body(k, shared);
}

static struct {
    cudaStream_t stream;
    cublasHandle_t blas;
    gpt_precision precision;
    void *narrow[2]; // 16-bit copies of a product's factors
    size_t narrow_bytes[2];
    char problem[256];
} gpu;

static bool good(cudaError_t rc, const char *what)
{
    if (rc != cudaSuccess && gpu.problem[0] == '\0')
        snprintf(gpu.problem, sizeof gpu.problem, "%s: %s (%s)", what, cudaGetErrorString(rc),
                 cudaGetErrorName(rc));
    return rc == cudaSuccess;
}

static bool good_blas(cublasStatus_t rc, const char *what)
{
    if (rc != CUBLAS_STATUS_SUCCESS && gpu.problem[0] == '\0')
        snprintf(gpu.problem, sizeof gpu.problem, "%s failed with status %d", what, (int)rc);
    return rc == CUBLAS_STATUS_SUCCESS;
}

static unsigned blocks_for(size_t threads)
{
    size_t blocks = (threads + GPT_K_THREADS - 1) / GPT_K_THREADS;

    return blocks < 1 ? 1u : blocks > 4096 ? 4096u : (unsigned)blocks;
}

#define LAUNCH(name, blocks, args)                                                                 \
    do {                                                                                           \
        gpt_k_##name<<<(blocks), GPT_K_THREADS, 0, gpu.stream>>>(args);                            \
        good(cudaGetLastError(), "launching gpt_k_" #name);                                        \
    } while (0)

static gpt_k elements(size_t count)
{
    gpt_k k = {};

    k.count = count;
    return k;
}

static gpt_k rows_of(int rows, int n)
{
    gpt_k k = {};

    k.rows = rows;
    k.n = n;
    k.count = (size_t)rows * (size_t)n;
    return k;
}

static unsigned row_blocks(int rows)
{
    return blocks_for((size_t)rows * GPT_K_WARP);
}

static unsigned column_blocks(int n)
{
    return (unsigned)(n + GPT_K_WARP - 1) / GPT_K_WARP;
}

static void *take(size_t bytes)
{
    void *memory = NULL;

    if (!good(cudaMalloc(&memory, bytes > 0 ? bytes : 1), "cudaMalloc"))
        return NULL;
    good(cudaMemsetAsync(memory, 0, bytes, gpu.stream), "cudaMemsetAsync");
    return memory;
}

static void give(void *memory)
{
    if (memory == NULL)
        return;
    good(cudaStreamSynchronize(gpu.stream), "cudaStreamSynchronize");
    good(cudaFree(memory), "cudaFree");
}

static void *take_host(size_t bytes)
{
    void *memory = NULL;

    if (!good(cudaHostAlloc(&memory, bytes > 0 ? bytes : 1, cudaHostAllocDefault), "cudaHostAlloc"))
        return NULL;
    memset(memory, 0, bytes);
    return memory;
}

static void give_host(void *memory)
{
    if (memory == NULL)
        return;
    good(cudaStreamSynchronize(gpu.stream), "cudaStreamSynchronize");
    good(cudaFreeHost(memory), "cudaFreeHost");
}

static void upload(void *to, const void *from, size_t bytes)
{
    good(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, gpu.stream), "cudaMemcpyAsync");
}

static void download(void *to, const void *from, size_t bytes)
{
    good(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, gpu.stream), "cudaMemcpyAsync");
    good(cudaStreamSynchronize(gpu.stream), "cudaStreamSynchronize");
}

static void copy(void *to, const void *from, size_t bytes)
{
    good(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, gpu.stream), "cudaMemcpyAsync");
}

static void zero(void *to, size_t bytes)
{
    good(cudaMemsetAsync(to, 0, bytes, gpu.stream), "cudaMemsetAsync");
}

static const char *problem(void)
{
    return gpu.problem[0] == '\0' ? NULL : gpu.problem;
}

// A factor in 16 bits, dense, in scratch number `which`, which grows to what is needed.
static void *narrowed(int which, const matrix *x, int rows, int cols)
{
    const size_t bytes = (size_t)rows * (size_t)cols * sizeof(uint16_t);
    gpt_k k = rows_of(rows, cols);

    if (bytes > gpu.narrow_bytes[which]) {
        give(gpu.narrow[which]);
        gpu.narrow[which] = take(bytes);
        gpu.narrow_bytes[which] = bytes;
    }
    k.a = x->data;
    k.o = (float *)gpu.narrow[which];
    k.stride = x->stride;
    k.kind = gpu.precision == PRECISION_BF16 ? 1 : 2;
    LAUNCH(cast, blocks_for(k.count), k);
    return gpu.narrow[which];
}

// cuBLAS takes columns for rows: C^T = B^T A^T, whose factors are those in memory, the other way
// round.
static void matmul_gpu(product_size s, matrix a, matrix b, real alpha, real *c, int c_stride,
                       bool add)
{
    const cublasOperation_t op_a = a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t op_b = b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    const float beta = add ? 1 : 0;
    const int a_rows = a.transposed ? s.k : s.m, a_cols = a.transposed ? s.m : s.k;
    const int b_rows = b.transposed ? s.n : s.k, b_cols = b.transposed ? s.k : s.n;
    const cudaDataType type = gpu.precision == PRECISION_BF16 ? CUDA_R_16BF : CUDA_R_16F;

    if (gpu.precision == PRECISION_F32) {
        good_blas(blas.sgemm(gpu.blas, op_b, op_a, s.n, s.m, s.k, &alpha, b.data, b.stride, a.data,
                             a.stride, &beta, c, c_stride),
                  "cublasSgemm");
        return;
    }
    good_blas(blas.gemm_ex(gpu.blas, op_b, op_a, s.n, s.m, s.k, &alpha,
                           narrowed(1, &b, b_rows, b_cols), type, b_cols,
                           narrowed(0, &a, a_rows, a_cols), type, a_cols, &beta, c, CUDA_R_32F,
                           c_stride, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
              "cublasGemmEx");
}

// One product per head of a sequence; `step` leads from a head's matrix to the next.
struct head_matrix {
    const float *data;
    int stride;
    bool transposed;
    long long step;
};

static void matmul_heads(int heads, product_size s, head_matrix a, head_matrix b, float alpha,
                         head_matrix c)
{
    const float beta = 0;

    good_blas(blas.sgemm_batched(gpu.blas, b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                                 a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, s.n, s.m, s.k, &alpha,
                                 b.data, b.stride, b.step, a.data, a.stride, a.step, &beta,
                                 (float *)c.data, c.stride, c.step, heads),
              "cublasSgemmStridedBatched");
}

static head_matrix transposed(head_matrix m)
{
    m.transposed = true;
    return m;
}

// The views of one sequence.
struct sequence {
    head_matrix q, k, v, prob, out;
};

static sequence view(attention_shape s, int b, const float *qkv, const float *prob,
                     const float *out)
{
    const int size = s.width / s.heads;
    const size_t row = (size_t)b * (size_t)s.time, square = (size_t)s.time * (size_t)s.time;
    const float *at = qkv + row * 3 * (size_t)s.width;
    sequence x;

    x.q = {at, 3 * s.width, false, 3 * size};
    x.k = {at + size, 3 * s.width, false, 3 * size};
    x.v = {at + 2 * size, 3 * s.width, false, 3 * size};
    x.prob = {prob + (size_t)b * (size_t)s.heads * square, s.time, false, (long long)square};
    x.out = {out + row * (size_t)s.width, s.width, false, size};
    return x;
}

static void attention_forward_gpu(attention_shape s, const real *qkv, real *prob, real *out)
{
    const int size = s.width / s.heads;
    gpt_k k = rows_of(s.batch * s.heads * s.time, s.time);

    for (int b = 0; b < s.batch; b++) {
        const sequence x = view(s, b, qkv, prob, out);

        matmul_heads(s.heads, {s.time, s.time, size}, x.q, transposed(x.k), 1 / sqrtf((float)size),
                     x.prob);
    }
    k.o = prob;
    LAUNCH(causal, row_blocks(k.rows), k);
    for (int b = 0; b < s.batch; b++) {
        const sequence x = view(s, b, qkv, prob, out);

        matmul_heads(s.heads, {s.time, size, s.time}, x.prob, x.v, 1, x.out);
    }
}

static void attention_backward_gpu(attention_shape s, const real *qkv, const real *prob,
                                   const real *dout, real *dqkv, real *scratch)
{
    const int size = s.width / s.heads;
    const float scale = 1 / sqrtf((float)size);
    const product_size square = {s.time, s.time, size}, tall = {s.time, size, s.time};

    for (int b = 0; b < s.batch; b++) {
        const sequence x = view(s, b, qkv, prob, dout), d = view(s, b, dqkv, prob, dout);
        const head_matrix ds = {scratch, s.time, false, (long long)s.time * s.time};
        gpt_k k = rows_of(s.heads * s.time, s.time);

        matmul_heads(s.heads, tall, transposed(x.prob), x.out, 1, d.v);
        matmul_heads(s.heads, square, x.out, transposed(x.v), 1, ds);
        k.a = x.prob.data;
        k.o = scratch;
        LAUNCH(causal_back, row_blocks(k.rows), k);
        matmul_heads(s.heads, tall, ds, x.k, scale, d.q);
        matmul_heads(s.heads, tall, transposed(ds), x.q, scale, d.k);
    }
}

static void spread_bias_gpu(const real *bias, const real *residual, real *out, int rows, int n)
{
    gpt_k k = rows_of(rows, n);

    k.o = out;
    k.a = residual;
    k.b = bias;
    LAUNCH(spread_bias, blocks_for(k.count), k);
}

static void sum_columns_gpu(const real *in, real *sum, int rows, int n)
{
    gpt_k k = rows_of(rows, n);

    k.o = sum;
    k.a = in;
    LAUNCH(sum_columns, column_blocks(n), k);
}

static void layer_norm_forward_gpu(const layer_norm *n, const real *in, real *stats, real *out,
                                   int rows)
{
    gpt_k k = rows_of(rows, n->weight.rows);

    k.o = out;
    k.p = stats;
    k.a = in;
    k.b = n->weight.value;
    k.c = n->bias.value;
    LAUNCH(norm, row_blocks(rows), k);
}

static void layer_norm_backward_gpu(layer_norm *n, const real *in, const real *stats,
                                    const real *dout, real *din, int rows)
{
    gpt_k k = rows_of(rows, n->weight.rows);

    k.a = in;
    k.b = n->weight.value;
    k.c = stats;
    k.d = dout;
    k.o = din;
    LAUNCH(norm_back, row_blocks(rows), k);
    k.o = n->weight.grad;
    k.p = n->bias.grad;
    LAUNCH(norm_params, column_blocks(k.n), k);
}

static void gelu_forward_gpu(const real *in, real *out, size_t count)
{
    gpt_k k = elements(count);

    k.a = in;
    k.o = out;
    LAUNCH(gelu, blocks_for(count), k);
}

static void gelu_backward_gpu(const real *in, real *d, size_t count)
{
    gpt_k k = elements(count);

    k.a = in;
    k.o = d;
    LAUNCH(gelu_back, blocks_for(count), k);
}

static void entropy_max_gpu(const real *logits, int cols, real *max, int rows)
{
    gpt_k k = rows_of(rows, cols);

    k.a = logits;
    k.o = max;
    LAUNCH(entropy_max, row_blocks(rows), k);
}

static void entropy_sums_gpu(real *logits, vocabulary_part part, const uint8_t *targets,
                             const real *max, real *sums, int rows)
{
    gpt_k k = rows_of(rows, part.cols);

    k.o = logits;
    k.p = sums;
    k.b = max;
    k.t = targets;
    k.first = part.first;
    LAUNCH(entropy_sums, row_blocks(rows), k);
}

static void entropy_end_gpu(real *logits, int cols, const real *sums, real *loss, int rows)
{
    gpt_k k = rows_of(rows, cols);

    k.o = logits;
    k.p = loss;
    k.b = sums;
    LAUNCH(entropy_end, row_blocks(rows), k);
}

// The scratch for maxima and sums of the whole vocabulary; its last user is the next call.
static float *sums;
static int sums_rows;

static void cross_entropy_forward_gpu(real *logits, const uint8_t *targets, real *loss, int rows)
{
    if (rows > sums_rows) {
        give(sums);
        sums = (float *)take(4 * (size_t)rows * sizeof *sums);
        sums_rows = rows;
    }
    entropy_max_gpu(logits, VOCABULARY, sums, rows);
    entropy_sums_gpu(logits, {0, VOCABULARY}, targets, sums, sums + rows, rows);
    entropy_end_gpu(logits, VOCABULARY, sums + rows, loss, rows);
}

static void cross_entropy_backward_gpu(real *prob, vocabulary_part part, const uint8_t *targets,
                                       real scale, int rows)
{
    gpt_k k = rows_of(rows, part.cols);

    k.o = prob;
    k.t = targets;
    k.first = part.first;
    k.f[0] = scale;
    LAUNCH(entropy_back, blocks_for(k.count), k);
}

static void embed_gpu(const uint8_t *inputs, const param *tokens, const param *positions, real *out,
                      int rows, int time)
{
    gpt_k k = rows_of(rows, tokens->cols);

    k.o = out;
    k.a = tokens->value;
    k.b = positions->value;
    k.t = inputs;
    k.time = time;
    LAUNCH(embed, blocks_for(k.count), k);
}

static void embed_backward_gpu(const uint8_t *inputs, param *tokens, param *positions,
                               const real *d, int rows, int time)
{
    gpt_k k = rows_of(rows, tokens->cols);

    k.a = d;
    k.t = inputs;
    k.time = time;
    k.o = tokens->grad;
    k.count = (size_t)VOCABULARY * (size_t)tokens->cols;
    LAUNCH(embed_tokens, blocks_for(k.count), k);
    k.o = positions->grad;
    k.count = (size_t)time * (size_t)tokens->cols;
    LAUNCH(embed_positions, blocks_for(k.count), k);
}

static void mean_gpu(const real *values, int count, float *out)
{
    gpt_k k = elements((size_t)count);

    k.a = values;
    k.o = out;
    LAUNCH(mean, 1, k);
}

static void adamw_gpu(float *w, const float *g, float *m, float *v, size_t n, adamw_factors f)
{
    gpt_k k = elements(n);

    k.o = w;
    k.p = m;
    k.q = v;
    k.a = g;
    k.f[0] = f.grad_scale;
    k.f[1] = f.rate;
    k.f[2] = f.v_scale;
    k.f[3] = f.decay;
    k.f[4] = f.beta1;
    k.f[5] = f.beta2;
    LAUNCH(adamw, blocks_for(n), k);
}

static gpt_device table()
{
    gpt_device t = {};

    t.name = "cuda";
    t.take = take;
    t.give = give;
    t.take_host = take_host;
    t.give_host = give_host;
    t.upload = upload;
    t.download = download;
    t.copy = copy;
    t.zero = zero;
    t.problem = problem;
    t.matmul = matmul_gpu;
    t.spread_bias = spread_bias_gpu;
    t.sum_columns = sum_columns_gpu;
    t.layer_norm_forward = layer_norm_forward_gpu;
    t.layer_norm_backward = layer_norm_backward_gpu;
    t.gelu_forward = gelu_forward_gpu;
    t.gelu_backward = gelu_backward_gpu;
    t.attention_forward = attention_forward_gpu;
    t.attention_backward = attention_backward_gpu;
    t.cross_entropy_forward = cross_entropy_forward_gpu;
    t.cross_entropy_backward = cross_entropy_backward_gpu;
    t.entropy_max = entropy_max_gpu;
    t.entropy_sums = entropy_sums_gpu;
    t.entropy_end = entropy_end_gpu;
    t.embed = embed_gpu;
    t.embed_backward = embed_backward_gpu;
    t.mean = mean_gpu;
    t.adamw = adamw_gpu;
    return t;
}

extern "C" const gpt_device *gpt_device_cuda(void *stream, gpt_precision precision,
                                             const char **problem_out)
{
    static gpt_device device;

    gpu.stream = (cudaStream_t)stream;
    gpu.precision = precision;
    if (!load_blas(gpu.problem, sizeof gpu.problem) ||
        !good_blas(blas.create(&gpu.blas), "cublasCreate") ||
        !good_blas(blas.set_stream(gpu.blas, gpu.stream), "cublasSetStream")) {
        *problem_out = gpu.problem;
        return NULL;
    }
    device = table();
    return &device;
}

extern "C" void gpt_device_cuda_close(void)
{
    if (gpu.blas == NULL)
        return;
    for (int i = 0; i < 2; i++)
        give(gpu.narrow[i]);
    give(sums);
    good(cudaStreamSynchronize(gpu.stream), "cudaStreamSynchronize");
    good_blas(blas.destroy(gpu.blas), "cublasDestroy");
    memset(&gpu, 0, sizeof gpu);
    sums = NULL;
    sums_rows = 0;
}
