/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO-1 against plain data parallelism, as a proof would have it: the same training job is run
 * unsharded and sharded, and after 20 steps of AdamW with clipping on every parameter is the same
 * bit for bit on every rank. Tensors have awkward sizes, some smaller than the number of ranks;
 * gradients lie in the reducer's arena or scattered in the program's own. State is saved by one and
 * loaded by the other.
 */
#include <math.h>

#include "tt_test.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1, STEPS = 4 }; /* every kind of step, but not for long */
#else
enum { SANITIZED = 0, STEPS = 20 };
#endif
enum { TENSORS = 9, LARGEST = 5000 };

static const int64_t shapes[TENSORS][3] = {{7, 11, 13},  {1, 1, 1}, {63, 1, 1},
                                           {64, 2, 1},   {5, 5, 5}, {0, 3, 1},
                                           {1000, 5, 1}, {3, 1, 1}, {129, 3, 1}};

typedef struct plan {
    bool shard, own_grads, reproducible;
    int micros; /* of each step, on each rank */
    tutti_dtype wire;
    size_t bucket_bytes;
    double *params; /* what rank 0 ends with */
    const char *save, *load; /* folders */
    bool abandon; /* every second step comes after one that is dropped half-way */
} plan;

typedef struct job job;

/* A micro-step's part of the work, for the stream to do later. */
typedef struct part {
    job *j;
    int micro;
} part;

struct job {
    tt_rank *r;
    const plan *p;
    tutti_reducer *red;
    size_t count[TENSORS], total;
    float *param[TENSORS], *grad[TENSORS];
    char *memory;
    float *m, *v;
    tutti_stream stream;
    int step;
    part part[8];
};

static double noise(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t h = (a * 0x9e3779b1u) ^ (b * 0x85ebca6bu) ^ (c * 0xc2b2ae35u);
    h = (h ^ (h >> 15)) * 0x2c1b3c6du;
    h = (h ^ (h >> 12)) * 0x297a2d39u;
    return (double)(h ^ (h >> 15)) * 0x1p-32 - 0.5;
}

static void describe(job *j)
{
    char *at = j->memory;

    for (int id = 0; id < TENSORS; id++) {
        tutti_param p = TUTTI_PARAM_INIT;
        char name[16];
        snprintf(name, sizeof name, "t%d", id);
        p.name = name;
        p.dtype = TUTTI_FLOAT32;
        p.ndim = shapes[id][2] > 1 ? 3 : shapes[id][1] > 1 ? 2 : 1;
        memcpy(p.shape, shapes[id], sizeof shapes[id]);
        j->count[id] = (size_t)(shapes[id][0] * shapes[id][1] * shapes[id][2]);
        j->total += j->count[id];
        j->param[id] = (float *)(void *)at;
        at += j->count[id] * sizeof(float) + (id % 3 == 0 ? 4 : 0); /* some have neighbours */
        for (size_t i = 0; i < j->count[id]; i++)
            j->param[id][i] = (float)noise(1, (uint32_t)id, (uint32_t)i);
        p.param = j->param[id];
        p.group = (uint32_t)id % 2;
        if (j->p->own_grads) {
            p.grad = at;
            at += j->count[id] * sizeof(float);
        }
        TT_EXPECT_OK(j->r, tutti_reducer_add(j->red, &p, NULL));
    }
    TT_EXPECT_OK(j->r, tutti_reducer_commit(j->red));
    for (int id = 0; id < TENSORS; id++)
        j->grad[id] = tutti_reducer_grad(j->red, id);
}

/* The whole of what this rank updates is there once, and 1/n plus padding is what it costs. */
static void check_pieces(job *j)
{
    const tutti_piece *piece;
    size_t n = tutti_reducer_pieces(j->red, &piece), sum = 0, ranks = (size_t)j->r->size;
    size_t state = tutti_reducer_shard_count(j->red);

    for (size_t i = 0; i < n; i++) {
        TT_EXPECT(j->r, piece[i].count >= 0 && piece[i].tensor_offset >= 0);
        TT_EXPECT(j->r, (size_t)(piece[i].tensor_offset + piece[i].count) <= j->count[piece[i].id]);
        TT_EXPECT(j->r, piece[i].state_offset >= 0 &&
                            (size_t)(piece[i].state_offset + piece[i].count) <= state);
        TT_EXPECT(j->r, piece[i].param == j->param[piece[i].id] + piece[i].tensor_offset);
        TT_EXPECT(j->r, piece[i].grad == j->grad[piece[i].id] + piece[i].tensor_offset);
        TT_EXPECT(j->r, i == 0 || piece[i].id > piece[i - 1].id);
        sum += (size_t)piece[i].count;
    }
    double all = (double)sum;
    TT_EXPECT_OK(j->r, tutti_all_reduce_host(j->r->comm, &all, 1, TUTTI_SUM));
    TT_EXPECT(j->r, all == (double)(j->total * (j->p->shard ? 1 : ranks)));
    TT_EXPECT(j->r, !j->p->shard || state <= j->total / ranks + 64 * (2 * TENSORS + 1));
    TT_EXPECT(j->r, j->p->shard || state == j->total);
}

static void backward(void *arg)
{
    const part *w = arg;
    job *j = w->j;
    uint32_t sample = (uint32_t)(j->step * 64 + j->r->rank * j->p->micros + w->micro);

    for (int id = 0; id < TENSORS; id++)
        for (size_t i = 0; i < j->count[id]; i++)
            j->grad[id][i] +=
                (float)(noise(sample, (uint32_t)id, (uint32_t)i) + 0.1 * (double)j->param[id][i]);
}

typedef struct update {
    job *j;
    float norm;
} update;

static void adam(void *arg)
{
    update *u = arg;
    job *j = u->j;
    const tutti_piece *piece;
    size_t n = tutti_reducer_pieces(j->red, &piece);
    float scale = u->norm > 1 ? 1 / u->norm : 1;

    for (size_t k = 0; k < n; k++) {
        const tutti_piece *p = &piece[k];
        const float *g = p->grad;
        float *w = p->param, *m = j->m + p->state_offset, *v = j->v + p->state_offset;
        for (int64_t i = 0; i < p->count; i++) {
            float x = g[i] * scale;
            m[i] = 0.9f * m[i] + 0.1f * x;
            v[i] = 0.99f * v[i] + 0.01f * x * x;
            w[i] -= 0.01f * m[i] / (sqrtf(v[i]) + 1e-6f) + 0.001f * (float)p->group * w[i];
        }
    }
}

static void one_step(job *j, update *u)
{
    tutti_ctx *ctx = j->r->ctx;
    int micros = j->p->micros, ids[TENSORS];

    for (int i = 0; i < TENSORS; i++)
        ids[i] = TENSORS - 1 - i;
    for (int id = 0; id < TENSORS; id++)
        TT_EXPECT_OK(j->r, tutti_reducer_param_wait(j->red, &id, 1, j->stream));
    for (int k = 0; k < micros; k++) {
        j->part[k] = (part){j, k};
        TT_EXPECT_OK(j->r, tutti_reducer_begin(j->red, k, micros, j->stream));
        TT_EXPECT_OK(j->r, tutti_stream_call(ctx, j->stream, backward, &j->part[k]));
        for (int i = 0; i < TENSORS; i += 3)
            TT_EXPECT_OK(j->r, tutti_reducer_ready(j->red, ids + i, 3, j->stream));
    }
    TT_EXPECT_OK(j->r, tutti_reducer_wait(j->red, j->stream));
    TT_EXPECT_OK(j->r, tutti_reducer_grad_norm(j->red, j->stream, &u->norm));
    TT_EXPECT_OK(j->r, tutti_stream_call(ctx, j->stream, adam, u));
    TT_EXPECT_OK(j->r, tutti_reducer_gather(j->red, j->stream));
}

/* Ranks are at different points when they learn that the batch is bad. */
static void abandon_step(job *j)
{
    int micros = j->p->micros, reach = micros == 1 ? 1 : 1 + j->r->rank % micros;
    float loss = NAN;

    for (int k = 0; k < reach; k++) {
        int done = k < reach - 1 ? 0 : (j->r->rank + j->step) % TENSORS;
        TT_EXPECT_OK(j->r, tutti_reducer_begin(j->red, k, micros, j->stream));
        TT_EXPECT_OK(j->r, tutti_stream_sync(j->r->ctx, j->stream));
        TT_EXPECT_OK(j->r, tutti_reducer_mean(j->red, &loss, 1, (tutti_stream){0}));
        for (int id = TENSORS - 1; id >= done; id--) {
            for (size_t i = 0; i < j->count[id]; i++)
                j->grad[id][i] = NAN;
            TT_EXPECT_OK(j->r, tutti_reducer_ready(j->red, &id, 1, (tutti_stream){0}));
        }
    }
    TT_EXPECT_OK(j->r, tutti_reducer_abandon(j->red));
}

static void save(job *j)
{
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    tutti_ckpt *ck;

    opts.flags = TUTTI_CKPT_SYNC;
    TT_EXPECT_OK(j->r, tutti_reducer_param_wait(j->red, NULL, 0, j->stream));
    TT_EXPECT_OK(j->r, tutti_ckpt_begin(j->r->ctx, j->p->save, j->step, &ck));
    TT_EXPECT_OK(j->r, tutti_ckpt_add_state(ck, j->red, "m/%", j->m, TUTTI_FLOAT32));
    TT_EXPECT_OK(j->r, tutti_ckpt_add_state(ck, j->red, "v/%", j->v, TUTTI_FLOAT32));
    for (int id = 0; id < TENSORS; id++) {
        tutti_tensor t = TUTTI_TENSOR_INIT;
        char name[16];
        snprintf(name, sizeof name, "p/%d", id);
        t.name = name;
        t.dtype = TUTTI_FLOAT32;
        t.ndim = 1;
        t.shape[0] = (int64_t)j->count[id];
        t.data = j->param[id];
        if (j->count[id] > 0)
            TT_EXPECT_OK(j->r, tutti_ckpt_add(ck, &t));
    }
    TT_EXPECT_OK(j->r, tutti_ckpt_commit(ck, j->stream, &opts));
}

static void load(job *j)
{
    tutti_ckpt_reader *rd;

    TT_EXPECT_OK(j->r, tutti_ckpt_open(j->r->ctx, j->p->load, -1, &rd));
    j->step = (int)tutti_ckpt_step(rd);
    TT_EXPECT_OK(j->r,
                 tutti_ckpt_read_state(rd, j->red, "m/%", j->m, TUTTI_FLOAT32, (tutti_stream){0}));
    TT_EXPECT_OK(j->r,
                 tutti_ckpt_read_state(rd, j->red, "v/%", j->v, TUTTI_FLOAT32, (tutti_stream){0}));
    for (int id = 0; id < TENSORS; id++) {
        tutti_tensor t = TUTTI_TENSOR_INIT;
        char name[16];
        snprintf(name, sizeof name, "p/%d", id);
        t.name = name;
        t.dtype = TUTTI_FLOAT32;
        t.ndim = 1;
        t.shape[0] = (int64_t)j->count[id];
        t.data = j->param[id];
        if (j->count[id] > 0)
            TT_EXPECT_OK(j->r, tutti_ckpt_read(rd, &t, 1, (tutti_stream){0}));
    }
    tutti_ckpt_close(rd);
}

static void train(job *j)
{
    const plan *p = j->p;
    tutti_reducer_stats stats = {.size = sizeof stats};
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    update u = {j, 0};
    size_t state;

    opts.flags = (p->shard ? TUTTI_SHARD_OPTIMIZER : 0u) |
                 (p->reproducible ? TUTTI_REDUCER_REPRODUCIBLE | TUTTI_REDUCER_AVERAGE_MICRO : 0u);
    opts.bucket_bytes = p->bucket_bytes;
    opts.wire = p->wire;
    TT_EXPECT_OK(j->r, tutti_reducer_create(j->r->comm, &opts, &j->red));
    describe(j);
    if (!j->r->failed)
        check_pieces(j);
    state = tutti_reducer_shard_count(j->red);
    j->m = calloc(state + 1, sizeof *j->m);
    j->v = calloc(state + 1, sizeof *j->v);
    if (p->load != NULL)
        load(j);
    for (; j->step < STEPS && !j->r->failed; j->step++) {
        if (p->abandon && j->step % 2 == 1)
            abandon_step(j);
        if (p->save != NULL && j->step == STEPS / 2)
            save(j);
        one_step(j, &u);
        TT_EXPECT_OK(j->r, tutti_stream_sync(j->r->ctx, j->stream)); /* j->step is read there */
    }
    TT_EXPECT_OK(j->r, tutti_reducer_param_wait(j->red, NULL, 0, (tutti_stream){0}));
    TT_EXPECT(j->r, isfinite(u.norm) && u.norm > 1);
    TT_EXPECT_OK(j->r, tutti_reducer_check(j->red)); /* equal on all ranks */
    TT_EXPECT_OK(j->r, tutti_reducer_stats_get(j->red, &stats));
    TT_EXPECT(j->r, stats.state_count == state && stats.overlap >= 0 && stats.overlap <= 1);
}

static void body(tt_rank *r)
{
    job *j = calloc(1, sizeof *j);
    const plan *p = r->arg;
    size_t at = 0;

    if (j == NULL)
        abort();
    j->r = r;
    j->p = p;
    j->memory = calloc(4 * LARGEST * TENSORS, sizeof(float));
    if (tutti_stream_create(r->ctx, "compute", 0, &j->stream) != TUTTI_OK)
        tt_say(r, "no stream");
    train(j);
    for (int id = 0; id < TENSORS && r->rank == 0; id++)
        for (size_t i = 0; i < j->count[id]; i++)
            p->params[at++] = (double)j->param[id][i];
    tutti_reducer_destroy(j->red);
    tutti_stream_destroy(r->ctx, j->stream);
    free(j->memory);
    free(j->m);
    free(j->v);
    free(j);
}

static double reference[TENSORS * LARGEST], other[TENSORS * LARGEST];

static void expect_equal(plan p, int ranks, const char *nodes)
{
    memset(other, 0, sizeof other);
    p.params = other;
    TT_ASSERT_RANKS(ranks, nodes, body, &p);
    for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
        if (memcmp(&reference[i], &other[i], sizeof other[i]) != 0)
            fail_msg("%d ranks, shard %d own %d bucket %zu: parameter %zu is %.9g, not %.9g", ranks,
                     p.shard, p.own_grads, p.bucket_bytes, i, other[i], reference[i]);
}

static void take_reference(plan p, int ranks, const char *nodes)
{
    memset(reference, 0, sizeof reference);
    p.params = reference;
    TT_ASSERT_RANKS(ranks, nodes, body, &p);
}

static void zero_1_is_data_parallelism(void **state)
{
    static const struct {
        int ranks;
        const char *nodes;
    } layouts[] = {{1, NULL}, {2, NULL}, {3, NULL}, {4, "2x2"}, {8, "3,1,4"}};

    (void)state;
    for (size_t l = 0; l < sizeof layouts / sizeof layouts[0]; l++) {
        int n = layouts[l].ranks;
        const char *nodes = layouts[l].nodes;
        if (SANITIZED && n != 3)
            continue;
        take_reference((plan){.micros = 1, .bucket_bytes = 4096}, n, nodes);
        expect_equal((plan){.micros = 1, .shard = true, .bucket_bytes = 4096}, n, nodes);
        expect_equal((plan){.micros = 1, .shard = true, .own_grads = true, .bucket_bytes = 30000},
                     n, nodes);
        expect_equal((plan){.micros = 1, .own_grads = true, .bucket_bytes = 256}, n, nodes);
    }
}

/* The same micro-steps on more or fewer ranks, sharded or not: the same bits. */
static void reproducible_over_ranks(void **state)
{
    (void)state;
    take_reference((plan){.reproducible = true, .micros = 8, .bucket_bytes = 4096}, 1, NULL);
    for (int ranks = 1; ranks <= 8; ranks *= 2)
        for (int k = 0; k < 4 && !(SANITIZED && ranks != 4); k++)
            expect_equal((plan){.reproducible = true,
                                .micros = 8 / ranks,
                                .shard = k % 2 == 1,
                                .own_grads = k >= 2,
                                .bucket_bytes = k % 2 == 0 ? 3000 : 20000},
                         ranks,
                         ranks == 4   ? "1,3"
                         : ranks == 8 ? "2x4"
                                      : NULL);
}

/* Gradients that travel in 16 bits: the sharded sum is that of the whole, and near the true one. */
static void narrow_wires(void **state)
{
    (void)state;
    for (int k = 0; k < 2; k++) {
        tutti_dtype wire = k == 0 ? TUTTI_BFLOAT16 : TUTTI_FLOAT16;
        take_reference((plan){.micros = 1, .wire = wire, .bucket_bytes = 4096}, 4, "2x2");
        expect_equal((plan){.micros = 1, .wire = wire, .shard = true, .bucket_bytes = 9000}, 4,
                     "2x2");
        expect_equal(
            (plan){
                .micros = 1, .wire = wire, .shard = true, .own_grads = true, .bucket_bytes = 9000},
            4, "2x2");
        plan exact = {.micros = 1, .bucket_bytes = 4096, .params = other};
        TT_ASSERT_RANKS(4, "2x2", body, &exact);
        for (size_t i = 0; i < sizeof other / sizeof other[0]; i++)
            if (fabs(other[i] - reference[i]) > 0.05)
                fail_msg("parameter %zu: %g by 16 bits, %g by 32", i, reference[i], other[i]);
    }
}

/* A run that is broken off and goes on elsewhere ends with the same bits. */
static void checkpoints_move(void **state)
{
    char folder[] = "/tmp/tutti-shard-XXXXXX", command[64];

    (void)state;
    assert_non_null(mkdtemp(folder));
    take_reference((plan){.reproducible = true, .micros = 4, .shard = true, .save = folder}, 2,
                   NULL);
    expect_equal((plan){.reproducible = true, .micros = 8, .load = folder}, 1, NULL);
    expect_equal((plan){.reproducible = true, .micros = 2, .shard = true, .load = folder}, 4, NULL);
    expect_equal(
        (plan){.reproducible = true, .micros = 1, .shard = true, .own_grads = true, .load = folder},
        8, "2x4");
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
}

static void abandoned_steps_leave_nothing(void **state)
{
    (void)state;
    for (int k = 0; k < 4; k++) {
        plan p = {.reproducible = k >= 2, .micros = k >= 2 ? 4 : 1, .bucket_bytes = 4096};
        take_reference(p, 3, "2,1");
        p.abandon = true;
        p.shard = k % 2 == 1;
        p.own_grads = k == 3;
        expect_equal(p, 3, "2,1");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_1_is_data_parallelism),
        cmocka_unit_test(reproducible_over_ranks),
        cmocka_unit_test(narrow_wires),
        cmocka_unit_test(checkpoints_move),
        cmocka_unit_test(abandoned_steps_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
