/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl/feature.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ORDERS = NCCL_VERSION(2, 26, 0), FIRST = NCCL_VERSION(2, 19, 0) };

void tt_nccl_version_text(int version, char *buf, size_t cap)
{
    snprintf(buf, cap, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

/* POSIX lets a function's address travel in a void pointer; ISO C wants it copied. */
static void look_up(const char *name, void *function_out)
{
    void *symbol = dlsym(RTLD_DEFAULT, name);
    memcpy(function_out, &symbol, sizeof symbol);
}

tutti_status tt_nccl_feature_get(tt_nccl_feature *feature_out)
{
    tt_nccl_feature f = {0};
    char text[32];
    ncclResult_t result = ncclGetVersion(&f.version);
    if (result != ncclSuccess)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "ncclGetVersion: %s", ncclGetErrorString(result));
    if (f.version < FIRST) {
        tt_nccl_version_text(f.version, text, sizeof text);
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "NCCL %s was loaded; tutti needs 2.19 or later",
                       text);
    }
    look_up("ncclCommWindowRegister", &f.window_register);
    look_up("ncclCommWindowDeregister", &f.window_deregister);
    if (f.window_deregister == NULL)
        f.window_register = NULL;
    const char *implicit = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    f.orders_launches = f.version >= ORDERS && implicit != NULL && strcmp(implicit, "1") == 0;
    *feature_out = f;
    return TUTTI_OK;
}

/* First and last version (inclusive) of each trouble; 0: on all machines. */
static const struct {
    int first, last;
    const char *arch;
    const char *trouble;
} known_bad[] = {
    {FIRST, NCCL_VERSION(2, 29, 2), "aarch64",
     "can hang without an error on Grace (leaked proxy slots when built with an old gcc); 2.29.3 "
     "has the fix"},
    {NCCL_VERSION(2, 28, 3), NCCL_VERSION(2, 28, 8), NULL,
     "is reported to fail when communicators are made again after an abort; take 2.28.9 or later"},
};

const char *tt_nccl_known_bad(int version, const char *arch)
{
    for (size_t i = 0; i < sizeof known_bad / sizeof known_bad[0]; i++)
        if (version >= known_bad[i].first && version <= known_bad[i].last &&
            (known_bad[i].arch == NULL || strcmp(known_bad[i].arch, arch) == 0))
            return known_bad[i].trouble;
    return NULL;
}

ncclConfig_t tt_nccl_config(const char *name)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
    config.commName = name;
#else
    (void)name;
#endif
    return config;
}
