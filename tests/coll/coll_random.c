/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random calls. Everything is chosen from seeds that all ranks share, so ranks agree without asking
 * each other; a part that a rank is not in, and what is called there, is left out.
 */
#include "coll_random.h"

#include "coll_case.h"
#include "tt_memory.h"

enum { PARTS = 3, LANE = 65536 };

/* The world, and parts made by random colours and keys; team[i].size == 0: not in it. */
static bool make_teams(tt_rank *r, const char *nodes, tt_rng *rng, team teams[PARTS + 1])
{
    int node[MAX_TEAM];
    ref_nodes(nodes, r->size, node);
    for (int part = 0; part <= PARTS; part++) {
        team *t = &teams[part];
        int color[MAX_TEAM], key[MAX_TEAM];
        tutti_comm_opts opts = TUTTI_COMM_OPTS_INIT;
        *t = (team){.reproducible = part == 1 || part == 2};
        opts.flags = t->reproducible ? TUTTI_COMM_REPRODUCIBLE : 0;
        for (int i = 0; i < r->size; i++) {
            color[i] = part <= 1 ? 0 : (int)tt_rand_below(rng, 3) - 1;
            key[i] = part == 0 ? 0 : (int)tt_rand_below(rng, 5);
        }
        for (int k = 0; k < 5 && color[r->rank] >= 0; k++)
            for (int i = 0; i < r->size; i++)
                if (color[i] == color[r->rank] && key[i] == k) {
                    t->rank = i == r->rank ? t->size : t->rank;
                    t->node[t->size] = node[i];
                    t->world[t->size++] = i;
                }
        if (part == 0)
            t->comm = r->comm;
        else if (tutti_comm_split(r->comm, color[r->rank], key[r->rank], &opts, &t->comm) !=
                 TUTTI_OK) {
            tt_say(r, "tutti_comm_split: %s", tutti_last_error());
            return false;
        }
        if ((t->comm == NULL) != (t->size == 0) ||
            (t->comm != NULL &&
             (tutti_size(t->comm) != t->size || tutti_rank(t->comm) != t->rank))) {
            tt_say(r, "part %d: a wrong communicator", part);
            return false;
        }
    }
    return true;
}

static size_t lane_of(const random_world *w)
{
    return w->lane != 0 ? w->lane : LANE;
}

/* Up to LANES calls under way at once, on streams chosen alike on all ranks. */
static bool run_batch(tt_rank *r, const random_world *w, uint64_t seed, const team *teams,
                      const tutti_stream *streams, const lane *lanes)
{
    tt_rng rng = {seed};
    coll_case c[LANES];
    const team *t[LANES];
    bool group = tt_rand_below(&rng, 4) == 0;
    int n = 1 + (int)tt_rand_below(&rng, LANES);
    if (group && tutti_group_begin() != TUTTI_OK)
        return false;
    for (int i = 0; i < n; i++) {
        t[i] = &teams[tt_rand_below(&rng, PARTS + 1)];
        tutti_stream stream = streams[tt_rand_below(&rng, 3)];
        tt_rng own = {tt_rand(&rng)};
        if (t[i]->size == 0)
            continue;
        own.state += (uint64_t)t[i]->world[0];
        c[i] = case_random(&own, t[i], lane_of(w), w->chunk_bytes);
        if (case_issue(&c[i], t[i], &lanes[i], stream) != TUTTI_OK) {
            char text[256];
            case_text(&c[i], t[i], text, sizeof text);
            tt_say(r, "%s: %s", text, tutti_last_error());
            return false;
        }
    }
    if (group && tutti_group_end() != TUTTI_OK) {
        tt_say(r, "group_end: %s", tutti_last_error());
        return false;
    }
    for (int i = 0; i < 3; i++) {
        if (tutti_stream_sync(r->ctx, streams[i]) != TUTTI_OK) {
            tt_say(r, "tutti_stream_sync: %s", tutti_last_error());
            return false;
        }
    }
    for (int i = 0; i < n; i++)
        if (t[i]->size > 0 && !case_check(r, &c[i], t[i], &lanes[i]))
            return false;
    return true;
}

void random_calls(tt_rank *r, const random_world *w)
{
    tt_rng rng = {w->seed};
    lane lanes[LANES];
    team teams[PARTS + 1];
    tutti_stream streams[3] = {{0}, {0}, {0}};
    if (!lanes_create(r, lane_of(w), lanes) || !make_teams(r, w->nodes, &rng, teams))
        return;
    TT_EXPECT_OK(r, tt_first_stream(r->ctx, &streams[0]));
    for (int i = 1; i < 3 && !w->inline_only; i++)
        TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "random", 0, &streams[i]));
    for (long i = 0; i < w->batches; i++)
        if (!run_batch(r, w, tt_rand(&rng), teams, streams, lanes))
            tutti_abort(r->ctx, 1, r->message);
    for (int part = 1; part <= PARTS; part++)
        tutti_comm_destroy(teams[part].comm);
    for (int i = 0; i < 3; i++)
        tutti_stream_destroy(r->ctx, streams[i]);
    lanes_destroy(r, lanes);
}

void random_play_node(const char *nodes)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    int node[MAX_TEAM];
    char name[32];
    if (rank == NULL || size == NULL)
        return;
    ref_nodes(nodes, (int)strtol(size, NULL, 10), node);
    snprintf(name, sizeof name, "node-%d", node[strtol(rank, NULL, 10)]);
    setenv("TUTTI_HOST_ID", name, 1);
}
