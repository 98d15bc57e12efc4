/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank fails at a random moment while all kinds of work are under way, inline and on streams. The
 * others must get out of it, with its text, and may give back their memory, communicators and
 * contexts at once, while slower ranks are still in the middle of a call: sanitizers watch.
 */
#include "coll_case.h"
#include "tt_memory.h"
#include "core/clock.h"

enum { LANE = 65536, ROUNDS = 16 };

typedef struct storm {
    uint64_t seed;
    const char *nodes;
} storm;

/* Calls until something fails; `until` calls at most on the rank that is to fail. */
static tutti_status work(tt_rank *r, const storm *s, team *t, const lane *lanes,
                         const tutti_stream *streams, uint64_t until)
{
    tt_rng rng = {s->seed};
    tutti_status status = TUTTI_OK;
    for (uint64_t i = 0; i < until && status == TUTTI_OK; i++) {
        coll_case c = case_random(&rng, t, LANE, 4096);
        status = case_issue(&c, t, &lanes[i % LANES], streams[i % 3]);
        if (i % LANES == LANES - 1)
            for (int k = 0; k < 3 && status == TUTTI_OK; k++)
                status = tutti_stream_sync(r->ctx, streams[k]);
    }
    return status;
}

static void body(tt_rank *r)
{
    const storm *s = r->arg;
    const int bad = (int)(s->seed % (uint64_t)r->size);
    char text[2048];
    lane lanes[LANES];
    tutti_stream streams[3] = {{0}, {0}, {0}};
    team t = {.size = r->size, .rank = r->rank, .comm = NULL};
    for (int i = 0; i < r->size; i++)
        t.world[i] = i;
    if (!lanes_create(r, LANE, lanes))
        return;
    TT_EXPECT_OK(r, tutti_comm_split(r->comm, 0, 0, NULL, &t.comm));
    for (int i = 1; i < 3; i++)
        TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "s", 0, &streams[i]));
    tt_all_here(r); /* the failure meets the work, not the calls above */
    tutti_status status =
        work(r, s, &t, lanes, streams, r->rank == bad ? s->seed / 8 % 60 : UINT64_MAX);
    if (r->rank == bad) {
        tt_sleep_ns((int64_t)(s->seed % 7) * 100000);
        TT_EXPECT(r, tutti_barrier(NULL) == TUTTI_ERR_ARG); /* harmless */
        status = tt_ctx_fail(r->ctx, tt_fail(TUTTI_ERR_DEVICE, "the fan has stopped"));
    }
    TT_EXPECT(r, status == (r->rank == bad ? TUTTI_ERR_DEVICE : TUTTI_ERR_REMOTE));
    TT_EXPECT(r, tutti_ctx_error(r->ctx, text, sizeof text) == status);
    TT_EXPECT(r, strstr(text, "the fan has stopped") != NULL);
    if (s->seed % 2 == 0) {
        tutti_comm_destroy(t.comm);
        TT_EXPECT_OK(r, tutti_free(r->comm, lanes[0].registered));
    }
    for (int i = 1; i < 3; i++)
        tutti_stream_destroy(r->ctx, streams[i]);
    tt_plain_free(r->ctx, lanes[0].plain);
    free(lanes[0].shadow);
    r->ctx = NULL;
}

static void a_rank_fails(void **state)
{
    static const struct {
        int ranks;
        const char *nodes;
    } layouts[] = {{2, NULL}, {4, "3,1"}, {7, "2,5"}, {4, NULL}};
    tt_rng rng = {42};
    (void)state;
    setenv("TUTTI_CHUNK_BYTES", "4K", 1);
    for (int i = 0; i < ROUNDS; i++) {
        storm s = {tt_rand(&rng) >> 8, layouts[i % 4].nodes};
        TT_ASSERT_RANKS(layouts[i % 4].ranks, s.nodes, body, &s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_rank_fails)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
