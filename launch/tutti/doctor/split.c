/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One machine that NCCL takes for several: its ranks have one boot id, but differ in host name
 * (NCCL joins ranks by the hash of both, or by NCCL_HOSTID), or have a /dev/shm each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doctor.h"
#include "topo/findings.h"

typedef struct home {
    char boot_id[40], host[128];
    uint64_t shm; /* the file system behind /dev/shm */
} home;

static const char boot_id_file[] = "/proc/sys/kernel/random/boot_id";

static home own_home(void)
{
    home h;
    struct stat shm;
    const char *given = getenv("NCCL_HOSTID");
    memset(&h, 0, sizeof h);
    FILE *file = fopen(boot_id_file, "re");
    if (file != NULL && fgets(h.boot_id, sizeof h.boot_id, file) == NULL)
        h.boot_id[0] = '\0';
    if (file != NULL)
        fclose(file);
    if (given != NULL && given[0] != '\0')
        snprintf(h.host, sizeof h.host, "%s", given);
    else if (gethostname(h.host, sizeof h.host - 1) != 0)
        h.host[0] = '\0';
    if (stat("/dev/shm", &shm) == 0)
        h.shm = (uint64_t)shm.st_dev;
    return h;
}

static const tt_finding_kind *split_kind(void)
{
    return tt_finding_kind_of("split-containers");
}

/* Names the first rank that this one shares a machine but no NCCL host with. */
static void compare_homes(report *r, const home *all, int me)
{
    for (int k = 0; k < me; k++) {
        if (all[k].boot_id[0] == '\0' || strcmp(all[k].boot_id, all[me].boot_id) != 0)
            continue;
        bool names = strcmp(all[k].host, all[me].host) != 0;
        if (!names && all[k].shm == all[me].shm)
            continue;
        say(r, SAID_WARNING, "containers", split_kind()->action,
            "split-containers: on one machine with rank %d, but NCCL takes them for two (%s)", k,
            names ? "other host name or NCCL_HOSTID" : "other /dev/shm");
        return;
    }
}

tutti_status check_split(report *r, tutti_ctx *ctx)
{
    home mine = own_home(), *all = NULL;
    tutti_status status = tt_calloc((size_t)ctx->world.size, sizeof *all, &all);
    status = tt_agree(&ctx->world, "doctor, containers", status);
    if (status == TUTTI_OK)
        status = tt_all_gather_fixed(&ctx->world, "doctor, containers", &mine, sizeof mine, all);
    if (status == TUTTI_OK)
        compare_homes(r, all, ctx->world.rank);
    free(all);
    return status;
}
