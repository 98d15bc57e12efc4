/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stand-in's small calls: version, texts, what a communicator is; and how every call begins and
 * fails. SIMGPU_NCCL_VERSION (a code like 21903) makes the stand-in play an older version: calls
 * that came later are refused with a finding, since a library that asked the version would not make
 * them.
 */
#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COMM_MAGIC = 0x6e63636c };

static __thread char thread_error[256];

int sn_version(void)
{
    const char *text = getenv("SIMGPU_NCCL_VERSION");
    return text != NULL && text[0] != '\0' ? atoi(text) : NCCL_VERSION_CODE;
}

bool sn_since(int version, const char *call, ncclResult_t *out)
{
    if (sn_version() >= version)
        return true;
    sg_finding("nccl-version", "%s came with NCCL %d, and SIMGPU_NCCL_VERSION says %d", call,
               version, sn_version());
    *out = sn_error(NULL, ncclInvalidUsage, "%s: not in this version", call);
    return false;
}

uint64_t sn_mix(uint64_t a, uint64_t b)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u ^ (b + 0xd1b54a32d192ed03u);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t sn_seed(void)
{
    static bool known;
    static uint64_t seed;
    if (!known) {
        seed = sg_random("nccl order");
        known = true;
    }
    return seed;
}

ncclResult_t sn_error(ncclComm_t comm, ncclResult_t result, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(thread_error, sizeof(thread_error), fmt, args);
    va_end(args);
    if (comm != NULL)
        memcpy(comm->error, thread_error, sizeof(comm->error));
    sg_log("  -> %d: %s", (int)result, thread_error);
    return result;
}

bool sn_stop(sg_verdict verdict, const int *error, const char *call, ncclComm_t comm,
             ncclResult_t *out)
{
    if (verdict == SG_GO)
        return false;
    *out = ncclSuccess;
    if (verdict == SG_FAIL)
        *out = sn_error(comm, *error >= 0 ? (ncclResult_t)*error : ncclSystemError,
                        "%s: failed on demand (SIMGPU_FAULT)", call);
    return true;
}

/* A communicator stays in memory for ever, so that its use after the end can be named. */
ncclResult_t sn_comm_check(ncclComm_t comm, const char *call)
{
    if (comm == NULL) {
        sg_finding("nccl-comm", "%s: the communicator is NULL", call);
        return sn_error(NULL, ncclInvalidArgument, "%s: comm is NULL", call);
    }
    ncclComm_t known = sn_comms;
    while (known != NULL && known != comm)
        known = known->next;
    if (known == NULL || comm->magic != COMM_MAGIC) {
        sg_finding("nccl-comm", "%s: %p is no communicator", call, (void *)comm);
        return sn_error(NULL, ncclInvalidArgument, "%s: no communicator", call);
    }
    if (comm->state >= SN_DESTROYED) {
        sg_finding("nccl-use-after-destroy", "%s on %s, which was %s", call, comm->name,
                   comm->state == SN_ABORTED ? "aborted" : "destroyed");
        return sn_error(NULL, ncclInvalidArgument, "%s: the communicator is gone", call);
    }
    return ncclSuccess;
}

/* ---- making the handle ---- */

ncclComm_t sn_comms;

void sn_comm_rename(ncclComm_t comm)
{
    const char *name = comm->comm_name;
    snprintf(comm->name, sizeof(comm->name), "comm %d%s%.16s%s rank %d",
             comm->clique != NULL ? comm->clique->id : -1, name[0] != '\0' ? " (" : "", name,
             name[0] != '\0' ? ")" : "", comm->rank);
}

ncclComm_t sn_comm_new(int size, int rank, const ncclConfig_t *config, ncclComm_t parent)
{
    static int count;
    ncclComm_t comm = calloc(1, sizeof(*comm));
    if (comm == NULL)
        sg_fatal("memory", "out of memory for a communicator");
    comm->magic = COMM_MAGIC;
    comm->id = ++count;
    comm->size = size;
    comm->rank = rank;
    comm->root = parent != NULL ? parent->root : comm;
    comm->device = parent != NULL ? parent->device : sg_current_device();
    comm->config = *config;
    comm->blocking = config->blocking != 0;
    if (config->commName != NULL)
        snprintf(comm->comm_name, sizeof(comm->comm_name), "%s", config->commName);
    comm->config.commName = NULL; /* the caller's memory */
    comm->config.netName = NULL;
    comm->async = ncclInProgress;
    sn_comm_rename(comm);
    comm->next = sn_comms;
    sn_comms = comm;
    return comm;
}

/* ---- calls ---- */

ncclResult_t ncclGetVersion(int *version)
{
    int error = -1;
    ncclResult_t result;
    if (sn_stop(sg_call(&error, "ncclGetVersion", " "), &error, "ncclGetVersion", NULL, &result))
        return result;
    if (version == NULL)
        return sn_error(NULL, ncclInvalidArgument, "ncclGetVersion: version is NULL");
    *version = sn_version();
    return ncclSuccess;
}
SN_ALIAS(ncclGetVersion);

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    static uint64_t number;
    int error = -1;
    ncclResult_t result;
    if (sn_stop(sg_call(&error, "ncclGetUniqueId", " "), &error, "ncclGetUniqueId", NULL, &result))
        return result;
    if (id == NULL)
        return sn_error(NULL, ncclInvalidArgument, "ncclGetUniqueId: id is NULL");
    sn_token token;
    sg_lock();
    bool made = sn_token_make(++number, &token);
    sg_unlock();
    if (!made)
        return sn_error(NULL, ncclSystemError, "ncclGetUniqueId: no shared memory");
    memset(id, 0, sizeof(*id));
    memcpy(id->internal, &token, sizeof(token));
    return ncclSuccess;
}
SN_ALIAS(ncclGetUniqueId);

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "internal error - please report this issue to the NCCL developers",
        "invalid argument (run with NCCL_DEBUG=WARN for details)",
        "invalid usage (run with NCCL_DEBUG=WARN for details)",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return (unsigned)result < sizeof(texts) / sizeof(texts[0]) ? texts[result]
                                                               : "unknown result code";
}
SN_ALIAS(ncclGetErrorString);

const char *ncclGetLastError(ncclComm_t comm)
{
    sg_lock();
    static __thread char copy[256];
    bool of_comm = comm != NULL && comm->magic == COMM_MAGIC && comm->error[0] != '\0';
    memcpy(copy, of_comm ? comm->error : thread_error, sizeof(copy));
    sg_unlock();
    return copy;
}
SN_ALIAS(ncclGetLastError);

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
void ncclResetDebugInit(void)
{
}
SN_ALIAS(ncclResetDebugInit);

/* What is asked of a communicator that is ready; in progress it may not be asked. */
static ncclResult_t ask(ncclComm_t comm, const char *call, const int *from, int *out)
{
    int error = -1;
    ncclResult_t result;
    if (sn_stop(sg_call(&error, call, "comm=%p", (void *)comm), &error, call, comm, &result))
        return result;
    sg_lock();
    result = sn_comm_check(comm, call);
    if (result == ncclSuccess && out == NULL)
        result = sn_error(comm, ncclInvalidArgument, "%s: the result is NULL", call);
    if (result == ncclSuccess && comm->state == SN_STARTING) {
        sg_finding("nccl-in-progress", "%s on %s before ncclCommGetAsyncError said ncclSuccess",
                   call, comm->name);
        result = sn_error(comm, ncclInvalidArgument, "%s: the communicator is not ready", call);
    }
    if (result == ncclSuccess)
        *out = *from;
    sg_unlock();
    return result;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    return ask(comm, "ncclCommCount", comm != NULL ? &comm->size : NULL, count);
}
SN_ALIAS(ncclCommCount);

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    int visible = comm != NULL ? sg_device_visible(comm->device) : 0;
    return ask(comm, "ncclCommCuDevice", &visible, device);
}
SN_ALIAS(ncclCommCuDevice);

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    return ask(comm, "ncclCommUserRank", comm != NULL ? &comm->rank : NULL, rank);
}
SN_ALIAS(ncclCommUserRank);

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *info)
{
    (void)info;
    sg_refuse("ncclGroupSimulateEnd");
}
SN_ALIAS(ncclGroupSimulateEnd);
