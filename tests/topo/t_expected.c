/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths and channels against what NCCL's own code computed for the same machines (nccl_expected):
 * types equal, bandwidths within 1 %, local NICs equal, ring estimates within 10 %.
 */
#include <jansson.h>
#include <math.h>

#include "topo/graph.h"
#include "topo/read.h"

#include "corpus.h"
#include "tt_test.h"

typedef struct totals {
    int files, paths, wrong, nic_sets, repeated;
    int rings, rings_close; /* of one node */
    int graphs, graphs_equal; /* all shapes, on 1, 2 and 4 nodes */
} totals;

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash == NULL ? path : slash + 1;
}

/* The recording of the same name as the expectation. */
static tutti_topo *open_recording(const char *expected)
{
    static const char *const folders[] = {"xml", "xml_derived"};
    tutti_topo *topo = NULL;

    for (size_t i = 0; i < 2; i++) {
        char path[4600]; /* "x.json" becomes "x.xml" */

        (void)snprintf(path, sizeof path, "%s/%s/%s", corpus_root(), folders[i],
                       base_name(expected));
        memcpy(strrchr(path, '.'), ".xml", 5);
        if (access(path, R_OK) != 0)
            continue;
        if (tutti_topo_open_file(path, &topo) != TUTTI_OK)
            fail_msg("%s", tutti_last_error());
        return topo;
    }
    fail_msg("%s: no recording", expected);
    return NULL;
}

static void compare_path(const char *file, const char *from, const char *to, json_t *want,
                         const tt_path *have, bool repeated, totals *t)
{
    const char *type = json_string_value(json_object_get(want, "type"));
    double gbps = json_number_value(json_object_get(want, "gbps"));
    int hops = (int)json_integer_value(json_object_get(want, "hops"));

    /* A net that the file lists again is a second row of NCCL's, which nothing reaches; under one
     * key, the expectation kept this last row. */
    if (repeated && strcmp(type, "DIS") == 0 && hops == 0) {
        t->repeated++;
        return;
    }
    t->paths++;
    if (strcmp(type, tt_path_name(have->type)) == 0 && hops == have->hops &&
        fabs((double)have->gbps - gbps) <= 0.01 * gbps + 0.05) /* one decimal */
        return;
    t->wrong++;
    if (t->wrong < 30)
        print_error("%s: %s to %s: %s %g GB/s %d hops, NCCL has %s %g %d\n", file, from, to,
                    tt_path_name(have->type), (double)have->gbps, have->hops, type, gbps, hops);
}

static int gpu_of(const tt_machine *m, const char *key)
{
    for (int i = 0; i < m->n_gpus; i++)
        if (m->gpus[i].dev == atoi(key + 3))
            return i;
    fail_msg("no %s", key);
    return -1;
}

static int nic_of(const tt_machine *m, const char *key)
{
    for (int i = 0; i < m->n_nics; i++)
        if (m->nics[i].dev == atoi(key + 3))
            return i;
    fail_msg("no %s", key);
    return -1;
}

static void compare_paths(const char *file, const tt_machine *m, bool repeated, json_t *paths,
                          totals *t)
{
    json_t *row, *cell;
    const char *from, *to;

    json_object_foreach(json_object_get(paths, "gpu_gpu"), from, row)
        json_object_foreach(row, to, cell)
            compare_path(file, from, to, cell,
                         &m->paths->gpu_gpu[gpu_of(m, from) * m->n_gpus + gpu_of(m, to)], false, t);
    json_object_foreach(json_object_get(paths, "gpu_net"), from, row) json_object_foreach(row, to,
                                                                                          cell)
        compare_path(file, from, to, cell,
                     &m->paths->gpu_nic[gpu_of(m, from) * m->n_nics + nic_of(m, to)], repeated, t);
}

static void compare_nics(const char *file, const tt_machine *m, json_t *gpu_nics, totals *t)
{
    json_t *entry, *net;
    const char *key;
    size_t channel;

    json_object_foreach(gpu_nics, key, entry)
    {
        char name[32];
        int gpu;

        (void)snprintf(name, sizeof name, "GPU%s", key);
        gpu = gpu_of(m, name);
        json_array_foreach(json_object_get(entry, "nets"), channel, net)
        {
            int nic = tt_paths_nic(m, gpu, (int)channel);

            if (nic < 0 || m->nics[nic].dev != json_integer_value(net))
                fail_msg("%s: channel %zu of GPU %s takes NIC %d, in NCCL %lld", file, channel, key,
                         nic < 0 ? -1 : m->nics[nic].dev, (long long)json_integer_value(net));
        }
        t->nic_sets++;
    }
}

static void compare_graph(const char *what, json_t *want, const tt_graph *have, bool one_node,
                          totals *t)
{
    int channels = (int)json_integer_value(json_object_get(want, "channels"));
    double intra = json_number_value(json_object_get(want, "gbps_intra"));
    double inter = json_number_value(json_object_get(want, "gbps_inter"));
    const char *type = json_string_value(json_object_get(want, "type_intra"));
    double ours = have->channels * (double)have->gbps_intra;
    bool equal = channels == have->channels && fabs((double)have->gbps_intra - intra) < 0.06 &&
                 fabs((double)have->gbps_inter - inter) < 0.06 &&
                 strcmp(type, tt_path_name(have->type_intra)) == 0;

    t->graphs++;
    t->graphs_equal += equal;
    if (one_node && have->pattern == TT_GRAPH_RING) {
        t->rings++;
        t->rings_close += fabs(ours - channels * intra) <= 0.1 * channels * intra;
    }
    if (!equal)
        print_message("%s: %d x %g/%g GB/s %s, NCCL has %d x %g/%g %s\n", what, have->channels,
                      (double)have->gbps_intra, (double)have->gbps_inter,
                      tt_path_name(have->type_intra), channels, intra, inter, type);
}

static void compare_runs(const char *file, const tt_machine *m, json_t *runs, totals *t)
{
    static const char *const names[] = {"ring", "tree", "nvls"};
    static tt_graph graphs[3];
    int gpus[TT_TOPO_MAX_GPUS];
    json_t *run;
    size_t i;

    for (int g = 0; g < m->n_gpus; g++)
        gpus[g] = g;
    json_array_foreach(runs, i, run)
    {
        int nodes = (int)json_integer_value(json_object_get(run, "nodes"));

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
        if (nodes > 1) /* the search takes seconds under sanitizers */
            continue;
#endif
        if (tt_graph_search_all(m, gpus, m->n_gpus, nodes, graphs) != TUTTI_OK)
            fail_msg("%s: %s", file, tutti_last_error());
        for (int k = 0; k < 3; k++) {
            json_t *want = json_object_get(json_object_get(run, "graphs"), names[k]);
            char what[200];

            (void)snprintf(what, sizeof what, "%s, %s, %d nodes", file, names[k], nodes);
            if (want != NULL)
                compare_graph(what, want, &graphs[k], nodes == 1, t);
            else
                assert_int_equal(graphs[k].channels, 0);
        }
    }
}

static void compare_file(const char *path, void *arg)
{
    totals *t = arg;
    json_t *root = json_load_file(path, 0, NULL), *runs;
    tutti_topo *topo = open_recording(path);
    tt_machine *fused = NULL;
    const tt_machine *m = topo->machines[0];

    assert_non_null(root);
    if (topo->n_hosts > 1) {
        int hosts[] = {0, 1};

        assert_int_equal(tt_machine_fuse(topo, hosts, 2, &fused), TUTTI_OK);
        m = fused;
    }
    compare_paths(base_name(path), m, topo->n_notes > 0, json_object_get(root, "paths"), t);
    runs = json_object_get(root, "runs");
    compare_nics(base_name(path), m, json_object_get(json_array_get(runs, 0), "gpu_nics"), t);
    compare_runs(base_name(path), m, runs, t);
    t->files++;
    tt_machine_free(fused);
    tutti_topo_close(topo);
    json_decref(root);
}

static void paths_and_nics(void **state)
{
    totals t = {0};

    (void)state;
    if (corpus_root() == NULL)
        skip();
    (void)corpus_each("nccl_expected", ".json", compare_file, &t);
    print_message("%d files, %d paths (and %d to nets listed again), %d differ, NICs of %d GPUs\n",
                  t.files, t.paths, t.repeated, t.wrong, t.nic_sets);
    print_message("rings of one node: %d of %d within 10 %%; all graphs: %d of %d equal\n",
                  t.rings_close, t.rings, t.graphs_equal, t.graphs);
    assert_int_equal(t.wrong, 0);
    assert_true(t.rings_close >= 20);
    assert_true(t.files >= 22);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paths_and_nics),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
