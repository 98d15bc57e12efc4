/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cost model: values worked out by hand from NCCL's constants, what must hold for every size,
 * and NCCL's own best times for the recorded machines (skipped without them).
 */
#include "tt_test.h"

#include <jansson.h>
#include <math.h>

#include "corpus.h"
#include "topo/cost.h"
#include "topo/plan.h"
#include "topo/read.h"

static bool near(double a, double b)
{
    return fabs(a - b) <= 0.005 * fabs(b) + 0.05;
}

/* 8 H100 behind NVSwitches: 12 channels of 30 GB/s, NVLS 8 x 40. */
static tt_cost h100(int nodes)
{
    tt_cost cost = {.nodes = nodes,
                    .local = 8,
                    .sm_min = 90,
                    .sm_max = 90,
                    .vendor = TT_VENDOR_INTEL,
                    .arch = TT_ARCH_X86};
    cost.ring = cost.tree = (tt_lanes){12, 30, 30, TUTTI_PATH_NVL, TUTTI_PATH_PIX, 0, false};
    cost.nvls = (tt_lanes){8, 40, 60, TUTTI_PATH_NVL, TUTTI_PATH_PIX, 0, false};
    if (nodes > 1) {
        cost.ring = cost.tree = (tt_lanes){8, 48, 48, TUTTI_PATH_NVL, TUTTI_PATH_PIX, 2, false};
        cost.nvls = (tt_lanes){8, 40, 48, TUTTI_PATH_NVL, TUTTI_PATH_PIX, 0, false};
    }
    return cost;
}

static void test_by_hand(void **state)
{
    tt_cost one = h100(1), two = h100(2);
    (void)state;
    /* Ring, LL: 6.6 + 14 steps x 0.6; bandwidth 0.5 x 360 capped at 141, x 8/14 */
    tt_cost_time t = tt_cost_of(&one, TT_COST_ALL_REDUCE, 1024);
    assert_true(near(t.us, 15.0));
    assert_int_equal(t.algo, TT_ALGO_RING);
    assert_int_equal(t.proto, TT_PROTO_LL);
    /* NVLS: 25 us, 8 x min(60, 40 x .85 x 7/8 x 2) x 8/14 GB/s */
    t = tt_cost_of(&one, TT_COST_ALL_REDUCE, 1 << 30);
    assert_true(near(t.us, 3972.6));
    assert_int_equal(t.algo, TT_ALGO_NVLS);
    /* Ring, Simple: 8.4 + 7 x 3.4; 360 x 8/7 GB/s */
    t = tt_cost_of(&one, TT_COST_ALL_GATHER, 1 << 30);
    assert_true(near(t.us, 2642.0));
    assert_int_equal(t.proto, TT_PROTO_SIMPLE);
    t = tt_cost_of(&two, TT_COST_ALL_REDUCE, 1 << 30);
    assert_true(near(t.us, 4428.3));
    assert_int_equal(t.algo, TT_ALGO_NVLS_TREE);
    t = tt_cost_of(&two, TT_COST_REDUCE_SCATTER, 32768);
    assert_true(near(t.us, 24.1));
}

static void test_more_bytes_take_longer(void **state)
{
    (void)state;
    for (int nodes = 1; nodes <= 4; nodes *= 2)
        for (int coll = TT_COST_ALL_REDUCE; coll <= TT_COST_REDUCE_SCATTER; coll++) {
            tt_cost cost = h100(nodes);
            double before = 0;
            for (double bytes = 64; bytes < 4e9; bytes *= 4) {
                double us = tt_cost_of(&cost, (tt_cost_coll)coll, bytes).us;
                assert_true(isfinite(us) && us > 0 && us >= 0.9 * before);
                before = us;
            }
        }
    tt_cost alone = h100(1);
    alone.local = 1;
    assert_true(tt_cost_of(&alone, TT_COST_ALL_REDUCE, 1024).us == 0);
}

typedef struct tally {
    int rows, near, files;
    FILE *table;
} tally;

static void compare_rows(tally *t, const char *name, const tt_cost *cost, json_t *best)
{
    static const struct {
        const char *name;
        tt_cost_coll coll;
    } colls[] = {{"AllReduce", TT_COST_ALL_REDUCE},
                 {"AllGather", TT_COST_ALL_GATHER},
                 {"ReduceScatter", TT_COST_REDUCE_SCATTER}};
    for (size_t c = 0; c < sizeof colls / sizeof colls[0]; c++) {
        size_t i;
        json_t *row;
        json_array_foreach(json_object_get(best, colls[c].name), i, row)
        {
            double bytes = json_number_value(json_object_get(row, "bytes"));
            double want = json_number_value(json_object_get(row, "us"));
            tt_cost_time ours = tt_cost_of(cost, colls[c].coll, bytes);
            t->rows++;
            if (fabs(ours.us - want) <= 0.15 * want)
                t->near++;
            else if (t->table != NULL)
                fprintf(t->table, "%s, %d nodes, %s of %.0f: %.1f us by %s/%s, NCCL %.1f by %s\n",
                        name, cost->nodes, colls[c].name, bytes, ours.us, tt_algo_name(ours.algo),
                        tt_proto_name(ours.proto), want,
                        json_string_value(json_object_get(row, "algo")));
        }
    }
}

static tutti_topo *open_recorded(const char *file)
{
    static const char *const folder[] = {"xml", "xml_derived"};
    char path[4700];
    tutti_topo *topo = NULL;
    for (int i = 0; i < 2 && topo == NULL; i++) {
        snprintf(path, sizeof path, "%s/%s/%s", corpus_root(), folder[i], file);
        if (tt_topo_read_file(path, &topo) != TUTTI_OK)
            topo = NULL;
    }
    return topo;
}

static void compare_file(const char *path, void *arg)
{
    tally *t = arg;
    json_t *all = json_load_file(path, 0, NULL), *run;
    size_t i;
    int gpus[TT_TOPO_MAX_GPUS];
    assert_non_null(all);
    char file[256];
    const char *base = strrchr(path, '/') + 1;
    snprintf(file, sizeof file, "%.*s.xml", (int)(strlen(base) - strlen(".json")), base);
    tutti_topo *topo = open_recorded(file);
    assert_non_null(topo);
    for (int g = 0; g < TT_TOPO_MAX_GPUS; g++)
        gpus[g] = g;
    json_array_foreach(json_object_get(all, "runs"), i, run)
    {
        tt_cost cost;
        int nodes = (int)json_integer_value(json_object_get(run, "nodes"));
        const tt_machine *m = topo->machines[0];
        if (json_integer_value(json_object_get(run, "local_ranks")) != m->n_gpus)
            continue; /* hosts joined by NVLink count as one there */
        assert_int_equal(tt_cost_model(m, gpus, m->n_gpus, nodes, &cost), TUTTI_OK);
        compare_rows(t, file, &cost, json_object_get(run, "best"));
    }
    t->files++;
    tutti_topo_close(topo);
    json_decref(all);
}

static void test_nccls_own_times(void **state)
{
    tally t = {.table = getenv("TT_TABLE") != NULL ? stderr : NULL};
    (void)state;
    if (corpus_root() == NULL)
        skip();
    assert_true(corpus_each("nccl_expected", ".json", compare_file, &t) >= 20);
    print_message("times within 15 %% of NCCL's best: %d of %d, %d files\n", t.near, t.rows,
                  t.files);
    assert_true(t.near >= 0.9 * t.rows);
}

/* facts that were worked out from NCCL's numbers: when three steps pay */
static void three_steps(const char *machine, int hosts, double *flat, double *three)
{
    tutti_topo *one, *topo;
    tt_plan_rank rank[64];
    int ranks[64], part_of[8] = {0};
    tt_plan *plan;
    assert_int_equal(tt_topo_read_synthetic(machine, &one), TUTTI_OK);
    assert_int_equal(tt_topo_join(&one, 1, part_of, hosts, &topo), TUTTI_OK);
    int gpus = topo->machines[0]->n_gpus, n = hosts * gpus;
    for (int i = 0; i < n; i++) {
        rank[i] = (tt_plan_rank){i / gpus, i % gpus};
        ranks[i] = i;
    }
    tt_plan_input in = {topo, hosts, n, rank};
    assert_int_equal(tt_plan_create(&in, &plan), TUTTI_OK);
    assert_int_equal(tt_plan_all_reduce_us(plan, ranks, n, 1 << 30, flat, three), TUTTI_OK);
    tt_plan_destroy(plan);
    tutti_topo_close(topo);
    tutti_topo_close(one);
}

static void test_when_three_steps_pay(void **state)
{
    double flat, three;
    (void)state;
    three_steps("hgx-h100", 2, &flat, &three); /* a NIC for every GPU: once is faster */
    assert_true(flat > 0 && three > flat);
    three_steps("pcie-8", 1, &flat, &three); /* two PCIe switches: three steps are */
    assert_true(flat > 0 && three > 0 && three < flat);
    three_steps("p4d", 2, &flat, &three); /* four NICs for eight GPUs: a tree wins on two hosts */
    assert_true(flat > 0 && three > flat);
    three_steps("p4d", 4, &flat, &three);
    assert_true(flat > 0 && three > 0 && three < flat);
    three_steps("workstation-2", 1, &flat, &three); /* one island: there are no three steps */
    assert_true(flat > 0 && three == 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest recorded[] = {cmocka_unit_test(test_nccls_own_times)};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_more_bytes_take_longer),
        cmocka_unit_test(test_when_three_steps_pay),
    };
    if (argc > 1 && strcmp(argv[1], "recorded") == 0)
        return cmocka_run_group_tests(recorded, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
