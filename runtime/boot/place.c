/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the ranks are: which of them share a machine, and how many share its cores.
 *
 * Host names do not tell machines apart (cloned images, containers called "localhost"), so a
 * machine is its boot id, and the mount namespace, because ranks in two containers of one machine
 * do not see the same /dev/shm. The host name joins them: two UTS namespaces are taken for two
 * machines, which is how a test makes several out of one. TUTTI_HOST_ID replaces all three.
 *
 * The patience of waits follows from the cores. Ranks that share every core with others must not
 * spin: the rank they wait for needs the core. Workers of streams never spin, since the
 * computation they overlap with wants the core all the time.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "boot/internal.h"
#include "core/env.h"
#include "core/log.h"

enum { IDENTITY_BYTES = 320, SLEEP_MIN_NS = 50000, SLEEP_MAX_NS = 500000, SPIN_NS = 50000 };

typedef struct self {
    char machine[IDENTITY_BYTES]; /* equal: the same memory and cores */
    char host[TT_HOST_MAX];
    int32_t fake_node;
    uint64_t pid;
    cpu_set_t cpus; /* allowed to this process; empty: not known */
} self;

static void read_line(const char *path, char *buf, size_t cap)
{
    FILE *file = fopen(path, "re");
    buf[0] = '\0';
    if (file == NULL)
        return;
    if (fgets(buf, (int)cap, file) == NULL)
        buf[0] = '\0';
    buf[strcspn(buf, "\n")] = '\0';
    fclose(file);
}

static void identify(const tt_boot *boot, self *me)
{
    char boot_id[64];
    struct stat ns = {0};
    const char *given;
    if (gethostname(me->host, sizeof me->host - 1) != 0)
        snprintf(me->host, sizeof me->host, "?");
    tt_env_get_string(TT_ENV_HOST_ID, &given);
    if (given[0] != '\0') {
        snprintf(me->machine, sizeof me->machine, "%s", given);
    } else {
        read_line("/proc/sys/kernel/random/boot_id", boot_id, sizeof boot_id);
        if (stat("/proc/self/ns/mnt", &ns) != 0)
            ns.st_ino = 0;
        snprintf(me->machine, sizeof me->machine, "%s %llu %s", boot_id,
                 (unsigned long long)ns.st_ino, me->host);
    }
    me->fake_node = boot->fake_node;
    me->pid = (uint64_t)getpid();
    if (sched_getaffinity(0, sizeof me->cpus, &me->cpus) != 0)
        CPU_ZERO(&me->cpus);
}

static bool same_node(const self *a, const self *b)
{
    return a->fake_node == b->fake_node && strcmp(a->machine, b->machine) == 0;
}

static void number_nodes(tutti_ctx *ctx, const self *all)
{
    int n = ctx->world.size, me = ctx->world.rank;
    for (int i = 0; i < n; i++) {
        tt_place *p = &ctx->place[i];
        int first = 0;
        while (!same_node(&all[first], &all[i]))
            first++;
        p->node = first == i ? ctx->node_count++ : ctx->place[first].node;
        for (int k = first; k < i; k++)
            p->local_rank += same_node(&all[k], &all[i]);
        p->pid = all[i].pid;
        if (all[i].fake_node >= 0)
            snprintf(p->host, sizeof p->host, "%.*s#%d", TT_HOST_MAX - 12, all[i].host,
                     all[i].fake_node);
        else
            snprintf(p->host, sizeof p->host, "%s", all[i].host);
    }
    for (int i = 0; i < n; i++)
        ctx->local_size += ctx->place[i].node == ctx->place[me].node;
}

/* Ranks of this machine that may run where this one may. */
static int sharers(const self *all, int n, int me)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        cpu_set_t both;
        CPU_AND(&both, &all[i].cpus, &all[me].cpus);
        count += strcmp(all[i].machine, all[me].machine) == 0 && CPU_COUNT(&both) > 0;
    }
    return count;
}

static tutti_status choose_patience(tutti_ctx *ctx, const self *all)
{
    long long spin_us;
    int me = ctx->world.rank, cores = CPU_COUNT(&all[me].cpus);
    int ranks = sharers(all, ctx->world.size, me);
    TT_TRY(tt_env_get_int(TT_ENV_SPIN_US, &spin_us));
    if (spin_us < -1 || spin_us > 1000000)
        return tt_fail(TUTTI_ERR_ARG, "TUTTI_SPIN_US: %lld is not -1 ... 1000000", spin_us);
    int64_t spin_ns = ranks > cores ? 0 : SPIN_NS;
    if (spin_us >= 0)
        spin_ns = spin_us * 1000;
    ctx->caller_patience = (tt_patience){spin_ns, SLEEP_MIN_NS, SLEEP_MAX_NS};
    ctx->worker_patience = (tt_patience){0, SLEEP_MIN_NS, SLEEP_MAX_NS};
    tt_log_info(TT_BOOT, "%d ranks on %d cores: a waiting rank spins %lld us", ranks, cores,
                (long long)(spin_ns / 1000));
    return TUTTI_OK;
}

tutti_status tt_places_find(tutti_ctx *ctx)
{
    size_t n = (size_t)ctx->world.size;
    self *mine = NULL, *all = NULL;
    tutti_status status = tt_calloc(1, sizeof *mine, &mine);
    if (status == TUTTI_OK)
        status = tt_calloc(n, sizeof *all, &all);
    if (status == TUTTI_OK)
        status = tt_calloc(n, sizeof *ctx->place, &ctx->place);
    status = tt_agree(&ctx->world, "tutti_init, memory for the ranks' places", status);
    if (status != TUTTI_OK)
        goto free_all;
    identify(ctx->boot, mine);
    status = tt_all_gather_fixed(&ctx->world, "tutti_init, identity of the ranks", mine,
                                 sizeof *mine, all);
    if (status != TUTTI_OK)
        goto free_all;
    number_nodes(ctx, all);
    status = tt_agree(&ctx->world, "tutti_init, waiting", choose_patience(ctx, all));
free_all:
    free(all);
    free(mine);
    return status;
}
