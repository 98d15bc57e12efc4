/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that must fail: with which status, on which ranks, with which words, and that nobody hangs.
 */
#include "comm/comm.h"
#include "core/clock.h"
#include "tt_test.h"

static const tutti_stream inline_stream;

/* One rank calls otherwise than the rest. */
typedef struct odd_call {
    int odd; /* the rank */
    tutti_status (*usual)(tt_rank *r, float *in, float *out);
    tutti_status (*other)(tt_rank *r, float *in, float *out);
    tutti_status status; /* on all; 0: that of `odd` is ARG, REMOTE elsewhere */
    const char *words[3]; /* in every rank's text */
} odd_call;

static tutti_status sum8(tt_rank *r, float *in, float *out)
{
    return tutti_all_reduce(r->comm, in, out, 8, TUTTI_FLOAT32, TUTTI_SUM, inline_stream);
}

static tutti_status sum7(tt_rank *r, float *in, float *out)
{
    return tutti_all_reduce(r->comm, in, out, 7, TUTTI_FLOAT32, TUTTI_SUM, inline_stream);
}

static tutti_status max8(tt_rank *r, float *in, float *out)
{
    return tutti_all_reduce(r->comm, in, out, 8, TUTTI_FLOAT32, TUTTI_MAX, inline_stream);
}

static tutti_status sum8_int(tt_rank *r, float *in, float *out)
{
    return tutti_all_reduce(r->comm, in, out, 8, TUTTI_INT32, TUTTI_SUM, inline_stream);
}

static tutti_status sum_stream(tt_rank *r, float *in, float *out, size_t n)
{
    tutti_stream s;
    tutti_status status = tutti_stream_create(r->ctx, "s", 0, &s);
    if (status != TUTTI_OK)
        return status;
    status = tutti_all_reduce(r->comm, in, out, n, TUTTI_FLOAT32, TUTTI_SUM, s);
    if (status == TUTTI_OK)
        status = tutti_stream_sync(r->ctx, s);
    tutti_stream_destroy(r->ctx, s);
    return status;
}

static tutti_status sum8_stream(tt_rank *r, float *in, float *out)
{
    return sum_stream(r, in, out, 8);
}

static tutti_status sum7_stream(tt_rank *r, float *in, float *out)
{
    return sum_stream(r, in, out, 7);
}

static tutti_status from0(tt_rank *r, float *in, float *out)
{
    return tutti_broadcast(r->comm, in, out, 8, TUTTI_FLOAT32, 0, inline_stream);
}

static tutti_status from1(tt_rank *r, float *in, float *out)
{
    return tutti_broadcast(r->comm, in, out, 8, TUTTI_FLOAT32, 1, inline_stream);
}

/* A root leaves a small broadcast before the others have come, and is told by its next call that
 * needs them, or when it is some calls ahead. */
static tutti_status from1_and_sum(tt_rank *r, float *in, float *out)
{
    tutti_status status = from1(r, in, out);
    return status == TUTTI_OK ? sum8(r, in, out) : status;
}

static tutti_status always_from0(tt_rank *r, float *in, float *out)
{
    tutti_status status = TUTTI_OK;
    for (int i = 0; i < 20 && status == TUTTI_OK; i++)
        status = from0(r, in, out);
    return status;
}

static tutti_status no_input(tt_rank *r, float *in, float *out)
{
    (void)in;
    return tutti_all_reduce(r->comm, NULL, out, 8, TUTTI_FLOAT32, TUTTI_SUM, inline_stream);
}

static tutti_status counts_of(tt_rank *r, float *in, float *out, size_t first, size_t last)
{
    size_t counts[16] = {0};
    counts[0] = first;
    counts[r->size - 1] = last;
    return tutti_reduce_scatterv(r->comm, in, out, counts, TUTTI_FLOAT32, TUTTI_SUM, inline_stream);
}

static tutti_status counts13(tt_rank *r, float *in, float *out)
{
    return counts_of(r, in, out, 1, 3);
}

static tutti_status counts31(tt_rank *r, float *in, float *out)
{
    return counts_of(r, in, out, 3, 1);
}

static tutti_status pairs_of(tt_rank *r, float *in, float *out, size_t to_first)
{
    size_t sends[16] = {0}, receives[16] = {0};
    sends[0] = to_first;
    for (int i = 0; i < r->size && r->rank == 0; i++)
        receives[i] = 1;
    return tutti_all_to_allv(r->comm, in, sends, out, receives, TUTTI_FLOAT32, inline_stream);
}

static tutti_status pairs1(tt_rank *r, float *in, float *out)
{
    return pairs_of(r, in, out, 1);
}

static tutti_status pairs2(tt_rank *r, float *in, float *out)
{
    return pairs_of(r, in, out, 2);
}

/* Ranks 0 and 1 exchange 8 floats, or rank 1 sends 7. */
static tutti_status swap_of(tt_rank *r, float *in, float *out, size_t n)
{
    tutti_status status = tutti_group_begin();
    if (r->rank < 2 && status == TUTTI_OK)
        status = tutti_send(r->comm, in, n, TUTTI_FLOAT32, 1 - r->rank, inline_stream);
    if (r->rank < 2 && status == TUTTI_OK)
        status = tutti_recv(r->comm, out, 8, TUTTI_FLOAT32, 1 - r->rank, inline_stream);
    tutti_status end = tutti_group_end();
    if (status == TUTTI_OK)
        status = end;
    return status == TUTTI_OK ? tutti_barrier(r->comm) : status;
}

static tutti_status swap8(tt_rank *r, float *in, float *out)
{
    return swap_of(r, in, out, 8);
}

static tutti_status swap7(tt_rank *r, float *in, float *out)
{
    return swap_of(r, in, out, 7);
}

/* A call with a bad root inside of a group: refused at once, the group is dropped. */
static tutti_status bad_group(tt_rank *r, float *in, float *out)
{
    tutti_status status = tutti_group_begin();
    if (status == TUTTI_OK)
        status = sum8(r, in, out);
    if (status == TUTTI_OK)
        status = tutti_broadcast(r->comm, in, out, 8, TUTTI_FLOAT32, 99, inline_stream);
    tutti_status end = tutti_group_end();
    return end == status ? end : TUTTI_ERR_INTERNAL;
}

static void odd_body(tt_rank *r)
{
    const odd_call *c = r->arg;
    float in[64] = {1}, out[64] = {0};
    char text[2048];
    bool odd = r->rank == c->odd;
    tutti_status want = c->status != TUTTI_OK ? c->status : odd ? TUTTI_ERR_ARG : TUTTI_ERR_REMOTE;
    tutti_status before = sum8(r, in, out); /* the others may have failed before it ends here */
    TT_EXPECT(r, before == TUTTI_OK || before == want);
    TT_EXPECT(r, (odd ? c->other : c->usual)(r, in, out) == want);
    TT_EXPECT(r, tutti_ctx_error(r->ctx, text, sizeof text) == want);
    for (int i = 0; i < 3 && c->words[i] != NULL; i++)
        if (strstr(text, c->words[i]) == NULL)
            tt_say(r, "\"%s\" is not in: %s", c->words[i], text);
    TT_EXPECT(r, sum8(r, in, out) == want); /* refused from now on, with the first failure */
    TT_EXPECT(r, strstr(tutti_last_error(), c->words[0]) != NULL);
    r->ctx = NULL;
}

static void mismatches(void **state)
{
    static const odd_call calls[] = {
        {1,
         sum8,
         sum7,
         TUTTI_ERR_MISMATCH,
         {"rank 1 called all_reduce of 7 f32", "rank 0 called all_reduce of 8 f32", "comm world"}},
        {0,
         sum8,
         sum7,
         TUTTI_ERR_MISMATCH,
         {"rank 0 called all_reduce of 7 f32", "rank 1 called all_reduce of 8 f32"}},
        {1, sum8, sum8_int, TUTTI_ERR_MISMATCH, {"of 8 i32", "of 8 f32"}},
        {1, sum8, max8, TUTTI_ERR_MISMATCH, {"rank 1 called", "with op max", "with op sum"}},
        {1, sum8, from0, TUTTI_ERR_MISMATCH, {"called broadcast", "called all_reduce"}},
        {1, always_from0, from1_and_sum, TUTTI_ERR_MISMATCH, {"with root 1", "with root 0"}},
        {1, counts13, counts31, TUTTI_ERR_MISMATCH, {"reduce_scatterv of 4 f32 with other counts"}},
        {1,
         pairs1,
         pairs2,
         TUTTI_ERR_MISMATCH,
         {"rank 1 sends 2 elements to rank 0, which expects 1"}},
        {1, swap8, swap7, TUTTI_ERR_MISMATCH, {"rank 1 sent 7 f32, rank 0 receives 8 f32"}},
        {1, sum8_stream, sum7_stream, TUTTI_ERR_MISMATCH, {"all_reduce of 7", "all_reduce of 8"}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        odd_call c = calls[i];
        TT_ASSERT_RANKS(2, NULL, odd_body, &c);
        TT_ASSERT_RANKS(4, "2x2", odd_body, &c); /* the other node is told */
    }
}

static void mismatches_between_nodes(void **state)
{
    static const odd_call calls[] = {
        {1,
         sum8,
         sum7,
         TUTTI_ERR_MISMATCH,
         {"rank 1 called all_reduce of 7 f32", "rank 0 called all_reduce of 8 f32"}},
        {2, from0, from1, TUTTI_ERR_MISMATCH, {"rank 2", "with root 1", "with root 0"}},
        {1, sum8, from0, TUTTI_ERR_MISMATCH, {"called broadcast", "called all_reduce"}},
        {1,
         pairs1,
         pairs2,
         TUTTI_ERR_MISMATCH,
         {"rank 1 sends 2 elements to rank 0, which expects 1"}},
        {1, counts13, counts31, TUTTI_ERR_MISMATCH, {"with other counts"}},
    };
    odd_call unchecked = {1, sum8, sum7, TUTTI_ERR_MISMATCH, {"TUTTI_CHECK=1"}};
    (void)state;
    setenv("TUTTI_CHECK", "1", 1);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        odd_call c = calls[i];
        TT_ASSERT_RANKS(3, "1,1,1", odd_body, &c);
    }
    unsetenv("TUTTI_CHECK");
    TT_ASSERT_RANKS(2, "1,1", odd_body, &unchecked); /* seen by the size of a message */
}

static void refusals(void **state)
{
    static const odd_call calls[] = {
        {1, sum8, no_input, TUTTI_OK, {"all_reduce on comm world: `in` is NULL"}},
        {0, sum8_stream, no_input, TUTTI_OK, {"all_reduce on comm world: `in` is NULL"}},
        {1, sum8, bad_group, TUTTI_OK, {"root 99 is not within 0 ... "}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        odd_call c = calls[i];
        TT_ASSERT_RANKS(2, NULL, odd_body, &c);
        TT_ASSERT_RANKS(4, "3,1", odd_body, &c);
    }
}

/* A rank that never calls. */
static void late_body(tt_rank *r)
{
    const int late = r->size - 1;
    float in[8] = {0}, out[8];
    char text[2048] = "", want[64];
    TT_EXPECT_OK(r, from0(r, in, out));
    if (r->rank != late)
        TT_EXPECT(r, sum8(r, in, out) == TUTTI_ERR_TIMEOUT);
    else
        TT_EXPECT(r, tutti_barrier(r->comm) == TUTTI_ERR_TIMEOUT); /* which it hears of there */
    TT_EXPECT(r, tutti_ctx_error(r->ctx, text, sizeof text) == TUTTI_ERR_TIMEOUT);
    snprintf(want, sizeof want, "rank %d (", late);
    const char *who = strstr(text, want);
    TT_EXPECT(r, strstr(text, "all_reduce of 32 bytes f32 on comm world: ") != NULL);
    if (who == NULL ||
        strstr(who, "has not arrived (its last call here: broadcast of 8 f32)") == NULL)
        tt_say(r, "\"%s\" and where it was last seen are not in: %s", want, text);
    TT_EXPECT(r, strstr(text, " was in barrier for ") != NULL);
    r->ctx = NULL;
}

static void late_rank(void **state)
{
    (void)state;
    setenv("TUTTI_TIMEOUT", "5", 1);
    TT_ASSERT_RANKS(4, "2x2", late_body, NULL); /* named in its node, told in the other */
    unsetenv("TUTTI_TIMEOUT");
}

/* Refused calls of a communicator of one rank do no harm. */
static void arguments_body(tt_rank *r)
{
    float buf[64] = {0};
    const tutti_stream s = inline_stream, bogus = {buf, TUTTI_STREAM_HOST}, odd = {NULL, 77};
    const size_t n = SIZE_MAX / 4, counts[1] = {n}, one[1] = {1};
    const tutti_dtype f = TUTTI_FLOAT32;
    const tutti_reduction sum = {TUTTI_FLOAT32, TUTTI_SUM};
    tutti_comm *c = r->comm;
    const tutti_status got[] = {
        tutti_all_reduce(NULL, buf, buf, 1, f, TUTTI_SUM, s),
        tutti_all_reduce(c, buf, NULL, 1, f, TUTTI_SUM, s),
        tutti_all_reduce(c, NULL, buf, 1, f, TUTTI_SUM, s),
        tutti_all_reduce(c, buf, buf, 1, (tutti_dtype)0, TUTTI_SUM, s),
        tutti_all_reduce(c, buf, buf, 1, (tutti_dtype)13, TUTTI_SUM, s),
        tutti_all_reduce(c, buf, buf, 1, TUTTI_FLOAT8_E4M3, TUTTI_SUM, s),
        tutti_all_reduce(c, buf, buf, 1, TUTTI_FLOAT8_E5M2, TUTTI_SUM, s),
        tutti_all_reduce(c, buf, buf, 1, f, (tutti_op)0, s),
        tutti_all_reduce(c, buf, buf, 1, f, (tutti_op)6, s),
        tutti_all_reduce(c, buf, buf, n, f, TUTTI_SUM, s),
        tutti_all_reduce(c, buf, buf + 1, 2, f, TUTTI_SUM, s),
        tutti_all_reduce(c, buf, buf, 1, f, TUTTI_SUM, bogus),
        tutti_all_reduce(c, buf, buf, 1, f, TUTTI_SUM, odd),
        tutti_reduce_scatter(c, buf, buf, n, f, TUTTI_SUM, s),
        tutti_reduce_scatterv(c, buf, buf, NULL, f, TUTTI_SUM, s),
        tutti_reduce_scatterv(c, buf, buf, counts, f, TUTTI_SUM, s),
        tutti_all_gather(c, buf, NULL, 1, f, s),
        tutti_all_gatherv(c, buf, buf, NULL, f, s),
        tutti_all_gatherv(c, buf + 1, buf, (const size_t[]){2}, f, s),
        tutti_broadcast(c, NULL, buf, 1, f, 0, s),
        tutti_broadcast(c, buf, buf, 1, f, 1, s),
        tutti_broadcast(c, buf, buf, 1, f, -1, s),
        tutti_reduce(c, buf, NULL, 1, sum, 0, s),
        tutti_reduce(c, buf, buf, 1, (tutti_reduction){f, (tutti_op)9}, 0, s),
        tutti_gather(c, buf, NULL, 1, f, 0, s),
        tutti_scatter(c, NULL, buf, 1, f, 0, s),
        tutti_all_to_all(c, buf, buf, 1, f, s),
        tutti_all_to_allv(c, buf, one, buf + 1, NULL, f, s),
        tutti_all_to_allv(c, buf, NULL, buf + 1, one, f, s),
        tutti_send(c, buf, 1, f, 0, s),
        tutti_send(c, buf, 1, f, 3, s),
        tutti_recv(c, NULL, 1, f, 0, s),
        tutti_all_reduce_host(NULL, NULL, 0, TUTTI_SUM),
        tutti_all_reduce_host(c, NULL, 1, TUTTI_SUM),
        tutti_all_reduce_host(c, (double *)(void *)buf, 4097, TUTTI_SUM),
        tutti_all_reduce_host(c, (double *)(void *)buf, 1, (tutti_op)0),
        tutti_barrier(NULL),
        tutti_comm_split(NULL, 0, 0, NULL, &c),
        tutti_comm_split(r->comm, 0, 0, NULL, NULL),
        tutti_comm_split(r->comm, -2, 0, NULL, &c),
        tutti_comm_split(r->comm, 0, 0, &(tutti_comm_opts){0}, &c),
        tutti_comm_split(r->comm, 0, 0, &(tutti_comm_opts){sizeof(tutti_comm_opts), NULL, 64}, &c),
        tutti_alloc(r->comm, 0, &(void *){NULL}),
        tutti_alloc(r->comm, SIZE_MAX, &(void *){NULL}),
        tutti_alloc(r->comm, 1, NULL),
        tutti_register(r->comm, NULL, 4096),
        tutti_free(r->comm, buf),
        tutti_deregister(r->comm, buf),
    };
    for (size_t i = 0; i < sizeof got / sizeof got[0]; i++)
        if (got[i] != TUTTI_ERR_ARG)
            tt_say(r, "bad call %zu: %s (%s)", i, tutti_status_name(got[i]), tutti_last_error());
    TT_EXPECT(r, c == r->comm);
    TT_EXPECT_OK(r, tutti_ctx_error(r->ctx, NULL, 0));
    TT_EXPECT_OK(r, sum8(r, buf, buf));
    TT_EXPECT_OK(r, tutti_all_reduce(c, NULL, NULL, 0, f, TUTTI_SUM, s));
    TT_EXPECT_OK(r, tutti_free(c, NULL));
}

static void arguments(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(1, NULL, arguments_body, NULL);
}

static tutti_status forbidden(tt_rank *r, int which)
{
    double value = 1;
    void *ptr = NULL;
    tutti_comm *comm;
    switch (which) {
    case 0:
        return tutti_barrier(r->comm);
    case 1:
        return tutti_all_reduce_host(r->comm, &value, 1, TUTTI_SUM);
    case 2:
        return tutti_comm_split(r->comm, 0, 0, NULL, &comm);
    case 3:
        return tutti_alloc(r->comm, 4096, &ptr);
    default:
        return tutti_register(r->comm, &value, 4096);
    }
}

/* What a group refuses is refused on all ranks, and nothing is lost by it. */
static void groups_body(tt_rank *r)
{
    float in[8] = {1, 2, 3}, out[8];
    TT_EXPECT(r, tutti_group_end() == TUTTI_ERR_STATE);
    for (int which = 0; which < 5; which++) {
        TT_EXPECT_OK(r, tutti_group_begin());
        TT_EXPECT_OK(r, tutti_group_begin());
        TT_EXPECT(r, forbidden(r, which) == TUTTI_ERR_STATE);
        TT_EXPECT_OK(r, sum8(r, in, out));
        TT_EXPECT_OK(r, tutti_group_end());
        TT_EXPECT(r, tutti_group_end() == TUTTI_ERR_STATE);
        TT_EXPECT(r, strstr(tutti_last_error(), "not allowed between group_begin") != NULL);
    }
    TT_EXPECT_OK(r, tutti_group_begin());
    TT_EXPECT_OK(r, tutti_group_end());
    TT_EXPECT_OK(r, sum8(r, in, out));
    TT_EXPECT(r, out[2] == 3 * (float)r->size);
}

static void groups_refuse(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, "2,1", groups_body, NULL);
}

/* One rank makes a call in a group that has no place there, the others without one: they wait for
 * what the group had, and are told. */
static void group_refused_body(tt_rank *r)
{
    float in[8] = {1, 2, 3}, out[8];
    if (r->rank == 1) {
        TT_EXPECT_OK(r, tutti_group_begin());
        TT_EXPECT_OK(r, sum8(r, in, out));
        TT_EXPECT(r, tutti_barrier(r->comm) == TUTTI_ERR_STATE);
        TT_EXPECT(r, tutti_group_end() == TUTTI_ERR_STATE);
    } else {
        tutti_status status = sum8(r, in, out);
        TT_EXPECT(r, status == TUTTI_ERR_REMOTE);
        TT_EXPECT(r, strstr(tutti_last_error(), "barrier: not allowed between") != NULL);
    }
    r->ctx = NULL;
}

static void group_refused_on_one(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, "2,1", group_refused_body, NULL);
}

static void finalize_inside(void *arg)
{
    tt_rank *r = arg;
    TT_EXPECT(r, tutti_finalize(r->ctx) == TUTTI_ERR_STATE);
    TT_EXPECT(r, strstr(tutti_last_error(), "work on a stream") != NULL);
}

/* Work on a stream cannot end the context that it runs in; it lives on. */
static void finalize_in_work_body(tt_rank *r)
{
    float in[8] = {1, 2, 3}, out[8];
    tutti_stream stream;
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "s", 0, &stream));
    TT_EXPECT_OK(r, tutti_stream_call(r->ctx, stream, finalize_inside, r));
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, stream));
    TT_EXPECT_OK(r, sum8(r, in, out));
    tutti_stream_destroy(r->ctx, stream);
}

static void finalize_in_work(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, finalize_in_work_body, NULL);
}

static _Atomic int through;

/* A communicator goes, or the context, while a group has calls on it. */
static void group_left_body(tt_rank *r)
{
    float in[8] = {1, 2, 3}, out[8];
    bool leaves = r->rank == 1;
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tutti_ctx *ctx = NULL;
    tutti_comm *part = NULL;
    opts.threads = r->threads;
    opts.rank = r->rank;
    TT_EXPECT_OK(r, tutti_init(&opts, &ctx));
    r->comm = tutti_world(ctx);
    TT_EXPECT_OK(r, tutti_comm_split(r->comm, r->rank, 0, NULL, &part));
    TT_EXPECT_OK(r, tutti_group_begin());
    TT_EXPECT_OK(r, tutti_all_reduce(part, in, out, 8, TUTTI_FLOAT32, TUTTI_SUM, inline_stream));
    tutti_comm_destroy(part);
    TT_EXPECT(r, tutti_group_end() == TUTTI_ERR_STATE);
    TT_EXPECT(r, strstr(tutti_last_error(), "was destroyed between all_reduce") != NULL);
    TT_EXPECT_OK(r, sum8(r, in, out)); /* nobody else was concerned */

    TT_EXPECT_OK(r, tutti_group_begin());
    TT_EXPECT_OK(r, sum8(r, in, out));
    atomic_fetch_add(&through, 1);
    while (atomic_load(&through) < r->size)
        tt_sleep_ns(1000000);
    TT_EXPECT(r, leaves || tutti_group_end() == TUTTI_ERR_REMOTE);
    TT_EXPECT(r, tutti_finalize(ctx) == (leaves ? TUTTI_ERR_STATE : TUTTI_ERR_REMOTE));
    TT_EXPECT(r, strstr(tutti_last_error(), "comm world was destroyed between") != NULL);
    TT_EXPECT(r, !leaves || tutti_group_end() == TUTTI_ERR_STATE);
}

static void groups_left(void **state)
{
    (void)state;
    assert_string_equal(tt_threads_run(3, "2,1", group_left_body, NULL), "");
}

/* Host scalars: a refusal is everybody's answer, and the communicator lives. */
static void scalars_body(tt_rank *r)
{
    double value[3] = {r->rank, 1, 0.1}, sum = 0;
    tutti_op op = r->rank == 1 ? (tutti_op)42 : TUTTI_SUM;
    TT_EXPECT(r, tutti_all_reduce_host(r->comm, value, 3, op) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "42 is no reduction operator") != NULL);
    TT_EXPECT_OK(r, tutti_all_reduce_host(r->comm, value, 3, TUTTI_SUM));
    for (int i = 0; i < r->size; i++)
        sum += i;
    TT_EXPECT(r, value[0] == sum && value[1] == r->size);
    TT_EXPECT(r, tutti_all_reduce_host(r->comm, value, r->rank == 0 ? 1 : 2, TUTTI_SUM) ==
                     TUTTI_ERR_MISMATCH);
    r->ctx = NULL;
}

static void host_scalars(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, "2,1", scalars_body, NULL);
}

/* A rank that is in no communicator, or whose tutti_init failed, may ask all the same. */
static void nothing(void **state)
{
    (void)state;
    assert_null(tutti_world(NULL));
    assert_int_equal(tutti_rank(NULL), -1);
    assert_int_equal(tutti_size(NULL), 0);
    assert_string_equal(tutti_comm_name(NULL), "none");
    assert_int_equal(tutti_local_rank(NULL), -1);
    assert_int_equal(tutti_local_size(NULL), 0);
    assert_int_equal(tutti_node(NULL), -1);
    assert_int_equal(tutti_node_count(NULL), 0);
    assert_int_equal(tutti_device(NULL), -1);
    assert_int_equal(tutti_ckpt_step(NULL), -1);
    assert_int_equal(tutti_ckpt_world(NULL), 0);
}

/* What the ranks of a part find out among themselves, the rest of the job hears of. */
static void part_body(tt_rank *r)
{
    tutti_comm *part;
    double value = 1;
    char text[2048];
    tutti_status status;
    TT_EXPECT_OK(r, tutti_comm_split(r->comm, r->rank < 2 ? 0 : 1, 0, NULL, &part));
    if (r->rank == 0)
        status = tutti_barrier(part);
    else if (r->rank == 1)
        status = tutti_all_reduce_host(part, &value, 1, TUTTI_SUM);
    else
        status = tutti_barrier(r->comm);
    TT_EXPECT(r, status == TUTTI_ERR_MISMATCH);
    TT_EXPECT(r, tutti_ctx_error(r->ctx, text, sizeof text) == TUTTI_ERR_MISMATCH);
    TT_EXPECT(r, strstr(text, "ranks are in different calls") != NULL);
    r->ctx = NULL;
}

static void part_fails(void **state)
{
    (void)state;
    setenv("TUTTI_TIMEOUT", "5", 1);
    TT_ASSERT_RANKS(3, "2,1", part_body, NULL);
    unsetenv("TUTTI_TIMEOUT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arguments),
        cmocka_unit_test(groups_refuse),
        cmocka_unit_test(group_refused_on_one),
        cmocka_unit_test(finalize_in_work),
        cmocka_unit_test(groups_left),
        cmocka_unit_test(nothing),
        cmocka_unit_test(host_scalars),
        cmocka_unit_test(mismatches),
        cmocka_unit_test(mismatches_between_nodes),
        cmocka_unit_test(refusals),
        cmocka_unit_test(late_rank),
        cmocka_unit_test(part_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
