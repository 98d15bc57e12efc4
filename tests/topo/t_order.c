/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Placement in a mesh: against exhaustive search, against the launcher's order, and what it must
 * keep whole. Every modelled time here is the judge's (topo/order_cost.c).
 */
#include "tt_test.h"

#include "corpus.h"
#include "topo/plan.h"
#include "topo/read.h"

enum { RANKS_MAX = 64 };

typedef struct job {
    tutti_topo *topo;
    tt_plan *plan;
    int n;
    int ranks[RANKS_MAX];
} job;

/* One rank per GPU; `stride` 1: in order, else the launcher's numbers jump by it. */
static bool job_open(job *j, const char *machine, int stride)
{
    tt_plan_rank rank[RANKS_MAX];
    *j = (job){0};
    if (tt_topo_read_synthetic(machine, &j->topo) != TUTTI_OK)
        return false;
    int n = tutti_topo_gpu_count(j->topo), at = 0;
    assert_in_range(n, 1, RANKS_MAX);
    tt_plan_rank all[RANKS_MAX];
    for (int h = 0; h < j->topo->n_hosts; h++)
        for (int g = 0; g < tt_topo_machine_of(j->topo, h)->n_gpus; g++)
            all[at++] = (tt_plan_rank){h, g};
    at = 0;
    for (int first = 0; first < stride; first++)
        for (int i = first; i < n; i += stride)
            rank[i] = all[at++];
    tt_plan_input in = {j->topo, j->topo->n_hosts, n, rank};
    j->n = n;
    for (int i = 0; i < n; i++)
        j->ranks[i] = i;
    return tt_plan_create(&in, &j->plan) == TUTTI_OK;
}

static void job_close(job *j)
{
    tt_plan_destroy(j->plan);
    tutti_topo_close(j->topo);
}

static double cost(const job *j, const int *order, const int *size, int axes)
{
    double us = -1;
    assert_int_equal(tt_plan_order_cost(j->plan, order, j->n, size, axes, &us), TUTTI_OK);
    return us;
}

static double planned(const job *j, const int *size, int axes, int *order)
{
    char seen[RANKS_MAX] = {0};
    assert_int_equal(tt_plan_order(j->plan, j->ranks, j->n, size, axes, order), TUTTI_OK);
    for (int i = 0; i < j->n; i++) {
        assert_in_range(order[i], 0, j->n - 1);
        assert_int_equal(seen[order[i]]++, 0);
    }
    return cost(j, order, size, axes);
}

static void swap(int *a, int *b)
{
    int t = *a;
    *a = *b;
    *b = t;
}

/* Every order, up to renaming along an axis: rank 0 stays at place 0, since any place of it can be
 * moved there by renaming. */
static void every_order(const job *j, const int *size, int axes, int *order, int at, double *best)
{
    if (at == j->n) {
        double us = cost(j, order, size, axes);
        *best = us < *best ? us : *best;
        return;
    }
    for (int i = at; i < j->n; i++) {
        swap(&order[at], &order[i]);
        every_order(j, size, axes, order, at + 1, best);
        swap(&order[at], &order[i]);
    }
}

static void compare(const job *j, const char *name, const int *size, int axes)
{
    int order[RANKS_MAX], try[RANKS_MAX];
    double ours = planned(j, size, axes, order), launcher = cost(j, j->ranks, size, axes);
    double best = launcher;
    memcpy(try, j->ranks, sizeof try);
    every_order(j, size, axes, try, 1, &best);
    if (ours > 1.02 * best || ours > launcher * 1.000001)
        print_message("%s %d x %d x %d: plan %.0f us, best %.0f, launcher %.0f\n", name, size[0],
                      size[1], axes > 2 ? size[2] : 1, ours, best, launcher);
    assert_true(ours <= 1.02 * best);
    assert_true(ours <= launcher * 1.000001);
}

static void every_mesh(const char *machine, int stride)
{
    job j;
    assert_true(job_open(&j, machine, stride));
    for (int a = 1; a <= j.n; a++)
        for (int b = 1; a * b <= j.n; b++)
            if (j.n % (a * b) == 0) {
                const int size[3] = {a, b, j.n / (a * b)};
                compare(&j, machine, size, 3);
            }
    job_close(&j);
}

static void test_small_machines(void **state)
{
    static const char *const machine[] = {"pcie-4", "a100-pcie-pairs", "workstation-2 x3",
                                          "grace-hopper x4", "workstation-2"};
    (void)state;
    for (size_t i = 0; i < sizeof machine / sizeof machine[0]; i++)
        for (int stride = 1; stride <= 3; stride++)
            every_mesh(machine[i], stride);
}

static void test_catalogue(void **state)
{
    (void)state;
    for (int i = 0; tt_topo_catalogue_at(i) != NULL; i++) {
        tutti_topo *topo;
        assert_int_equal(tt_topo_read_synthetic(tt_topo_catalogue_at(i)->name, &topo), TUTTI_OK);
        int gpus = tutti_topo_gpu_count(topo);
        tutti_topo_close(topo);
        for (int stride = 1; gpus <= 8 && stride <= 3; stride += 2)
            every_mesh(tt_topo_catalogue_at(i)->name, stride);
    }
    every_mesh("a100-pcie-pairs x2", 2);
}

/* Two hosts whose NICs hang near other GPUs than on the first. */
static void shuffled_open(job *j)
{
    tutti_topo *parts[2];
    tt_plan_rank rank[16];
    static const int part_of[] = {0, 1};
    *j = (job){.n = 16};
    assert_int_equal(tt_topo_read_synthetic("hgx-h100", &parts[0]), TUTTI_OK);
    assert_int_equal(tt_topo_read_synthetic("hgx-h100 nicorder=3,0,1,2,7,4,5,6", &parts[1]),
                     TUTTI_OK);
    assert_int_equal(tt_topo_join(parts, 2, part_of, 2, &j->topo), TUTTI_OK);
    tutti_topo_close(parts[0]);
    tutti_topo_close(parts[1]);
    for (int i = 0; i < 16; i++) {
        rank[i] = (tt_plan_rank){i / 8, i % 8};
        j->ranks[i] = i;
    }
    tt_plan_input in = {j->topo, 2, 16, rank};
    assert_int_equal(tt_plan_create(&in, &j->plan), TUTTI_OK);
}

static void test_equal_indices_share_a_rail(void **state)
{
    static const int size[] = {2, 8};
    job j;
    int order[RANKS_MAX];
    (void)state;
    shuffled_open(&j);
    assert_true(planned(&j, size, 2, order) < cost(&j, j.ranks, size, 2));
    for (int i = 0; i < 8; i++) {
        tt_plan_seat a = tt_plan_seat_of(j.plan, order[i]),
                     b = tt_plan_seat_of(j.plan, order[8 + i]);
        assert_int_not_equal(a.host, b.host);
        assert_true(a.rail >= 0);
        assert_int_equal(a.rail, b.rail);
    }
    job_close(&j);
}

static void test_inner_axes_stay_in_islands(void **state)
{
    static const struct {
        const char *machine;
        int inner;
    } cases[] = {{"hgx-h100 x4", 8},
                 {"hgx-h100 x4", 4},
                 {"a100-pcie-pairs x4", 2},
                 {"dgx-2 x2", 16},
                 {"gb200-nvl72 x8", 16}};
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
        for (int stride = 1; stride <= 5; stride += 2) {
            job j;
            int order[RANKS_MAX];
            assert_true(job_open(&j, cases[c].machine, stride));
            const int size[] = {j.n / cases[c].inner, cases[c].inner};
            planned(&j, size, 2, order);
            for (int i = 0; i < j.n; i++)
                assert_int_equal(
                    tt_plan_seat_of(j.plan, order[i]).island,
                    tt_plan_seat_of(j.plan, order[i / cases[c].inner * cases[c].inner]).island);
            job_close(&j);
        }
}

static void test_nothing_is_permuted_for_nothing(void **state)
{
    static const int size[] = {4, 8};
    job j;
    int order[RANKS_MAX];
    (void)state;
    assert_true(job_open(&j, "hgx-h100 x4", 1));
    planned(&j, size, 2, order);
    for (int i = 0; i < j.n; i++)
        assert_int_equal(order[i], i);
    job_close(&j);
}

/* Without models hosts alone count, however the launcher scattered the ranks. */
static void test_hosts_alone(void **state)
{
    static const int size[] = {3, 4};
    tt_plan_rank rank[12];
    job j = {.n = 12};
    int order[RANKS_MAX];
    (void)state;
    for (int i = 0; i < 12; i++) {
        rank[i] = (tt_plan_rank){i % 3, -1};
        j.ranks[i] = i;
    }
    tt_plan_input in = {NULL, 3, 12, rank};
    assert_int_equal(tt_plan_create(&in, &j.plan), TUTTI_OK);
    planned(&j, size, 2, order);
    for (int i = 0; i < 12; i++)
        assert_int_equal(tt_plan_seat_of(j.plan, order[i]).host,
                         tt_plan_seat_of(j.plan, order[i / 4 * 4]).host);
    job_close(&j);
}

static void test_what_is_refused(void **state)
{
    static const int size[] = {2, 2}, wrong[] = {3, 2}, none[] = {0, 4};
    tt_plan_rank rank[4] = {{0, -1}, {0, -1}, {0, -1}, {0, -1}};
    tt_plan_input in = {NULL, 1, 4, rank};
    tt_plan *plan, *other = NULL;
    int ranks[4] = {0, 1, 2, 3}, order[4];
    (void)state;
    assert_int_equal(tt_plan_create(&in, &plan), TUTTI_OK);
    assert_int_equal(tt_plan_order(plan, ranks, 4, wrong, 2, order), TUTTI_ERR_ARG);
    assert_int_equal(tt_plan_order(plan, ranks, 4, none, 2, order), TUTTI_ERR_ARG);
    assert_int_equal(tt_plan_order(plan, ranks, 4, size, 0, order), TUTTI_ERR_ARG);
    ranks[3] = 4;
    assert_int_equal(tt_plan_order(plan, ranks, 4, size, 2, order), TUTTI_ERR_ARG);
    tt_plan_destroy(plan);
    rank[2].host = 1;
    assert_int_equal(tt_plan_create(&in, &other), TUTTI_ERR_ARG);
    rank[2] = (tt_plan_rank){0, 0}; /* a GPU of a machine that is not known */
    assert_int_equal(tt_plan_create(&in, &other), TUTTI_ERR_ARG);
    assert_null(other);
}

/* On one and on two hosts of a recorded machine, tensor-parallel groups of all sizes. */
static void never_worse(const char *path, void *arg)
{
    static const int part_of[2] = {0, 0};
    int *meshes = arg;
    for (int hosts = 1; hosts <= 2; hosts++) {
        job j = {0};
        tt_plan_rank rank[RANKS_MAX];
        int order[RANKS_MAX];
        tutti_topo *one = NULL;
        if (tt_topo_read_file(path, &one) != TUTTI_OK || one->n_hosts != 1 ||
            one->machines[0]->n_gpus < 2 || one->machines[0]->n_gpus * hosts > RANKS_MAX) {
            tutti_topo_close(one);
            return;
        }
        assert_int_equal(tt_topo_join(&one, 1, part_of, hosts, &j.topo), TUTTI_OK);
        int gpus = j.topo->machines[0]->n_gpus;
        j.n = gpus * hosts;
        for (int i = 0; i < j.n; i++) {
            rank[i] = (tt_plan_rank){i / gpus, i % gpus};
            j.ranks[i] = i;
        }
        tt_plan_input in = {j.topo, hosts, j.n, rank};
        assert_int_equal(tt_plan_create(&in, &j.plan), TUTTI_OK);
        for (int tp = 1; tp <= j.n; tp *= 2) {
            const int size[2] = {j.n / tp, tp};
            if (j.n % tp != 0)
                continue;
            assert_true(planned(&j, size, 2, order) <= cost(&j, j.ranks, size, 2) * 1.000001);
            ++*meshes;
        }
        job_close(&j);
        tutti_topo_close(one);
    }
}

static void test_never_worse_than_the_launcher(void **state)
{
    int meshes = 0;
    (void)state;
    if (corpus_root() == NULL)
        skip();
    corpus_each("xml", ".xml", never_worse, &meshes);
    corpus_each("xml_derived", ".xml", never_worse, &meshes);
    corpus_each("matrix", ".txt", never_worse, &meshes);
    corpus_each("hwloc", ".xml", never_worse, &meshes);
    print_message("%d meshes on recorded machines, none dearer than in order of rank\n", meshes);
    assert_true(meshes > 100);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest best[] = {cmocka_unit_test(test_catalogue),
                                      cmocka_unit_test(test_never_worse_than_the_launcher)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_machines),
        cmocka_unit_test(test_equal_indices_share_a_rail),
        cmocka_unit_test(test_inner_axes_stay_in_islands),
        cmocka_unit_test(test_nothing_is_permuted_for_nothing),
        cmocka_unit_test(test_hosts_alone),
        cmocka_unit_test(test_what_is_refused),
    };
    if (argc > 1 && strcmp(argv[1], "best") == 0)
        return cmocka_run_group_tests(best, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
