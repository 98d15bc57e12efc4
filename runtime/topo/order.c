/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "core/mem.h"
#include "topo/plan_parts.h"

enum { AXES_MAX = 16 };

typedef struct place {
    int host_at; /* where the caller's order first meets the host */
    int island, rail, at, rank;
} place;

static int by_place(const void *a, const void *b)
{
    const place *x = a, *y = b;
    if (x->host_at != y->host_at)
        return x->host_at - y->host_at;
    if (x->island != y->island)
        return x->island - y->island;
    if (x->rail != y->rail)
        return x->rail - y->rail;
    return x->at - y->at;
}

static tutti_status check_mesh(const tt_plan *plan, const int *ranks, int n, const int *size,
                               int axes)
{
    long long product = 1;
    if (axes < 1 || axes > AXES_MAX)
        return tt_fail(TUTTI_ERR_ARG, "plan: a mesh of %d axes; 1 ... %d are", axes, AXES_MAX);
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

tutti_status tt_plan_order(const tt_plan *plan, const int *ranks, int n, const int *size, int axes,
                           int *order_out)
{
    place *places = NULL;
    int *host_at = NULL;
    TT_TRY(check_mesh(plan, ranks, n, size, axes));
    tutti_status status = tt_calloc((size_t)n, sizeof *places, &places);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)plan->hosts, sizeof *host_at, &host_at);
    if (status != TUTTI_OK)
        goto free_places;
    for (int i = n - 1; i >= 0; i--)
        host_at[plan->seat[ranks[i]].host] = i;
    for (int i = 0; i < n; i++) {
        const tt_plan_seat *seat = &plan->seat[ranks[i]];
        places[i] = (place){host_at[seat->host], seat->island, seat->rail, i, ranks[i]};
    }
    qsort(places, (size_t)n, sizeof *places, by_place);
    for (int i = 0; i < n; i++)
        order_out[i] = places[i].rank;
free_places:
    free(host_at);
    free(places);
    return status;
}
