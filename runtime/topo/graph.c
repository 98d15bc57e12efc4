/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of speeds and limits for the search of walk.c, in NCCL's order (2.28): at the highest
 * candidate speed first with all channels alike, then with different ones, then over worse paths
 * and across rails, and so down the list of speeds until nothing better than twice the half can
 * follow. What was found is then split into twice as many channels where these are fast, and tried
 * faster.
 *
 * Trees get as many channels as the ring, NVLS one for each GPU; so the ring is searched first.
 */
#include "topo/graph.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/walk.h"

enum {
    RING_CHANNELS = 32,
    NVLS_CHANNELS = 32,
    STEPS_ALL = 1 << 19,
    STEPS_PASS = 1 << 14,
    STEPS_SAME = 1 << 8
};

typedef struct speeds {
    const float *list;
    int n;
} speeds;

#define SPEEDS(array) ((speeds){array, (int)(sizeof(array) / sizeof *(array))})

/* Candidate GB/s of one channel, by architecture, inside a host and between hosts. */
static speeds candidates(int sm, bool inter)
{
    static const float in70[] = {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3};
    static const float out70[] = {48, 30, 28, 24, 20, 18,   15,   12,    10,   9,
                                  7,  6,  5,  4,  3,  2.4f, 1.2f, 0.24f, 0.12f};
    static const float in90[] = {60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3};
    static const float out90[] = {48, 45, 42, 40, 30,   24,   22,    20,   17.5f,
                                  15, 12, 6,  3,  2.4f, 1.2f, 0.24f, 0.12f};
    static const float in100[] = {90, 80, 70, 60, 50, 40, 30, 24, 20, 19, 18};
    static const float out100[] = {96,    48, 45.1f, 42, 40, 30,   24,   22,    20,
                                   17.5f, 15, 12,    6,  3,  2.4f, 1.2f, 0.24f, 0.12f};

    if (sm >= 100)
        return inter ? SPEEDS(out100) : SPEEDS(in100);
    if (sm >= 90)
        return inter ? SPEEDS(out90) : SPEEDS(in90);
    return inter ? SPEEDS(out70) : SPEEDS(in70);
}

typedef struct search {
    tt_walk walk;
    tt_channels best;
    speeds speeds;
    int speed; /* index of the one in use */
    float max, total; /* fastest path, and links of the fastest GPU */
    int least_intra, most_intra, least_inter, most_inter; /* path types that occur */
    int cross_nic; /* 2: to be tried */
    bool same; /* channels alike are tried first */
    bool amd;
    long long steps;
} search;

static void path_range(const tt_way *ways, int rows, int columns, bool skip_own, int *least,
                       int *most)
{
    *least = TUTTI_PATH_SYS;
    *most = TUTTI_PATH_LOC;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            int type = ways[i * columns + j].type;

            if (skip_own && i == j)
                continue;
            *least = type < *least ? type : *least;
            *most = type > *most ? type : *most;
        }
}

/* Two groups of GPUs with NVLink inside and none between: a ring needs two channels at least. */
static bool is_split(const tt_wires *w, const tt_ways *ways)
{
    int domain[TT_TOPO_MAX_GPUS], size[TT_TOPO_MAX_GPUS] = {0}, n = w->n_gpus, domains = 0;

    for (int g = 0; g < n; g++)
        domain[g] = g;
    for (int g = 0; g < n; g++)
        for (int p = g + 1; p < n; p++)
            if (ways->gpu_gpu[g * n + p].type == TUTTI_PATH_NVL)
                domain[p] = domain[g];
    for (int g = 0; g < n; g++)
        size[domain[g]]++;
    for (int g = 0; g < n; g++)
        domains += size[g] > 1;
    return domains == 2;
}

static void set_limits(search *s)
{
    const tt_wires *w = s->walk.wires;
    const tt_ways *ways = s->walk.ways;

    s->least_intra = TUTTI_PATH_LOC;
    s->most_intra = TUTTI_PATH_SYS;
    s->least_inter = TUTTI_PATH_PIX;
    s->most_inter = TUTTI_PATH_SYS;
    if (w->n_gpus > 1)
        path_range(ways->gpu_gpu, w->n_gpus, w->n_gpus, true, &s->least_intra, &s->most_intra);
    if (s->walk.inter) {
        path_range(ways->gpu_net, w->n_gpus, w->n_nets, false, &s->least_inter, &s->most_inter);
        s->most_intra = s->most_inter;
    }
}

/* One pass at what walk.now says. */
static void pass(search *s)
{
    int steps = s->walk.now.same ? STEPS_SAME : STEPS_PASS;

    s->walk.steps = steps;
    s->steps -= steps;
    tt_walk_run(&s->walk);
}

static void set_speed(search *s, int index)
{
    s->speed = index;
    s->walk.now.intra = s->walk.now.inter = s->speeds.list[index];
}

/* The highest candidate that one channel can have. */
static void start_speed(search *s, float total, int channels)
{
    int i = 0;

    while (i < s->speeds.n - 1 &&
           (s->speeds.list[i] > s->max || s->speeds.list[i] * (float)channels > total))
        i++;
    set_speed(s, i);
}

/* Simpler trees need no second net. */
static bool simplify(search *s)
{
    if (s->walk.least_sm < 90 || s->walk.now.shape != TT_SHAPE_BALANCED_TREE)
        return false;
    s->walk.now.shape = TT_SHAPE_TREE;
    return true;
}

static bool worse_paths(search *s)
{
    tt_channels *now = &s->walk.now;
    const tt_channels *best = &s->best;
    int most = s->walk.inter ? now->type_inter : s->most_intra;

    if (now->type_intra < most && (best->n == 0 || now->type_intra < best->type_intra)) {
        now->type_intra++;
        if (now->type_intra < TUTTI_PATH_DIS)
            return true;
    }
    now->type_intra = s->least_intra;
    if (s->walk.inter && now->type_inter < s->most_inter &&
        (best->n == 0 || now->type_inter < best->type_inter || now->type_inter < TUTTI_PATH_PXN)) {
        now->type_inter++;
        if (now->type_inter < TUTTI_PATH_DIS)
            return true;
    }
    now->type_inter = s->least_inter;
    return false;
}

static bool cross_rails(search *s, tt_shape shape)
{
    tt_channels *now = &s->walk.now;

    if (s->cross_nic == 2 && now->cross_nic == 0 &&
        (shape == TT_SHAPE_RING || shape == TT_SHAPE_BALANCED_TREE)) {
        now->cross_nic = 2;
        return true;
    }
    now->cross_nic = 0;
    return false;
}

static bool slower(search *s)
{
    if (s->speed >= s->speeds.n - 1)
        return false;
    if (s->best.n != 0 && !((double)(s->speeds.list[s->speed + 1] / s->best.inter) > .49))
        return false;
    set_speed(s, s->speed + 1);
    return true;
}

/* What to try when a pass did not find the best there can be; false: nothing is left. */
static bool relax(search *s, tt_shape shape)
{
    tt_channels *now = &s->walk.now;

    if (now->same && !(s->amd && now->type_intra == TUTTI_PATH_SYS)) {
        now->same = false;
        return true;
    }
    now->same = s->same;
    s->steps = s->walk.steps != -1 ? s->steps + s->walk.steps : STEPS_ALL;
    if (s->steps < 0 && s->best.n != 0)
        return false;
    if (simplify(s))
        return true;
    now->shape = shape;
    return worse_paths(s) || cross_rails(s, shape) || slower(s);
}

/* Two channels where there was one of twice the speed. */
static void split_channels(search *s)
{
    tt_channels *best = &s->best;
    int twice = best->n * 2 < best->max ? best->n * 2 : best->max;
    float ratio;

    if (best->n == 0 || best->shape == TT_SHAPE_NVLS || best->intra < 25)
        return;
    if (s->walk.least_sm > 80 && best->intra < 50 && best->n > 4)
        return;
    for (int c = best->n; c < twice; c++) {
        memcpy(best->gpu[c], best->gpu[c - best->n], sizeof best->gpu[c]);
        memcpy(best->net[c], best->net[c - best->n], sizeof best->net[c]);
    }
    ratio = (float)((twice + best->n - 1) / best->n);
    best->intra /= ratio;
    best->inter /= ratio;
    best->n = twice;
}

/* Speed up what was found: rings as a whole, NVLS in the network, trees inside the host. */
static bool faster(search *s)
{
    tt_channels *now = &s->walk.now;
    const tt_channels *best = &s->best;

    if (s->walk.steps == 0 || s->speed == 0)
        return false;
    if (best->shape == TT_SHAPE_RING) {
        set_speed(s, s->speed - 1);
        return true;
    }
    if (best->shape == TT_SHAPE_NVLS && now->inter == best->inter && now->inter < now->intra * 2) {
        now->min = now->max = best->n;
        now->inter = s->speeds.list[--s->speed];
        return true;
    }
    if (now->intra == best->intra && now->intra < now->inter * 2) {
        now->intra = s->speeds.list[--s->speed];
        return true;
    }
    return false;
}

static bool good_enough(const search *s)
{
    return s->walk.steps == -1 || (float)s->best.n * s->best.inter >= s->total;
}

static void second_pass(search *s)
{
    split_channels(s);
    s->walk.now = s->best;
    s->speed = 0;
    while (s->speed < s->speeds.n - 1 && s->speeds.list[s->speed] > s->best.inter)
        s->speed++;
    set_speed(s, s->speed);
    s->walk.now.min = s->best.n;
    s->walk.steps = -1;
    while (faster(s))
        pass(s);
}

static void first_pass(search *s)
{
    tt_shape shape = s->best.shape;
    float total = s->total;
    int n = s->walk.wires->n_gpus;

    if (n > 1 && shape != TT_SHAPE_RING)
        total *= (float)(n * 1.0 / (n - 1));
    start_speed(s, total, s->best.min);
    s->steps = STEPS_ALL;
    do
        pass(s);
    while (!good_enough(s) && relax(s, shape));
}

/* Nothing fits: NCCL goes on with one slow channel, and tells only at INFO. */
static void fall_back(search *s)
{
    tt_channels *best = &s->best;

    for (int g = 0; g < s->walk.wires->n_gpus; g++)
        best->gpu[0][g] = (int16_t)g;
    best->net[0][0] = best->net[0][1] = 0;
    best->intra = best->inter = 0.1f;
    best->type_intra = best->type_inter = TUTTI_PATH_SYS;
    best->n = 1;
}

/* Searches one shape; the result is in s->best. */
static bool search_shape(search *s, tt_shape shape, int min, int max)
{
    const tt_wires *w = s->walk.wires;

    memset(&s->best, 0, sizeof s->best);
    if (shape == TT_SHAPE_NVLS) {
        max = NVLS_CHANNELS < w->n_gpus ? NVLS_CHANNELS : w->n_gpus;
        min = s->walk.inter ? min : max;
    }
    if (w->n_gpus == 1 && shape != TT_SHAPE_RING)
        shape = TT_SHAPE_TREE;
    if (shape == TT_SHAPE_RING && max >= 2 && min == 1 && is_split(w, s->walk.ways))
        min = 2;
    s->same = shape != TT_SHAPE_NVLS;
    s->cross_nic =
        w->n_nets > 1 && (shape == TT_SHAPE_RING || shape == TT_SHAPE_BALANCED_TREE) ? 2 : 0;
    set_limits(s);
    s->best.shape = shape;
    s->best.min = min;
    s->best.max = max;
    s->best.same = s->same;
    s->best.type_intra = s->least_intra;
    s->best.type_inter = s->least_inter;
    s->walk.now = s->best;
    first_pass(s);
    second_pass(s);
    if (s->best.n != 0 || shape == TT_SHAPE_NVLS)
        return false;
    fall_back(s);
    return true;
}

static void give(const search *s, bool fallback, const int *sorted, const int *gpus, tt_graph *out)
{
    const tt_channels *best = &s->best;
    int n = s->walk.wires->n_gpus, place[TT_TOPO_MAX_GPUS];

    for (int i = 0; i < n; i++)
        for (int j = 0; j < n; j++)
            if (gpus[j] == sorted[i])
                place[i] = j;
    out->channels = best->n;
    out->gbps_intra = best->intra;
    out->gbps_inter = best->inter;
    out->type_intra = (uint8_t)best->type_intra;
    out->type_inter = (uint8_t)best->type_inter;
    out->cross_nic = best->cross_nic;
    out->fallback = fallback;
    out->n_gpus = n;
    for (int c = 0; c < best->n; c++) {
        for (int i = 0; i < n; i++)
            out->order[c][i] =
                best->shape == TT_SHAPE_NVLS && i > 0 ? -1 : (int16_t)place[best->gpu[c][i]];
        out->nic_in[c] = s->walk.inter ? best->net[c][0] : -1;
        out->nic_out[c] = s->walk.inter ? best->net[c][1] : -1;
    }
}

static int by_number(const void *one, const void *two)
{
    return *(const int *)one - *(const int *)two;
}

static tutti_status prepare(search *s, int nodes)
{
    const tt_wires *w = s->walk.wires;
    const tt_machine *m = w->machine;

    s->walk.inter = nodes > 1;
    s->walk.best = &s->best;
    s->walk.least_sm = 999;
    for (int g = 0; g < w->n_gpus; g++) {
        int sm = m->gpus[w->nodes[g].index].sm;

        s->walk.least_sm = sm < s->walk.least_sm ? sm : s->walk.least_sm;
    }
    s->amd = m->n_numa > 0 && m->numa[0].arch == TT_ARCH_X86 && m->numa[0].vendor == TT_VENDOR_AMD;
    s->speeds = candidates(s->walk.least_sm, s->walk.inter);
    tt_ways_limits(s->walk.ways, s->walk.inter, &s->max, &s->total);
    return tt_walk_prepare(&s->walk);
}

/* The wanted patterns; out[] in the order of tt_graph_pattern, NULL for one not wanted. */
static void search_patterns(search *s, const int *sorted, const int *gpus, tt_graph *const out[3])
{
    bool fallback = search_shape(s, TT_SHAPE_RING, 1, RING_CHANNELS);
    int channels = s->best.n;

    if (out[TT_GRAPH_RING] != NULL)
        give(s, fallback, sorted, gpus, out[TT_GRAPH_RING]);
    if (out[TT_GRAPH_TREE] != NULL) {
        fallback = search_shape(s, TT_SHAPE_BALANCED_TREE, channels, channels);
        give(s, fallback, sorted, gpus, out[TT_GRAPH_TREE]);
    }
    if (out[TT_GRAPH_NVLS] == NULL)
        return;
    if (s->walk.wires->nvs >= 0 && s->walk.least_sm >= 90 && s->walk.wires->n_gpus > 1) {
        (void)search_shape(s, TT_SHAPE_NVLS, 1, NVLS_CHANNELS);
        give(s, false, sorted, gpus, out[TT_GRAPH_NVLS]);
    }
}

static tutti_status run(const tt_machine *machine, const int *gpus, int n, int nodes,
                        tt_graph *const out[3])
{
    tt_path_rules rules = TT_PATH_RULES_INIT;
    int sorted[TT_TOPO_MAX_GPUS];
    search *s;
    tt_wires *wires = NULL;
    tt_ways *ways = NULL;
    tutti_status status;

    memcpy(sorted, gpus, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, by_number);
    TT_TRY(tt_calloc(1, sizeof *s, &s));
    status = tt_wires_make(machine, sorted, n, true, &wires);
    if (status == TUTTI_OK)
        status = tt_ways_make(wires, &rules, &ways);
    if (status != TUTTI_OK)
        goto free_search;
    s->walk.wires = wires;
    s->walk.ways = ways;
    status = prepare(s, nodes);
    if (status == TUTTI_OK)
        search_patterns(s, sorted, gpus, out);
    tt_walk_clear(&s->walk);

free_search:
    tt_ways_free(ways);
    tt_wires_free(wires);
    free(s);
    return status;
}

static tutti_status check(const tt_machine *machine, const int *gpus, int n, int nodes)
{
    if (n < 1 || n > machine->n_gpus || nodes < 1)
        return tt_fail(TUTTI_ERR_ARG, "channels of %d GPUs of %d on %d nodes", n, machine->n_gpus,
                       nodes);
    for (int i = 0; i < n; i++)
        for (int j = 0; j <= i; j++)
            if (gpus[i] < 0 || gpus[i] >= machine->n_gpus || (j < i && gpus[i] == gpus[j]))
                return tt_fail(TUTTI_ERR_ARG, "channels: GPU %d is listed twice or is none of %d",
                               gpus[i], machine->n_gpus);
    return TUTTI_OK;
}

tutti_status tt_graph_search_all(const tt_machine *machine, const int *gpus, int n, int nodes,
                                 tt_graph *graphs_out)
{
    tt_graph *const out[3] = {&graphs_out[0], &graphs_out[1], &graphs_out[2]};

    TT_TRY(check(machine, gpus, n, nodes));
    memset(graphs_out, 0, 3 * sizeof *graphs_out);
    for (int i = 0; i < 3; i++)
        graphs_out[i].pattern = i;
    return run(machine, gpus, n, nodes, out);
}

tutti_status tt_graph_search(const tt_machine *machine, const int *gpus, int n, int nodes,
                             tt_graph_pattern pattern, tt_graph *graph_out)
{
    tt_graph *out[3] = {NULL, NULL, NULL};

    TT_TRY(check(machine, gpus, n, nodes));
    memset(graph_out, 0, sizeof *graph_out);
    graph_out->pattern = (int)pattern;
    out[pattern] = graph_out;
    return run(machine, gpus, n, nodes, out);
}
