/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a step sends, ranks being threads: t_cuda_traffic SEEDS. Models of random tensors of awkward
 * sizes, of several types, tied and absent ones among them, in the reducer's memory or the
 * program's own, plain or sharded (ZeRO-1), in 16 bits or not. What the reducer hands to the
 * backend, and on the host also what the bootstrap sends (every rank is a node of its own then, so
 * all data passes it), equals the formula of docs/architecture.md to the byte.
 *
 * The formula: over all n ranks an all-reduce of S bytes sends 2 (n - 1) S, a reduce-scatter or an
 * all-gather half of that (Thakur, Rabenseifner, Gropp 2005, section 3). A step reduces its buckets
 * and, if sharded, gathers parameters; to it come the exact sums of means and of a sharded norm,
 * and 4 bytes a rank, the number of micro-steps.
 */
#include <stdatomic.h>

#include "boot/context.h"
#include "reducer/reducer.h"
#include "tt_test.h"

enum { TENSORS = 12, LARGEST = 3000, STEPS = 3 };

typedef struct model {
    uint64_t seed;
    int n;
    size_t count[TENSORS];
    tutti_dtype dtype[TENSORS];
    int tied, absent; /* ids, or -1 */
    bool own;
    uint32_t flags;
    tutti_dtype wire;
    size_t cap;
    int micros;
} model;

static const tt_boot_ops *boot_ops;
static tt_boot_ops counting_boot;
static const tt_coll_ops *coll_ops;
static tt_coll_ops counting_coll;
static _Atomic uint64_t on_the_wire, handed_over;

static tutti_status counting_isend(tt_boot *boot, tt_channel ch, int peer, uint32_t tag,
                                   const void *buf, size_t bytes, tt_req *req)
{
    if (ch == TT_CH_DATA)
        atomic_fetch_add(&on_the_wire, bytes);
    return boot_ops->isend(boot, ch, peer, tag, buf, bytes, req);
}

/* What a call sends over all ranks, counted by its first one. */
static uint64_t traffic(const tt_call *call)
{
    uint64_t n = (uint64_t)call->comm->group.size, elements = call->n;

    if (call->kind != TT_ALL_REDUCE && call->counts == NULL)
        elements *= n;
    for (uint64_t r = 0; call->counts != NULL && r < n; r++)
        elements = r == 0 ? call->counts[r] : elements + call->counts[r];
    return (call->kind == TT_ALL_REDUCE ? 2 : 1) * (n - 1) * elements *
           tutti_dtype_size(call->dtype);
}

static tutti_status counting_launch(tt_call *calls, size_t n)
{
    for (size_t i = 0; i < n && calls[0].comm->group.rank == 0; i++)
        atomic_fetch_add(&handed_over, traffic(&calls[i]));
    return coll_ops->launch(calls, n);
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Elements of a bucket as they are reduced; see the README.md of collectives/reducer. */
static size_t elements(const model *m, const tutti_reducer *red, int bucket, size_t ranks)
{
    bool shard = (m->flags & TUTTI_SHARD_OPTIMIZER) != 0;
    size_t sum = 0, size = 4, last = 0;
    bool narrow = false;

    for (int id = m->n - 1; id >= 0; id--) { /* the reducer's memory is in this order */
        if (red->params[id].bucket != bucket || id == m->tied)
            continue;
        size = tutti_dtype_size(m->dtype[id]);
        narrow = m->wire != 0 && m->dtype[id] == TUTTI_FLOAT32;
        last = m->count[id];
        if (m->own && !narrow)
            sum += last;
        else
            sum += round_up(last, shard ? 64 : 64 / size);
    }
    if (m->own && !narrow)
        return sum;
    if (shard)
        return ranks * round_up((sum + ranks - 1) / ranks, 64);
    return m->own ? sum : sum - (round_up(last, 64 / size) - last);
}

static uint64_t formula(const model *m, const tutti_reducer *red)
{
    const uint64_t exact = TT_EXACT_WORDS * sizeof(int64_t);
    uint64_t n = (uint64_t)red->ranks, gradients = 0, params = 0;
    bool shard = (m->flags & TUTTI_SHARD_OPTIMIZER) != 0;

    for (int b = 0; b < red->nbuckets; b++) {
        tutti_dtype dtype = red->buckets[b].dtype;
        bool narrow = m->wire != 0 && dtype == TUTTI_FLOAT32;
        gradients += elements(m, red, b, n) * (narrow ? 2 : tutti_dtype_size(dtype));
    }
    for (int id = 0; id < m->n; id++)
        if (id != m->tied)
            params += m->count[id] * tutti_dtype_size(m->dtype[id]);
    return (n - 1) * (shard ? gradients + params + 2 * exact : 2 * gradients) /* norm */
           + (n - 1) * (2 * exact + 4 * n); /* one mean; micro-steps */
}

static void describe(tt_rank *r, const model *m, tutti_reducer *red, char *memory)
{
    for (int id = 0; id < m->n; id++) {
        tutti_param p = TUTTI_PARAM_INIT;
        char name[16];
        snprintf(name, sizeof name, "t%d", id);
        p.name = name;
        p.dtype = m->dtype[id];
        p.ndim = 1;
        p.shape[0] = (int64_t)m->count[id];
        if (id == m->tied) {
            p.tied = 1;
        } else {
            p.param = memory;
            memory += round_up(8 * m->count[id], 16) + 16 * (size_t)(id % 3);
            if (m->own)
                p.grad = memory;
            memory += round_up(8 * m->count[id], 16) + 16 * (size_t)(id % 2);
        }
        TT_EXPECT_OK(r, tutti_reducer_add(red, &p, NULL));
    }
    TT_EXPECT_OK(r, tutti_reducer_commit(red));
}

static void step(tt_rank *r, const model *m, tutti_reducer *red, tutti_stream stream, float *room)
{
    for (int k = 0; k < m->micros; k++) {
        TT_EXPECT_OK(r, tutti_reducer_begin(red, k, m->micros, stream));
        TT_EXPECT_OK(r, tutti_reducer_mean(red, room, 1, stream));
        for (int id = m->n - 1; id >= 0; id--) {
            if (id == m->absent)
                TT_EXPECT_OK(r, tutti_reducer_absent(red, &id, 1, stream));
            else
                TT_EXPECT_OK(r, tutti_reducer_ready(red, &id, 1, stream));
        }
    }
    TT_EXPECT_OK(r, tutti_reducer_wait(red, stream));
    TT_EXPECT_OK(r, tutti_reducer_grad_norm(red, stream, room + 1));
    TT_EXPECT_OK(r, tutti_reducer_gather(red, stream));
    TT_EXPECT_OK(r, tutti_reducer_param_wait(red, NULL, 0, stream));
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, stream));
}

static void count_from_now(tt_rank *r, tutti_reducer *red)
{
    if (r->rank == 0) {
        coll_ops = red->comm->ops;
        counting_coll = *coll_ops;
        counting_coll.launch = counting_launch;
        boot_ops = r->ctx->boot->ops;
        counting_boot = *boot_ops;
        counting_boot.isend = counting_isend;
    }
    tt_all_here(r);
    red->comm->ops = &counting_coll;
    r->ctx->boot->ops = &counting_boot;
}

static void counted_steps(tt_rank *r, const model *m, tutti_reducer *red, tutti_stream stream,
                          float *room)
{
    uint64_t want;

    step(r, m, red, stream, room); /* the first one learns */
    if (r->failed)
        return;
    want = formula(m, red);
    count_from_now(r, red);
    tt_all_here(r);
    on_the_wire = handed_over = 0;
    tt_all_here(r);
    for (int s = 0; s < STEPS && !r->failed; s++)
        step(r, m, red, stream, room);
    tt_all_here(r);
    if (handed_over != STEPS * want)
        tt_say(r, "seed %llu: %g bytes a step, not %llu", (unsigned long long)m->seed,
               (double)handed_over / STEPS, (unsigned long long)want);
    if (tutti_device(r->ctx) < 0 && on_the_wire != STEPS * want)
        tt_say(r, "seed %llu: %g bytes on the wire a step, not %llu", (unsigned long long)m->seed,
               (double)on_the_wire / STEPS, (unsigned long long)want);
    red->comm->ops = coll_ops;
    r->ctx->boot->ops = boot_ops;
}

static void body(tt_rank *r)
{
    const model *m = r->arg;
    const size_t bytes = (size_t)TENSORS * (2 * 8 * LARGEST + 96) + 64;
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_reducer *red = NULL;
    tutti_stream stream;
    char *memory;

    if (getenv("SIMGPU_MACHINE") != NULL)
        TT_EXPECT(r, tutti_device(r->ctx) >= 0); /* it is CUDA that is tried */
    opts.flags = m->flags;
    opts.wire = m->wire;
    opts.bucket_bytes = opts.first_bucket_bytes = m->cap;
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "main", 0, &stream));
    TT_EXPECT_OK(r, tutti_alloc(r->comm, bytes, (void **)&memory));
    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, &opts, &red));
    describe(r, m, red, memory + 64);
    if (!r->failed)
        counted_steps(r, m, red, stream, (float *)(void *)memory);
    tutti_reducer_destroy(red);
    TT_EXPECT_OK(r, tutti_free(r->comm, memory));
    tutti_stream_destroy(r->ctx, stream);
}

static model random_model(uint64_t seed)
{
    static const tutti_dtype dtypes[] = {TUTTI_FLOAT32, TUTTI_FLOAT32, TUTTI_FLOAT64,
                                         TUTTI_BFLOAT16};
    tt_rng rng = {seed};
    model m = {.seed = seed, .n = 2 + (int)tt_rand_below(&rng, TENSORS - 1), .tied = -1};

    for (int id = 0; id < m.n; id++) {
        m.count[id] = 1 + (size_t)tt_rand_below(&rng, id % 3 == 0 ? LARGEST : 70);
        m.dtype[id] = dtypes[tt_rand_below(&rng, 4)];
    }
    if (m.n > 3 && tt_rand_below(&rng, 2) == 0) { /* the last is the first again */
        m.tied = m.n - 1;
        m.count[m.tied] = m.count[0];
        m.dtype[m.tied] = m.dtype[0];
    }
    m.absent = (int)tt_rand_below(&rng, (uint64_t)m.n);
    m.own = tt_rand_below(&rng, 2) == 0;
    m.flags = seed % 2 == 0 ? TUTTI_SHARD_OPTIMIZER : 0;
    m.wire = seed / 2 % 2 == 0 ? TUTTI_BFLOAT16 : (tutti_dtype)0;
    m.cap = (size_t)1 << tt_rand_below(&rng, 15);
    m.micros = 1 + (int)tt_rand_below(&rng, 2);
    return m;
}

static uint64_t seeds = 8;

static void bytes_equal_the_formula(void **state)
{
    (void)state;
    setenv("TUTTI_LEADER_BYTES", "1", 1); /* small sums take fewer messages and more bytes else */
    setenv("TUTTI_NODE_WAY", "direct", 1);
    for (uint64_t seed = 0; seed < seeds; seed++) {
        model m = random_model(seed);
        int ranks = 2 + (int)(seed / 4 % 3);
        char nodes[16];
        snprintf(nodes, sizeof nodes, "%dx1", ranks);
        TT_ASSERT_RANKS(ranks, getenv("SIMGPU_MACHINE") == NULL ? nodes : NULL, body, &m);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_equal_the_formula)};

    if (argc > 1)
        seeds = strtoull(argv[1], NULL, 10);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
