/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for NCCL, and registrations. A symmetric window is a call that all ranks make together;
 * all must give as many bytes at the same offset of memory that ncclMemAlloc made.
 */
#include "sim.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

ncclResult_t ncclMemAlloc(void **ptr, size_t size)
{
    const char *call = "ncclMemAlloc";
    int error = -1;
    ncclResult_t result;
    if (sn_stop(sg_call(&error, call, "size=%zu", size), &error, call, NULL, &result))
        return result;
    if (!sn_since(21903, call, &result))
        return result;
    if (ptr == NULL || size == 0)
        return sn_error(NULL, ncclInvalidArgument, "%s: %zu bytes", call, size);
    if (sg_capture_forbids(NULL, call) != SG_OK)
        return sn_error(NULL, ncclUnhandledCudaError, "%s: while a stream is captured", call);
    void *made = sg_alloc_device(sg_current_device(), size, call, true);
    if (made == NULL)
        return sn_error(NULL, ncclUnhandledCudaError, "%s: out of memory", call);
    *ptr = made;
    return ncclSuccess;
}
SN_ALIAS(ncclMemAlloc);

static const sn_registration *registered(const char *base, size_t bytes)
{
    for (ncclComm_t comm = sn_comms; comm != NULL; comm = comm->next)
        for (const sn_registration *reg = comm->registrations; reg != NULL; reg = reg->next)
            if (reg->ptr < base + bytes && reg->ptr + reg->bytes > base)
                return reg;
    return NULL;
}

ncclResult_t ncclMemFree(void *ptr)
{
    const char *call = "ncclMemFree";
    int error = -1;
    ncclResult_t result;
    if (sn_stop(sg_call(&error, call, "ptr=%p", ptr), &error, call, NULL, &result))
        return result;
    sg_memory mem;
    sg_lock();
    if (sg_memory_find(ptr, &mem)) {
        const sn_registration *reg = registered(mem.base, mem.bytes);
        if (reg != NULL)
            sg_finding("nccl-free-registered", "ncclMemFree of %s, which is registered with %s",
                       mem.origin, reg->comm->name);
        if (!mem.windowed)
            sg_finding("nccl-free", "ncclMemFree of memory from %s", mem.origin);
    }
    error = sg_free(ptr, call);
    sg_unlock();
    return error == SG_OK
               ? ncclSuccess
               : sn_error(NULL, ncclUnhandledCudaError, "%s: Cuda failure %d", call, error);
}
SN_ALIAS(ncclMemFree);

/* ---- registrations ---- */

static ncclResult_t refuse(ncclComm_t comm, const char *call, const char *what)
{
    sg_finding("nccl-registration", "%s on %s: %s", call, comm->name, what);
    return sn_error(comm, ncclInvalidArgument, "%s: %s", call, what);
}

static ncclResult_t buffer_check(ncclComm_t comm, const char *call, void *ptr, size_t size,
                                 bool symmetric)
{
    sg_memory mem;
    if (comm->state != SN_READY || comm->job != NULL)
        return refuse(comm, call, "the communicator is not ready (in progress, or ended)");
    if (size == 0 || !sg_memory_find(ptr, &mem) || mem.kind != SG_MEM_DEVICE)
        return refuse(comm, call, "not device memory");
    if (mem.device != comm->device)
        return refuse(comm, call, "memory of another device");
    if ((char *)ptr + size > (char *)mem.base + mem.bytes)
        return refuse(comm, call, "beyond the end of the memory");
    if (symmetric && !mem.windowed)
        return refuse(comm, call, "memory that ncclMemAlloc has not made");
    if (symmetric && (uintptr_t)ptr % NCCL_WIN_REQUIRED_ALIGNMENT != 0)
        return refuse(comm, call, "not aligned to 4096 bytes");
    return ncclSuccess;
}

static sn_registration *add(ncclComm_t comm, void *ptr, size_t size, bool window)
{
    sn_registration *reg = calloc(1, sizeof(*reg));
    if (reg == NULL)
        sg_fatal("memory", "out of memory for a registration");
    *reg = (sn_registration){comm->registrations, comm, ptr, size, window};
    comm->registrations = reg;
    return reg;
}

static ncclResult_t take(ncclComm_t comm, const char *call, void *handle, bool window)
{
    sn_registration **at = &comm->registrations;
    while (*at != NULL && (void *)*at != handle)
        at = &(*at)->next;
    sn_registration *reg = *at;
    if (reg == NULL || reg->window != window)
        return refuse(comm, call, "no such registration (it may be of another communicator)");
    if (sn_plans_touch(reg))
        sg_finding("nccl-dereg-in-use", "%s on %s while work that uses the memory has not ended",
                   call, comm->name);
    *at = reg->next;
    free(reg);
    return ncclSuccess;
}

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle)
{
    const char *call = "ncclCommRegister";
    char name[128];
    int error = -1;
    ncclResult_t result;
    sg_verdict verdict = sg_call(&error, call, "comm=%p buff=%s size=%zu", (void *)comm,
                                 sg_name_pointer(buff, name, sizeof(name)), size);
    if (sn_stop(verdict, &error, call, comm, &result))
        return result;
    if (!sn_since(21903, call, &result))
        return result;
    sg_lock();
    result = sn_comm_check(comm, call);
    if (result == ncclSuccess)
        result = buffer_check(comm, call, buff, size, false);
    if (result == ncclSuccess)
        *handle = add(comm, buff, size, false);
    sg_unlock();
    return result;
}
SN_ALIAS(ncclCommRegister);

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    const char *call = "ncclCommDeregister";
    int error = -1;
    ncclResult_t result;
    sg_verdict verdict = sg_call(&error, call, "comm=%p handle=%p", (void *)comm, handle);
    if (sn_stop(verdict, &error, call, comm, &result))
        return result;
    sg_lock();
    result = sn_comm_check(comm, call);
    if (result == ncclSuccess)
        result = take(comm, call, handle, false);
    sg_unlock();
    return result;
}
SN_ALIAS(ncclCommDeregister);

/* ---- windows ---- */

typedef struct window_record {
    uint64_t offset, bytes;
    int32_t flags, usable;
} window_record;

static bool window_poll(sn_job *job)
{
    ncclComm_t comm = job->comm;
    if (comm->clique == NULL) {
        job->result = ncclInvalidUsage;
        return true;
    }
    if (job->win == NULL)
        return true;
    if (!sn_xchg_done(comm, job->seq))
        return false;
    window_record first = *(const window_record *)sn_xchg_get(comm, job->seq, 0);
    ncclWindow_t *win = job->win;
    job->win = NULL; /* asked again, nothing is left to do */
    for (int r = 0; r < comm->size; r++) {
        const window_record *other = sn_xchg_get(comm, job->seq, r);
        if (!other->usable) {
            job->result = sn_error(comm, ncclInvalidUsage,
                                   "ncclCommWindowRegister: rank %d's memory cannot be used", r);
            return true;
        }
        if (other->bytes == first.bytes && other->offset == first.offset &&
            other->flags == first.flags)
            continue;
        sg_finding("nccl-window",
                   "ncclCommWindowRegister on comm %d: rank 0 gives %llu bytes at offset %llu with "
                   "flags %d, rank %d %llu at %llu with %d",
                   comm->clique->id, (unsigned long long)first.bytes,
                   (unsigned long long)first.offset, first.flags, r,
                   (unsigned long long)other->bytes, (unsigned long long)other->offset,
                   other->flags);
        job->result = sn_error(comm, ncclInvalidUsage, "ncclCommWindowRegister: not symmetric");
        return true;
    }
    *win = (ncclWindow_t)(void *)add(comm, job->ptr, job->bytes, true);
    job->result = ncclSuccess;
    return true;
}

static void window_explain(sn_job *job, char *buf, size_t cap)
{
    snprintf(buf, cap, "ranks of %s have not called ncclCommWindowRegister", job->comm->name);
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                    int flags)
{
    const char *call = "ncclCommWindowRegister";
    char name[128];
    int error = -1;
    ncclResult_t result;
    sn_job *job = NULL;
    sg_verdict verdict = sg_call(&error, call, "comm=%p buff=%s size=%zu flags=%d", (void *)comm,
                                 sg_name_pointer(buff, name, sizeof(name)), size, flags);
    if (sn_stop(verdict, &error, call, comm, &result))
        return result;
    if (!sn_since(22703, call, &result))
        return result;
    sg_lock();
    result = sn_comm_check(comm, call);
    if (result == ncclSuccess && win == NULL)
        result = sn_error(comm, ncclInvalidArgument, "%s: the result is NULL", call);
    if (result == ncclSuccess) {
        bool symmetric = (flags & NCCL_WIN_COLL_SYMMETRIC) != 0;
        ncclResult_t usable = buffer_check(comm, call, buff, size, symmetric);
        sg_memory mem = {.base = buff};
        sg_memory_find(buff, &mem);
        window_record record = {(uint64_t)((char *)buff - (char *)mem.base), size, flags,
                                usable == ncclSuccess};
        *win = NULL;
        job = sn_job_new(call, comm);
        job->poll = window_poll;
        job->explain = window_explain;
        job->ptr = buff;
        job->bytes = size;
        job->win = win;
        job->seq = sn_xchg_post(comm, SN_XCHG_WINDOW, &record, sizeof(record));
    }
    sg_unlock();
    return result == ncclSuccess ? sn_job_submit(job) : result;
}
SN_ALIAS(ncclCommWindowRegister);

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
    const char *call = "ncclCommWindowDeregister";
    int error = -1;
    ncclResult_t result;
    sg_verdict verdict = sg_call(&error, call, "comm=%p win=%p", (void *)comm, (void *)win);
    if (sn_stop(verdict, &error, call, comm, &result))
        return result;
    sg_lock();
    result = sn_comm_check(comm, call);
    if (result == ncclSuccess && win != NULL)
        result = take(comm, call, win, true);
    sg_unlock();
    return result;
}
SN_ALIAS(ncclCommWindowDeregister);

void sn_registrations_at_destroy(ncclComm_t comm)
{
    size_t n = 0;
    for (const sn_registration *reg = comm->registrations; reg != NULL; reg = reg->next)
        n++;
    if (n > 0)
        sg_finding("nccl-registration-leak",
                   "ncclCommDestroy of %s with %zu registrations: deregister them first",
                   comm->name, n);
}
