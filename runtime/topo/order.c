/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who stands where in a mesh.
 *
 * Hosts stay whole and in the order in which the launcher's ranks meet them, hosts of one NVLink
 * fabric beside each other; so inner axes lie in hosts as far as they fit. Within a host the
 * arrangement is searched: from a few starts, pairs are swapped while the judge (order_cost.c)
 * finds that cheaper. It is searched once, on the first host and a second one that stands for all
 * others, and laid onto every host by rail, so that ranks that differ only in outer coordinates
 * share one; where that splits islands, by GPU. The order given is kept unless the result is
 * cheaper: nothing is permuted for nothing.
 *
 * Where hosts have different numbers of ranks, or the sizes do not nest with them, the arrangement
 * is by locality alone; in a job of up to SMALL_JOB ranks pairs are then swapped over all of it.
 * Rejected: that for every job (quadratic), and rules by names of axes (names mean nothing here).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/plan_parts.h"

enum { EXHAUSTIVE = 5, STARTS = 12, BUDGET = 6000, BUDGET_RANKS = 40000, SMALL_JOB = 16 };

typedef struct place {
    int domain_at, host_at; /* where the caller's order first meets the NVLink domain, the host */
    int island, numa, gpu, at, rank;
} place;

/* What is known of one call. */
typedef struct layout {
    const tt_plan *plan;
    const tt_mesh_load *mesh;
    place *places; /* sorted: host by host */
    int per_host; /* ranks of every host; 0: they differ, or the sizes do not nest */
    int *local; /* [per_host] the arrangement: index of the first host's member at each place */
} layout;

static int by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    const int d[] = {x->domain_at - y->domain_at, x->host_at - y->host_at, x->island - y->island,
                     x->numa - y->numa,           x->gpu - y->gpu,         x->at - y->at};
    for (size_t i = 0; i < sizeof d / sizeof d[0]; i++)
        if (d[i] != 0)
            return d[i];
    return 0;
}

double tt_plan_axis_bytes(int from_inside)
{
    return ldexp(4.0 * 1024 * 1024 * 1024, -3 * from_inside);
}

static tutti_status check_mesh(const tt_plan *plan, const int *ranks, int n, const int *size,
                               int axes)
{
    long long product = 1;
    if (axes < 1 || axes > TT_PLAN_AXES)
        return tt_fail(TUTTI_ERR_ARG, "plan: a mesh of %d axes; 1 ... %d are possible", axes,
                       TT_PLAN_AXES);
    for (int a = 0; a < axes; a++) {
        if (size[a] < 1 || product * size[a] > n)
            return tt_fail(TUTTI_ERR_ARG, "plan: axis %d of size %d in a mesh of %d ranks", a,
                           size[a], n);
        product *= size[a];
    }
    if (product != n)
        return tt_fail(TUTTI_ERR_ARG, "plan: a mesh of %lld places for %d ranks", product, n);
    for (int i = 0; i < n; i++)
        if (ranks[i] < 0 || ranks[i] >= plan->ranks)
            return tt_fail(TUTTI_ERR_ARG, "plan: rank %d of %d", ranks[i], plan->ranks);
    return TUTTI_OK;
}

static void load_of(const int *size, int axes, int n, tt_mesh_load *mesh)
{
    memset(mesh, 0, sizeof *mesh);
    mesh->n = n;
    mesh->axes = axes;
    for (int a = 0; a < axes; a++) {
        mesh->size[a] = size[a];
        mesh->bytes[a] = tt_plan_axis_bytes(axes - 1 - a);
    }
}

static tutti_status sort_places(layout *l, const int *ranks)
{
    const tt_plan *plan = l->plan;
    int *host_at, n = l->mesh->n;
    TT_TRY(tt_calloc(2 * (size_t)plan->hosts, sizeof *host_at, &host_at));
    int *domain_at = host_at + plan->hosts;
    for (int i = n - 1; i >= 0; i--) {
        int host = plan->seat[ranks[i]].host;
        host_at[host] = i;
        domain_at[plan->domain[host]] = i;
    }
    for (int i = 0; i < n; i++) {
        const tt_plan_seat *seat = &plan->seat[ranks[i]];
        l->places[i] = (place){domain_at[plan->domain[seat->host]],
                               host_at[seat->host],
                               seat->island,
                               seat->numa,
                               seat->gpu,
                               i,
                               ranks[i]};
    }
    free(host_at);
    qsort(l->places, (size_t)n, sizeof *l->places, by_place);
    return TUTTI_OK;
}

/* The sizes nest with the hosts: every host then holds the same part of the mesh. */
static void find_per_host(layout *l)
{
    const place *p = l->places;
    int n = l->mesh->n, k = 1, stride = 1;
    while (k < n && p[k].host_at == p[0].host_at)
        k++;
    for (int i = 0; i < n; i++)
        if (p[i].host_at != p[i / k * k].host_at || n % k != 0)
            return;
    for (int i = k; i < n; i += k)
        if (p[i].host_at == p[i - 1].host_at)
            return;
    for (int a = l->mesh->axes - 1; a >= 0; a--) {
        stride *= l->mesh->size[a];
        if (stride % k != 0 && k % stride != 0)
            return;
    }
    l->per_host = k;
}

/* The mesh as two hosts see it: what lies in a host, and once across. */
static void reduce_mesh(const layout *l, int hosts, tt_mesh_load *small)
{
    const tt_mesh_load *mesh = l->mesh;
    int stride = 1, across = hosts;
    *small = *mesh;
    small->n = l->per_host * hosts;
    for (int a = mesh->axes - 1; a >= 0; a--) {
        int size = mesh->size[a], inner = l->per_host / stride;
        stride = stride < l->per_host ? stride * size : l->per_host;
        if (size <= inner) /* wholly in the host */
            continue;
        inner = inner < 1 ? 1 : inner;
        small->size[a] = inner * across;
        if (across > 1 || hosts == 1) {
            across = 1;
            continue;
        }
        /* a further axis over hosts loads the same links as the first one */
        small->bytes[a] = 0;
    }
}

static int spare(const layout *l, const place *p, uint64_t *used, const tt_plan_seat *want,
                 bool by_rail)
{
    int best = -1, score_best = -1;
    for (int i = 0; i < l->per_host; i++) {
        const tt_plan_seat *seat = &l->plan->seat[p[i].rank];
        if ((used[i / 64] >> (i % 64) & 1) != 0)
            continue;
        int rail = seat->rail == want->rail, gpu = seat->gpu == want->gpu;
        int score = by_rail ? 2 * rail + gpu : 2 * gpu + rail;
        if (score > score_best) {
            score_best = score;
            best = i;
        }
    }
    used[best / 64] |= UINT64_C(1) << (best % 64);
    return best;
}

/* Lays the arrangement onto the host whose ranks begin at p, into order[per_host]. */
static tutti_status lay(const layout *l, const place *p, bool by_rail, int *order)
{
    uint64_t *used;
    TT_TRY(tt_calloc((size_t)l->per_host / 64 + 1, sizeof *used, &used));
    for (int i = 0; i < l->per_host; i++) {
        const tt_plan_seat *want = &l->plan->seat[l->places[l->local[i]].rank];
        int at = p == l->places ? l->local[i] : spare(l, p, used, want, by_rail);
        order[i] = p[at].rank;
    }
    free(used);
    return TUTTI_OK;
}

/* The search's state: the arrangement is l->local, its order in `order`. */
typedef struct search {
    layout *l;
    tt_judge *judge;
    int hosts, left; /* left: judgements that may still be made */
    bool by_rail;
    int *order;
} search;

static double judge_local(search *s)
{
    const layout *l = s->l;
    s->left--;
    for (int h = 0; h < s->hosts; h++)
        if (lay(l, l->places + h * l->per_host, s->by_rail, s->order + h * l->per_host) != TUTTI_OK)
            return INFINITY;
    return tt_judge_search(s->judge, s->order);
}

static void swap(int *a, int *b)
{
    int t = *a;
    *a = *b;
    *b = t;
}

static double climb(search *s)
{
    int *local = s->l->local, k = s->l->per_host;
    double cost = judge_local(s);
    for (bool better = true; better && s->left > 0;) {
        better = false;
        for (int a = 0; a < k && s->left > 0; a++)
            for (int b = a + 1; b < k && s->left > 0; b++) {
                swap(&local[a], &local[b]);
                double now = judge_local(s);
                if (now < cost * (1 - 1e-9)) {
                    cost = now;
                    better = true;
                } else {
                    swap(&local[a], &local[b]);
                }
            }
    }
    return cost;
}

static bool next_permutation(int *a, int n)
{
    int i = n - 2, j = n - 1;
    while (i >= 0 && a[i] > a[i + 1])
        i--;
    if (i < 0)
        return false;
    while (a[j] < a[i])
        j--;
    swap(&a[i], &a[j]);
    for (int x = i + 1, y = n - 1; x < y; x++, y--)
        swap(&a[x], &a[y]);
    return true;
}

static void start_from(const layout *l, int start, int *local)
{
    uint64_t state = (uint64_t)start * UINT64_C(0x9e3779b97f4a7c15);
    for (int i = 0; i < l->per_host; i++)
        local[i] = i;
    if (start == 1) { /* the caller's own order */
        for (int i = 1; i < l->per_host; i++)
            for (int j = i; j > 0 && l->places[local[j]].at < l->places[local[j - 1]].at; j--)
                swap(&local[j], &local[j - 1]);
        return;
    }
    for (int i = l->per_host - 1; start > 1 && i > 0; i--) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        swap(&local[i], &local[(state >> 33) % (uint64_t)(i + 1)]);
    }
}

/* The best arrangement found, into best[per_host]. */
static void search_local(search *s, int *best)
{
    int k = s->l->per_host;
    size_t bytes = (size_t)k * sizeof *best;
    double least = INFINITY;
    if (k <= EXHAUSTIVE) {
        start_from(s->l, 0, s->l->local);
        do {
            double cost = judge_local(s);
            if (cost < least * (1 - 1e-9)) {
                least = cost;
                memcpy(best, s->l->local, bytes);
            }
        } while (next_permutation(s->l->local, k));
        return;
    }
    for (int start = 0; start < STARTS && s->left > 0; start++) {
        start_from(s->l, start, s->l->local);
        double cost = climb(s);
        if (cost < least * (1 - 1e-9)) {
            least = cost;
            memcpy(best, s->l->local, bytes);
        }
    }
}

static tutti_status arrange(layout *l, bool by_rail)
{
    search s = {.l = l, .by_rail = by_rail};
    tt_mesh_load small;
    int *best = NULL, k = l->per_host;
    s.hosts = l->mesh->n / k < 2 ? 1 : 2;
    s.left = BUDGET_RANKS / k < BUDGET ? BUDGET_RANKS / k : BUDGET;
    reduce_mesh(l, s.hosts, &small);
    tutti_status status = tt_judge_create(l->plan, &small, &s.judge);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)(k * s.hosts), sizeof *s.order, &s.order);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)k, sizeof *best, &best);
    if (status == TUTTI_OK) {
        search_local(&s, best);
        memcpy(l->local, best, (size_t)k * sizeof *best);
    }
    free(best);
    free(s.order);
    tt_judge_destroy(s.judge);
    return status;
}

/* One candidate for the whole mesh. */
static tutti_status candidate(layout *l, bool by_rail, int *order)
{
    int n = l->mesh->n, k = l->per_host;
    if (k == 0) {
        for (int i = 0; i < n; i++)
            order[i] = l->places[i].rank;
        return TUTTI_OK;
    }
    TT_TRY(arrange(l, by_rail));
    for (int i = 0; i < n; i += k)
        TT_TRY(lay(l, l->places + i, by_rail, order + i));
    return TUTTI_OK;
}

/* Swaps any two ranks while the whole gets cheaper. */
static void refine(tt_judge *judge, int *order, int n)
{
    double cost = tt_judge_search(judge, order);
    for (bool better = true; better;) {
        better = false;
        for (int a = 0; a < n; a++)
            for (int b = a + 1; b < n; b++) {
                swap(&order[a], &order[b]);
                double now = tt_judge_search(judge, order);
                if (now < cost * (1 - 1e-9)) {
                    cost = now;
                    better = true;
                } else {
                    swap(&order[a], &order[b]);
                }
            }
    }
}

static tutti_status choose(layout *l, tt_judge *judge, const int *ranks, int *order_out)
{
    size_t n = (size_t)l->mesh->n;
    double least = tt_judge_us(judge, ranks);
    int *order;
    TT_TRY(tt_calloc(n, sizeof *order, &order));
    memcpy(order_out, ranks, n * sizeof *order);
    tutti_status status = TUTTI_OK;
    for (int by_rail = 1; by_rail >= 0 && status == TUTTI_OK; by_rail--) {
        status = candidate(l, by_rail != 0, order);
        if (status == TUTTI_OK && l->mesh->n <= SMALL_JOB && l->mesh->n > l->per_host)
            refine(judge, order, l->mesh->n);
        double cost = status == TUTTI_OK ? tt_judge_us(judge, order) : INFINITY;
        if (cost < least * (1 - 1e-6)) {
            least = cost;
            memcpy(order_out, order, n * sizeof *order);
        }
    }
    free(order);
    return status;
}

tutti_status tt_plan_order(const tt_plan *plan, const int *ranks, int n, const int *size, int axes,
                           int *order_out)
{
    tt_mesh_load mesh;
    layout l = {.plan = plan, .mesh = &mesh};
    tt_judge *judge = NULL;
    TT_TRY(check_mesh(plan, ranks, n, size, axes));
    load_of(size, axes, n, &mesh);
    tutti_status status = tt_calloc((size_t)n, sizeof *l.places, &l.places);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)n, sizeof *l.local, &l.local);
    if (status == TUTTI_OK)
        status = tt_judge_create(plan, &mesh, &judge);
    if (status == TUTTI_OK)
        status = sort_places(&l, ranks);
    if (status == TUTTI_OK) {
        find_per_host(&l);
        status = choose(&l, judge, ranks, order_out);
    }
    tt_judge_destroy(judge);
    free(l.local);
    free(l.places);
    return status;
}

tutti_status tt_plan_order_cost(const tt_plan *plan, const int *order, int n, const int *size,
                                int axes, double *us_out)
{
    tt_mesh_load mesh;
    tt_judge *judge;
    TT_TRY(check_mesh(plan, order, n, size, axes));
    load_of(size, axes, n, &mesh);
    TT_TRY(tt_judge_create(plan, &mesh, &judge));
    *us_out = tt_judge_us(judge, order);
    tt_judge_destroy(judge);
    return TUTTI_OK;
}
