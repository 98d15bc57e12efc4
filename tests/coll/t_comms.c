/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: who is in them, in which order, how long they live; host scalars on them. */
#include <pthread.h>

#include "coll_ref.h"
#include "comm/comm.h"

static void orders_body(tt_rank *r)
{
    tutti_comm *c = r->comm, *d;
    tutti_comm_opts opts = TUTTI_COMM_OPTS_INIT;
    char name[16] = "dp";
    TT_EXPECT(r, tutti_rank(c) == r->rank && tutti_size(c) == r->size);
    TT_EXPECT(r, strcmp(tutti_comm_name(c), "world") == 0);

    opts.name = name; /* copied */
    TT_EXPECT_OK(r, tutti_comm_split(c, 5, -r->rank, &opts, &d)); /* reversed */
    name[0] = 'x';
    TT_EXPECT(r, tutti_rank(d) == r->size - 1 - r->rank && tutti_size(d) == r->size);
    TT_EXPECT(r, strcmp(tutti_comm_name(d), "dp") == 0);
    tutti_comm_destroy(d);

    TT_EXPECT_OK(r, tutti_comm_split(c, r->rank % 2, 7, NULL, &d)); /* equal keys: by rank */
    TT_EXPECT(r, tutti_rank(d) == r->rank / 2 && tutti_size(d) == (r->size + 1 - r->rank % 2) / 2);
    TT_EXPECT(r, strncmp(tutti_comm_name(d), "world.", 6) == 0);
    tutti_comm *e; /* of a part, which leaves out its first rank */
    TT_EXPECT_OK(r,
                 tutti_comm_split(d, tutti_rank(d) == 0 ? TUTTI_COLOR_NONE : 1 << 30, 0, NULL, &e));
    TT_EXPECT(r, (e == NULL) == (tutti_rank(d) == 0));
    TT_EXPECT(r, e == NULL || tutti_size(e) == tutti_size(d) - 1);
    tutti_comm_destroy(d); /* the parent may go first */
    if (e != NULL)
        TT_EXPECT_OK(r, tutti_barrier(e));
    tutti_comm_destroy(e);

    TT_EXPECT_OK(r, tutti_comm_split(c, TUTTI_COLOR_NONE, 0, NULL, &d));
    TT_EXPECT(r, d == NULL);
    tutti_comm_destroy(d);
    tutti_comm_destroy(c); /* the world is not destroyed */

    d = NULL;
    TT_EXPECT(r, tutti_comm_split(c, r->rank == 2 ? -9 : 0, 0, NULL, &d) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "colour -9") != NULL && d == NULL);
    TT_EXPECT_OK(r, tutti_barrier(c));

    opts.flags = r->rank == 1 ? TUTTI_COMM_REPRODUCIBLE : 0;
    TT_EXPECT(r, tutti_comm_split(c, 0, 0, &opts, &d) == TUTTI_ERR_MISMATCH && d == NULL);
    TT_EXPECT(r, strstr(tutti_last_error(), "flags") != NULL);
    r->ctx = NULL;
}

static void orders(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, orders_body, NULL);
    TT_ASSERT_RANKS(8, "5,3", orders_body, NULL);
}

/* Many at once, some left to tutti_finalize, memory registered on the world used by parts. */
static void many_body(tt_rank *r)
{
    enum { MANY = 24 };
    tutti_comm *c[MANY];
    float *buf;
    TT_EXPECT_OK(r, tutti_alloc(r->comm, MANY * sizeof *buf, (void **)&buf));
    for (int i = 0; i < MANY; i++) {
        TT_EXPECT_OK(r, tutti_comm_split(r->comm, i % 3 == 0 ? r->rank / 2 : 0, 0, NULL, &c[i]));
        buf[i] = 1;
    }
    for (int i = 0; i < MANY; i++)
        TT_EXPECT_OK(r, tutti_all_reduce(c[i], &buf[i], &buf[i], 1, TUTTI_FLOAT32, TUTTI_SUM,
                                         (tutti_stream){0}));
    for (int i = 0; i < MANY; i++) {
        TT_EXPECT(r, buf[i] == (float)tutti_size(c[i]));
        if (i % 2 == 0)
            tutti_comm_destroy(c[i]);
    }
    TT_EXPECT_OK(r, tutti_free(r->comm, buf));
}

static void many(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(4, "3,1", many_body, NULL);
}

/* Host scalars follow the communicator's order. */
static void scalars_body(tt_rank *r)
{
    enum { N = 9 };
    for (int reproducible = 0; reproducible < 2; reproducible++) {
        team t = {.size = r->size, .reproducible = reproducible == 1};
        tutti_comm_opts opts = TUTTI_COMM_OPTS_INIT;
        opts.flags = t.reproducible ? TUTTI_COMM_REPRODUCIBLE : 0;
        int node[MAX_TEAM];
        ref_nodes(r->arg, r->size, node);
        for (int i = 0; i < r->size; i++) { /* even ranks, then odd ones: nodes are interleaved */
            t.world[i] = i < (r->size + 1) / 2 ? 2 * i : 2 * (i - (r->size + 1) / 2) + 1;
            t.node[i] = node[t.world[i]];
        }
        TT_EXPECT_OK(r, tutti_comm_split(r->comm, 0, r->rank % 2, &opts, &t.comm));
        for (tutti_op op = TUTTI_SUM; op <= TUTTI_PROD; op++) {
            double value[N], want;
            for (size_t i = 0; i < N; i++)
                ref_value(3, r->rank, i, TUTTI_FLOAT64, REF_ROUGH, &value[i]);
            TT_EXPECT_OK(r, tutti_all_reduce_host(t.comm, value, N, op));
            for (size_t i = 0; i < N; i++) {
                ref_reduced(&t, 3, i, TUTTI_FLOAT64, op, REF_ROUGH, &want);
                TT_EXPECT(r, memcmp(&want, &value[i], sizeof want) == 0);
            }
        }
        TT_EXPECT_OK(r, tutti_all_reduce_host(t.comm, NULL, 0, TUTTI_SUM));
        tutti_comm_destroy(t.comm);
    }
}

static void scalars(void **state)
{
    static char uneven[] = "3,1,3", one[] = "1";
    (void)state;
    TT_ASSERT_RANKS(7, uneven, scalars_body, uneven);
    TT_ASSERT_RANKS(1, one, scalars_body, one);
}

enum { EACH = 40 };

typedef struct splitter {
    tutti_comm *of, *made[EACH];
    tutti_status status;
} splitter;

static void *split_often(void *arg)
{
    splitter *s = arg;
    for (int i = 0; i < EACH && s->status == TUTTI_OK; i++)
        s->status = tutti_comm_split(s->of, 0, 0, NULL, &s->made[i]);
    return NULL;
}

/* Two threads of every rank, each with a communicator of its own: what they make at the same time
 * must not be taken for each other. */
static void two_threads_body(tt_rank *r)
{
    splitter s[2] = {{.of = NULL}, {.of = NULL}};
    pthread_t thread;
    for (int i = 0; i < 2; i++)
        TT_EXPECT_OK(r, tutti_comm_split(r->comm, 0, 0, NULL, &s[i].of));
    TT_EXPECT(r, pthread_create(&thread, NULL, split_often, &s[0]) == 0);
    split_often(&s[1]);
    pthread_join(thread, NULL);
    TT_EXPECT(r, s[0].status == TUTTI_OK && s[1].status == TUTTI_OK);
    for (int i = 0; i < EACH; i++)
        for (int k = 0; k < EACH; k++)
            TT_EXPECT(r, s[0].made[i]->group.id != s[1].made[k]->group.id);
}

static void two_threads(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, two_threads_body, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(orders), cmocka_unit_test(many),
                                       cmocka_unit_test(scalars), cmocka_unit_test(two_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
