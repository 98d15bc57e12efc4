/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls on several communicators in different orders: with TUTTI_CHECK=1 ranks that would wait for
 * each other for ever are named, on all ranks, within the shortest limit. What may be done in any
 * order is not.
 */
#include <pthread.h>

#include "core/clock.h"
#include "tt_test.h"

static const tutti_stream inline_stream;
enum { COMMS = 3, N = 8 };

typedef struct scene {
    int ranks;
    bool pairs; /* a, b, c have two of three ranks each: 0 and 1, 1 and 2, 2 and 0 */
    const char *nodes;
    /* What rank r calls, in order: letters, see `act`. One text for all that are not listed. */
    const char *calls[4];
    const char *words[4]; /* in every rank's text; none: all is well */
} scene;

typedef struct actor {
    tt_rank *r;
    tutti_comm *comm[COMMS];
    tutti_stream stream;
} actor;

/* a, b, c: an all_reduce on one of the communicators; A, B, C: the same on the stream; < and >:
 * a receive from the rank before, a send to the one behind, on a; |: a barrier of c; .: a pause. */
static tutti_status act(actor *a, char what)
{
    const int rank = a->r->rank, size = a->r->size;
    float in[N] = {1}, out[N];
    static _Thread_local float queued[N];
    if (what >= 'a' && what < 'a' + COMMS)
        return tutti_all_reduce(a->comm[what - 'a'], in, out, N, TUTTI_FLOAT32, TUTTI_SUM,
                                inline_stream);
    if (what >= 'A' && what < 'A' + COMMS)
        return tutti_all_reduce(a->comm[what - 'A'], queued, queued, N, TUTTI_FLOAT32, TUTTI_SUM,
                                a->stream);
    if (what == '<')
        return tutti_recv(a->comm[0], out, N, TUTTI_FLOAT32, (rank + size - 1) % size,
                          inline_stream);
    if (what == '>')
        return tutti_send(a->comm[0], in, N, TUTTI_FLOAT32, (rank + 1) % size, inline_stream);
    if (what == '|')
        return tutti_barrier(a->comm[2]);
    tt_sleep_ns(400000000);
    return TUTTI_OK;
}

static tutti_status act_all(actor *a, const char *calls)
{
    tutti_status status = TUTTI_OK;
    for (; *calls != '\0' && status == TUTTI_OK; calls++)
        status = act(a, *calls);
    if (status == TUTTI_OK)
        status = tutti_stream_sync(a->r->ctx, a->stream);
    return status;
}

static tutti_status make(actor *a, bool pairs)
{
    static const char *const names[COMMS] = {"a", "b", "c"};
    tutti_status status = tutti_stream_create(a->r->ctx, "s", 0, &a->stream);
    for (int i = 0; i < COMMS && status == TUTTI_OK; i++) {
        tutti_comm_opts opts = TUTTI_COMM_OPTS_INIT;
        opts.name = names[i];
        int color = pairs && a->r->rank == (i + 2) % COMMS ? TUTTI_COLOR_NONE : 0;
        status = tutti_comm_split(a->r->comm, color, a->r->rank, &opts, &a->comm[i]);
    }
    return status;
}

static void end_failed(tt_rank *r, tutti_status status)
{
    const scene *s = r->arg;
    char text[2048];
    TT_EXPECT(r, tutti_ctx_error(r->ctx, text, sizeof text) == TUTTI_ERR_MISMATCH);
    TT_EXPECT(r, status == TUTTI_ERR_MISMATCH);
    for (int i = 0; i < 4 && s->words[i] != NULL; i++)
        if (strstr(text, s->words[i]) == NULL)
            tt_say(r, "no \"%s\" in: %s", s->words[i], text);
    r->ctx = NULL;
}

static void play(tt_rank *r)
{
    const scene *s = r->arg;
    const char *calls = s->calls[r->rank] != NULL ? s->calls[r->rank] : s->calls[0];
    actor a = {.r = r};
    TT_EXPECT_OK(r, make(&a, s->pairs));
    tutti_status status = act_all(&a, calls);
    if (s->words[0] != NULL)
        end_failed(r, status);
    else
        TT_EXPECT_OK(r, status);
}

static void swapped_calls_are_named(void **state)
{
    static const scene scenes[] = {
        {2,
         false,
         NULL,
         {"ab", "ba"},
         {"rank 0", "all_reduce of 32 bytes f32 on comm a", "rank 1", "b"}},
        {2, false, "1,1", {"ab", "ba"}, {"on comm a", "on comm b"}},
        {2, false, NULL, {"aAbcB", "aAcbB"}, {"on comm b", "on comm c"}},
        {2, false, NULL, {"AB", "BA"}, {"on comm a", "on comm b"}},
        {3, false, NULL, {"abc", "bca", "cab"}, {"on comm"}},
        {3, true, NULL, {"ac", "ba", "cb"}, {"on comm a", "on comm b", "on comm c"}},
        {3, true, "1,1,1", {"acac", "abba", "bccb"}, {"on comm a", "on comm b", "on comm c"}},
        {3, false, "2,1", {"ccabc", "cabcc", "cabcc"}, {"on comm a", "on comm c"}},
        {2,
         false,
         NULL,
         {"a<a", "aa>"},
         {"recv of 32 bytes f32 from rank 1 on comm a", "all_reduce"}},
        {2, false, NULL, {"<>", "<>"}, {"recv of 32 bytes f32 from rank 1", "from rank 0"}},
        {4, false, NULL, {"><", "<>", "<>", "<>"}, {NULL}},
        {3, false, NULL, {"ab|", "|ab", "ab|"}, {"on comm a", "barrier"}},
    };
    (void)state;
    setenv("TUTTI_CHECK", "1", 1);
    setenv("TUTTI_TIMEOUT", "120", 1);
    for (size_t i = 0; i < sizeof scenes / sizeof scenes[0]; i++)
        TT_ASSERT_RANKS(scenes[i].ranks, scenes[i].nodes, play, (void *)&scenes[i]);
}

typedef struct second {
    actor *a;
    const char *calls;
    tutti_status status;
} second;

static void *second_main(void *arg)
{
    second *s = arg;
    s->status = act_all(s->a, s->calls);
    return NULL;
}

/* The main threads call what `calls` says, with a for both; second ones do so on b at the same
 * time. */
static void play_two(tt_rank *r)
{
    const scene *s = r->arg;
    static const char *const seconds[] = {"..bb", "b.b."};
    actor a = {.r = r};
    second other = {.a = &a, .calls = seconds[r->rank]};
    pthread_t thread;
    TT_EXPECT_OK(r, make(&a, false));
    TT_EXPECT(r, pthread_create(&thread, NULL, second_main, &other) == 0);
    tutti_status status = act_all(&a, s->calls[r->rank]);
    pthread_join(thread, NULL);
    TT_EXPECT_OK(r, status);
    TT_EXPECT_OK(r, other.status);
}

/* Each thread has a communicator of its own, so there is no order between them, although for a
 * while each rank waits for the other in another one. */
static void threads_may_have_their_own(void **state)
{
    static const scene late = {2, false, NULL, {"a.a.", "..aa"}, {NULL}};
    (void)state;
    setenv("TUTTI_CHECK", "1", 1);
    TT_ASSERT_RANKS(2, NULL, play_two, (void *)&late);
    TT_ASSERT_RANKS(2, "1,1", play_two, (void *)&late);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(swapped_calls_are_named),
                                       cmocka_unit_test(threads_may_have_their_own)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
