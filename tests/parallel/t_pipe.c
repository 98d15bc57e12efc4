/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pipelines that run, against the same arithmetic done in one place: part p of the model maps x to
 * (p + 2) x + micro, so that every result says which parts and micro-batch it came through, and in
 * which order; its gradient is the product of the factors behind it. What a pass is given is kept
 * apart by cache number, and compared again on the way back.
 */
#include <unistd.h>

#include "tt_test.h"

enum { N = 96 };

typedef struct setup {
    int micros, chunks, runs;
    uint32_t flags;
    bool inline_stream;
    int fail_at; /* this rank's function fails; -1: none */
} setup;

typedef struct model {
    tt_rank *r;
    const setup *s;
    double *kept; /* [in flight][N] */
    int in_flight, forward, backward, parts;
    tutti_stream stream;
    char wrong[256];
} model;

typedef struct job {
    model *m;
    tutti_pipe_pass pass;
} job;

static double factor(int part)
{
    return part + 2;
}

static double input(int micro, int i)
{
    return micro + 0.5 * i;
}

/* What part `part` reads for a micro-batch. */
static double activation(int part, int micro, int i)
{
    double x = input(micro, i);

    for (int p = 0; p < part; p++)
        x = factor(p) * x + micro;
    return x;
}

/* The gradient of what `part` makes, when that of the end is 1 + i. */
static double gradient(const model *m, int part, int i)
{
    double g = 1 + i;

    for (int p = m->parts - 1; p > part; p--)
        g *= factor(p);
    return g;
}

static void expect(model *m, double got, double want, const tutti_pipe_pass *pass, const char *what)
{
    if (got != want && m->wrong[0] == '\0')
        snprintf(m->wrong, sizeof m->wrong, "micro %d chunk %d: %s is %g, not %g", pass->micro,
                 pass->chunk, what, got, want);
}

static void do_pass(void *arg)
{
    job *j = arg;
    model *m = j->m;
    const tutti_pipe_pass *p = &j->pass;
    int part = p->chunk * m->r->size + m->r->rank, i;
    double *kept = m->kept + (size_t)p->cache * N;

    if (m->r->rank == 0)
        usleep(50); /* so that stages are out of step */
    for (i = 0; i < N; i++) {
        double in = p->first ? input(p->micro, i) : ((const double *)p->in)[i];
        double g = p->kind != TUTTI_PIPE_BACKWARD ? 0
                   : p->last                      ? 1 + i
                                                  : ((const double *)p->d_out)[i];

        expect(m, in, activation(part, p->micro, i), p, "in");
        if (p->kind == TUTTI_PIPE_FORWARD) {
            kept[i] = in;
            if (!p->last)
                ((double *)p->out)[i] = factor(part) * in + p->micro;
        } else {
            expect(m, kept[i], in, p, "what was kept");
            expect(m, g, gradient(m, part, i), p, "d_out");
            if (!p->first)
                ((double *)p->d_in)[i] = factor(part) * g;
        }
    }
    free(j);
}

static tutti_status pass(void *arg, const tutti_pipe_pass *p, tutti_stream stream)
{
    model *m = arg;
    job *j;

    if (m->s->fail_at == m->r->rank && p->micro == 1)
        return TUTTI_ERR_UNSUPPORTED;
    if (p->cache < 0 || p->cache >= m->in_flight)
        return TUTTI_ERR_INTERNAL;
    m->forward += p->kind == TUTTI_PIPE_FORWARD;
    m->backward += p->kind == TUTTI_PIPE_BACKWARD;
    j = malloc(sizeof *j);
    if (j == NULL)
        return TUTTI_ERR_NO_MEMORY;
    *j = (job){m, *p};
    return tutti_stream_call(m->r->ctx, stream, do_pass, j);
}

static void run(tt_rank *r)
{
    const setup *s = r->arg;
    tutti_pipe_opts opts = TUTTI_PIPE_OPTS_INIT;
    model m = {.r = r, .s = s};
    tutti_pipe *pipe;
    tutti_status status = TUTTI_OK;

    opts.micros = s->micros;
    opts.chunks = s->chunks;
    opts.bytes = N * sizeof(double);
    opts.flags = s->flags;
    m.parts = r->size * s->chunks;
    TT_EXPECT_OK(r, tutti_pipe_create(r->comm, &opts, &pipe));
    if (!s->inline_stream)
        TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "compute", 0, &m.stream));
    m.in_flight = tutti_pipe_in_flight(pipe);
    m.kept = calloc((size_t)m.in_flight * N, sizeof *m.kept);
    for (int i = 0; i < s->runs && status == TUTTI_OK; i++)
        status = tutti_pipe_run(pipe, pass, &m, m.stream);
    if (status == TUTTI_OK)
        status = tutti_stream_sync(r->ctx, m.stream);
    tutti_pipe_destroy(pipe);
    tutti_stream_destroy(r->ctx, m.stream);
    free(m.kept);
    if (s->fail_at >= 0) {
        TT_EXPECT(r, status != TUTTI_OK);
        TT_EXPECT(r, tutti_ctx_error(r->ctx, NULL, 0) != TUTTI_OK);
        r->ctx = NULL; /* failed on purpose */
        return;
    }
    TT_EXPECT_OK(r, status);
    TT_EXPECT(r, m.forward == s->runs * s->micros * s->chunks && m.backward == m.forward);
    if (m.wrong[0] != '\0')
        tt_say(r, "rank %d: %s", r->rank, m.wrong);
}

static void equals_one_place(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++)
        for (int chunks = 1; chunks <= 3; chunks++)
            for (uint32_t flags = 0; flags <= TUTTI_PIPE_OVERLAP; flags++)
                for (int inline_stream = 0; inline_stream <= 1; inline_stream++) {
                    setup s = {chunks > 1 ? 2 * n : 5, chunks, 2, flags, inline_stream, -1};

                    TT_ASSERT_RANKS(n, NULL, run, &s);
                }
}

static void across_nodes(void **state)
{
    setup s = {6, 1, 3, TUTTI_PIPE_OVERLAP, false, -1};

    (void)state;
    TT_ASSERT_RANKS(3, "1,2", run, &s);
}

/* Stage 0 computes its second micro-batch until stage 1 has begun the first: the activation gets
 * there meanwhile. */
static _Atomic bool arrived, late;

static void beside(void *arg)
{
    job *j = arg;
    bool forward = j->pass.kind == TUTTI_PIPE_FORWARD;

    if (forward && j->m->r->rank == 1 && j->pass.micro == 0)
        arrived = true;
    for (int ms = 0; forward && j->m->r->rank == 0 && j->pass.micro == 1 && !arrived && !late;
         ms++) {
        usleep(1000);
        late = ms > 60000;
    }
    free(j);
}

static tutti_status beside_pass(void *arg, const tutti_pipe_pass *p, tutti_stream stream)
{
    model *m = arg;
    job *j = malloc(sizeof *j);

    if (j == NULL)
        return TUTTI_ERR_NO_MEMORY;
    *j = (job){m, *p};
    return tutti_stream_call(m->r->ctx, stream, beside, j);
}

static void beside_body(tt_rank *r)
{
    tutti_pipe_opts opts = TUTTI_PIPE_OPTS_INIT;
    model m = {.r = r};
    tutti_pipe *pipe;

    opts.micros = 4;
    opts.bytes = N * sizeof(double);
    opts.flags = *(const uint32_t *)r->arg;
    TT_EXPECT_OK(r, tutti_pipe_create(r->comm, &opts, &pipe));
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "compute", 0, &m.stream));
    TT_EXPECT_OK(r, tutti_pipe_run(pipe, beside_pass, &m, m.stream));
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, m.stream));
    TT_EXPECT(r, arrived && !late);
    tutti_pipe_destroy(pipe);
    tutti_stream_destroy(r->ctx, m.stream);
}

static void transfers_run_beside_passes(void **state)
{
    (void)state;
    for (uint32_t flags = 0; flags <= TUTTI_PIPE_OVERLAP; flags++)
        for (int across = 0; across < 2; across++) {
            arrived = late = false;
            TT_ASSERT_RANKS(2, across == 1 ? "2x1" : NULL, beside_body, &flags);
        }
}

/* One micro-batch for many stages, many for two. */
static void extreme_shapes(void **state)
{
    setup one = {1, 1, 2, TUTTI_PIPE_OVERLAP, false, -1}, many = {200, 1, 1, 0, false, -1};

    (void)state;
    TT_ASSERT_RANKS(6, NULL, run, &one);
    TT_ASSERT_RANKS(2, NULL, run, &many);
}

static void a_pass_that_fails_ends_the_run_for_all(void **state)
{
    (void)state;
    for (int rank = 0; rank < 3; rank++) {
        setup s = {5, 1, 1, 0, false, rank};

        TT_ASSERT_RANKS(3, NULL, run, &s);
    }
}

static void misuse(tt_rank *r)
{
    tutti_pipe_opts opts = TUTTI_PIPE_OPTS_INIT;
    tutti_pipe *pipe = NULL;

    TT_EXPECT(r, tutti_pipe_create(r->comm, NULL, &pipe) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_pipe_create(r->comm, &opts, &pipe) == TUTTI_ERR_ARG); /* no bytes */
    opts.bytes = 64;
    TT_EXPECT(r, tutti_pipe_create(r->comm, &opts, &pipe) == TUTTI_ERR_ARG); /* no micro-batch */
    opts.micros = 2;
    opts.size = 1;
    TT_EXPECT(r, tutti_pipe_create(r->comm, &opts, &pipe) == TUTTI_ERR_ARG);
    opts.size = sizeof opts;
    TT_EXPECT(r, tutti_pipe_run(NULL, pass, NULL, (tutti_stream){0}) == TUTTI_ERR_ARG);
    TT_EXPECT_OK(r, tutti_pipe_create(r->comm, &opts, &pipe)); /* left to tutti_finalize */
    TT_EXPECT(r, tutti_pipe_run(pipe, NULL, NULL, (tutti_stream){0}) == TUTTI_ERR_ARG);
}

static void differ(tt_rank *r)
{
    tutti_pipe_opts opts = TUTTI_PIPE_OPTS_INIT;
    tutti_pipe *pipe = NULL;

    opts.bytes = 64;
    opts.micros = 2 + r->rank;
    TT_EXPECT(r, tutti_pipe_create(r->comm, &opts, &pipe) == TUTTI_ERR_MISMATCH);
    TT_EXPECT(r, pipe == NULL && strstr(tutti_last_error(), "micro-batches") != NULL);
    r->ctx = NULL; /* failed on purpose */
}

static void misuse_is_named_and_nothing_is_lost(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, differ, NULL);
    TT_ASSERT_RANKS(2, NULL, misuse, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_one_place),
        cmocka_unit_test(across_nodes),
        cmocka_unit_test(transfers_run_beside_passes),
        cmocka_unit_test(extreme_shapes),
        cmocka_unit_test(a_pass_that_fails_ends_the_run_for_all),
        cmocka_unit_test(misuse_is_named_and_nothing_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
