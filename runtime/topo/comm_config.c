/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "topo/plan_parts.h"

static void because(tt_comm_config *config, const char *fmt, ...) TT_PRINTF(2, 3);
static void because(tt_comm_config *config, const char *fmt, ...)
{
    size_t at = strlen(config->why), cap = sizeof config->why;
    va_list args;
    if (at > 0 && at + 3 < cap) {
        memcpy(config->why + at, "; ", 3);
        at += 2;
    }
    va_start(args, fmt);
    vsnprintf(config->why + at, cap - at, fmt, args);
    va_end(args);
}

/* More thread blocks than fill the network only take multiprocessors from the computation. One
 * moves about 12 GB/s; NCCL would start twice what its search found. */
static void limit_ctas(const tt_plan *plan, const int *ranks, int n, const tt_three_steps *steps,
                       tt_comm_config *config)
{
    enum { CTA_GBPS = 12, CTAS_MIN = 4 };
    bool one_host = true;
    for (int i = 1; i < n; i++)
        one_host &= plan->seat[ranks[i]].host == plan->seat[ranks[0]].host;
    if (one_host || !steps->known || steps->lanes.fallback)
        return;
    double network = steps->lanes.channels * steps->lanes.gbps_inter;
    int ctas = (int)((network + CTA_GBPS - 1) / CTA_GBPS);
    ctas = ctas < CTAS_MIN ? CTAS_MIN : ctas;
    if (ctas >= 2 * steps->lanes.channels)
        return;
    config->max_ctas = ctas;
    because(config, "maxCTAs %d: the network gives %.0f GB/s, which they fill", ctas, network);
}

/* NCCL gives a part that shares no more channels than the whole has. In an island the whole has as
 * many as any part; over PCIe or the network a part may have more. */
static bool one_island(const tt_plan *plan, const int *ranks, int n)
{
    for (int i = 0; i < n; i++)
        if (plan->seat[ranks[i]].gpu < 0 ||
            plan->seat[ranks[i]].host != plan->seat[ranks[0]].host ||
            plan->seat[ranks[i]].island != plan->seat[ranks[0]].island)
            return false;
    return n > 2;
}

tutti_status tt_plan_comm_config(const tt_plan *plan, const int *ranks, int n,
                                 const tt_comm_use *use, tt_comm_config *config_out)
{
    static const tt_comm_use plain = {0};
    tt_comm_config config = {.cga_cluster_size = -1};
    tt_three_steps steps;
    TT_TRY(tt_plan_three_steps_from(plan, ranks, n, &steps));
    if (use == NULL)
        use = &plain;
    if (use->name != NULL)
        snprintf(config.name, sizeof config.name, "%s", use->name);
    if (use->in_turn && one_island(plan, ranks, n)) {
        config.split_share = 1;
        because(&config, "splitShare: its parts are as well joined as all of it and work in turn, "
                         "so one set of buffers and proxies does for all");
    }
    limit_ctas(plan, ranks, n, &steps, &config);
    config.hier_min_bytes = steps.min_bytes;
    if (steps.min_bytes != SIZE_MAX)
        because(&config,
                "all-reduce in three steps from %zu KiB on: %.0f us by the model, %.0f at "
                "once",
                steps.min_bytes >> 10, steps.three_us, steps.flat_us);
    *config_out = config;
    return TUTTI_OK;
}
