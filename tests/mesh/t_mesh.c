/* SPDX-License-Identifier: Apache-2.0 */
/* A mesh against a model of it: texts, coordinates, members of communicators, neighbours. */
#include "mesh/mesh.h"
#include "tt_test.h"

static void expect_refused(const char *text, int ranks, const char *why)
{
    tt_axes axes = {.n = -1};

    assert_int_equal(tt_mesh_parse(text, ranks, &axes), TUTTI_ERR_ARG);
    if (strstr(tutti_last_error(), why) == NULL)
        fail_msg("\"%s\" for %d ranks: \"%s\" says nothing of \"%s\"", text, ranks,
                 tutti_last_error(), why);
    assert_int_equal(axes.n, -1);
}

static void texts(void **state)
{
    tt_axes axes;
    uint32_t set;

    (void)state;
    assert_int_equal(tt_mesh_parse("pp=2,dp,tp=4", 24, &axes), TUTTI_OK);
    assert_int_equal(axes.n, 3);
    assert_int_equal(axes.axis[1].size, 3);
    assert_int_equal(axes.axis[0].stride, 12);
    assert_int_equal(axes.axis[2].stride, 1);
    assert_int_equal(tt_mesh_set(&axes, "tp+pp", &set), TUTTI_OK);
    assert_int_equal(set, 5);
    assert_int_equal(tt_mesh_set(&axes, "", &set), TUTTI_OK);
    assert_int_equal(set, 0);
    assert_int_equal(tt_mesh_set(&axes, "tp+", &set), TUTTI_ERR_ARG);
    assert_int_equal(tt_mesh_set(&axes, "+tp", &set), TUTTI_ERR_ARG);
    assert_int_equal(tt_mesh_set(&axes, "t", &set), TUTTI_ERR_ARG);
    assert_int_equal(tt_mesh_parse("dp", 1, &axes), TUTTI_OK);
    assert_int_equal(axes.axis[0].size, 1);

    expect_refused("", 4, "no name");
    expect_refused("dp,", 4, "no name");
    expect_refused("2dp=4", 4, "no name");
    expect_refused("d p=4", 4, "no name");
    expect_refused("dp=", 4, "no size");
    expect_refused("dp=0", 4, "no size");
    expect_refused("dp=-4", 4, "no size");
    expect_refused("dp=4x", 4, "no size");
    expect_refused("dp=99999999999999999999", 4, "no size");
    expect_refused("dp=2,dp=2", 4, "two axes");
    expect_refused("dp,tp", 4, "leaves out the sizes of \"dp\" and \"tp\"");
    expect_refused("dp,tp=3", 4, "does not divide");
    expect_refused("dp,tp=8", 4, "does not divide");
    expect_refused("dp=2,tp=4", 4, "makes 8 ranks");
    expect_refused("dp=99999999,tp=99999999,a=99999999", 4, "or more");
    expect_refused("a,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1,j=1,k=1,l=1,m=1,n=1,o=1,p=1,q=1", 4,
                   "more than 16");
    expect_refused("abcdefghijklmnopqrstuvwxyzabcdef=4", 4, "no name");
}

/* The model: sizes, and each rank's coordinates by division, the last axis fastest. */
typedef struct model {
    int n, size[4];
} model;

static void model_coords(const model *m, int rank, int *coord)
{
    for (int i = m->n - 1; i >= 0; i--) {
        coord[i] = rank % m->size[i];
        rank /= m->size[i];
    }
}

static const char *const names[] = {"pp", "dp", "tp", "x_1"};

static void set_text(uint32_t set, bool backwards, char *buf, size_t cap)
{
    size_t at = 0;

    buf[0] = '\0';
    for (int k = 0; k < 4; k++) {
        int i = backwards ? 3 - k : k;
        if ((set >> i & 1) != 0)
            at += (size_t)snprintf(buf + at, cap - at, "%s%s", at > 0 ? "+" : "", names[i]);
    }
}

static void check_set(tt_rank *r, tutti_mesh *mesh, const model *m, uint32_t set)
{
    int mine[4], theirs[4], members[16], n = 0, got[16], me = r->rank;
    char text[64], turned[64];
    tutti_comm *comm, *again;

    model_coords(m, r->rank, mine);
    for (int rank = 0; rank < r->size; rank++) {
        bool in = true;
        model_coords(m, rank, theirs);
        for (int i = 0; i < m->n; i++)
            in = in && ((set >> i & 1) != 0 || theirs[i] == mine[i]);
        if (in)
            members[n++] = rank;
    }
    set_text(set, false, text, sizeof text);
    set_text(set, true, turned, sizeof turned);
    TT_EXPECT_OK(r, tutti_mesh_comm(mesh, text, &comm));
    TT_EXPECT_OK(r, tutti_mesh_comm(mesh, turned, &again));
    TT_EXPECT(r, comm == again);
    TT_EXPECT(r, tutti_size(comm) == n && tutti_mesh_size(mesh, text) == n);
    TT_EXPECT(r, tutti_mesh_coord(mesh, turned) == tutti_rank(comm));
    TT_EXPECT(r, (comm == r->comm) == (n == r->size));
    TT_EXPECT_OK(r, tutti_all_gather(comm, &me, got, 1, TUTTI_INT32, (tutti_stream){0}));
    TT_EXPECT(r, memcmp(got, members, (size_t)n * sizeof *got) == 0);
}

static void check_axis(tt_rank *r, tutti_mesh *mesh, const model *m, int axis)
{
    int mine[4], theirs[4];

    model_coords(m, r->rank, mine);
    for (int shift = -3; shift <= 3; shift++) {
        int want[2] = {-1, -1}; /* without and with wrap */
        for (int rank = 0; rank < r->size; rank++) {
            bool same = true;
            model_coords(m, rank, theirs);
            for (int i = 0; i < m->n; i++)
                same = same && (i == axis || theirs[i] == mine[i]);
            if (same && theirs[axis] == mine[axis] + shift)
                want[0] = rank;
            if (same && (theirs[axis] - mine[axis] - shift) % m->size[axis] == 0)
                want[1] = rank;
        }
        TT_EXPECT(r, tutti_mesh_neighbour(mesh, names[axis], shift, false) == want[0]);
        TT_EXPECT(r, tutti_mesh_neighbour(mesh, names[axis], shift, true) == want[1]);
    }
    for (int rank = 0; rank < r->size; rank++) {
        model_coords(m, rank, theirs);
        TT_EXPECT(r, tutti_mesh_coord_of(mesh, rank, names[axis]) == theirs[axis]);
    }
    TT_EXPECT(r, strcmp(tutti_mesh_axis_name(mesh, axis), names[axis]) == 0);
}

static void random_body(tt_rank *r)
{
    const model *m = r->arg;
    char text[128] = "", print[4096];
    tutti_mesh *mesh;
    size_t at = 0;

    for (int i = 0; i < m->n; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, i == 1 ? "%s%s" : "%s%s=%d",
                               i > 0 ? "," : "", names[i], m->size[i]);
    TT_EXPECT_OK(r, tutti_mesh_create(r->ctx, text, &mesh));
    TT_EXPECT(r, tutti_mesh_axis_count(mesh) == m->n);
    for (int i = 0; i < m->n && !r->failed; i++)
        check_axis(r, mesh, m, i);
    for (uint32_t set = 0; set < 1u << m->n && !r->failed; set++)
        check_set(r, mesh, m, set);
    TT_EXPECT(r, tutti_mesh_text(mesh, print, sizeof print) == strlen(print));
    TT_EXPECT(r, strstr(print, "mesh pp=") == print);
    if (m->size[0] % 2 == 0) /* the others are left to tutti_finalize */
        tutti_mesh_destroy(mesh);
}

static void random_meshes(void **state)
{
    tt_rng rng = {7};

    (void)state;
    for (int round = 0; round < 12; round++) {
        model m = {.n = 1 + (int)tt_rand_below(&rng, 4)};
        int ranks = 1;
        for (int i = 0; i < m.n; i++) {
            m.size[i] = 1 + (int)tt_rand_below(&rng, ranks > 4 ? 1 : 3);
            ranks *= m.size[i];
        }
        TT_ASSERT_RANKS(ranks, ranks == 8 ? "4,4" : NULL, random_body, &m);
    }
}

static void sharing_body(tt_rank *r)
{
    tutti_comm *tp, *both, *self, *one;
    tutti_mesh *mesh;
    char print[1024];

    TT_EXPECT_OK(r, tutti_mesh_create(r->ctx, "pp=1,dp=2,tp", &mesh));
    TT_EXPECT_OK(r, tutti_mesh_comm(mesh, "tp", &tp));
    TT_EXPECT_OK(r, tutti_mesh_comm(mesh, "tp+pp", &both));
    TT_EXPECT_OK(r, tutti_mesh_comm(mesh, "pp", &one));
    TT_EXPECT_OK(r, tutti_mesh_comm(mesh, "", &self));
    TT_EXPECT(r, tp == both && one == self && tutti_size(self) == 1);
    TT_EXPECT(r, strcmp(tutti_comm_name(tp), "tp") == 0);
    TT_EXPECT(r, tutti_mesh_size(mesh, "zz") == 0 && tutti_mesh_coord(mesh, "zz") == -1);
    TT_EXPECT(r, tutti_mesh_neighbour(mesh, "zz", 1, true) == -1);
    TT_EXPECT(r, tutti_mesh_coord_of(mesh, r->size, "tp") == -1);
    tutti_mesh_text(mesh, print, sizeof print);
    TT_EXPECT(r, strstr(print, "mesh pp=1 dp=2 tp=2: 4 ranks on 2 nodes\n") != NULL);
    TT_EXPECT(r, strstr(print, "  dp: 2 groups of 2, 2 across nodes\n") != NULL);
    TT_EXPECT(r, strstr(print, "  tp: 2 groups of 2, within nodes\n") != NULL);
    TT_EXPECT(r, strstr(print, "  rank 3, node 1: pp 0 dp 1 tp 1\n") != NULL);
    TT_EXPECT(r, tutti_mesh_text(mesh, print, 10) > 100 && strcmp(print, "mesh pp=1") == 0);
    TT_EXPECT(r, tutti_mesh_text(mesh, NULL, 0) > 100);
}

static void sharing(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(4, "2,2", sharing_body, NULL);
}

/* What one rank does otherwise is named on all. */
static void misuse_body(tt_rank *r)
{
    tutti_mesh *mesh = NULL;
    tutti_comm *comm = NULL;

    TT_EXPECT(r, tutti_mesh_create(NULL, "dp", &mesh) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_mesh_create(r->ctx, "dp=5", &mesh) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_mesh_create(r->ctx, r->rank == 1 ? "dp,tp=2" : "dp=2,tp", &mesh) ==
                     TUTTI_ERR_MISMATCH);
    TT_EXPECT(r, strstr(tutti_last_error(), "\"dp,tp=2\" on rank 1") != NULL && mesh == NULL);
    TT_EXPECT_OK(r, tutti_mesh_create(r->ctx, "dp=2,tp", &mesh));
    TT_EXPECT(r, tutti_mesh_comm(mesh, "tp+", &comm) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_mesh_comm(mesh, r->rank == 2 ? "zz" : "dp", &comm) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "no axis \"zz\"") != NULL);
    TT_EXPECT(r, tutti_mesh_comm(mesh, r->rank == 3 ? "tp" : "dp", &comm) == TUTTI_ERR_MISMATCH);
    TT_EXPECT(r, strstr(tutti_last_error(), "\"tp\" on rank 3") != NULL && comm == NULL);
    TT_EXPECT_OK(r, tutti_mesh_comm(mesh, "dp", &comm));
    TT_EXPECT_OK(r, tutti_barrier(comm));
    tutti_mesh_destroy(mesh);
    tutti_mesh_destroy(NULL);
}

static void misuse(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(4, NULL, misuse_body, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),
        cmocka_unit_test(random_meshes),
        cmocka_unit_test(sharing),
        cmocka_unit_test(misuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
