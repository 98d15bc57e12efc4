/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A two-layer network split over the ranks (first layer by columns, second by rows), forward and
 * backward, with whole numbers so that results are exact; against the same network in one place.
 * And the shared vocabulary's cross entropy against the plain one in double.
 */
#include <math.h>
#include <unistd.h>

#include "comm/comm.h"

#include "tt_test.h"

enum { ROWS = 48, IN = 5, HIDDEN = 12, OUT = 7 };

typedef struct setup {
    int chunks;
    uint32_t flags;
    bool inline_stream;
    int fail_rank; /* -1: none */
} setup;

static float x_at(size_t row, size_t i)
{
    return (float)((row * 3 + i * 5) % 7) - 3;
}

static float w1_at(size_t out, size_t in)
{
    return (float)((out * 2 + in * 3) % 5) - 2;
}

static float w2_at(size_t out, size_t in)
{
    return (float)((out + in * 4) % 3) - 1;
}

static float dy_at(size_t row, size_t out)
{
    return (float)((row + out * 2) % 4) - 1;
}

static float y_at(size_t row, size_t out)
{
    float y = 0;

    for (size_t h = 0; h < HIDDEN; h++) {
        float hidden = 0;

        for (size_t i = 0; i < IN; i++)
            hidden += w1_at(h, i) * x_at(row, i);
        y += w2_at(out, h) * hidden;
    }
    return y;
}

static float dx_at(size_t row, size_t in)
{
    float dx = 0;

    for (size_t h = 0; h < HIDDEN; h++) {
        float dh = 0;

        for (size_t o = 0; o < OUT; o++)
            dh += w2_at(o, h) * dy_at(row, o);
        dx += w1_at(h, in) * dh;
    }
    return dx;
}

typedef struct net {
    tt_rank *r;
    const setup *s;
    size_t first, count; /* this rank's hidden units */
    float *x, *hidden, *y, *dy, *dh, *dx;
    size_t calls;
} net;

typedef struct product {
    net *n;
    size_t first, rows;
    void (*do_row)(net *n, size_t row);
} product;

/* hidden = x W1, this rank's columns. */
static void row_up(net *n, size_t row)
{
    for (size_t h = 0; h < n->count; h++) {
        float sum = 0;

        for (size_t i = 0; i < IN; i++)
            sum += w1_at(n->first + h, i) * n->x[row * IN + i];
        n->hidden[row * n->count + h] = sum;
    }
}

/* This rank's term of y. */
static void row_down(net *n, size_t row)
{
    for (size_t o = 0; o < OUT; o++) {
        n->y[row * OUT + o] = 0;
        for (size_t h = 0; h < n->count; h++)
            n->y[row * OUT + o] += w2_at(o, n->first + h) * n->hidden[row * n->count + h];
    }
}

static void row_down_back(net *n, size_t row)
{
    for (size_t h = 0; h < n->count; h++) {
        n->dh[row * n->count + h] = 0;
        for (size_t o = 0; o < OUT; o++)
            n->dh[row * n->count + h] += w2_at(o, n->first + h) * n->dy[row * OUT + o];
    }
}

static void row_up_back(net *n, size_t row)
{
    for (size_t i = 0; i < IN; i++) {
        n->dx[row * IN + i] = 0;
        for (size_t h = 0; h < n->count; h++)
            n->dx[row * IN + i] += w1_at(n->first + h, i) * n->dh[row * n->count + h];
    }
}

static void do_product(void *arg)
{
    product *p = arg;

    for (size_t row = p->first; row < p->first + p->rows; row++)
        p->do_row(p->n, row);
    free(p);
}

static tutti_status queue(net *n, size_t first, size_t rows, tutti_stream stream,
                          void (*do_row)(net *n, size_t row))
{
    product *p = malloc(sizeof *p);

    n->calls++;
    if (p == NULL || n->s->fail_rank == n->r->rank) {
        free(p);
        return TUTTI_ERR_NO_MEMORY;
    }
    *p = (product){n, first, rows, do_row};
    return tutti_stream_call(n->r->ctx, stream, do_product, p);
}

static tutti_status up(void *arg, size_t first, size_t rows, tutti_stream stream)
{
    return queue(arg, first, rows, stream, row_up);
}

static tutti_status down(void *arg, size_t first, size_t rows, tutti_stream stream)
{
    return queue(arg, first, rows, stream, row_down);
}

static tutti_status down_back(void *arg, size_t first, size_t rows, tutti_stream stream)
{
    return queue(arg, first, rows, stream, row_down_back);
}

static tutti_status up_back(void *arg, size_t first, size_t rows, tutti_stream stream)
{
    return queue(arg, first, rows, stream, row_up_back);
}

static void fill(float *at, size_t rows, size_t cols, float (*value)(size_t, size_t),
                 const tutti_tp *tp)
{
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < cols; i++)
            at[row * cols + i] = value(tp == NULL ? row : tutti_tp_row(tp, ROWS, row), i);
}

static bool equal(const float *at, size_t rows, size_t cols, float (*value)(size_t, size_t),
                  const tutti_tp *tp)
{
    for (size_t row = 0; row < rows; row++)
        for (size_t i = 0; i < cols; i++)
            if (at[row * cols + i] != value(tp == NULL ? row : tutti_tp_row(tp, ROWS, row), i))
                return false;
    return true;
}

/* Both passes on one stream; two steps, so that memory and events are used again. */
static tutti_status pass(net *n, tutti_tp *tp, float *parts[4], tutti_stream stream)
{
    tutti_tp_matrix x = {n->x, parts[0], ROWS, IN, TUTTI_FLOAT32};
    tutti_tp_matrix y = {n->y, parts[1], ROWS, OUT, TUTTI_FLOAT32};
    tutti_tp_matrix dy = {n->dy, parts[2], ROWS, OUT, TUTTI_FLOAT32};
    tutti_tp_matrix dx = {n->dx, parts[3], ROWS, IN, TUTTI_FLOAT32};
    tutti_status status = tutti_tp_gather(tp, &x, up, n, stream);

    if (status == TUTTI_OK)
        status = tutti_tp_reduce(tp, &y, down, n, stream);
    if (status == TUTTI_OK)
        status = tutti_tp_gather(tp, &dy, down_back, n, stream);
    if (status == TUTTI_OK)
        status = tutti_tp_reduce(tp, &dx, up_back, n, stream);
    if (status == TUTTI_OK)
        status = tutti_stream_sync(n->r->ctx, stream);
    return status;
}

static void run_net(tt_rank *r, net *n, tutti_tp *tp, float *memory, tutti_stream stream)
{
    const setup *s = r->arg;
    bool dealt = (s->flags & TUTTI_TP_SEQUENCE) != 0;
    size_t rows = dealt ? ROWS / (size_t)r->size : ROWS;
    float *parts[4] = {memory, memory + ROWS * IN, memory + ROWS * (IN + OUT),
                       memory + ROWS * (IN + 2 * OUT)};

    for (int step = 0; step < 2; step++) {
        fill(dealt ? parts[0] : n->x, rows, IN, x_at, dealt ? tp : NULL);
        fill(dealt ? parts[2] : n->dy, rows, OUT, dy_at, dealt ? tp : NULL);
        if (s->fail_rank >= 0) {
            TT_EXPECT(r, pass(n, tp, parts, stream) != TUTTI_OK);
            TT_EXPECT(r, tutti_ctx_error(r->ctx, NULL, 0) != TUTTI_OK);
            return;
        }
        TT_EXPECT_OK(r, pass(n, tp, parts, stream));
        TT_EXPECT(r, equal(dealt ? parts[1] : n->y, rows, OUT, y_at, dealt ? tp : NULL));
        TT_EXPECT(r, equal(dealt ? parts[3] : n->dx, rows, IN, dx_at, dealt ? tp : NULL));
    }
    TT_EXPECT(r, n->calls == 2 * (dealt ? 4 : 2) * (size_t)s->chunks + (dealt ? 0 : 4));
}

static void run(tt_rank *r)
{
    const setup *s = r->arg;
    tutti_tp_opts opts = TUTTI_TP_OPTS_INIT;
    net n = {.r = r, .s = s};
    size_t hidden = (size_t)ROWS * HIDDEN;
    tutti_stream stream = {0};
    float *memory;
    tutti_tp *tp;

    opts.chunks = s->chunks;
    opts.flags = s->flags;
    TT_EXPECT_OK(r, tutti_tp_create(r->comm, &opts, &tp));
    TT_EXPECT_OK(r, tutti_tp_range(r->comm, "hidden units", HIDDEN, &n.first, &n.count));
    if (!s->inline_stream)
        TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "compute", 0, &stream));
    memory = calloc(4 * (size_t)ROWS * (IN + OUT) + 2 * hidden, sizeof *memory);
    n.x = memory;
    n.y = n.x + ROWS * IN;
    n.dy = n.y + ROWS * OUT;
    n.dx = n.dy + ROWS * OUT;
    n.hidden = n.dx + ROWS * IN;
    n.dh = n.hidden + hidden;
    run_net(r, &n, tp, n.dh + hidden, stream);
    (void)!tutti_stream_sync(r->ctx, stream);
    tutti_tp_destroy(tp);
    tutti_stream_destroy(r->ctx, stream);
    free(memory);
    if (s->fail_rank >= 0)
        r->ctx = NULL; /* failed on purpose */
}

static void equals_one_place(void **state)
{
    const int sizes[] = {1, 2, 3, 4};

    (void)state;
    for (size_t i = 0; i < 4; i++)
        for (int chunks = 1; chunks <= 4; chunks += chunks)
            for (uint32_t flags = 0; flags <= TUTTI_TP_SEQUENCE; flags++)
                for (int in_line = 0; in_line <= 1; in_line++) {
                    setup s = {chunks, flags, in_line, -1};

                    TT_ASSERT_RANKS(sizes[i], NULL, run, &s);
                }
}

/* Products that wait for transfers which only overlap brings about: of a reduction, that of the
 * chunk before; of a gather, all of them. `calls` counts what the communicator has carried out. */
typedef struct meeting {
    tt_rank *r;
    uint32_t from; /* calls before */
    uint32_t until[3]; /* calls behind these, by chunk, when its product may end */
    int chunk;
    _Atomic bool late;
} meeting;

typedef struct meeting_turn {
    meeting *m;
    uint32_t until;
} meeting_turn;

static void meet(void *arg)
{
    meeting_turn *t = arg;
    meeting *m = t->m;

    for (int ms = 0; atomic_load(&m->r->comm->done_seq) - m->from < t->until && !m->late; ms++) {
        usleep(1000);
        m->late = ms > 60000;
    }
    free(t);
}

static tutti_status meeting_product(void *arg, size_t first, size_t rows, tutti_stream stream)
{
    meeting *m = arg;
    meeting_turn *t = malloc(sizeof *t);

    (void)first;
    (void)rows;
    if (t == NULL)
        abort();
    *t = (meeting_turn){m, m->until[m->chunk++]};
    return tutti_stream_call(m->r->ctx, stream, meet, t);
}

static void overlap_body(tt_rank *r)
{
    tutti_tp_opts opts = TUTTI_TP_OPTS_INIT;
    float full[36 * 4] = {0}, part[36 * 4] = {0};
    const tutti_tp_matrix matrix = {full, part, 36, 4, TUTTI_FLOAT32};
    tutti_stream stream;
    tutti_tp *tp;

    opts.chunks = 3;
    opts.flags = *(const uint32_t *)r->arg;
    TT_EXPECT_OK(r, tutti_tp_create(r->comm, &opts, &tp));
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "compute", 0, &stream));
    meeting m = {.r = r, .from = (uint32_t)r->comm->next_seq, .until = {0, 1, 2}};
    TT_EXPECT_OK(r, tutti_tp_reduce(tp, &matrix, meeting_product, &m, stream));
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, stream));
    TT_EXPECT(r, !m.late && m.chunk == 3);
    if (opts.flags != 0) {
        m = (meeting){.r = r, .from = (uint32_t)r->comm->next_seq, .until = {3, 3, 3}};
        TT_EXPECT_OK(r, tutti_tp_gather(tp, &matrix, meeting_product, &m, stream));
        TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, stream));
        TT_EXPECT(r, !m.late && m.chunk == 3);
    }
    tutti_tp_destroy(tp);
    tutti_stream_destroy(r->ctx, stream);
}

static void transfers_run_beside_products(void **state)
{
    (void)state;
    for (uint32_t flags = 0; flags <= TUTTI_TP_SEQUENCE; flags++)
        TT_ASSERT_RANKS(2, NULL, overlap_body, &flags);
}

static void a_product_that_fails_ends_it_for_all(void **state)
{
    setup s = {2, TUTTI_TP_SEQUENCE, false, 1};

    (void)state;
    TT_ASSERT_RANKS(3, NULL, run, &s);
}

/* Every row of the whole matrix is somebody's, once. */
static void deal(tt_rank *r)
{
    tutti_tp_opts opts = TUTTI_TP_OPTS_INIT;
    double seen[ROWS] = {0};
    tutti_tp *tp;

    opts.chunks = 4;
    opts.flags = TUTTI_TP_SEQUENCE;
    TT_EXPECT_OK(r, tutti_tp_create(r->comm, &opts, &tp));
    for (size_t i = 0; i < (size_t)ROWS / (size_t)r->size; i++)
        seen[tutti_tp_row(tp, ROWS, i)]++;
    TT_EXPECT_OK(r, tutti_all_reduce_host(r->comm, seen, ROWS, TUTTI_SUM));
    for (size_t i = 0; i < ROWS; i++)
        TT_EXPECT(r, seen[i] == 1);
}

static void rows_are_dealt_out(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, deal, NULL);
}

enum { VOCABULARY = 24 };

/* Row 0's target is far from the maximum, and row 1's values would overflow alone. */
static float logit_at(size_t row, size_t v)
{
    float value = sinf((float)(row * 31 + v * 7)) * 4;

    if (row == 0)
        return v == 3 ? -150 : value;
    return row == 1 ? value + 800 : value;
}

static void entropy(tt_rank *r)
{
    size_t rows = 9, first, count, i, j;
    float logits[9 * VOCABULARY], loss[9];
    int32_t targets[9];
    tutti_stream stream = {0};
    tutti_tp_logits l = {logits, targets, rows, 0, 0};
    tutti_tp *tp;

    TT_EXPECT_OK(r, tutti_tp_range(r->comm, "tokens", VOCABULARY, &first, &count));
    TT_EXPECT_OK(r, tutti_tp_create(r->comm, NULL, &tp));
    if (r->rank % 2 == 0)
        TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "compute", 0, &stream));
    l.count = count;
    l.first = (int32_t)first;
    for (i = 0; i < rows; i++) {
        targets[i] = i == 8 ? VOCABULARY : (int32_t)(i * 5 + 3) % VOCABULARY;
        for (j = 0; j < count; j++)
            logits[i * count + j] = logit_at(i, first + j);
    }
    TT_EXPECT_OK(r, tutti_tp_cross_entropy(tp, &l, loss, stream));
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, stream));
    for (i = 0; i < rows; i++) {
        double sum = 0, want;

        for (j = 0; j < VOCABULARY; j++)
            sum += exp((double)logit_at(i, j) - logit_at(i, 0));
        if (i == 8) {
            TT_EXPECT(r, isinf(loss[i])); /* no such token */
            continue;
        }
        want = log(sum) + logit_at(i, 0) - logit_at(i, (size_t)targets[i]);
        TT_EXPECT(r, fabs(loss[i] - want) <= 2e-5 * fmax(1, fabs(want)));
        for (j = 0; j < count; j++) {
            double p = exp((double)logit_at(i, first + j) - logit_at(i, 0)) / sum;

            TT_EXPECT(r, fabs(logits[i * count + j] - p) <= 2e-5 * p + 1e-30);
        }
    }
    tutti_stream_destroy(r->ctx, stream);
}

static void the_vocabulary_may_be_shared(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++)
        TT_ASSERT_RANKS(n, NULL, entropy, NULL);
}

static void misuse(tt_rank *r)
{
    tutti_tp_opts opts = TUTTI_TP_OPTS_INIT;
    float data[8 * 3] = {0};
    tutti_tp_matrix m = {data, data, 3, 3, TUTTI_FLOAT32};
    tutti_stream in_line = {0};
    size_t first, count;
    tutti_tp *tp;

    TT_EXPECT(r, tutti_tp_range(r->comm, "heads", 3, &first, &count) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "3 heads") != NULL);
    opts.chunks = -1;
    TT_EXPECT(r, tutti_tp_create(r->comm, &opts, &tp) == TUTTI_ERR_ARG);
    opts.chunks = 2;
    opts.flags = 8;
    TT_EXPECT(r, tutti_tp_create(r->comm, &opts, &tp) == TUTTI_ERR_ARG);
    opts.flags = TUTTI_TP_SEQUENCE;
    TT_EXPECT_OK(r, tutti_tp_create(r->comm, &opts, &tp)); /* left to tutti_finalize */
    TT_EXPECT(r, tutti_tp_reduce(tp, &m, NULL, NULL, in_line) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_tp_gather(tp, &m, up, NULL, in_line) == TUTTI_ERR_ARG); /* 3 rows */
    m.rows = 8;
    m.part = NULL;
    TT_EXPECT(r, tutti_tp_gather(tp, &m, up, NULL, in_line) == TUTTI_ERR_ARG);
    m.part = data;
    m.dtype = (tutti_dtype)77;
    TT_EXPECT(r, tutti_tp_gather(tp, &m, up, NULL, in_line) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_tp_cross_entropy(tp, NULL, data, in_line) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_tp_row(NULL, 8, 1) == 0);
}

static void misuse_is_named_and_nothing_is_lost(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, misuse, NULL);
}

/* One of each kind, on communicators of a mesh, all left to tutti_finalize: of a sound context, or
 * of one that has failed. */
static void leave(tt_rank *r)
{
    tutti_pipe_opts pipe_opts = TUTTI_PIPE_OPTS_INIT;
    tutti_param p = TUTTI_PARAM_INIT;
    tutti_mesh *mesh;
    tutti_comm *dp, *tp_comm;
    tutti_reducer *red;
    tutti_pipe *pipe;
    tutti_tp *tp;
    int id;

    TT_EXPECT_OK(r, tutti_mesh_create(r->ctx, "dp=2,tp=2", &mesh));
    TT_EXPECT_OK(r, tutti_mesh_comm(mesh, "dp", &dp));
    TT_EXPECT_OK(r, tutti_reducer_create(dp, NULL, &red));
    TT_EXPECT_OK(r, tutti_mesh_comm(mesh, "tp", &tp_comm));
    TT_EXPECT_OK(r, tutti_tp_create(tp_comm, NULL, &tp));
    pipe_opts.bytes = 64;
    pipe_opts.micros = 2;
    TT_EXPECT_OK(r, tutti_pipe_create(tp_comm, &pipe_opts, &pipe));
    p.name = "w";
    p.dtype = TUTTI_FLOAT32;
    p.ndim = 1;
    p.shape[0] = 100;
    TT_EXPECT_OK(r, tutti_reducer_add(red, &p, &id));
    TT_EXPECT_OK(r, tutti_reducer_commit(red));
    TT_EXPECT_OK(r, tutti_reducer_begin(red, 0, 1, (tutti_stream){0})); /* and within a step */
    if (!*(const bool *)r->arg)
        return;
    TT_EXPECT_OK(r, tutti_barrier(r->comm)); /* news of a failure comes to the others at any time */
    TT_EXPECT(r, tutti_reducer_wait(red, (tutti_stream){0}) != TUTTI_OK);
    r->ctx = NULL; /* failed on purpose */
}

static void what_is_left_goes_with_the_context(void **state)
{
    bool failed = false;

    (void)state;
    TT_ASSERT_RANKS(4, NULL, leave, &failed);
    failed = true;
    TT_ASSERT_RANKS(4, NULL, leave, &failed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_one_place),
        cmocka_unit_test(transfers_run_beside_products),
        cmocka_unit_test(a_product_that_fails_ends_it_for_all),
        cmocka_unit_test(rows_are_dealt_out),
        cmocka_unit_test(the_vocabulary_may_be_shared),
        cmocka_unit_test(misuse_is_named_and_nothing_is_lost),
        cmocka_unit_test(what_is_left_goes_with_the_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
