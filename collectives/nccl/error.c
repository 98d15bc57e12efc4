/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "nccl/backend.h"

static tutti_status status_of(ncclResult_t result)
{
    switch (result) {
    case ncclInvalidArgument:
    case ncclInvalidUsage:
        return TUTTI_ERR_ARG;
    case ncclRemoteError:
        return TUTTI_ERR_REMOTE;
    default:
        return TUTTI_ERR_DEVICE;
    }
}

tutti_status tt_nccl_status(ncclResult_t result, ncclComm_t comm, const char *call,
                            const char *what)
{
    if (__builtin_expect(result == ncclSuccess || result == ncclInProgress, 1))
        return TUTTI_OK;
    const char *more = ncclGetLastError(comm);
    (void)cudaGetLastError();
    return tt_fail(status_of(result), "%s: %.*s: %s%s%s", what, (int)strcspn(call, "("), call,
                   ncclGetErrorString(result), more != NULL && more[0] != '\0' ? ": " : "",
                   more != NULL ? more : "");
}

tutti_status tt_nccl_call_status(ncclResult_t result, const char *call, const tt_call *which)
{
    char text[192], what[256];
    if (__builtin_expect(result == ncclSuccess || result == ncclInProgress, 1))
        return TUTTI_OK;
    tt_call_text(which, text, sizeof text);
    snprintf(what, sizeof what, "%s, rank %d", text, which->comm->group.rank);
    return tt_nccl_status(result, tt_nccl_of(which->comm)->share->comm, call, what);
}
