/* SPDX-License-Identifier: Apache-2.0 */
/* What a program can do wrong: every rank gets a status and a text that says what and where. */
#include "tt_test.h"

#include <time.h>

enum { TENSORS = 6, FLOATS = 500 };

static const tutti_stream inl = {0};

static bool says(const char *what)
{
    return strstr(tutti_last_error(), what) != NULL;
}

static tutti_reducer *make(tt_rank *r, float *params)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;

    opts.bucket_bytes = FLOATS * sizeof(float);
    opts.name = "grads";
    return tt_make_reducer(r, r->comm, &opts, TENSORS, FLOATS, params);
}

static void step(tt_rank *r, tutti_reducer *red)
{
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, inl));
    for (int id = TENSORS - 1; id >= 0; id--)
        TT_EXPECT_OK(r, tutti_reducer_ready(red, &id, 1, inl));
    TT_EXPECT_OK(r, tutti_reducer_wait(red, inl));
}

/* A model whose every tensor is empty. */
static void empty_body(tt_rank *r)
{
    tutti_reducer *red;
    tutti_param p = TUTTI_PARAM_INIT;
    int id;

    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, NULL, &red));
    p.name = "none";
    p.dtype = TUTTI_FLOAT32;
    p.ndim = 2;
    p.shape[0] = 3;
    TT_EXPECT_OK(r, tutti_reducer_add(red, &p, &id));
    TT_EXPECT_OK(r, tutti_reducer_commit(red));
    for (int i = 0; i < 2; i++) {
        TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, inl));
        TT_EXPECT_OK(r, tutti_reducer_ready(red, &id, 1, inl));
        TT_EXPECT_OK(r, tutti_reducer_wait(red, inl));
    }
    TT_EXPECT(r, tutti_reducer_shard_count(red) == 0);
    tutti_reducer_destroy(red);
}

static void empty_tensors(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, empty_body, NULL);
}

/* Calls that are refused leave everything as it was. */
static void refused_body(tt_rank *r)
{
    tutti_reducer *red = make(r, NULL);
    const int twice[] = {3, 2, 3}, two = 2, three = 3, none = TENSORS, rest[] = {0, 1, 4, 5};
    float x = 0, many[65];

    TT_EXPECT(r, tutti_reducer_commit(red) == TUTTI_ERR_STATE && says("committed already"));
    TT_EXPECT(r, tutti_reducer_ready(red, &two, 1, inl) == TUTTI_ERR_STATE && says("outside"));
    TT_EXPECT(r, tutti_reducer_wait(red, inl) == TUTTI_ERR_STATE);
    TT_EXPECT(r, tutti_reducer_abandon(red) == TUTTI_ERR_STATE);
    TT_EXPECT(r, tutti_reducer_begin(red, 1, 2, inl) == TUTTI_ERR_STATE);
    TT_EXPECT(r, tutti_reducer_begin(red, 0, 0, inl) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_reducer_begin(red, 2, 2, inl) == TUTTI_ERR_ARG);
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 2, inl));
    TT_EXPECT(r, tutti_reducer_scalar(red, &x, 1, TUTTI_SUM, inl) == TUTTI_ERR_STATE);
    TT_EXPECT(r, tutti_reducer_ready(red, twice, 3, inl) == TUTTI_ERR_STATE && says("\"w3\""));
    TT_EXPECT_OK(r, tutti_group_begin());
    TT_EXPECT(r, tutti_reducer_ready(red, &three, 1, inl) == TUTTI_ERR_STATE && says("group"));
    TT_EXPECT(r, tutti_reducer_abandon(red) == TUTTI_ERR_STATE && says("group"));
    TT_EXPECT(r, tutti_group_end() == TUTTI_ERR_STATE);
    TT_EXPECT_OK(r, tutti_reducer_ready(red, &three, 1, inl));
    TT_EXPECT(r, tutti_reducer_absent(red, &three, 1, inl) == TUTTI_ERR_STATE && says("\"w3\""));
    TT_EXPECT(r, tutti_reducer_ready(red, &none, 1, inl) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_reducer_ready(red, NULL, 1, inl) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_reducer_ready(red, &three, SIZE_MAX, inl) == TUTTI_ERR_ARG);
    TT_EXPECT_OK(r, tutti_reducer_ready(red, rest, 4, inl));
    TT_EXPECT(r, tutti_reducer_begin(red, 1, 2, inl) == TUTTI_ERR_STATE && says("\"w2\""));
    TT_EXPECT(r, tutti_reducer_wait(red, inl) == TUTTI_ERR_STATE);
    TT_EXPECT_OK(r, tutti_reducer_absent(red, &two, 1, inl));
    TT_EXPECT(r, tutti_reducer_begin(red, 1, 3, inl) == TUTTI_ERR_STATE);
    TT_EXPECT(r, tutti_reducer_begin(red, 0, 2, inl) == TUTTI_ERR_STATE && says("abandoned"));
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 1, 2, inl));
    TT_EXPECT(r, tutti_reducer_scalar(red, many, 65, TUTTI_SUM, inl) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_reducer_scalar(red, &x, 1, TUTTI_PROD, inl) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_reducer_scalar(red, NULL, 1, TUTTI_SUM, inl) == TUTTI_ERR_ARG);
    TT_EXPECT_OK(r, tutti_reducer_ready(red, twice, 2, inl));
    TT_EXPECT_OK(r, tutti_reducer_ready(red, rest, 4, inl));
    TT_EXPECT(r, tutti_reducer_scalar(red, &x, 1, TUTTI_SUM, inl) == TUTTI_ERR_STATE);
    TT_EXPECT_OK(r, tutti_reducer_wait(red, inl));
    step(r, red);
    tutti_reducer_destroy(red);
}

static void refused_calls_have_no_effect(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(1, NULL, refused_body, NULL);
    TT_ASSERT_RANKS(3, NULL, refused_body, NULL);
}

static void add_body(tt_rank *r)
{
    tutti_reducer *red = NULL;
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    static float shared[8];
    tutti_param p = TUTTI_PARAM_INIT, q;

    TT_EXPECT(r, tutti_reducer_create(NULL, NULL, &red) == TUTTI_ERR_ARG);
    opts.flags = 1u << 30;
    TT_EXPECT(r, tutti_reducer_create(r->comm, &opts, &red) == TUTTI_ERR_ARG);
    opts.flags = r->rank == 0 ? 1u << 30 : 0; /* one rank's mistake is everyone's */
    TT_EXPECT(r, tutti_reducer_create(r->comm, &opts, &red) == TUTTI_ERR_ARG);
    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, NULL, &red));
    TT_EXPECT(r, tutti_reducer_begin(red, 0, 1, inl) == TUTTI_ERR_STATE);
    TT_EXPECT(r, tutti_reducer_check(red) == TUTTI_ERR_STATE);
    TT_EXPECT(r, tutti_reducer_commit(red) == TUTTI_ERR_ARG && says("no parameters"));
    p.name = "a";
    p.dtype = TUTTI_FLOAT32;
    p.ndim = 1;
    p.shape[0] = 5;
    p.grad = shared;
    q = p;
    q.dtype = TUTTI_INT32;
    TT_EXPECT(r, tutti_reducer_add(red, &q, NULL) == TUTTI_ERR_ARG && says("i32"));
    q = p;
    q.ndim = 9;
    TT_EXPECT(r, tutti_reducer_add(red, &q, NULL) == TUTTI_ERR_ARG);
    q = p;
    q.shape[0] = -1;
    TT_EXPECT(r, tutti_reducer_add(red, &q, NULL) == TUTTI_ERR_ARG);
    q = p;
    q.ndim = 2;
    q.shape[0] = q.shape[1] = INT64_C(1) << 40;
    TT_EXPECT(r, tutti_reducer_add(red, &q, NULL) == TUTTI_ERR_ARG && says("too large"));
    q = p;
    q.size = 8;
    TT_EXPECT(r, tutti_reducer_add(red, &q, NULL) == TUTTI_ERR_ARG);
    q = p;
    q.name = "";
    TT_EXPECT(r, tutti_reducer_add(red, &q, NULL) == TUTTI_ERR_ARG);
    q = p;
    q.grad = (char *)shared + 1;
    TT_EXPECT(r, tutti_reducer_add(red, &q, NULL) == TUTTI_ERR_ARG && says("aligned"));
    TT_EXPECT_OK(r, tutti_reducer_add(red, &p, NULL));
    TT_EXPECT(r, tutti_reducer_add(red, &p, NULL) == TUTTI_ERR_ARG && says("already"));
    q = p;
    q.name = "b";
    q.grad = shared + 3;
    TT_EXPECT_OK(r, tutti_reducer_add(red, &q, NULL));
    TT_EXPECT(r, tutti_reducer_commit(red) == TUTTI_ERR_ARG && says("overlap") && says("\"b\""));
    TT_EXPECT(r, tutti_reducer_grad(red, 0) == NULL && tutti_reducer_pieces(red, NULL) == 0);
    tutti_reducer_destroy(red);
    tutti_reducer_destroy(NULL);
}

static void bad_descriptions_are_refused(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, add_body, NULL);
}

typedef enum difference {
    NAME,
    DTYPE,
    SHAPE,
    OWNED,
    PARAM,
    GROUP,
    MORE,
    FEWER,
    OPTS,
    DIFFERENCES
} difference;

static void differ_body(tt_rank *r)
{
    static const char *const text[] = {"\"other\"",     "f64",        "[3, 500]",
                                       "the program's", "with param", "group",
                                       "\"more\"",      "\"w5\"",     "options differ"};
    static float memory[4][FLOATS];
    difference d = *(difference *)r->arg;
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_reducer *red = NULL;
    bool odd = r->rank == r->size - 1;
    tutti_status status;

    opts.bucket_bytes = d == OPTS && odd ? 1000 : 2000;
    status = tutti_reducer_create(r->comm, &opts, &red);
    for (int id = 0; status == TUTTI_OK && id < TENSORS + 1; id++) {
        tutti_param p = TUTTI_PARAM_INIT;
        char name[16];
        bool here = odd && id == 3;
        snprintf(name, sizeof name, "w%d", id);
        p.name = here && d == NAME ? "other" : id == TENSORS ? "more" : name;
        p.dtype = here && d == DTYPE ? TUTTI_FLOAT64 : TUTTI_FLOAT32;
        p.ndim = here && d == SHAPE ? 2 : 1;
        p.shape[0] = here && d == SHAPE ? 3 : FLOATS;
        p.shape[1] = FLOATS;
        p.grad = here && d == OWNED ? memory[r->rank] : NULL;
        p.param = here && d == PARAM ? memory[r->rank] : NULL;
        p.group = here && d == GROUP;
        if ((id == TENSORS && !(odd && d == MORE)) || (id == TENSORS - 1 && odd && d == FEWER))
            continue;
        TT_EXPECT_OK(r, tutti_reducer_add(red, &p, NULL));
    }
    if (status == TUTTI_OK)
        status = tutti_reducer_commit(red);
    TT_EXPECT(r, status == TUTTI_ERR_MISMATCH);
    TT_EXPECT(r, says(text[d]));
    TT_EXPECT(r, says("rank 0") && says(r->size == 2 ? "rank 1" : "rank 3"));
    TT_EXPECT(r, d == OPTS || d == MORE || d == FEWER || says("parameter 3"));
    r->ctx = NULL; /* failed on purpose */
    tutti_reducer_destroy(red);
}

static void different_lists_are_shown_by_name(void **state)
{
    (void)state;
    for (int d = 0; d < DIFFERENCES; d++)
        TT_ASSERT_RANKS(d % 2 == 0 ? 2 : 4, d == 3 ? "2x2" : NULL, differ_body, &d);
}

/* tutti_step until it fails, or for two minutes and more. */
static tutti_status step_until_failed(tt_rank *r)
{
    tutti_status status = TUTTI_OK;
    uint32_t todo;

    for (int i = 0; i < 120000 && status == TUTTI_OK; i++) {
        struct timespec t = {0, 1000000};
        status = tutti_step(r->ctx, i, &todo);
        nanosleep(&t, NULL);
    }
    return status;
}

typedef struct missing_case {
    int good_steps;
    bool stream;
} missing_case;

static void missing_body(tt_rank *r)
{
    const missing_case *c = r->arg;
    tutti_reducer *red = make(r, NULL);
    tutti_stream stream = inl;
    tutti_status status;
    char text[2048];

    if (c->stream)
        TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "main", 0, &stream));
    for (int i = 0; i < c->good_steps; i++)
        step(r, red);
    status = tutti_barrier(r->comm); /* the news may come to the others at any time from here */
    if (status == TUTTI_OK)
        status = tutti_reducer_begin(red, 0, 1, stream);
    for (int id = TENSORS - 1; id >= 0 && status == TUTTI_OK; id--)
        if (r->rank != 1 || (id != 4 && id != 1))
            status = tutti_reducer_ready(red, &id, 1, stream);
    if (status == TUTTI_OK)
        status = tutti_reducer_wait(red, stream);
    if (r->rank == 1)
        TT_EXPECT(r, status == TUTTI_ERR_MISSING && says("\"w1\", \"w4\""));
    if (status == TUTTI_OK)
        status = step_until_failed(r);
    TT_EXPECT(r, status == TUTTI_ERR_MISSING || status == TUTTI_ERR_REMOTE);
    status = tutti_step(r->ctx, 9999, &(uint32_t){0});
    TT_EXPECT(r, status == TUTTI_ERR_MISSING || status == TUTTI_ERR_REMOTE);
    TT_EXPECT(r, tutti_ctx_error(r->ctx, text, sizeof text) == status);
    TT_EXPECT(r, strstr(text, "\"w1\", \"w4\"") != NULL);
    TT_EXPECT(r, r->rank == 1 || strstr(text, "rank 1") != NULL);
    TT_EXPECT(r, tutti_reducer_begin(red, 0, 1, inl) == status);
    tutti_reducer_destroy(red);
    if (c->stream)
        tutti_stream_destroy(r->ctx, stream);
    r->ctx = NULL; /* failed on purpose */
}

static void missing_gradients_reach_every_rank(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        missing_case c = {i % 2 * 2, i / 2 % 2 != 0};
        TT_ASSERT_RANKS(i < 4 ? 2 : 4, i < 4 ? NULL : "2x2", missing_body, &c);
    }
}

typedef struct micros_case {
    int good_steps;
    bool stream;
} micros_case;

/* Rank 1 takes two micro-steps where the others take one. No gradient is averaged. */
static void micros_body(tt_rank *r)
{
    const micros_case *c = r->arg;
    tutti_reducer *red = make(r, NULL);
    int n = r->rank == 1 ? 2 : 1;
    tutti_stream stream = inl;
    tutti_status status;
    float *grad = tutti_reducer_grad(red, 0);

    if (c->stream)
        TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "main", 0, &stream));
    for (int i = 0; i < c->good_steps; i++)
        step(r, red);
    status = tutti_barrier(r->comm);
    for (int micro = 0; micro < n && status == TUTTI_OK; micro++) {
        status = tutti_reducer_begin(red, micro, n, inl);
        grad[0] = 8 + (float)r->rank;
        for (int id = 0; id < TENSORS && status == TUTTI_OK; id++)
            status = tutti_reducer_ready(red, &id, 1, stream);
    }
    if (status == TUTTI_OK)
        status = tutti_reducer_wait(red, stream);
    if (status == TUTTI_OK) /* handed over to a stream: found there */
        status = tutti_stream_sync(r->ctx, stream);
    TT_EXPECT(r, status == TUTTI_ERR_MISMATCH || status == TUTTI_ERR_REMOTE);
    TT_EXPECT(r, says("number of micro-steps") && says("2 on rank 1, 1 on rank 0"));
    TT_EXPECT(r, grad[0] == 8 + (float)r->rank);
    tutti_reducer_destroy(red);
    if (c->stream)
        tutti_stream_destroy(r->ctx, stream);
    r->ctx = NULL; /* failed on purpose */
}

static void different_micro_counts_are_found(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        micros_case c = {i % 2 * 3, i / 2 != 0};
        TT_ASSERT_RANKS(2, NULL, micros_body, &c);
        TT_ASSERT_RANKS(4, "2x2", micros_body, &c);
    }
}

typedef enum wrong_stream {
    ANOTHER_BACKEND,
    ANOTHER_RANKS,
    GARBAGE,
    GONE, /* before the reducer has seen it */
    GONE_LATER, /* the reducer knows it from the steps before */
    WRONG_STREAMS
} wrong_stream;

static void refuse(tt_rank *r, tutti_reducer *red, tutti_stream wrong, const char *text)
{
    int id = 3;

    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, inl));
    TT_EXPECT(r, tutti_reducer_ready(red, &id, 1, wrong) == TUTTI_ERR_ARG && says(text));
    TT_EXPECT(r, says("reducer \"grads\": ready of \"w3\""));
    TT_EXPECT(r, tutti_reducer_absent(red, &id, 1, wrong) == TUTTI_ERR_ARG && says(text));
    TT_EXPECT_OK(r, tutti_barrier(r->comm));
    for (id = TENSORS - 1; id >= 0; id--)
        TT_EXPECT_OK(r, tutti_reducer_ready(red, &id, 1, inl));
    TT_EXPECT(r, tutti_reducer_wait(red, wrong) == TUTTI_ERR_ARG && says(text));
    TT_EXPECT(r, says("reducer \"grads\": wait"));
    TT_EXPECT_OK(r, tutti_reducer_wait(red, inl));
    TT_EXPECT(r, tutti_reducer_ready(red, &(int){0}, 1, inl) == TUTTI_ERR_STATE);
    TT_EXPECT(r, says("ready of \"w0\" outside begin and wait"));
}

/* It cannot be undone: a gradient is on a stream that is no more. All ranks hear of it. */
static void lose(tt_rank *r, tutti_reducer *red, tutti_stream stream)
{
    tutti_status status;

    for (int i = 0; i < 2; i++) {
        TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, stream));
        for (int id = TENSORS - 1; id >= 0; id--)
            TT_EXPECT_OK(r, tutti_reducer_ready(red, &id, 1, stream));
        TT_EXPECT_OK(r, tutti_reducer_wait(red, stream));
    }
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, stream));
    if (r->rank == 1)
        tutti_stream_destroy(r->ctx, stream);
    TT_EXPECT_OK(r, tutti_barrier(r->comm));
    status = tutti_reducer_begin(red, 0, 1, inl);
    for (int id = TENSORS - 1; id >= 0 && status == TUTTI_OK; id--)
        status = tutti_reducer_ready(red, &id, 1, stream);
    if (status == TUTTI_OK)
        status = tutti_reducer_wait(red, inl);
    TT_EXPECT(r, status == (r->rank == 1 ? TUTTI_ERR_ARG : TUTTI_ERR_REMOTE));
    TT_EXPECT(r, says("\"w5\"") && says("destroyed"));
    if (r->rank != 1)
        tutti_stream_destroy(r->ctx, stream);
    r->ctx = NULL; /* failed on purpose */
}

static void wrong_stream_body(tt_rank *r)
{
    static tutti_stream of_rank[3];
    static const char *const text[] = {"CUDA stream", "another context", "no stream", "destroyed"};
    wrong_stream kind = *(const wrong_stream *)r->arg;
    tutti_reducer *red = make(r, NULL);
    tutti_stream stream, wrong;

    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "main", 0, &stream));
    of_rank[r->rank] = wrong = stream;
    TT_EXPECT_OK(r, tutti_barrier(r->comm));
    if (kind == ANOTHER_BACKEND)
        wrong.kind = TUTTI_STREAM_CUDA;
    else if (kind == ANOTHER_RANKS)
        wrong = of_rank[(r->rank + 1) % r->size];
    else if (kind == GARBAGE)
        wrong.kind = 77;
    else if (kind == GONE)
        tutti_stream_destroy(r->ctx, stream);
    if (kind == GONE_LATER) {
        lose(r, red, stream);
    } else {
        refuse(r, red, wrong, text[kind]);
        step(r, red);
        if (kind != GONE)
            tutti_stream_destroy(r->ctx, stream);
    }
    tutti_reducer_destroy(red);
}

static void a_wrong_stream_is_named(void **state)
{
    (void)state;
    for (int kind = 0; kind < WRONG_STREAMS; kind++)
        TT_ASSERT_RANKS(3, NULL, wrong_stream_body, &kind);
}

static void scalars_body(tt_rank *r)
{
    tutti_reducer *red = make(r, NULL);
    float loss[3] = {0};
    tutti_status status;

    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, inl));
    status = tutti_reducer_scalar(red, loss, r->rank == 1 ? 3 : 2, TUTTI_SUM, inl);
    for (int id = 0; id < TENSORS && status == TUTTI_OK; id++)
        status = tutti_reducer_ready(red, &id, 1, inl);
    if (status == TUTTI_OK)
        status = tutti_reducer_wait(red, inl);
    TT_EXPECT(r, status == TUTTI_ERR_MISMATCH || status == TUTTI_ERR_REMOTE);
    tutti_reducer_destroy(red);
    r->ctx = NULL; /* failed on purpose */
}

static void different_scalars_are_found(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, scalars_body, NULL);
    TT_ASSERT_RANKS(2, "2x1", scalars_body, NULL);
}

typedef struct replica_case {
    int victim;
    bool at_commit;
} replica_case;

static void replica_body(tt_rank *r)
{
    const replica_case *c = r->arg;
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_reducer *red = NULL;
    float *params = calloc(TENSORS * FLOATS, sizeof *params);
    char rank[32], other[32];

    opts.flags = c->at_commit ? (uint32_t)TUTTI_REDUCER_COMPARE_PARAMS : 0;
    for (int i = 0; i < TENSORS * FLOATS; i++) /* commit makes them equal, or finds that they are */
        params[i] = (float)i + (c->at_commit ? 0 : (float)r->rank);
    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, &opts, &red));
    TT_EXPECT_OK(r, tt_add_params(red, TENSORS, FLOATS, params));
    if (c->at_commit && r->rank == c->victim)
        ((unsigned char *)&params[2 * FLOATS + 7])[1] ^= 0x10;
    if (c->at_commit) {
        TT_EXPECT(r, tutti_reducer_commit(red) == TUTTI_ERR_MISMATCH);
    } else {
        TT_EXPECT_OK(r, tutti_reducer_commit(red));
        TT_EXPECT(r, params[5] == 5);
        TT_EXPECT_OK(r, tutti_reducer_check(red));
        if (r->rank == c->victim)
            ((unsigned char *)&params[2 * FLOATS + 7])[1] ^= 0x10;
        TT_EXPECT(r, tutti_reducer_check(red) == TUTTI_ERR_MISMATCH);
    }
    /* of two ranks rank 0 is right */
    snprintf(rank, sizeof rank, "on rank %d", r->size == 2 ? 1 : c->victim);
    snprintf(other, sizeof other, "on rank %d", (c->victim + 1) % r->size);
    TT_EXPECT(r, says("\"w2\"") && says(rank) && !says("\"w1\""));
    TT_EXPECT(r, r->size == 2 || !says(other));
    tutti_reducer_destroy(red);
    free(params);
    r->ctx = NULL; /* failed on purpose */
}

static void a_flipped_bit_is_named(void **state)
{
    const replica_case cases[] = {{0, false}, {2, false}, {3, true}, {1, true}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        replica_case c = cases[i];
        TT_ASSERT_RANKS(c.victim < 2 ? 2 : 4, NULL, replica_body, &c);
    }
}

static void same_params_body(tt_rank *r)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    tutti_reducer *red = NULL;
    float *params = calloc(TENSORS * FLOATS, sizeof *params);

    opts.flags = TUTTI_REDUCER_COMPARE_PARAMS;
    TT_EXPECT_OK(r, tutti_reducer_create(r->comm, &opts, &red));
    TT_EXPECT_OK(r, tt_add_params(red, TENSORS, FLOATS, params));
    TT_EXPECT_OK(r, tutti_reducer_commit(red));
    step(r, red);
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, inl));
    TT_EXPECT_OK(r, tutti_reducer_ready(red, &(int){TENSORS - 1 - r->rank % 2}, 1, inl));
    tutti_reducer_destroy(red); /* within a step, ranks apart */
    free(params);
}

static void equal_parameters_pass_and_destroy_ends_a_step(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, same_params_body, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_calls_have_no_effect),
        cmocka_unit_test(bad_descriptions_are_refused),
        cmocka_unit_test(different_lists_are_shown_by_name),
        cmocka_unit_test(missing_gradients_reach_every_rank),
        cmocka_unit_test(different_micro_counts_are_found),
        cmocka_unit_test(a_wrong_stream_is_named),
        cmocka_unit_test(different_scalars_are_found),
        cmocka_unit_test(a_flipped_bit_is_named),
        cmocka_unit_test(empty_tensors),
        cmocka_unit_test(equal_parameters_pass_and_destroy_ends_a_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
