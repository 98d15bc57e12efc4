/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory: the checks that one rank can make, agreed, then the backend's part. */
#include <stdint.h>
#include <unistd.h>

#include "comm/issue.h"

static tutti_status check(const tutti_comm *comm, const char *what)
{
    if (comm == NULL)
        return tt_fail(TUTTI_ERR_ARG, "%s: the communicator is NULL", what);
    return tt_ctx_check(comm->ctx);
}

static tutti_status check_bytes(const char *what, size_t bytes)
{
    if (bytes == 0)
        return tt_fail(TUTTI_ERR_ARG, "%s: 0 bytes", what);
    if (bytes > PTRDIFF_MAX / 2)
        return tt_fail(TUTTI_ERR_ARG, "%s: %zu bytes are more than memory can hold", what, bytes);
    return TUTTI_OK;
}

tutti_status tutti_alloc(tutti_comm *comm, size_t bytes, void **ptr_out)
{
    TT_TRY(check(comm, "alloc"));
    tutti_status status = tt_group_forbid("alloc");
    if (status == TUTTI_OK && ptr_out == NULL)
        status = tt_fail(TUTTI_ERR_ARG, "alloc: ptr_out is NULL");
    if (status == TUTTI_OK)
        status = check_bytes("alloc", bytes);
    TT_TRY(tt_agree(&comm->group, "alloc", status));
    return comm->ops->mem_alloc(comm, bytes, ptr_out);
}

tutti_status tutti_register(tutti_comm *comm, void *ptr, size_t bytes)
{
    TT_TRY(check(comm, "register"));
    tutti_status status = tt_group_forbid("register");
    if (status == TUTTI_OK && ptr == NULL)
        status = tt_fail(TUTTI_ERR_ARG, "register: ptr is NULL");
    if (status == TUTTI_OK)
        status = check_bytes("register", bytes);
    TT_TRY(tt_agree(&comm->group, "register", status));
    return comm->ops->mem_register(comm, ptr, bytes);
}

/* Whether the pointers of all ranks are NULL (nothing to do), or none (the backend goes on). */
static tutti_status agree_null(tutti_comm *comm, const char *what, const void *ptr)
{
    tt_blobs all;
    int nulls = 0;
    unsigned char mine = ptr == NULL;
    TT_TRY(tt_all_gather_blobs(&comm->group, what, &mine, sizeof mine, &all));
    for (int rank = 0; rank < all.n; rank++)
        nulls += *(const unsigned char *)tt_blob(&all, rank);
    tt_blobs_free(&all);
    if (nulls != 0 && nulls != comm->group.size)
        return tt_fail(TUTTI_ERR_ARG, "%s: NULL on %d of %d ranks", what, nulls, comm->group.size);
    return TUTTI_OK;
}

static tutti_status release(tutti_comm *comm, void *ptr, const char *what, bool allocated)
{
    if (comm == NULL)
        return tt_fail(TUTTI_ERR_ARG, "%s: the communicator is NULL", what);
    if (tt_ctx_check(comm->ctx) != TUTTI_OK)
        return ptr == NULL ? TUTTI_OK : comm->ops->mem_release(comm, ptr, allocated);
    tutti_status status = tt_group_forbid(what);
    TT_TRY(tt_agree(&comm->group, what, status));
    TT_TRY(agree_null(comm, what, ptr));
    return ptr == NULL ? TUTTI_OK : comm->ops->mem_release(comm, ptr, allocated);
}

tutti_status tutti_free(tutti_comm *comm, void *ptr)
{
    return release(comm, ptr, "free", true);
}

tutti_status tutti_deregister(tutti_comm *comm, void *ptr)
{
    return release(comm, ptr, "deregister", false);
}
