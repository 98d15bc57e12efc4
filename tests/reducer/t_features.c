/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reducer's further ways: norms over model-parallel ranks, means, ties, hooks, unused
 * parameters, ranks that run out of samples, gradients read too early, boxes of larger tensors; and
 * what goes over the wire.
 */
#include <math.h>
#include <time.h>

#include "tt_test.h"

enum { TENSORS = 5, FLOATS = 320 };

static tutti_reducer *make(tt_rank *r, tutti_comm *comm, tutti_reducer_opts opts, float *params)
{
    return tt_make_reducer(r, comm, &opts, TENSORS, FLOATS, params);
}

static void fill(const tutti_reducer *red, int id, float x)
{
    float *grad = tutti_reducer_grad(red, id);
    for (int i = 0; i < FLOATS; i++)
        grad[i] += x;
}

static void feed(tt_rank *r, tutti_reducer *red, int id, float x)
{
    fill(red, id, x);
    TT_EXPECT_OK(r, tutti_reducer_ready(red, &id, 1, (tutti_stream){0}));
}

static void feed_all(tt_rank *r, tutti_reducer *red, float x)
{
    for (int id = TENSORS - 1; id >= 0 && !r->failed; id--)
        feed(r, red, id, x);
}

/* tp = 2: w0 is the same on both ranks of a pair, the others are parts. */
static void norm_body(tt_rank *r)
{
    static float params[8][TENSORS * FLOATS];
    bool shard = *(const bool *)r->arg;
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_reducer *red = NULL;
    tutti_comm *dp;
    tutti_mesh *mesh;
    float norm = -1, x = (float)(1 + r->rank % 2);
    double want;
    int id = 0;

    TT_EXPECT_OK(r, tutti_mesh_create(r->ctx, "dp,tp=2", &mesh));
    TT_EXPECT_OK(r, tutti_mesh_comm(mesh, "dp", &dp));
    opts.norm_comm = r->comm;
    opts.bucket_bytes = 2000;
    opts.flags = shard ? TUTTI_SHARD_OPTIMIZER : 0u;
    TT_EXPECT_OK(r, tutti_reducer_create(dp, &opts, &red));
    for (id = 0; id < 2; id++) {
        tutti_param p = TUTTI_PARAM_INIT;
        p.name = id == 0 ? "copy" : "part";
        p.dtype = TUTTI_FLOAT32;
        p.ndim = 1;
        p.shape[0] = FLOATS;
        p.param = params[r->rank] + id * FLOATS;
        p.flags = id == 0 && r->rank % 2 == 1 ? TUTTI_PARAM_UNCOUNTED : 0u;
        TT_EXPECT_OK(r, tutti_reducer_add(red, &p, NULL));
    }
    TT_EXPECT_OK(r, tutti_reducer_commit(red));
    TT_EXPECT(r, tutti_reducer_grad_norm(red, (tutti_stream){0}, &norm) == TUTTI_ERR_STATE);
    for (int s = 0; s < 2; s++) {
        TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, (tutti_stream){0}));
        id = 1;
        feed(r, red, id, s == 1 && r->rank == 3 ? NAN : x);
        feed(r, red, 0, 3);
        TT_EXPECT_OK(r, tutti_reducer_wait(red, (tutti_stream){0}));
        TT_EXPECT_OK(r, tutti_reducer_grad_norm(red, (tutti_stream){0}, &norm));
        want = sqrt(FLOATS * (9.0 + 1.0 + 4.0));
        if (s == 0)
            TT_EXPECT(r, norm == (float)want);
        else
            TT_EXPECT(r, isnan(norm)); /* on every rank, for one value on one */
    }
    tutti_reducer_destroy(red);
}

static void norms_over_a_mesh(void **state)
{
    bool shard = false;

    (void)state;
    TT_ASSERT_RANKS(4, NULL, norm_body, &shard);
    shard = true;
    TT_ASSERT_RANKS(4, "2x2", norm_body, &shard);
    TT_ASSERT_RANKS(8, "2x4", norm_body, &shard);
}

static void mean_body(tt_rank *r)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_reducer *red = make(r, r->comm, opts, NULL);
    float v[2];

    for (int s = 0; s < 2 && !r->failed; s++) {
        for (int k = 0; k < 3; k++) {
            TT_EXPECT_OK(r, tutti_reducer_begin(red, k, 3, (tutti_stream){0}));
            v[0] = (float)(10 * r->rank + k + s);
            v[1] = k == 0 && r->rank == 0 ? 1e30f : k == 2 && r->rank == 0 ? -1e30f : 3;
            TT_EXPECT_OK(r, tutti_reducer_mean(red, v, 2, (tutti_stream){0}));
            TT_EXPECT(r, tutti_reducer_mean(red, v, 2, (tutti_stream){0}) == TUTTI_ERR_STATE);
            feed_all(r, red, 1);
        }
        TT_EXPECT_OK(r, tutti_reducer_wait(red, (tutti_stream){0}));
        TT_EXPECT(r, v[0] == (float)(5 * (r->size - 1) + 1 + s));
        TT_EXPECT(r, v[1] == (float)((3.0 * (3 * r->size - 2)) / (3 * r->size)));
    }
    if (r->size > 1) { /* one's mistake would end the others' waits */
        tutti_reducer_destroy(red);
        return;
    }
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 2, (tutti_stream){0}));
    TT_EXPECT(r, tutti_reducer_mean(red, v, 65, (tutti_stream){0}) == TUTTI_ERR_ARG);
    TT_EXPECT_OK(r, tutti_reducer_mean(red, v, 1, (tutti_stream){0}));
    feed_all(r, red, 1);
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 1, 2, (tutti_stream){0}));
    TT_EXPECT(r, tutti_reducer_mean(red, v, 2, (tutti_stream){0}) == TUTTI_ERR_STATE);
    feed_all(r, red, 1);
    TT_EXPECT(r, tutti_reducer_wait(red, (tutti_stream){0}) == TUTTI_ERR_STATE);
    TT_EXPECT(r, strstr(tutti_last_error(), "but not in micro-step 1 of 2") != NULL);
    tutti_reducer_destroy(red);
    r->ctx = NULL;
}

static void means_are_exact(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, "1,2", mean_body, NULL);
    TT_ASSERT_RANKS(1, NULL, mean_body, NULL);
}

static void tie_body(tt_rank *r)
{
    static float table[4][FLOATS];
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_param p = TUTTI_PARAM_INIT;
    tutti_reducer *red;
    const tutti_piece *piece;
    int wte = -1, head = -1, other = -1;
    float *grad;

    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, &opts, &red));
    p.name = "wte";
    p.dtype = TUTTI_FLOAT32;
    p.ndim = 1;
    p.shape[0] = FLOATS;
    p.param = table[r->rank];
    TT_EXPECT_OK(r, tutti_reducer_add(red, &p, &wte));
    p.name = "other";
    p.param = NULL;
    TT_EXPECT_OK(r, tutti_reducer_add(red, &p, &other));
    p.name = "head";
    p.tied = 1 + 7;
    TT_EXPECT(r, tutti_reducer_add(red, &p, &head) == TUTTI_ERR_ARG);
    p.tied = 1 + wte;
    p.shape[0] = FLOATS + 1;
    TT_EXPECT(r, tutti_reducer_add(red, &p, &head) == TUTTI_ERR_ARG);
    p.shape[0] = FLOATS;
    TT_EXPECT_OK(r, tutti_reducer_add(red, &p, &head));
    TT_EXPECT_OK(r, tutti_reducer_commit(red));
    grad = tutti_reducer_grad(red, wte);
    TT_EXPECT(r, grad == tutti_reducer_grad(red, head));
    TT_EXPECT(r, tutti_reducer_pieces(red, &piece) == 2 && piece[1].id == other);
    TT_EXPECT(r, tutti_reducer_shard_count(red) == 2 * FLOATS);
    for (int s = 0; s < 2; s++) {
        TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, (tutti_stream){0}));
        feed(r, red, head, (float)r->rank); /* the first use in the backward pass ... */
        feed(r, red, other, 1);
        feed(r, red, wte, 10); /* ... and the last, onto the same gradient */
        TT_EXPECT_OK(r, tutti_reducer_wait(red, (tutti_stream){0}));
        TT_EXPECT(r, grad[7] == 10 + (float)(r->size - 1) / 2);
    }
    tutti_reducer_destroy(red);
}

static void tied_parameters(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, tie_body, NULL);
}

static tutti_status sum_hook(void *arg, const tutti_bucket *b)
{
    (*(int *)arg)++;
    return tutti_all_reduce(b->comm, b->data, b->data, b->count, b->dtype, TUTTI_AVG, b->stream);
}

static tutti_status bad_hook(void *arg, const tutti_bucket *b)
{
    (void)arg;
    (void)b;
    return TUTTI_ERR_UNSUPPORTED;
}

static void hook_body(tt_rank *r)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_reducer *red;
    const float *grad;
    int calls = 0;

    opts.bucket_bytes = 2 * FLOATS * sizeof(float);
    red = make(r, r->comm, opts, NULL);
    grad = tutti_reducer_grad(red, 2);
    for (int s = 0; s < 3 && !r->failed; s++) {
        TT_EXPECT_OK(r, tutti_reducer_hook(red, s == 1 ? sum_hook : NULL, &calls));
        TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, (tutti_stream){0}));
        TT_EXPECT(r, tutti_reducer_hook(red, sum_hook, &calls) == TUTTI_ERR_STATE);
        feed_all(r, red, (float)r->rank);
        TT_EXPECT_OK(r, tutti_reducer_wait(red, (tutti_stream){0}));
        TT_EXPECT(r, grad[3] == (float)(r->size - 1) / 2);
        TT_EXPECT(r, calls == (s == 0 ? 0 : 3));
    }
    if (r->size > 1) {
        tutti_reducer_destroy(red);
        return;
    }
    TT_EXPECT_OK(r, tutti_reducer_hook(red, bad_hook, NULL));
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, (tutti_stream){0}));
    fill(red, 4, 1);
    int last[2] = {4, 3};
    TT_EXPECT(r, tutti_reducer_ready(red, last, 2, (tutti_stream){0}) == TUTTI_ERR_UNSUPPORTED);
    TT_EXPECT(r, strstr(tutti_last_error(), "the hook of bucket 0 returned") != NULL);
    TT_EXPECT(r, tutti_ctx_error(r->ctx, NULL, 0) == TUTTI_ERR_UNSUPPORTED);
    tutti_reducer_destroy(red);
    r->ctx = NULL;
}

static void hooks(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, hook_body, NULL);
    TT_ASSERT_RANKS(1, NULL, hook_body, NULL);
}

static void unused_body(tt_rank *r)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_reducer *red;

    opts.flags = TUTTI_REDUCER_FIND_UNUSED;
    opts.bucket_bytes = 2 * FLOATS * sizeof(float);
    red = make(r, r->comm, opts, NULL);
    for (int s = 0; s < 3 && !r->failed; s++) {
        int micros = 1 + s;
        for (int k = 0; k < micros; k++) {
            TT_EXPECT_OK(r, tutti_reducer_begin(red, k, micros, (tutti_stream){0}));
            for (int id = TENSORS - 1; id >= 0; id--)
                if (id != 1 && (id != 2 || r->rank == 1) && (id != 3 || k == 0))
                    feed(r, red, id, 1); /* 1 by none, 2 by rank 1, 3 in the first micro-step */
        }
        TT_EXPECT_OK(r, tutti_reducer_wait(red, (tutti_stream){0}));
        for (int id = 0; id < TENSORS; id++) {
            const float *grad = tutti_reducer_grad(red, id);
            float want = id == 1 ? 0 : id == 3 ? 1 : (float)micros;
            want = id == 2 ? want / (float)r->size : want;
            TT_EXPECT(r, fabsf(grad[5] - want) < 1e-6f);
            TT_EXPECT(r, tutti_reducer_used(red, id) == (id != 1));
        }
    }
    tutti_reducer_destroy(red);
}

static void unused_parameters(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, unused_body, NULL);
}

/* Rank r has 2 + 3 r batches. */
typedef struct uneven {
    tt_rank *r;
    tutti_reducer *red;
    float *params;
    bool present;
    int step;
} uneven;

static tutti_status update(void *arg)
{
    uneven *u = arg;
    const tutti_piece *piece;
    size_t n = tutti_reducer_pieces(u->red, &piece);
    float norm = 0;
    tutti_status status = tutti_reducer_grad_norm(u->red, (tutti_stream){0}, &norm);

    for (size_t k = 0; k < n && status == TUTTI_OK; k++)
        for (int64_t i = 0; i < piece[k].count; i++)
            ((float *)piece[k].param)[i] -= ((const float *)piece[k].grad)[i];
    u->step++;
    return status != TUTTI_OK ? status : tutti_reducer_gather(u->red, (tutti_stream){0});
}

static void check_uneven(uneven *u)
{
    double want = 0;

    for (int s = 0; s < 2 + 3 * (u->r->size - 1); s++) {
        double sum = 0;
        int present = 0;
        for (int r = 0; r < u->r->size; r++)
            if (s < 2 + 3 * r) {
                sum += 12 * (r + 1); /* of two micro-steps */
                present++;
            }
        want -= sum / (u->present ? present : u->r->size);
    }
    TT_EXPECT_OK(u->r, tutti_reducer_param_wait(u->red, NULL, 0, (tutti_stream){0}));
    for (int i = 0; i < TENSORS * FLOATS; i++)
        TT_EXPECT(u->r, fabs((double)u->params[i] - want) < 1e-3);
    TT_EXPECT(u->r, u->step == 2 + 3 * (u->r->size - 1));
    TT_EXPECT_OK(u->r, tutti_reducer_check(u->red));
}

static void uneven_body(tt_rank *r)
{
    uint32_t more = *(const uint32_t *)r->arg;
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    float *params = calloc(TENSORS * FLOATS, sizeof *params), mean;
    uneven u = {r, NULL, params, (more & TUTTI_REDUCER_AVERAGE_PRESENT) != 0, 0};

    opts.flags = TUTTI_REDUCER_UNEVEN | more;
    opts.bucket_bytes = 2 * FLOATS * sizeof(float);
    u.red = make(r, r->comm, opts, params);
    while (u.step < 2 + 3 * r->rank && !r->failed) {
        int absent = 0;
        for (int k = 0; k < 2; k++) {
            TT_EXPECT_OK(r, tutti_reducer_begin(u.red, k, 2, (tutti_stream){0}));
            TT_EXPECT(r, tutti_reducer_scalar(u.red, &mean, 1, TUTTI_SUM, (tutti_stream){0}) ==
                             TUTTI_ERR_STATE);
            mean = (float)r->rank;
            TT_EXPECT_OK(r, tutti_reducer_mean(u.red, &mean, 1, (tutti_stream){0}));
            feed_all(r, u.red, 6 * (float)(r->rank + 1));
        }
        TT_EXPECT_OK(r, tutti_reducer_wait(u.red, (tutti_stream){0}));
        while (u.step >= 2 + 3 * absent)
            absent++;
        TT_EXPECT(r, mean == (float)(r->size - 1 + absent) / 2); /* of absent ... size - 1 */
        TT_EXPECT_OK(r, update(&u));
    }
    if (!r->failed)
        TT_EXPECT_OK(r, tutti_reducer_join(u.red, (tutti_stream){0}, update, &u));
    if (!r->failed)
        check_uneven(&u);
    tutti_reducer_destroy(u.red);
    free(params);
}

static void uneven_inputs(void **state)
{
    static const uint32_t flags[] = {0, TUTTI_REDUCER_AVERAGE_PRESENT, TUTTI_SHARD_OPTIMIZER,
                                     TUTTI_SHARD_OPTIMIZER | TUTTI_REDUCER_AVERAGE_PRESENT |
                                         TUTTI_REDUCER_REPRODUCIBLE};

    (void)state;
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        uint32_t f = flags[i];
        TT_ASSERT_RANKS(3, i % 2 == 0 ? NULL : "2,1", uneven_body, &f);
    }
}

/* The read that a careless program makes while the stream writes: a race on purpose, which is all
 * that the test is about, so ThreadSanitizer does not look at it. */
__attribute__((noinline, no_sanitize_thread)) static float read_early(const volatile float *grad)
{
    return *grad;
}

/* Checked mode: a gradient read between ready and wait is seen to be none. */
static void early_body(tt_rank *r)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_reducer *red;
    const volatile float *grad;
    int last[2] = {4, 3};

    opts.wire = *(const tutti_dtype *)r->arg;
    opts.bucket_bytes = 2 * FLOATS * sizeof(float);
    red = make(r, r->comm, opts, NULL);
    grad = tutti_reducer_grad(red, 4);
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, (tutti_stream){0}));
    fill(red, 4, 1);
    TT_EXPECT_OK(r, tutti_reducer_ready(red, last, 2, (tutti_stream){0}));
    for (int i = 0; i < 60000 && !isnan(read_early(&grad[9])); i++) {
        struct timespec t = {0, 1000000};
        nanosleep(&t, NULL);
    }
    TT_EXPECT(r, isnan(read_early(&grad[9])));
    for (int id = 2; id >= 0; id--)
        feed(r, red, id, 1);
    TT_EXPECT_OK(r, tutti_reducer_wait(red, (tutti_stream){0}));
    TT_EXPECT(r, grad[9] == 1);
    tutti_reducer_destroy(red);
}

static void gradients_read_early(void **state)
{
    static const tutti_dtype wires[] = {(tutti_dtype)0, TUTTI_BFLOAT16};

    (void)state;
    setenv("TUTTI_CHECK", "1", 1);
    for (int i = 0; i < 2; i++)
        TT_ASSERT_RANKS(2, NULL, early_body, (void *)(uintptr_t)&wires[i]);
    unsetenv("TUTTI_CHECK");
}

/* Two ranks hold halves of the columns of a tensor, as tensor parallelism has them; the state that
 * they save is the whole tensor's, and one rank with all of it loads it. */
enum { ROWS = 6, COLUMNS = 8 };

static void box_body(tt_rank *r)
{
    const char *folder = r->arg;
    int parts = r->size, mine = COLUMNS / parts;
    tutti_ckpt_save_opts sync = TUTTI_CKPT_SAVE_OPTS_INIT;
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    float *state = calloc(ROWS * COLUMNS, sizeof *state);
    tutti_param p = TUTTI_PARAM_INIT;
    tutti_reducer *red;
    tutti_comm *self;

    TT_EXPECT_OK(r, tutti_comm_split(r->comm, r->rank, 0, NULL, &self));
    TT_EXPECT_OK(r, tutti_reducer_create(self, &opts, &red));
    p.name = "weight";
    p.dtype = TUTTI_FLOAT32;
    p.ndim = 2;
    p.shape[0] = p.whole[0] = ROWS;
    p.shape[1] = mine;
    p.whole[1] = COLUMNS;
    p.offset[1] = COLUMNS;
    TT_EXPECT(r, tutti_reducer_add(red, &p, NULL) == TUTTI_ERR_ARG);
    p.offset[1] = r->rank * mine;
    TT_EXPECT_OK(r, tutti_reducer_add(red, &p, NULL));
    TT_EXPECT_OK(r, tutti_reducer_commit(red));
    for (int i = 0; i < ROWS * mine; i++)
        state[i] = (float)(i / mine * COLUMNS + r->rank * mine + i % mine);
    if (parts > 1) {
        tutti_ckpt *ck;
        sync.flags = TUTTI_CKPT_SYNC;
        TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, folder, 1, &ck));
        TT_EXPECT(r, tutti_ckpt_add_state(ck, red, "m", state, TUTTI_FLOAT32) == TUTTI_ERR_ARG);
        TT_EXPECT(r, tutti_ckpt_add_state(ck, red, "%m%", state, TUTTI_FLOAT32) == TUTTI_ERR_ARG);
        TT_EXPECT_OK(r, tutti_ckpt_add_state(ck, red, "m/%.v", state, TUTTI_FLOAT32));
        TT_EXPECT_OK(r, tutti_ckpt_commit(ck, (tutti_stream){0}, &sync));
    } else {
        tutti_ckpt_reader *rd;
        tutti_tensor info;
        memset(state, 0, ROWS * COLUMNS * sizeof *state);
        TT_EXPECT_OK(r, tutti_ckpt_open(r->ctx, folder, -1, &rd));
        TT_EXPECT_OK(r, tutti_ckpt_stat(rd, "m/weight.v", &info));
        TT_EXPECT(r, info.shape[0] == ROWS && info.shape[1] == COLUMNS);
        TT_EXPECT_OK(
            r, tutti_ckpt_read_state(rd, red, "m/%.v", state, TUTTI_FLOAT32, (tutti_stream){0}));
        for (int i = 0; i < ROWS * COLUMNS; i++)
            TT_EXPECT(r, state[i] == (float)i);
        tutti_ckpt_close(rd);
    }
    tutti_reducer_destroy(red);
    free(state);
}

static void boxes_of_whole_tensors(void **state)
{
    char folder[] = "/tmp/tutti-boxes-XXXXXX", command[64];

    (void)state;
    assert_non_null(mkdtemp(folder));
    TT_ASSERT_RANKS(2, NULL, box_body, folder);
    TT_ASSERT_RANKS(1, NULL, box_body, folder);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static bool says(const char *text)
{
    return strstr(tutti_last_error(), text) != NULL;
}

static void refused_opts(tt_rank *r)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_param p = TUTTI_PARAM_INIT;
    tutti_reducer *red = NULL;

    opts.flags = TUTTI_REDUCER_REPRODUCIBLE;
    opts.wire = TUTTI_BFLOAT16;
    TT_EXPECT(r, tutti_reducer_create(r->comm, &opts, &red) == TUTTI_ERR_ARG && says("16 bits"));
    opts.flags = 0;
    opts.wire = TUTTI_FLOAT64;
    TT_EXPECT(r, tutti_reducer_create(r->comm, &opts, &red) == TUTTI_ERR_ARG && says("wire type"));
    opts.wire = (tutti_dtype)0;
    opts.flags = TUTTI_REDUCER_AVERAGE_PRESENT;
    TT_EXPECT(r, tutti_reducer_create(r->comm, &opts, &red) == TUTTI_ERR_ARG && says("UNEVEN"));
    opts.flags = TUTTI_SHARD_OPTIMIZER;
    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, &opts, &red));
    p.name = "w";
    p.dtype = TUTTI_FLOAT32;
    TT_EXPECT(r, tutti_reducer_add(red, &p, NULL) == TUTTI_ERR_ARG && says("its memory"));
    tutti_reducer_destroy(red);
}

/* One rank, so that its own mistakes are all there is. */
static void misuse_body(tt_rank *r)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    const tutti_stream inl = {0}, cuda = {NULL, TUTTI_STREAM_CUDA};
    static float params[TENSORS * FLOATS];
    tutti_stream gone;
    tutti_reducer *red;
    int id = 0, none = TENSORS;
    float norm;

    refused_opts(r);
    opts.flags = TUTTI_SHARD_OPTIMIZER | TUTTI_REDUCER_REPRODUCIBLE;
    red = make(r, r->comm, opts, params);
    TT_EXPECT(r, tutti_reducer_gather(red, inl) == TUTTI_ERR_STATE && says("before the first"));
    TT_EXPECT(r, tutti_reducer_join(red, inl, update, NULL) == TUTTI_ERR_STATE && says("UNEVEN"));
    TT_EXPECT(r, tutti_reducer_param_wait(red, &none, 1, inl) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_reducer_begin(red, 0, 3, inl) == TUTTI_ERR_ARG && says("a power of two"));
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, inl));
    TT_EXPECT(r, tutti_reducer_gather(red, inl) == TUTTI_ERR_STATE && says("wait comes first"));
    TT_EXPECT(r, tutti_reducer_grad_norm(red, inl, &norm) == TUTTI_ERR_STATE);
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "gone", 0, &gone));
    tutti_stream_destroy(r->ctx, gone);
    TT_EXPECT(r, tutti_reducer_ready(red, &id, 1, gone) == TUTTI_ERR_ARG && says("destroyed"));
    TT_EXPECT(r, tutti_reducer_ready(red, &id, 1, cuda) == TUTTI_ERR_ARG && says("CUDA stream"));
    feed_all(r, red, 1); /* what was refused left nothing behind */
    TT_EXPECT_OK(r, tutti_reducer_wait(red, inl));
    TT_EXPECT(r, tutti_reducer_ready(red, &id, 1, inl) == TUTTI_ERR_STATE && says("outside begin"));
    TT_EXPECT_OK(r, tutti_reducer_grad_norm(red, inl, &norm));
    TT_EXPECT(r, norm == sqrtf(TENSORS * FLOATS));
    tutti_reducer_destroy(red);
}

static void misuse_is_named(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(1, NULL, misuse_body, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms_over_a_mesh),    cmocka_unit_test(means_are_exact),
        cmocka_unit_test(tied_parameters),      cmocka_unit_test(hooks),
        cmocka_unit_test(unused_parameters),    cmocka_unit_test(uneven_inputs),
        cmocka_unit_test(gradients_read_early), cmocka_unit_test(boxes_of_whole_tensors),
        cmocka_unit_test(misuse_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
