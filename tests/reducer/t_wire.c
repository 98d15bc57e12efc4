/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes over the wire: four nodes of one rank each, so that all data passes the bootstrap,
 * whose table gets a counter. Per step, of S bytes of gradients on n ranks: an all-reduce sends 2
 * (n - 1) S bytes over all ranks (each 2 (n - 1) / n S), a reduce-scatter or an all-gather half of
 * that (Thakur, Rabenseifner, Gropp 2005, section 3), and in 16 bits S is half. Messages below 1
 * KiB, the exact sums among them, are left out. Small sums, which take fewer messages and more
 * bytes (TUTTI_LEADER_BYTES), are turned off.
 */
#include <stdatomic.h>

#include "boot/context.h"
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

enum { SUMS = 192 }; /* bytes: an exact sum goes in parts of at most this */
static const tt_boot_ops *real_ops;
static tt_boot_ops counting_ops;
static _Atomic uint64_t on_the_wire;

static tutti_status counting_isend(tt_boot *boot, tt_channel ch, int peer, uint32_t tag,
                                   const void *buf, size_t bytes, tt_req *req)
{
    if (ch == TT_CH_DATA && bytes > SUMS)
        atomic_fetch_add(&on_the_wire, bytes);
    return real_ops->isend(boot, ch, peer, tag, buf, bytes, req);
}

static void count_from_now(tt_rank *r)
{
    if (r->rank == 0) {
        real_ops = r->ctx->boot->ops;
        counting_ops = *real_ops;
        counting_ops.isend = counting_isend;
    }
    TT_EXPECT_OK(r, tutti_barrier(r->comm));
    r->ctx->boot->ops = &counting_ops;
}

typedef struct wire_case {
    uint32_t flags;
    tutti_dtype wire;
    int micros;
} wire_case;

static void wire_step(tt_rank *r, tutti_reducer *red, int micros)
{
    float norm, mean = 1;

    for (int k = 0; k < micros; k++) {
        TT_EXPECT_OK(r, tutti_reducer_begin(red, k, micros, (tutti_stream){0}));
        TT_EXPECT_OK(r, tutti_reducer_mean(red, &mean, 1, (tutti_stream){0}));
        feed_all(r, red, 1);
    }
    TT_EXPECT_OK(r, tutti_reducer_wait(red, (tutti_stream){0}));
    TT_EXPECT_OK(r, tutti_reducer_grad_norm(red, (tutti_stream){0}, &norm));
    TT_EXPECT_OK(r, tutti_reducer_gather(red, (tutti_stream){0}));
    TT_EXPECT_OK(r, tutti_reducer_param_wait(red, NULL, 0, (tutti_stream){0}));
    TT_EXPECT_OK(r, tutti_barrier(r->comm));
}

static void wire_body(tt_rank *r)
{
    static float params[4][TENSORS * FLOATS];
    const wire_case *c = r->arg;
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_reducer_stats stats = {.size = sizeof stats};
    uint64_t before, sent, gradients, gathered = 0;
    tutti_reducer *red;

    opts.flags = c->flags;
    opts.wire = c->wire;
    opts.bucket_bytes = opts.first_bucket_bytes = 1 << 20; /* one bucket */
    red = make(r, r->comm, opts, params[r->rank]);
    count_from_now(r);
    for (int s = 0; s < 3 && !r->failed; s++) {
        TT_EXPECT_OK(r, tutti_barrier(r->comm));
        before = atomic_load(&on_the_wire);
        TT_EXPECT_OK(r, tutti_barrier(r->comm));
        wire_step(r, red, c->micros);
        sent = atomic_load(&on_the_wire) - before;
        TT_EXPECT_OK(r, tutti_reducer_stats_get(red, &stats));
        gradients = stats.bytes * 3 * ((c->flags & TUTTI_SHARD_OPTIMIZER) != 0 ? 1 : 2);
        if ((c->flags & TUTTI_SHARD_OPTIMIZER) != 0)
            gathered = (uint64_t)TENSORS * FLOATS * sizeof(float) * 3;
        sent -= gathered;
        if (sent != (c->wire != 0 ? gradients / 2 : gradients))
            tt_say(r, "flags %u, wire %d: %llu bytes of gradients on the wire, not %llu", c->flags,
                   (int)c->wire, (unsigned long long)sent, (unsigned long long)gradients);
    }
    tutti_reducer_destroy(red);
}

static void bytes_on_the_wire(void **state)
{
    static const wire_case cases[] = {
        {0, (tutti_dtype)0, 1},
        {TUTTI_SHARD_OPTIMIZER, (tutti_dtype)0, 1},
        {0, TUTTI_BFLOAT16, 1},
        {TUTTI_SHARD_OPTIMIZER, TUTTI_BFLOAT16, 1},
        {TUTTI_SHARD_OPTIMIZER | TUTTI_REDUCER_REPRODUCIBLE, (tutti_dtype)0, 4},
    };

    (void)state;
    setenv("TUTTI_LEADER_BYTES", "1", 1);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        wire_case c = cases[i];
        TT_ASSERT_RANKS(4, "4x1", wire_body, &c);
    }
}

/* Without a cap given the plan comes from a measurement, and is one on all ranks. */
static void measured_body(tt_rank *r)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_reducer_stats stats = {.size = sizeof stats};
    tutti_reducer *red;
    double range[2];

    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, &opts, &red));
    TT_EXPECT_OK(r, tt_add_params(red, 6, 200000, NULL));
    TT_EXPECT_OK(r, tutti_reducer_commit(red));
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, (tutti_stream){0}));
    for (int id = 5; id >= 0; id--)
        TT_EXPECT_OK(r, tutti_reducer_ready(red, &id, 1, (tutti_stream){0}));
    TT_EXPECT_OK(r, tutti_reducer_wait(red, (tutti_stream){0}));
    TT_EXPECT_OK(r, tutti_reducer_stats_get(red, &stats));
    TT_EXPECT(r, stats.bucket_bytes >= 1 << 20 && stats.bucket_bytes <= 25 << 20);
    range[0] = (double)stats.bucket_bytes;
    range[1] = -range[0];
    TT_EXPECT_OK(r, tutti_all_reduce_host(r->comm, range, 2, TUTTI_MAX));
    TT_EXPECT(r, range[0] == -range[1]);
    tutti_reducer_destroy(red);
}

static void measured_buckets(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, measured_body, NULL);
    TT_ASSERT_RANKS(3, "1,2", measured_body, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bytes_on_the_wire),
                                       cmocka_unit_test(measured_buckets)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
