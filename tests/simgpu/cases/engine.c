/* SPDX-License-Identifier: Apache-2.0 */
/* What stand-ins build on: meetings, waits with a deadline, deadlocks, peers in other processes. */
#include "../engine.h"
#include "cases.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

typedef struct party {
    sg_meet *meet;
    int index;
} party;

static sg_step arrive(void *arg, sg_op *op)
{
    party *p = arg;
    return sg_meet_arrive(p->meet, p->index, op);
}

static void explain(void *arg, char *buf, size_t cap)
{
    party *p = arg;
    int missing[4];
    int n = sg_meet_missing(p->meet, missing, 4);
    snprintf(buf, cap, "%d missing, first is member %d", n, missing[0]);
}

static void join_meet(cudaStream_t stream, party *p, const char *label)
{
    sg_op_desc desc = {.label = label, .run = arrive, .explain = explain, .arg = p};
    CHECK(sg_enqueue((sg_stream *)stream, &desc) == SG_OK);
}

static int fired;

static void fire(void *arg, sg_op *const *ops)
{
    (void)arg;
    CHECK(ops[0] != NULL && ops[1] != NULL);
    fired++;
}

/* The meeting is what orders b's copy after a's fill. */
static void meet_orders(void)
{
    pair p = pair_make();
    sg_meet *meet = sg_meet_create(2, fire, NULL, true);
    party parties[] = {{meet, 0}, {meet, 1}};
    OK(cudaMemsetAsync(p.x, 1, BYTES, p.a));
    join_meet(p.a, &parties[0], "first");
    join_meet(p.b, &parties[1], "second");
    OK(cudaMemcpyAsync(p.y, p.x, BYTES, cudaMemcpyDeviceToDevice, p.b));
    OK(cudaStreamSynchronize(p.b));
    CHECK(fired == 1);
    pair_free(&p);
    sg_meet_destroy(meet);
}

static void meet_without_join(void)
{
    pair p = pair_make();
    sg_meet *meet = sg_meet_create(2, fire, NULL, false);
    party parties[] = {{meet, 0}, {meet, 1}};
    OK(cudaMemsetAsync(p.x, 1, BYTES, p.a));
    join_meet(p.a, &parties[0], "first");
    join_meet(p.b, &parties[1], "second");
    OK(cudaMemcpyAsync(p.y, p.x, BYTES, cudaMemcpyDeviceToDevice, p.b));
    pair_free(&p);
    sg_meet_destroy(meet);
}

static void member_missing(void)
{
    pair p = pair_make();
    party alone = {sg_meet_create(2, fire, NULL, true), 0};
    join_meet(p.a, &alone, "lonely");
    (void)cudaStreamSynchronize(p.a);
}

static void member_missing_polled(void)
{
    pair p = pair_make();
    party alone = {sg_meet_create(2, fire, NULL, true), 1};
    join_meet(p.a, &alone, "lonely");
    while (cudaStreamQuery(p.a) == cudaErrorNotReady) {
    }
}

static sg_meet *meets[2];

static void *one_rank(void *arg)
{
    int rank = (int)(size_t)arg;
    party parties[2] = {{meets[rank], rank}, {meets[1 - rank], rank}};
    OK(cudaSetDevice(rank));
    pair p = pair_make();
    join_meet(p.a, &parties[0], rank == 0 ? "rank 0's first" : "rank 1's first");
    join_meet(p.a, &parties[1], rank == 0 ? "rank 0's second" : "rank 1's second");
    (void)cudaStreamSynchronize(p.a);
    return NULL;
}

/* Each rank waits for the other, and main for both. */
static void order_swapped(void)
{
    pthread_t threads[2];
    int count;
    OK(cudaGetDeviceCount(&count));
    for (size_t i = 0; i < 2; i++) {
        meets[i] = sg_meet_create(2, fire, NULL, true);
    }
    for (size_t i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, one_rank, (void *)i) == 0);
    }
    for (size_t i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
}

typedef struct late_member {
    pair p;
    party party;
} late_member;

static void *arrives_late(void *arg)
{
    late_member *late = arg;
    OK(cudaSetDevice(0));
    usleep(1500000);
    join_meet(late->p.b, &late->party, "late");
    return NULL;
}

/* Who sleeps will wake: no deadlock. */
static void sleeper(void)
{
    pthread_t other;
    late_member late = {.p = pair_make()};
    party first = {sg_meet_create(2, fire, NULL, true), 0};
    late.party = (party){first.meet, 1};
    CHECK(pthread_create(&other, NULL, arrives_late, &late) == 0);
    join_meet(late.p.a, &first, "early");
    OK(cudaStreamSynchronize(late.p.a));
    pthread_join(other, NULL);
    pair_free(&late.p);
    sg_meet_destroy(first.meet);
}

static atomic_bool remote_there;

static sg_step remote_run(void *arg, sg_op *op)
{
    (void)arg;
    (void)op;
    return remote_there ? SG_DONE : SG_BLOCKED;
}

static void *remote_peer(void *arg)
{
    usleep(300000);
    remote_there = true;
    return arg;
}

static void remote(void)
{
    pthread_t peer;
    pair p = pair_make();
    sg_op_desc desc = {.label = "remote", .run = remote_run, .flags = SG_OP_REMOTE};
    CHECK(pthread_create(&peer, NULL, remote_peer, NULL) == 0);
    CHECK(sg_enqueue((sg_stream *)p.a, &desc) == SG_OK);
    OK(cudaStreamSynchronize(p.a));
    CHECK(remote_there);
    pthread_join(peer, NULL);
    pair_free(&p);
}

static void remote_never(void)
{
    pair p = pair_make();
    sg_op_desc desc = {.label = "remote", .run = remote_run, .flags = SG_OP_REMOTE};
    CHECK(sg_enqueue((sg_stream *)p.a, &desc) == SG_OK);
    (void)cudaStreamSynchronize(p.a);
}

static bool never(void *arg)
{
    (void)arg;
    return false;
}

static void deadline(void)
{
    sg_wait wait = {.done = never, .call = "deadline", .deadline_ms = 50};
    CHECK(!sg_wait_until(&wait));
}

static const case_entry cases[] = {
    {"meet_orders", meet_orders, NULL, NULL, NULL, false},
    {"meet_without_join", meet_without_join, "race", "cudaMemsetAsync", NULL, false},
    {"member_missing", member_missing, "deadlock", "first is member 1", NULL, false},
    {"member_missing_polled", member_missing_polled, "deadlock", "polls", NULL, true},
    {"order_swapped", order_swapped, "deadlock", "rank 1's first", NULL, true},
    {"sleeper", sleeper, NULL, NULL, NULL, true},
    {"remote", remote, NULL, NULL, NULL, false},
    {"remote_never", remote_never, "deadlock", "remote on", "SIMGPU_PATIENCE=200", true},
    {"deadline", deadline, NULL, NULL, NULL, false},
};
const case_list engine_cases = {"engine", cases, sizeof(cases) / sizeof(cases[0])};
