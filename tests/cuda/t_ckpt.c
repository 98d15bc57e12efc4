/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of device memory: t_cuda_ckpt RANKS. The snapshot is taken on a stream of its own
 * behind the training stream, which goes on, and is told only before it changes the data again.
 */
#include "tt_test.h"

#include <unistd.h>

#include "comm/comm.h"
#include "tutti/ckpt.h"
#include "tutti/interop_cuda.h"

enum { ROWS = 64, COLS = 300 };

static int ranks = 2;
static char dir[64];

static size_t bytes_of(void)
{
    return (size_t)ROWS * COLS * sizeof(float);
}

static void describe(tt_rank *r, tutti_tensor *t, void *data)
{
    *t = (tutti_tensor)TUTTI_TENSOR_INIT;
    t->name = "weights";
    t->dtype = TUTTI_FLOAT32;
    t->ndim = 2;
    t->shape[0] = (int64_t)ROWS * r->size;
    t->shape[1] = COLS;
    t->offset[0] = (int64_t)ROWS * r->rank;
    t->extent[0] = ROWS;
    t->extent[1] = COLS;
    t->data = data;
}

static float value_of(int rank, int i)
{
    return (float)(rank * 100000 + i);
}

static void save(tt_rank *r, float *device, float *image)
{
    tutti_stream train, snapshot;
    tutti_ckpt *ck;
    tutti_tensor t;
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "train", 0, &train));
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "snapshot", 0, &snapshot));
    TT_EXPECT(r, cudaMemcpyAsync(device, image, bytes_of(), cudaMemcpyHostToDevice,
                                 tutti_stream_to_cuda(train)) == cudaSuccess);
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, 1, &ck));
    describe(r, &t, device);
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t));
    TT_EXPECT_OK(r, tutti_stream_wait(r->ctx, snapshot, train));
    TT_EXPECT_OK(r, tutti_ckpt_commit(ck, snapshot, NULL));
    TT_EXPECT_OK(r, tutti_stream_wait(r->ctx, train, snapshot));
    TT_EXPECT(r,
              cudaMemsetAsync(device, 0, bytes_of(), tutti_stream_to_cuda(train)) == cudaSuccess);
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, train));
    tutti_stream_destroy(r->ctx, train);
    tutti_stream_destroy(r->ctx, snapshot);
}

static void load(tt_rank *r, float *device, float *image)
{
    tutti_ckpt_reader *rd;
    tutti_stream s;
    tutti_tensor t;
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "load", 0, &s));
    TT_EXPECT_OK(r, tutti_ckpt_open(r->ctx, dir, -1, &rd));
    describe(r, &t, device);
    TT_EXPECT_OK(r, tutti_ckpt_read(rd, &t, 1, s));
    tutti_ckpt_close(rd);
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, s));
    TT_EXPECT_OK(r, tt_device_copy_now(r->ctx->dev, image, device, bytes_of()));
    tutti_stream_destroy(r->ctx, s);
    for (int i = 0; i < ROWS * COLS; i++)
        TT_EXPECT(r, image[i] == value_of(r->rank, i));
}

static void body(tt_rank *r)
{
    tt_device *dev = r->ctx->dev;
    void *device = NULL, *image = NULL;
    TT_EXPECT_OK(r, dev->ops->mem_alloc(dev, bytes_of(), &device));
    TT_EXPECT_OK(r, dev->ops->host_alloc(dev, bytes_of(), &image));
    for (int i = 0; i < ROWS * COLS; i++)
        ((float *)image)[i] = value_of(r->rank, i);
    save(r, device, image);
    if (!r->failed)
        load(r, device, image);
    if (r->failed)
        return;
    dev->ops->host_free(dev, image);
    dev->ops->mem_free(dev, device);
}

static void device_memory_comes_back(void **state)
{
    char command[128];
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/tutti-cuda-ckpt-%d", (int)getpid());
    TT_ASSERT_RANKS(ranks, NULL, body, NULL);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(device_memory_comes_back)};
    if (argc > 1)
        ranks = (int)strtol(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
