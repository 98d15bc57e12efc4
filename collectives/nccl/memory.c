/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tutti_alloc and tutti_register on CUDA. Allocated memory comes from ncclMemAlloc and becomes a
 * symmetric window of the communicator where the library has windows (2.27.3), else a user buffer
 * (ncclCommRegister). The program's own memory becomes a user buffer: a window wants memory of
 * ncclMemAlloc's kind. NCCL may decline either without an error; the memory works then, slower. A
 * single rank gets plain device memory and registers nothing.
 *
 * Windows are collective: every rank registers and deregisters in the same order, after its pending
 * work on the communicator.
 *
 * After a failure nothing can be agreed any more. A rank frees its memory when its own
 * communicators are aborted and its streams are empty. A peer's kernel may still read it: what
 * ncclMemAlloc gives is mapped by the peers in its own right and stays while they map it; for the
 * program's own memory this is said at tutti_deregister.
 */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "nccl/backend.h"

enum { WINDOW_SYMMETRIC = 1 /* NCCL_WIN_COLL_SYMMETRIC, which older headers lack */ };

struct tt_registration {
    tutti_ctx *ctx; /* of a failed context it may outlive its communicator */
    uint32_t group; /* its group's id */
    tt_share *share;
    void *ptr;
    size_t bytes;
    void *handle, *window;
    bool allocated, by_nccl;
    tt_registration *next;
};

static tutti_status alloc_ptr(tt_registration *r)
{
    tutti_ctx *ctx = r->ctx;
    tt_cuda_visit visit;
    if (r->share->comm == NULL)
        return ctx->dev_ops->mem_alloc(ctx->dev, r->bytes, &r->ptr);
    TT_TRY(tt_cuda_enter(tt_cuda_of(ctx->dev), &visit));
    ncclResult_t result = ncclMemAlloc(&r->ptr, r->bytes);
    tt_cuda_leave(tt_cuda_of(ctx->dev), &visit);
    if (result == ncclSuccess) {
        r->by_nccl = true;
        return TUTTI_OK;
    }
    (void)cudaGetLastError();
    return ctx->dev_ops->mem_alloc(ctx->dev, r->bytes, &r->ptr); /* it knows what is free */
}

static void free_ptr(tt_registration *r)
{
    tutti_ctx *ctx = r->ctx;
    tt_cuda_visit visit;
    if (!r->allocated || r->ptr == NULL)
        return;
    if (!r->by_nccl) {
        ctx->dev_ops->mem_free(ctx->dev, r->ptr);
    } else if (tt_cuda_enter(tt_cuda_of(ctx->dev), &visit) == TUTTI_OK) {
        ncclResult_t result = ncclMemFree(r->ptr);
        tt_cuda_leave(tt_cuda_of(ctx->dev), &visit);
        if (result != ncclSuccess)
            tt_log_warn(TT_COLL, "ncclMemFree: %s", ncclGetErrorString(result));
    }
}

static tutti_status make_known(tt_nccl_ctx *nc, tt_registration *r, bool window)
{
    ncclComm_t comm = r->share->comm;
    const char *what = "registering memory";
    tt_cuda_visit visit;
    ncclResult_t result;
    if (comm == NULL)
        return TUTTI_OK;
    TT_TRY(tt_cuda_enter(tt_cuda_of(nc->ctx->dev), &visit));
    const tt_doing doing = {what, r->share->name, UINT64_MAX, nc->ctx->timeout_s};
    tt_nccl_enter(nc, &doing);
    if (atomic_load(&nc->closed))
        result = ncclInvalidUsage;
    else if (window) {
        tt_nccl_at(nc, "ncclCommWindowRegister");
        result = nc->feature.window_register(comm, r->ptr, r->bytes, &r->window, WINDOW_SYMMETRIC);
    } else
        result = TT_INSIDE(nc, ncclCommRegister(comm, r->ptr, r->bytes, &r->handle));
    tt_nccl_leave(nc);
    tt_cuda_leave(tt_cuda_of(nc->ctx->dev), &visit);
    TT_TRY(tt_ctx_check(nc->ctx));
    TT_TRY(
        tt_nccl_status(result, comm, window ? "ncclCommWindowRegister" : "ncclCommRegister", what));
    return result == ncclInProgress ? tt_nccl_settle(nc, comm, what, nc->ctx->timeout_s) : TUTTI_OK;
}

static tutti_status make_unknown(tt_nccl_ctx *nc, tt_registration *r)
{
    ncclComm_t comm = r->share->comm;
    const char *what = "deregistering memory";
    tt_cuda_visit visit;
    ncclResult_t result = ncclSuccess;
    if (comm == NULL || (r->window == NULL && r->handle == NULL))
        return TUTTI_OK;
    TT_TRY(tt_cuda_enter(tt_cuda_of(nc->ctx->dev), &visit));
    const tt_doing doing = {what, r->share->name, UINT64_MAX, nc->ctx->timeout_s};
    tt_nccl_enter(nc, &doing);
    if (atomic_load(&nc->closed))
        result = ncclSuccess; /* gone with its communicator */
    else if (r->window != NULL) {
        tt_nccl_at(nc, "ncclCommWindowDeregister");
        result = nc->feature.window_deregister(comm, r->window);
    } else
        result = TT_INSIDE(nc, ncclCommDeregister(comm, r->handle));
    tt_nccl_leave(nc);
    tt_cuda_leave(tt_cuda_of(nc->ctx->dev), &visit);
    r->window = r->handle = NULL;
    TT_TRY(tt_nccl_status(result, comm, "deregistering", what));
    return result == ncclInProgress ? tt_nccl_settle(nc, comm, what, nc->ctx->timeout_s) : TUTTI_OK;
}

static void list_registration(tt_nccl_ctx *nc, tt_registration *r)
{
    pthread_mutex_lock(&nc->lock);
    r->next = nc->registrations;
    nc->registrations = r;
    pthread_mutex_unlock(&nc->lock);
}

static void unlist_registration(tt_nccl_ctx *nc, const tt_registration *r)
{
    pthread_mutex_lock(&nc->lock);
    for (tt_registration **at = &nc->registrations; *at != NULL; at = &(*at)->next) {
        if (*at == r) {
            *at = r->next;
            break;
        }
    }
    pthread_mutex_unlock(&nc->lock);
}

static tt_registration *find(tt_nccl_ctx *nc, const void *ptr, size_t bytes)
{
    tt_registration *r;
    pthread_mutex_lock(&nc->lock);
    for (r = nc->registrations; r != NULL; r = r->next)
        if ((const char *)ptr < (const char *)r->ptr + r->bytes &&
            (const char *)r->ptr < (const char *)ptr + bytes)
            break;
    pthread_mutex_unlock(&nc->lock);
    return r;
}

/* Whether all ranks say yes. */
static tutti_status all_say(tutti_comm *comm, const char *what, bool mine, bool *all_out)
{
    tt_blobs all = {0};
    unsigned char yes = mine;
    TT_TRY(tt_all_gather_blobs(&comm->group, what, &yes, sizeof yes, &all));
    *all_out = true;
    for (int r = 0; r < all.n; r++)
        *all_out = *all_out && *(const unsigned char *)tt_blob(&all, r) != 0;
    tt_blobs_free(&all);
    return TUTTI_OK;
}

static tutti_status same_bytes(tutti_comm *comm, const char *what, size_t bytes)
{
    const tt_group *group = &comm->group;
    uint64_t mine = bytes, *all = NULL;
    tutti_status status = tt_calloc((size_t)group->size, sizeof *all, &all);
    status = tt_agree(&comm->group, what, status);
    if (status == TUTTI_OK)
        status = tt_all_gather_fixed(&comm->group, what, &mine, sizeof mine, all);
    for (int r = 1; r < group->size && status == TUTTI_OK; r++)
        if (all[r] != all[0])
            status =
                tt_fail(TUTTI_ERR_MISMATCH, "%s on comm %s: rank %d gave %llu bytes, rank %d %llu",
                        what, comm->name, group->world[0], (unsigned long long)all[0],
                        group->world[r], (unsigned long long)all[r]);
    free(all);
    return status;
}

static tutti_status new_registration(tutti_comm *comm, void *ptr, size_t bytes,
                                     tt_registration **out)
{
    tt_nccl *own = tt_nccl_of(comm);
    tutti_ctx *ctx = comm->ctx;
    tt_registration *r = NULL;
    TT_TRY(tt_calloc(1, sizeof *r, &r));
    *r = (tt_registration){.ctx = ctx,
                           .group = comm->group.id,
                           .share = own->share,
                           .ptr = ptr,
                           .bytes = bytes,
                           .allocated = ptr == NULL};
    tutti_status status = TUTTI_OK;
    if (r->allocated) {
        status = alloc_ptr(r);
        if (status == TUTTI_OK) /* zero filled, as on the host */
            status = ctx->dev_ops->zero(ctx->dev, r->ptr, bytes, ctx->dev_ops->service(ctx->dev));
        if (status == TUTTI_OK)
            status = ctx->dev_ops->stream_sync(ctx->dev, ctx->dev_ops->service(ctx->dev));
    } else if (!ctx->dev_ops->usable(ctx->dev, ptr)) {
        status = tt_fail(TUTTI_ERR_ARG, "register: ptr is host memory; the CUDA backend registers "
                                        "memory of its device");
    } else if (find(own->nc, ptr, bytes) != NULL) {
        status = tt_fail(TUTTI_ERR_ARG, "register: the memory is registered already, or a part");
    }
    if (status != TUTTI_OK) {
        free_ptr(r);
        free(r);
        return status;
    }
    *out = r;
    return TUTTI_OK;
}

static tutti_status add(tutti_comm *comm, const char *what, void *ptr, size_t bytes, void **ptr_out)
{
    tt_nccl_ctx *nc = tt_nccl_of(comm)->nc;
    tt_registration *r = NULL;
    TT_TRY(same_bytes(comm, what, bytes));
    tutti_status status = tt_agree(&comm->group, what, new_registration(comm, ptr, bytes, &r));
    if (status != TUTTI_OK)
        goto free_r;
    /* a window only where every rank's memory is of ncclMemAlloc's kind */
    bool window = nc->feature.window_register != NULL && r->by_nccl;
    status = all_say(comm, what, window, &window);
    if (status == TUTTI_OK)
        status = make_known(nc, r, window);
    status = tt_agree(&comm->group, what, status);
    if (status != TUTTI_OK)
        goto free_r;
    list_registration(nc, r);
    if (ptr_out != NULL)
        *ptr_out = r->ptr;
    return TUTTI_OK;

free_r:
    if (r != NULL) {
        (void)!make_unknown(nc, r);
        free_ptr(r);
        free(r);
    }
    return status;
}

tutti_status tt_nccl_mem_alloc(tutti_comm *comm, size_t bytes, void **ptr_out)
{
    return add(comm, "alloc", NULL, bytes, ptr_out);
}

tutti_status tt_nccl_mem_register(tutti_comm *comm, void *ptr, size_t bytes)
{
    return add(comm, "register", ptr, bytes, NULL);
}

static tutti_status check_release(tutti_comm *comm, const tt_registration *r, const void *ptr,
                                  bool allocated)
{
    if (r == NULL || r->ptr != ptr || r->allocated != allocated || r->group != comm->group.id)
        return tt_fail(TUTTI_ERR_ARG, "%s: the pointer is not from tutti_%s on comm %s",
                       allocated ? "free" : "deregister", allocated ? "alloc" : "register",
                       comm->name);
    return TUTTI_OK;
}

/* After an abort: whether the calls that were under way have ended. */
static bool ended(tutti_comm *comm)
{
    int64_t deadline = tt_deadline(2);
    for (;;) {
        tt_ring_advance(comm->ctx);
        if (atomic_load(&comm->pending) == 0 && comm->ctx->dev_ops->drain(comm->ctx->dev))
            return true;
        if (tt_now_ns() > deadline)
            return false;
        tt_sleep_ns(1000000);
    }
}

tutti_status tt_nccl_mem_release(tutti_comm *comm, void *ptr, bool allocated)
{
    tt_nccl_ctx *nc = tt_nccl_of(comm)->nc;
    tt_registration *r = find(nc, ptr, 1);
    tutti_status status = check_release(comm, r, ptr, allocated);
    if (tt_ctx_check(comm->ctx) == TUTTI_OK) {
        status = tt_agree(&comm->group, allocated ? "free" : "deregister", status);
        if (status == TUTTI_OK)
            status = tt_comm_drain(comm);
        if (status == TUTTI_OK)
            status = make_unknown(nc, r);
        if (status != TUTTI_OK)
            return status;
    } else if (status != TUTTI_OK) {
        return status;
    } else {
        /* What the GPU may still use goes with the process. */
        tt_nccl_abort_all(nc);
        if (!tt_nccl_abort_wait(nc, 1) || !ended(comm))
            return TUTTI_OK;
    }
    unlist_registration(nc, r);
    free_ptr(r);
    free(r);
    return TUTTI_OK;
}

void tt_nccl_mem_forget(tt_nccl_ctx *nc)
{
    if (nc->registrations != NULL && !nc->ctx->dev_ops->drain(nc->ctx->dev)) {
        tt_log_warn(TT_COLL, "work on streams does not end: registered memory is left to the end "
                             "of the process");
        return;
    }
    while (nc->registrations != NULL) {
        tt_registration *r = nc->registrations;
        nc->registrations = r->next;
        free_ptr(r);
        free(r);
    }
}
