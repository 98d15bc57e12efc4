/* SPDX-License-Identifier: Apache-2.0 */
/* Saves that go well: beside the training, from streams, replicas, values of each rank. */
#include "ckpt_test.h"

#include <sys/stat.h>
#include <unistd.h>

static char dir[PATH_CAP];

static int setup(void **state)
{
    (void)state;
    scratch_make_on_disk(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(dir);
    return 0;
}

static void expect_step(int ranks, int64_t want)
{
    tutti_status status;
    int64_t got;
    assert_string_equal(small_job_load(ranks, dir, -1, &status, &got, NULL), "");
    assert_int_equal(status, TUTTI_OK);
    assert_int_equal(got, want);
    assert_int_equal(count_entries(dir, "."), 0);
}

static void wait_then_load(void **state)
{
    (void)state;
    assert_string_equal(small_job_save(3, dir, 41), "");
    expect_step(1, 41);
    expect_step(5, 41);
}

static void steps_body(tt_rank *r)
{
    char path[PATH_CAP + 64];
    uint32_t todo;
    double there = 0; /* on all ranks: they make the same number of steps */
    snprintf(path, sizeof path, "%s/step-000000000003/manifest.json", dir);
    TT_EXPECT_OK(r, small_save(r, dir, 3, NULL));
    for (int64_t step = 4; step < 40000 && there == 0; step++) {
        TT_EXPECT_OK(r, tutti_step(r->ctx, step, &todo));
        usleep(3000);
        there = access(path, F_OK) == 0;
        TT_EXPECT_OK(r, tutti_all_reduce_host(r->comm, &there, 1, TUTTI_MIN));
    }
    TT_EXPECT(r, there == 1);
}

static void steps_commit(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, steps_body, NULL);
    expect_step(2, 3);
}

static void no_wait_body(tt_rank *r)
{
    for (int64_t step = 1; step <= 3; step++)
        TT_EXPECT_OK(r, small_save(r, dir, step, NULL));
}

static void finalize_commits(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, no_wait_body, NULL);
    expect_step(2, 3);
    assert_int_equal(count_entries(dir, "step-"), 3);
}

static void again_body(tt_rank *r)
{
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    opts.flags = TUTTI_CKPT_SYNC;
    int64_t *step = r->arg;
    TT_EXPECT_OK(r, small_save(r, dir, *step, &opts));
}

/* A run that went back comes to a step that is there already, with other content. */
static void same_step_again(void **state)
{
    (void)state;
    char from[PATH_CAP + 64], to[PATH_CAP + 64];
    int64_t step = 5;
    assert_string_equal(small_job_save(2, dir, 4), "");
    snprintf(from, sizeof from, "%s/step-000000000004", dir);
    snprintf(to, sizeof to, "%s/step-000000000005", dir);
    assert_int_equal(rename(from, to), 0);
    TT_ASSERT_RANKS(3, NULL, again_body, &step);
    expect_step(2, 5);
    assert_int_equal(count_entries(dir, ""), 1);
}

typedef struct late {
    unsigned char *data;
    size_t bytes;
    unsigned char value;
} late;

static void fill_late(void *arg)
{
    late *l = arg;
    usleep(20000);
    memset(l->data, l->value, l->bytes);
}

/* What the stream computes before commit is saved, what it computes after is not. */
static void stream_body(tt_rank *r)
{
    enum { N = 300000 };
    unsigned char *data = calloc(1, N);
    late before = {data, N, 1}, after = {data, N, 2};
    tutti_tensor t = tensor_1d("x", TUTTI_UINT8, N * r->size, N * r->rank, N, data);
    tutti_stream stream;
    tutti_ckpt *ck;
    tutti_ckpt_reader *rd;
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "compute", 0, &stream));
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, 1, &ck));
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t));
    TT_EXPECT_OK(r, tutti_stream_call(r->ctx, stream, fill_late, &before));
    TT_EXPECT_OK(r, tutti_ckpt_commit(ck, stream, NULL));
    TT_EXPECT_OK(r, tutti_stream_call(r->ctx, stream, fill_late, &after));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, stream));
    TT_EXPECT(r, data[0] == 2 && data[N - 1] == 2);
    TT_EXPECT_OK(r, tutti_ckpt_open(r->ctx, dir, 1, &rd));
    TT_EXPECT_OK(r, tutti_stream_call(r->ctx, stream, fill_late, &after));
    TT_EXPECT_OK(r, tutti_ckpt_read(rd, &t, 1, stream)); /* behind the last fill */
    for (size_t i = 0; i < N; i++)
        TT_EXPECT(r, data[i] == 1);
    tutti_ckpt_close(rd);
    tutti_stream_destroy(r->ctx, stream);
    free(data);
}

static void stream_order(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, stream_body, NULL);
}

static void replica_body(tt_rank *r)
{
    enum { N = 1 << 20, TENSORS = 4 };
    unsigned char *data = malloc(N);
    char name[16];
    tutti_ckpt *ck;
    memset(data, 7, N);
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, 1, &ck));
    for (int i = 0; i < TENSORS; i++) {
        snprintf(name, sizeof name, "x%d", i);
        tutti_tensor t = tensor_1d(name, TUTTI_UINT8, N, 0, 0, data);
        TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t));
    }
    TT_EXPECT_OK(r, tutti_ckpt_commit(ck, (tutti_stream){0}, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
    free(data);
}

static void replicas_once_and_spread(void **state)
{
    (void)state;
    char path[PATH_CAP + 64];
    struct stat st[2];
    TT_ASSERT_RANKS(2, NULL, replica_body, NULL);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/step-000000000001/shard-%05d.h5", dir, i);
        assert_int_equal(stat(path, &st[i]), 0);
        assert_in_range(st[i].st_size, 2 << 20, (2 << 20) + 65536);
    }
}

static void large_replica_body(tt_rank *r)
{
    enum { ROWS = 5, COLS = 3000001 };
    tutti_tensor t = TUTTI_TENSOR_INIT;
    tutti_ckpt *ck;
    tutti_ckpt_reader *rd;
    t.name = "w";
    t.dtype = TUTTI_UINT8;
    t.ndim = 3;
    t.shape[0] = 1;
    t.shape[1] = ROWS;
    t.shape[2] = COLS;
    t.data = calloc(ROWS, COLS);
    box_fill(&t, 5);
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, 1, &ck));
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t));
    TT_EXPECT_OK(r, tutti_ckpt_commit(ck, (tutti_stream){0}, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
    memset(t.data, 0, (size_t)ROWS * COLS);
    TT_EXPECT_OK(r, tutti_ckpt_open(r->ctx, dir, -1, &rd));
    TT_EXPECT_OK(r, tutti_ckpt_read(rd, &t, 1, (tutti_stream){0}));
    tutti_ckpt_close(rd);
    TT_EXPECT(r, box_check(&t, 5));
    free(t.data);
}

/* One tensor of 15 MB that three ranks hold: each writes a slice. */
static void large_replica_sliced(void **state)
{
    (void)state;
    char path[PATH_CAP + 64];
    struct stat st;
    TT_ASSERT_RANKS(3, NULL, large_replica_body, NULL);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/step-000000000001/shard-%05d.h5", dir, i);
        assert_int_equal(stat(path, &st), 0);
        assert_in_range(st.st_size, 3000001, 2 * 3000001 + 65536);
    }
}

static void own_body(tt_rank *r)
{
    int32_t mine[3] = {r->rank, r->rank * 10, -r->rank}, got[3];
    tutti_tensor t = tensor_1d("own/x", TUTTI_INT32, 3, 0, 0, mine), info;
    tutti_ckpt *ck;
    tutti_ckpt_reader *rd;
    t.flags = TUTTI_CKPT_PER_RANK;
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, 1, &ck));
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t));
    TT_EXPECT_OK(r, tutti_ckpt_commit(ck, (tutti_stream){0}, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_open(r->ctx, dir, -1, &rd));
    TT_EXPECT_OK(r, tutti_ckpt_stat(rd, "own/x", &info));
    TT_EXPECT(r, info.flags == TUTTI_CKPT_PER_RANK && info.shape[0] == 3);
    TT_EXPECT(r, strcmp(info.name, "own/x") == 0);
    info.data = got;
    TT_EXPECT_OK(r, tutti_ckpt_read(rd, &info, 1, (tutti_stream){0}));
    TT_EXPECT(r, memcmp(got, mine, sizeof got) == 0);
    t.name = "rank/1/own/x"; /* another rank's, by its full name */
    t.flags = 0;
    t.data = got;
    TT_EXPECT_OK(r, tutti_ckpt_read(rd, &t, 1, (tutti_stream){0}));
    TT_EXPECT(r, got[0] == 1 && got[1] == 10 && got[2] == -1);
    tutti_ckpt_close(rd);
}

static void own_missing_body(tt_rank *r)
{
    int32_t got[3];
    char buf[8];
    tutti_tensor t = tensor_1d("own/x", TUTTI_INT32, 3, 0, 0, got);
    tutti_ckpt_reader *rd;
    t.flags = TUTTI_CKPT_PER_RANK;
    TT_EXPECT_OK(r, tutti_ckpt_open(r->ctx, dir, -1, &rd));
    TT_EXPECT(r, tutti_ckpt_world(rd) == 2);
    /* rank 2 has no value of its own: all ranks are told */
    TT_EXPECT(r, tutti_ckpt_read(rd, &t, 1, (tutti_stream){0}) == TUTTI_ERR_NOT_FOUND);
    TT_EXPECT(r, strstr(tutti_last_error(), "own/x of this rank") != NULL);
    TT_EXPECT(r, tutti_ckpt_read_bytes(rd, "own/x", 0, buf, sizeof buf, NULL) ==
                     TUTTI_ERR_NOT_FOUND); /* a tensor, not a value */
    tutti_ckpt_close(rd);
}

static void values_of_each_rank(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, own_body, NULL);
    TT_ASSERT_RANKS(3, NULL, own_missing_body, NULL);
}

static void empty_body(tt_rank *r)
{
    float all[3] = {1, 2, 3}, own[3] = {0};
    double nothing = 0, scalar = 2.5, got = 0;
    char value[4];
    size_t bytes = 9;
    /* three rows for five ranks: two of them hold none */
    int64_t low = 3 * r->rank / r->size, high = 3 * (r->rank + 1) / r->size;
    tutti_tensor t = tensor_1d("rows", TUTTI_FLOAT32, 3, low, high - low, all + low);
    tutti_tensor none = tensor_1d("none", TUTTI_FLOAT64, 0, 0, 0, &nothing);
    tutti_tensor one = TUTTI_TENSOR_INIT;
    tutti_ckpt *ck;
    tutti_ckpt_reader *rd;
    one.name = "one";
    one.dtype = TUTTI_FLOAT64;
    one.data = &scalar;
    t.ndim = 2; /* [3, 1], so that an empty box is not the whole */
    t.shape[1] = t.extent[1] = 1;
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, 1, &ck));
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t));
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &none));
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &one));
    TT_EXPECT_OK(r, tutti_ckpt_add_bytes(ck, "empty", NULL, 0, TUTTI_CKPT_SAME));
    TT_EXPECT_OK(r, tutti_ckpt_commit(ck, (tutti_stream){0}, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
    memset(all, 0, sizeof all);
    tutti_tensor mine = t;
    mine.data = high > low ? own : NULL;
    t.offset[0] = t.extent[0] = 0;
    t.extent[1] = 0;
    t.data = all;
    one.data = &got;
    tutti_tensor want[4] = {t, none, one, mine};
    TT_EXPECT_OK(r, tutti_ckpt_open(r->ctx, dir, 1, &rd));
    TT_EXPECT_OK(r, tutti_ckpt_read(rd, want, 4, (tutti_stream){0}));
    TT_EXPECT(r, all[0] == 1 && all[1] == 2 && all[2] == 3 && got == 2.5);
    TT_EXPECT(r, high == low || own[0] == (float)(low + 1));
    TT_EXPECT_OK(r, tutti_ckpt_read_bytes(rd, "empty", 0, value, sizeof value, &bytes));
    TT_EXPECT(r, bytes == 0);
    tutti_ckpt_close(rd);
}

static void empty_boxes(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(5, NULL, empty_body, NULL);
}

/* What a command prints; the caller frees. NULL: there is no such program here. */
static char *output_of(const char *command)
{
    char *out = calloc(1, 1 << 16);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t n = fread(out, 1, (1 << 16) - 1, pipe);
    int rc = pclose(pipe);
    if (n == 0 || rc == 127 << 8) {
        free(out);
        return NULL;
    }
    return out;
}

static void dump_body(tt_rank *r)
{
    /* columns over the ranks, three types of float, a name in groups */
    float w[2] = {1.5f + (float)r->rank, -2.0f};
    uint16_t bf16[1] = {0x3fc0}, f16[1] = {0x3e00}; /* 1.5 */
    uint8_t f8[1] = {0x7e}; /* 448 */
    tutti_tensor t = TUTTI_TENSOR_INIT;
    tutti_tensor b = tensor_1d("half/b", TUTTI_BFLOAT16, r->size, r->rank, 1, bf16);
    tutti_tensor h = tensor_1d("half/h", TUTTI_FLOAT16, r->size, r->rank, 1, f16);
    tutti_tensor f = tensor_1d("f8", TUTTI_FLOAT8_E4M3, r->size, r->rank, 1, f8);
    tutti_ckpt *ck;
    t.name = "model/layer.0/w";
    t.dtype = TUTTI_FLOAT32;
    t.ndim = 2;
    t.shape[0] = 2;
    t.shape[1] = r->size;
    t.offset[1] = r->rank;
    t.extent[0] = 2;
    t.extent[1] = 1;
    t.data = w;
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, 12, &ck));
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t));
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &b));
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &h));
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &f));
    TT_EXPECT_OK(r, tutti_ckpt_add_bytes(ck, "rng", "ab", 2, TUTTI_CKPT_PER_RANK));
    TT_EXPECT_OK(r, tutti_ckpt_commit(ck, (tutti_stream){0}, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
}

static void expect_output(const char *command, const char *want)
{
    char *out = output_of(command);
    if (out == NULL)
        skip();
    if (strstr(out, want) == NULL)
        fail_msg("%s: no '%s' in:\n%s", command, want, out);
    free(out);
}

static void expect_dump(const char *args, const char *want)
{
    char command[PATH_CAP + 128];
    snprintf(command, sizeof command, "cd / && h5dump -w 0 %s %s/step-000000000012/index.h5 2>&1",
             args, dir);
    expect_output(command, want);
}

static void h5dump_reads_it(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, dump_body, NULL);
    expect_dump("-y -d /model/layer.0/w", "1.5, 2.5, 3.5,\n      -2, -2, -2");
    expect_dump("-y -d /half/b", "1.5, 1.5, 1.5");
    expect_dump("-y -d /half/h", "1.5, 1.5, 1.5");
    expect_dump("-y -d /rank/2/rng", "97, 98");
    expect_dump("-y -d /f8", "126, 126, 126");
    expect_dump("-a /f8/dtype", "float8_e4m3fn");
    expect_dump("-a /step", "12");
    expect_dump("-a /world", "3");
}

/* The distribution's h5py belongs to its own python3, which need not be the first in PATH. */
static const char *python_with_h5py(void)
{
    if (system("python3 -c 'import h5py' 2>/dev/null") == 0)
        return "python3";
    if (system("/usr/bin/python3 -c 'import h5py' 2>/dev/null") == 0)
        return "/usr/bin/python3";
    return NULL;
}

static void h5py_reads_it(void **state)
{
    (void)state;
    char command[PATH_CAP + 512];
    const char *python = python_with_h5py();
    if (python == NULL)
        skip();
    TT_ASSERT_RANKS(3, NULL, dump_body, NULL);
    snprintf(command, sizeof command,
             "cd / && %s -c \"import h5py; f = h5py.File('%s/step-000000000012/index.h5'); "
             "print(f['model/layer.0/w'][:].tolist(), f['half/b'][:].tolist(), "
             "f['half/h'][:].tolist(), f['rank/2/rng'][:].tolist(), f.attrs['step'], "
             "f['f8'].dtype, f['f8'][:].tolist(), "
             "f['f8'].attrs['dtype'].decode())\" 2>&1",
             python, dir);
    expect_output(command, "[[1.5, 2.5, 3.5], [-2.0, -2.0, -2.0]] [1.5, 1.5, 1.5] [1.5, 1.5, 1.5] "
                           "[97, 98] 12 uint8 [126, 126, 126] float8_e4m3fn");
}

/* The second save of the same tensors goes by the plan of the first; a third of others does not. */
static void plans_body(tt_rank *r)
{
    for (int64_t step = 1; step <= 6; step++) {
        float x[4] = {(float)step, 1, 2, 3};
        tutti_tensor t = tensor_1d(step < 4 ? "a" : "b", TUTTI_FLOAT32, step < 5 ? 4 : 3, 0, 0, x);
        tutti_ckpt *ck;
        tutti_ckpt_reader *rd;
        TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, step, &ck));
        TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t));
        TT_EXPECT_OK(r, tutti_ckpt_commit(ck, (tutti_stream){0}, NULL));
        TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
        memset(x, 0, sizeof x);
        TT_EXPECT_OK(r, tutti_ckpt_open(r->ctx, dir, -1, &rd));
        TT_EXPECT_OK(r, tutti_ckpt_read(rd, &t, 1, (tutti_stream){0}));
        TT_EXPECT(r, tutti_ckpt_step(rd) == step && x[0] == (float)step && x[2] == 2);
        tutti_ckpt_close(rd);
    }
}

static void plans_are_kept(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, plans_body, NULL);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        T(wait_then_load),       T(steps_commit),        T(finalize_commits),
        T(same_step_again),      T(stream_order),        T(replicas_once_and_spread),
        T(large_replica_sliced), T(values_of_each_rank), T(empty_boxes),
        T(h5dump_reads_it),      T(h5py_reads_it),       T(plans_are_kept)};
    /* those whose data lies where the backend has it */
    const struct CMUnitTest on_gpus[] = {T(wait_then_load), T(steps_commit), T(finalize_commits),
                                         T(same_step_again)};
    if (argc > 1 && strcmp(argv[1], "gpu") == 0)
        return cmocka_run_group_tests(on_gpus, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
