/* SPDX-License-Identifier: Apache-2.0 */
/* Sends, receives and groups: what crosses must not wait for each other, and order is kept. */
#include <time.h>

#include "tt_test.h"

enum { BIG = 300000 /* floats: above what any transport takes in advance */ };

static const tutti_stream inline_stream;
static const tutti_dtype f32 = TUTTI_FLOAT32;

static void paint(float *buf, size_t n, float from)
{
    for (size_t i = 0; i < n; i++)
        buf[i] = from + (float)(i % 1000);
}

static bool is_painted(const float *buf, size_t n, float from)
{
    for (size_t i = 0; i < n; i++)
        if (buf[i] != from + (float)(i % 1000))
            return false;
    return true;
}

/* Everybody sends to both neighbours before it receives. */
static void crossing(tt_rank *r)
{
    const int right = (r->rank + 1) % r->size, left = (r->rank + r->size - 1) % r->size;
    float *out = malloc(BIG * sizeof *out), *in[2];
    for (int i = 0; i < 2; i++)
        in[i] = calloc(BIG, sizeof **in);
    paint(out, BIG, (float)r->rank);
    TT_EXPECT_OK(r, tutti_group_begin());
    TT_EXPECT_OK(r, tutti_send(r->comm, out, BIG, f32, right, inline_stream));
    TT_EXPECT_OK(r, tutti_send(r->comm, out, BIG - 1, f32, left, inline_stream));
    TT_EXPECT_OK(r, tutti_recv(r->comm, in[0], BIG, f32, left, inline_stream));
    TT_EXPECT_OK(r, tutti_recv(r->comm, in[1], BIG - 1, f32, right, inline_stream));
    TT_EXPECT_OK(r, tutti_group_end());
    TT_EXPECT(r, is_painted(in[0], BIG, (float)left));
    TT_EXPECT(r, is_painted(in[1], BIG - 1, (float)right) && in[1][BIG - 1] == 0);
    for (int i = 0; i < 2; i++)
        free(in[i]);
    free(out);
}

/* All to all by sends, empty ones included, and to oneself twice. */
static void everybody(tt_rank *r)
{
    enum { MOST = 2000 };
    static const float mark = 50;
    float out[16][MOST], in[16][MOST];
    TT_EXPECT_OK(r, tutti_group_begin());
    for (int i = 0; i < r->size; i++) {
        size_t sends = (size_t)((r->rank + 2 * i) % 4) * 600,
               gets = (size_t)((i + 2 * r->rank) % 4);
        paint(out[i], sends, (float)(r->rank * 16 + i));
        TT_EXPECT_OK(r, tutti_recv(r->comm, in[i], gets * 600, f32, i, inline_stream));
        TT_EXPECT_OK(r, tutti_group_begin()); /* an inner one changes nothing */
        TT_EXPECT_OK(r, tutti_send(r->comm, out[i], sends, f32, i, inline_stream));
        TT_EXPECT_OK(r, tutti_group_end());
    }
    float again = mark, back = 0;
    TT_EXPECT_OK(r, tutti_send(r->comm, &again, 1, f32, r->rank, inline_stream));
    TT_EXPECT_OK(r, tutti_recv(r->comm, &back, 1, f32, r->rank, inline_stream));
    TT_EXPECT_OK(r, tutti_group_end());
    TT_EXPECT(r, back == mark);
    for (int i = 0; i < r->size; i++)
        TT_EXPECT(
            r, is_painted(in[i], (size_t)((i + 2 * r->rank) % 4) * 600, (float)(i * 16 + r->rank)));
}

static void slow(void *arg)
{
    struct timespec pause = {0, 3000000};
    (void)arg;
    nanosleep(&pause, NULL);
}

/* Sends given to two streams in turns, one of them slow, arrive in the order of issue. */
static void two_streams(tt_rank *r)
{
    enum { N = 20 };
    tutti_stream s[2];
    float out[N], in[N];
    for (int i = 0; i < 2; i++)
        TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "s", 0, &s[i]));
    for (int i = 0; i < N; i++) {
        out[i] = (float)(100 * r->rank + i);
        if (i % 5 == 0)
            TT_EXPECT_OK(r, tutti_stream_call(r->ctx, s[i % 2], slow, NULL));
        TT_EXPECT_OK(r, tutti_group_begin());
        TT_EXPECT_OK(r, tutti_send(r->comm, &out[i], 1, f32, (r->rank + 1) % r->size, s[i % 2]));
        TT_EXPECT_OK(r, tutti_recv(r->comm, &in[i], 1, f32, (r->rank + r->size - 1) % r->size,
                                   s[i / 2 % 2]));
        TT_EXPECT_OK(r, tutti_group_end());
    }
    for (int i = 0; i < 2; i++)
        TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, s[i]));
    for (int i = 0; i < N; i++)
        TT_EXPECT(r, in[i] == (float)(100 * ((r->rank + r->size - 1) % r->size) + i));
    for (int i = 0; i < 2; i++)
        tutti_stream_destroy(r->ctx, s[i]);
}

/* Collectives and messages of two communicators on three streams in one group, many times; then
 * the communicators are destroyed with work still under way. */
static void mixed(tt_rank *r)
{
    enum { TIMES = 10, N = 500 };
    tutti_stream s[3] = {{0}, {0}, {0}};
    tutti_comm *half;
    float a[TIMES][N], b[TIMES][N], c[TIMES][2];
    const int first = r->rank % 2;
    TT_EXPECT_OK(r, tutti_comm_split(r->comm, first, r->rank, NULL, &half));
    for (int i = 1; i < 3; i++)
        TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "s", 0, &s[i]));
    for (int i = 0; i < TIMES; i++) {
        const int peer = (tutti_rank(half) + 1) % tutti_size(half);
        const int from = (tutti_rank(half) + tutti_size(half) - 1) % tutti_size(half);
        paint(a[i], N, (float)i);
        paint(b[i], N, (float)(first * i));
        c[i][0] = (float)(r->rank + i);
        TT_EXPECT_OK(r, tutti_group_begin());
        TT_EXPECT_OK(r, tutti_all_reduce(r->comm, a[i], a[i], N, f32, TUTTI_MAX, s[i % 3]));
        TT_EXPECT_OK(r, tutti_send(half, &c[i][0], 1, f32, peer, s[(i + 1) % 3]));
        TT_EXPECT_OK(r, tutti_all_reduce(half, b[i], b[i], N, f32, TUTTI_AVG, s[(i + 1) % 3]));
        TT_EXPECT_OK(r, tutti_recv(half, &c[i][1], 1, f32, from, s[(i + 2) % 3]));
        TT_EXPECT_OK(r, tutti_group_end());
    }
    tutti_comm_destroy(half);
    for (int i = 1; i < 3; i++)
        TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, s[i]));
    for (int i = 0; i < TIMES; i++) {
        int left = r->rank - 2 >= 0 ? r->rank - 2 : (r->size - 1 - first) / 2 * 2 + first;
        TT_EXPECT(r, is_painted(a[i], N, (float)i));
        TT_EXPECT(r, is_painted(b[i], N, (float)(first * i)));
        TT_EXPECT(r, c[i][1] == (float)(left + i));
    }
    for (int i = 1; i < 3; i++)
        tutti_stream_destroy(r->ctx, s[i]);
}

static void body(tt_rank *r)
{
    static void (*const parts[])(tt_rank *) = {crossing, everybody, two_streams, mixed};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        parts[i](r);
        if (r->failed)
            tutti_abort(r->ctx, 1, r->message);
    }
}

/* Many small collectives, in a group on the ranks that have `grouped` set and one by one on the
 * others. Half of them take what the one before has made. */
static void small_ones(tt_rank *r)
{
    enum { CALLS = 40, MOST = 700, TIMES = 30 };
    const unsigned grouped = *(const unsigned *)r->arg;
    float(*in)[MOST] = calloc(CALLS, sizeof *in), (*out)[MOST] = calloc(CALLS, sizeof *out);
    tt_rng rng = {grouped};
    for (int time = 0; time < TIMES && !r->failed; time++) {
        tutti_status status = TUTTI_OK;
        size_t n[CALLS];
        if ((grouped >> r->rank & 1) != 0)
            status = tutti_group_begin();
        for (int i = 0; i < CALLS && status == TUTTI_OK; i++) {
            const bool chained = i > 0 && tt_rand_below(&rng, 2) == 0;
            n[i] = chained ? n[i - 1] : tt_rand_below(&rng, MOST);
            for (size_t k = 0; k < n[i]; k++)
                in[i][k] = (float)(1 + r->rank);
            status = tutti_all_reduce(r->comm, chained ? out[i - 1] : in[i], out[i], n[i], f32,
                                      chained ? TUTTI_MAX : TUTTI_SUM, inline_stream);
        }
        if (status == TUTTI_OK && (grouped >> r->rank & 1) != 0)
            status = tutti_group_end();
        if (status != TUTTI_OK)
            tt_say(r, "time %d: %s", time, tutti_last_error());
        for (int i = 0; i < CALLS && status == TUTTI_OK; i++)
            for (size_t k = 0; k < n[i]; k++)
                if (out[i][k] != (float)(r->size * (r->size + 1) / 2))
                    tt_say(r, "time %d, call %d, element %zu: %g", time, i, k, (double)out[i][k]);
    }
    free(in);
    free(out);
}

static void small_ones_run_ahead(void **state)
{
    (void)state;
    setenv("TUTTI_SPIN_US", "20", 1); /* as where each rank has a core */
    for (unsigned grouped = 0; grouped < 8; grouped++)
        TT_ASSERT_RANKS(grouped < 4 ? 2 : 3, NULL, small_ones, &grouped);
    unsetenv("TUTTI_SPIN_US");
}

/* Small calls of every kind with roots here and there, in groups, on a stream or inline as each
 * rank likes: whoever may leave before the others does, up to the limit of calls ahead. */
enum { ROOTED_MOST = 700, ROOTED_CALLS = 12 };

typedef struct rooted_call {
    int kind, root;
    size_t n;
    float in[4 * ROOTED_MOST], out[4 * ROOTED_MOST];
} rooted_call;

static float rooted_value(int rank, int seq, size_t at)
{
    return (float)(rank + 1) * 7 + (float)(seq % 50) + (float)(at % 13);
}

static tutti_status rooted_issue(tt_rank *r, rooted_call *c, tutti_stream s)
{
    switch (c->kind) {
    case 0:
        return tutti_broadcast(r->comm, c->in, c->out, c->n, f32, c->root, s);
    case 1:
        return tutti_scatter(r->comm, c->in, c->out, c->n, f32, c->root, s);
    case 2:
        return tutti_gather(r->comm, c->in, c->out, c->n, f32, c->root, s);
    case 3:
        return tutti_reduce(r->comm, c->in, c->out, c->n, (tutti_reduction){f32, TUTTI_MAX},
                            c->root, s);
    case 4:
        return tutti_all_gather(r->comm, c->in, c->out, c->n, f32, s);
    default:
        return tutti_all_reduce(r->comm, c->in, c->out, c->n, f32, TUTTI_MAX, s);
    }
}

static bool rooted_right(const tt_rank *r, const rooted_call *c, int seq)
{
    const size_t n = c->n, all = n * (size_t)r->size;
    const bool root = r->rank == c->root;
    for (size_t i = 0; i < n && (c->kind < 2 || c->kind == 5 || (c->kind == 3 && root)); i++) {
        const size_t at = c->kind == 1 ? (size_t)r->rank * n + i : i;
        if (c->out[i] != rooted_value(c->kind < 2 ? c->root : r->size - 1, seq, at))
            return false;
    }
    for (size_t i = 0; i < all && (c->kind == 4 || (c->kind == 2 && root)); i++)
        if (c->out[i] != rooted_value((int)(i / n), seq, i % n))
            return false;
    return true;
}

static void rooted_ones(tt_rank *r)
{
    static const size_t sizes[] = {0, 1, 2, 14, 15, 100, 256, 257, ROOTED_MOST};
    const uint64_t seed = *(const uint64_t *)r->arg;
    rooted_call *c = calloc(ROOTED_CALLS, sizeof *c);
    tt_rng same = {seed}, own = {seed + 1000 * (uint64_t)(r->rank + 1)};
    tutti_stream s;
    TT_EXPECT(r, c != NULL);
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "s", 0, &s));
    for (int time = 0, seq = 0; time < 40 && !r->failed; time++) {
        const int first = seq;
        const bool only_rooted = tt_rand_below(&same, 2) == 0;
        const int fixed = (int)tt_rand_below(&same, (uint64_t)r->size);
        const bool stay = tt_rand_below(&same, 2) == 0;
        tutti_status status = TUTTI_OK;
        for (int i = 0; i < ROOTED_CALLS; i++, seq++) {
            c[i].kind = (int)tt_rand_below(&same, only_rooted ? 4 : 6);
            c[i].root = (int)tt_rand_below(&same, (uint64_t)r->size);
            c[i].root = stay ? fixed : c[i].root;
            c[i].n = sizes[tt_rand_below(&same, sizeof sizes / sizeof sizes[0])];
            for (size_t k = 0; k < c[i].n * (c[i].kind == 1 ? (size_t)r->size : 1); k++)
                c[i].in[k] = rooted_value(r->rank, seq, k);
            memset(c[i].out, 0, sizeof c[i].out);
        }
        for (int i = 0; i < ROOTED_CALLS && status == TUTTI_OK;) {
            int n = 1 + (int)tt_rand_below(&own, 4);
            const bool group = tt_rand_below(&own, 3) == 0, pause = tt_rand_below(&own, 40) == 0;
            const tutti_stream on = tt_rand_below(&own, 5) == 0 ? s : inline_stream;
            if (pause)
                nanosleep(&(struct timespec){0, 200000}, NULL);
            n = n > ROOTED_CALLS - i ? ROOTED_CALLS - i : n;
            if (group)
                status = tutti_group_begin();
            for (int k = 0; k < n && status == TUTTI_OK; k++, i++)
                status = rooted_issue(r, &c[i], on);
            if (group && status == TUTTI_OK)
                status = tutti_group_end();
        }
        if (status == TUTTI_OK)
            status = tutti_stream_sync(r->ctx, s);
        if (status != TUTTI_OK)
            tt_say(r, "time %d: %s", time, tutti_last_error());
        for (int i = 0; i < ROOTED_CALLS && status == TUTTI_OK; i++)
            if (!rooted_right(r, &c[i], first + i))
                tt_say(r, "seed %d, time %d, call %d: kind %d, root %d, %zu elements", (int)seed,
                       time, i, c[i].kind, c[i].root, c[i].n);
    }
    tutti_stream_destroy(r->ctx, s);
    free(c);
}

static void rooted_ones_leave_early(void **state)
{
    (void)state;
    setenv("TUTTI_SPIN_US", "20", 1);
    for (uint64_t seed = 1; seed <= 6; seed++)
        TT_ASSERT_RANKS(2 + (int)(seed % 3), NULL, rooted_ones, &seed);
    unsetenv("TUTTI_SPIN_US");
}

static void groups(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, body, NULL);
    TT_ASSERT_RANKS(4, "3,1", body, NULL);
    TT_ASSERT_RANKS(7, "2,5", body, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(groups),
                                       cmocka_unit_test(small_ones_run_ahead),
                                       cmocka_unit_test(rooted_ones_leave_early)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
