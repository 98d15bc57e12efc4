/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the simulated NCCL does to sums: an order of its own for every call, the same for the same
 * seed; 16-bit types rounded after every addition; averages and pre-multiplied sums.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../../half.h"
#include "world.h"

enum { N = 500, RANKS = 8 };

static float sums[2][RANKS][N]; /* of two calls with the same input */

static void twice(world_rank *r)
{
    float host[N], *in, *out;
    CUDA_OK(r, cudaMalloc((void **)&in, sizeof(host)));
    CUDA_OK(r, cudaMalloc((void **)&out, sizeof(host)));
    for (int i = 0; i < N; i++)
        host[i] = 1.0f / (float)(3 + 7 * r->rank + i) * (r->rank % 2 ? -1e3f : 1.0f);
    world_put(r, in, host, sizeof(host));
    for (int k = 0; k < 2; k++) {
        NCCL_OK(r, ncclAllReduce(in, out, N, ncclFloat, ncclSum, r->comm, r->stream));
        world_get(r, sums[k][r->rank], out, sizeof(host));
    }
    CUDA_OK(r, cudaFree(in));
    CUDA_OK(r, cudaFree(out));
}

static void test_order(void **state)
{
    (void)state;
    assert_string_equal(world_threads(RANKS, twice, NULL), "");
    assert_memory_not_equal(sums[0][0], sums[1][0], sizeof(sums[0][0]));
    for (int r = 1; r < RANKS; r++)
        for (int k = 0; k < 2; k++)
            assert_memory_equal(sums[k][r], sums[k][0], sizeof(sums[k][0]));
}

/* The bits of the first call, from a process of its own. */
static uint64_t hash_with(const char *self, const char *schedule)
{
    int fds[2];
    uint64_t hash = 0;
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char fd[16];
        snprintf(fd, sizeof(fd), "%d", fds[1]);
        setenv("SIMGPU_SCHEDULE", schedule, 1);
        execl(self, self, fd, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    assert_int_equal(read(fds[0], &hash, sizeof(hash)), sizeof(hash));
    close(fds[0]);
    waitpid(pid, NULL, 0);
    return hash;
}

static int tell_hash(int fd)
{
    uint64_t hash = 14695981039346656037u;
    if (world_threads(RANKS, twice, NULL)[0] != '\0')
        return 1;
    for (const unsigned char *b = (void *)sums[0][0]; b < (unsigned char *)sums[0][1]; b++)
        hash = (hash ^ *b) * 1099511628211u;
    return write(fd, &hash, sizeof(hash)) != (ssize_t)sizeof(hash);
}

static const char *self_path;

static void test_seed(void **state)
{
    (void)state;
    uint64_t a = hash_with(self_path, "random:11");
    assert_true(a == hash_with(self_path, "random:11"));
    assert_true(a != hash_with(self_path, "random:12"));
}

/* 256 + 1 + ... + 1 in bf16: each 1 alone is lost, so the sum is near 256 unless the ones meet
 * first; in fp32 it would be 263. */
static void rounded(world_rank *r)
{
    uint16_t host[N], *buf;
    CUDA_OK(r, cudaMalloc((void **)&buf, sizeof(host)));
    for (int i = 0; i < N; i++)
        host[i] = sg_float_to_bf16(r->rank == 0 ? 256.0f : 1.0f);
    world_put(r, buf, host, sizeof(host));
    NCCL_OK(r, ncclAllReduce(buf, buf, N, ncclBfloat16, ncclSum, r->comm, r->stream));
    world_get(r, host, buf, sizeof(host));
    int lost = 0;
    for (int i = 0; i < N; i++) {
        float sum = sg_bf16_to_float(host[i]);
        EXPECT(r, sum >= 256.0f && sum <= 264.0f);
        lost += sum != 264.0f; /* what one rounding at the end would give */
    }
    EXPECT(r, lost > 0);
    CUDA_OK(r, cudaFree(buf));
}

static void test_rounding(void **state)
{
    (void)state;
    assert_string_equal(world_threads(RANKS, rounded, NULL), "");
}

static void scaled(world_rank *r)
{
    float host[4], factor = 0.5f, *buf;
    int whole[4], *ints;
    ncclRedOp_t half;
    CUDA_OK(r, cudaMalloc((void **)&buf, sizeof(host)));
    CUDA_OK(r, cudaMalloc((void **)&ints, sizeof(whole)));
    for (int i = 0; i < 4; i++) {
        host[i] = (float)(r->rank + i);
        whole[i] = 10 * r->rank + i;
    }
    world_put(r, buf, host, sizeof(host));
    world_put(r, ints, whole, sizeof(whole));
    NCCL_OK(r, ncclAllReduce(buf, buf, 4, ncclFloat, ncclAvg, r->comm, r->stream));
    NCCL_OK(r, ncclAllReduce(ints, ints, 4, ncclInt, ncclAvg, r->comm, r->stream));
    NCCL_OK(r,
            ncclRedOpCreatePreMulSum(&half, &factor, ncclFloat, ncclScalarHostImmediate, r->comm));
    NCCL_OK(r, ncclAllReduce(buf, buf, 4, ncclFloat, half, r->comm, r->stream));
    NCCL_OK(r, ncclRedOpDestroy(half, r->comm));
    world_get(r, host, buf, sizeof(host));
    world_get(r, whole, ints, sizeof(whole));
    for (int i = 0; i < 4; i++) {
        float mean = (float)(r->size - 1) / 2.0f + (float)i;
        EXPECT(r, host[i] == mean * (float)r->size / 2.0f);
        EXPECT(r, whole[i] == 10 * (r->size - 1) / 2 + i);
    }
    CUDA_OK(r, cudaFree(buf));
    CUDA_OK(r, cudaFree(ints));
}

static void test_scaled(void **state)
{
    (void)state;
    assert_string_equal(world_threads(4, scaled, NULL), "");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_seed),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_scaled),
    };
    if (argc > 1)
        return tell_hash(atoi(argv[1]));
    self_path = argv[0];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
