/* SPDX-License-Identifier: Apache-2.0 */
/* ncclConfig_t: checked as NCCL checks it, and logged field by field, so that a test can compare
 * what a communicator was asked for with what the plan wanted. */
#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAGIC = (int)0xcafebeef };

static int value(int given, int otherwise)
{
    return given == NCCL_CONFIG_UNDEF_INT ? otherwise : given;
}

static const char *text(const char *s)
{
    return s != NULL ? s : "-";
}

static void log_number(char *line, size_t cap, const char *name, int number)
{
    size_t used = strlen(line);
    if (number != NCCL_CONFIG_UNDEF_INT)
        snprintf(line + used, cap - used, " %s=%d", name, number);
}

static void log_config(const ncclConfig_t *c)
{
    char line[512] = "";
    if (!sg_logging())
        return;
    log_number(line, sizeof(line), "blocking", c->blocking);
    log_number(line, sizeof(line), "cgaClusterSize", c->cgaClusterSize);
    log_number(line, sizeof(line), "minCTAs", c->minCTAs);
    log_number(line, sizeof(line), "maxCTAs", c->maxCTAs);
    log_number(line, sizeof(line), "splitShare", c->splitShare);
    log_number(line, sizeof(line), "trafficClass", c->trafficClass);
    log_number(line, sizeof(line), "collnetEnable", c->collnetEnable);
    log_number(line, sizeof(line), "CTAPolicy", c->CTAPolicy);
    log_number(line, sizeof(line), "shrinkShare", c->shrinkShare);
    log_number(line, sizeof(line), "nvlsCTAs", c->nvlsCTAs);
    log_number(line, sizeof(line), "nChannelsPerNetPeer", c->nChannelsPerNetPeer);
    log_number(line, sizeof(line), "nvlinkCentricSched", c->nvlinkCentricSched);
    sg_log("  config%s netName=%s commName=%s", line, text(c->netName), text(c->commName));
}

/* The NCCL_* variables, once: NCCL reads them at its first call too. */
static void log_environment(void)
{
    static bool told;
    if (told || !sg_logging())
        return;
    told = true;
    for (char **e = environ; *e != NULL; e++)
        if (strncmp(*e, "NCCL_", 5) == 0)
            sg_log("  environment %s", *e);
}

static ncclResult_t refuse(const char *what, long got)
{
    sg_finding("nccl-config", "ncclConfig_t: %s (%ld)", what, got);
    return sn_error(NULL, ncclInvalidArgument, "ncclConfig_t: %s (%ld)", what, got);
}

static bool within(int given, int low, int high)
{
    return given == NCCL_CONFIG_UNDEF_INT || (given >= low && given <= high);
}

static ncclResult_t check(const ncclConfig_t *c)
{
    if (!within(c->blocking, 0, 1))
        return refuse("blocking is neither 0 nor 1", c->blocking);
    if (!within(c->cgaClusterSize, 0, 8))
        return refuse("cgaClusterSize is not 0 to 8", c->cgaClusterSize);
    if (!within(c->minCTAs, 1, 64))
        return refuse("minCTAs is not 1 to 64", c->minCTAs);
    if (!within(c->maxCTAs, 1, 64))
        return refuse("maxCTAs is not 1 to 64", c->maxCTAs);
    if (value(c->minCTAs, 1) > value(c->maxCTAs, 64))
        return refuse("minCTAs is above maxCTAs", c->minCTAs);
    if (!within(c->splitShare, 0, 1) || !within(c->shrinkShare, 0, 1))
        return refuse("splitShare or shrinkShare is neither 0 nor 1", c->splitShare);
    if (!within(c->CTAPolicy, 0, 3))
        return refuse("CTAPolicy is none", c->CTAPolicy);
    return ncclSuccess;
}

ncclResult_t sn_config_read(const ncclConfig_t *given, const ncclConfig_t *inherit,
                            ncclConfig_t *out)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    log_environment();
    if (given == NULL && inherit != NULL)
        config = *inherit;
    if (given != NULL) {
        if (given->magic != (unsigned)MAGIC)
            return refuse("not initialised by NCCL_CONFIG_INITIALIZER: magic", given->magic);
        if (given->size < offsetof(ncclConfig_t, blocking) || given->size > 4096)
            return refuse("a size that none has", (long)given->size);
        if (given->version < NCCL_VERSION(2, 14, 0))
            return refuse("a version without it", given->version);
        /* A newer program's fields that this version does not know must be left undefined; an older
         * program's end earlier. */
        memcpy(&config, given, given->size < sizeof(config) ? given->size : sizeof(config));
    }
    ncclResult_t result = check(&config);
    if (result != ncclSuccess)
        return result;
    log_config(&config);
    const char *forced = getenv("NCCL_COMM_BLOCKING");
    config.blocking = forced != NULL ? atoi(forced) : value(config.blocking, 1);
    *out = config;
    return ncclSuccess;
}
