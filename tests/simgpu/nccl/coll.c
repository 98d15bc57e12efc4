/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives, sends and receives, and the operators made by the program. */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

const char *sn_kind_name(sn_kind kind)
{
    static const char *const names[] = {
        "ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclReduceScatter", "ncclAllGather",
        "ncclAlltoAll",  "ncclGather", "ncclScatter",   "ncclSend",          "ncclRecv"};
    return (size_t)kind < sizeof(names) / sizeof(names[0]) ? names[kind] : "ncclUnknown";
}

const char *sn_type_name(ncclDataType_t type)
{
    static const char *const names[] = {"int8",    "uint8",    "int32",    "uint32",
                                        "int64",   "uint64",   "float16",  "float32",
                                        "float64", "bfloat16", "fp8_e4m3", "fp8_e5m2"};
    return (unsigned)type < ncclNumTypes ? names[type] : "no type";
}

size_t sn_type_size(ncclDataType_t type)
{
    static const unsigned char sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
    return (unsigned)type < ncclNumTypes ? sizes[type] : 0;
}

static size_t blocks(const sn_task *task, size_t n)
{
    return task->count * sn_type_size(task->type) * n;
}

size_t sn_sends(const sn_task *task)
{
    size_t ranks = (size_t)task->comm->size;
    bool root = task->peer == task->comm->rank;
    switch (task->kind) {
    case SN_RECV:
        return 0;
    case SN_BROADCAST:
        return root ? blocks(task, 1) : 0;
    case SN_SCATTER:
        return root ? blocks(task, ranks) : 0;
    case SN_REDUCE_SCATTER:
    case SN_ALL_TO_ALL:
        return blocks(task, ranks);
    default:
        return blocks(task, 1);
    }
}

size_t sn_receives(const sn_task *task)
{
    size_t ranks = (size_t)task->comm->size;
    bool root = task->peer == task->comm->rank;
    switch (task->kind) {
    case SN_SEND:
        return 0;
    case SN_REDUCE:
        return root ? blocks(task, 1) : 0;
    case SN_GATHER:
        return root ? blocks(task, ranks) : 0;
    case SN_ALL_GATHER:
    case SN_ALL_TO_ALL:
        return blocks(task, ranks);
    default:
        return blocks(task, 1);
    }
}

/* ---- the calls ---- */

static ncclResult_t op_fill(sn_task *task)
{
    if ((int)task->op < ncclNumOps)
        return ncclSuccess;
    for (const sn_premul *p = task->comm->premuls; p != NULL; p = p->next) {
        if ((int)task->op != p->index)
            continue;
        if (p->type != task->type) {
            sg_finding("nccl-op", "%s: the operator was made for %s and is used for %s",
                       sn_kind_name(task->kind), sn_type_name(p->type), sn_type_name(task->type));
            return sn_error(task->comm, ncclInvalidArgument, "the operator has another type");
        }
        task->op = (ncclRedOp_t)ncclNumOps;
        task->scalar_on_device = p->on_device;
        task->scalar_ptr = p->ptr;
        memcpy(task->scalar, p->scalar, sizeof(task->scalar));
        return ncclSuccess;
    }
    sg_finding("nccl-op", "%s: there is no operator %d on %s", sn_kind_name(task->kind),
               (int)task->op, task->comm->name);
    return sn_error(task->comm, ncclInvalidArgument, "no such operator");
}

/* `task` has everything but communicator and stream looked up. */
static ncclResult_t run(sn_task *task, void *stream)
{
    const char *call = sn_kind_name(task->kind);
    char in[128], out[128];
    int error = -1;
    ncclResult_t result = ncclSuccess;
    sg_verdict verdict;
    if (sg_logging())
        verdict = sg_call(&error, call,
                          "in=%s out=%s count=%zu type=%s op=%d root=%d comm=%p (%s) "
                          "stream=%p",
                          sg_name_pointer(task->in, in, sizeof(in)),
                          sg_name_pointer(task->out, out, sizeof(out)), task->count,
                          sn_type_name(task->type), (int)task->op, task->peer, (void *)task->comm,
                          task->comm != NULL ? task->comm->name : "-", stream);
    else
        verdict = sg_call(&error, call, "count=%zu", task->count);
    if (sn_stop(verdict, &error, call, task->comm, &result))
        return result;
    sg_lock();
    result = sn_comm_check(task->comm, call);
    if (result == ncclSuccess)
        result = op_fill(task);
    if (result == ncclSuccess) {
        task->stream = sg_stream_get(stream, call);
        if (task->stream == NULL)
            result = sn_error(task->comm, ncclInvalidArgument, "%s: no such stream", call);
    }
    sg_unlock();
    return result == ncclSuccess ? sn_submit(task) : result;
}

#define TASK(...)                                                                                  \
    &(sn_task)                                                                                     \
    {                                                                                              \
        .site = __builtin_return_address(0), __VA_ARGS__                                           \
    }

ncclResult_t ncclAllReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    if (sg_noop)
        return ncclSuccess;
    return run(TASK(.kind = SN_ALL_REDUCE, .in = in, .out = out, .count = count, .type = type,
                    .op = op, .peer = -1, .comm = comm),
               stream);
}
SN_ALIAS(ncclAllReduce);

ncclResult_t ncclReduce(const void *in, void *out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)
{
    if (sg_noop)
        return ncclSuccess;
    return run(TASK(.kind = SN_REDUCE, .in = in, .out = out, .count = count, .type = type, .op = op,
                    .peer = root, .comm = comm),
               stream);
}
SN_ALIAS(ncclReduce);

ncclResult_t ncclBroadcast(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream)
{
    if (sg_noop)
        return ncclSuccess;
    return run(TASK(.kind = SN_BROADCAST, .in = in, .out = out, .count = count, .type = type,
                    .peer = root, .comm = comm),
               stream);
}
SN_ALIAS(ncclBroadcast);

ncclResult_t ncclBcast(void *buf, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream)
{
    return ncclBroadcast(buf, buf, count, type, root, comm, stream);
}
SN_ALIAS(ncclBcast);

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    if (sg_noop)
        return ncclSuccess;
    return run(TASK(.kind = SN_REDUCE_SCATTER, .in = in, .out = out, .count = count, .type = type,
                    .op = op, .peer = -1, .comm = comm),
               stream);
}
SN_ALIAS(ncclReduceScatter);

ncclResult_t ncclAllGather(const void *in, void *out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    if (sg_noop)
        return ncclSuccess;
    return run(TASK(.kind = SN_ALL_GATHER, .in = in, .out = out, .count = count, .type = type,
                    .peer = -1, .comm = comm),
               stream);
}
SN_ALIAS(ncclAllGather);

ncclResult_t ncclAlltoAll(const void *in, void *out, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream)
{
    ncclResult_t result;
    if (sg_noop)
        return ncclSuccess;
    if (!sn_since(22803, "ncclAlltoAll", &result))
        return result;
    return run(TASK(.kind = SN_ALL_TO_ALL, .in = in, .out = out, .count = count, .type = type,
                    .peer = -1, .comm = comm),
               stream);
}
SN_ALIAS(ncclAlltoAll);

ncclResult_t ncclGather(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                        ncclComm_t comm, cudaStream_t stream)
{
    ncclResult_t result;
    if (sg_noop)
        return ncclSuccess;
    if (!sn_since(22803, "ncclGather", &result))
        return result;
    return run(TASK(.kind = SN_GATHER, .in = in, .out = out, .count = count, .type = type,
                    .peer = root, .comm = comm),
               stream);
}
SN_ALIAS(ncclGather);

ncclResult_t ncclScatter(const void *in, void *out, size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream)
{
    ncclResult_t result;
    if (sg_noop)
        return ncclSuccess;
    if (!sn_since(22803, "ncclScatter", &result))
        return result;
    return run(TASK(.kind = SN_SCATTER, .in = in, .out = out, .count = count, .type = type,
                    .peer = root, .comm = comm),
               stream);
}
SN_ALIAS(ncclScatter);

ncclResult_t ncclSend(const void *in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    if (sg_noop)
        return ncclSuccess;
    return run(
        TASK(.kind = SN_SEND, .in = in, .count = count, .type = type, .peer = peer, .comm = comm),
        stream);
}
SN_ALIAS(ncclSend);

ncclResult_t ncclRecv(void *out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    if (sg_noop)
        return ncclSuccess;
    return run(
        TASK(.kind = SN_RECV, .out = out, .count = count, .type = type, .peer = peer, .comm = comm),
        stream);
}
SN_ALIAS(ncclRecv);

/* ---- operators ---- */

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm)
{
    const char *call = "ncclRedOpCreatePreMulSum";
    int error = -1;
    ncclResult_t result;
    sg_verdict verdict = sg_call(&error, call, "type=%s residence=%d comm=%p", sn_type_name(type),
                                 (int)residence, (void *)comm);
    if (sn_stop(verdict, &error, call, comm, &result))
        return result;
    sg_lock();
    result = sn_comm_check(comm, call);
    if (result == ncclSuccess && (op == NULL || scalar == NULL || sn_type_size(type) == 0))
        result = sn_error(comm, ncclInvalidArgument, "%s: an argument is NULL or no type", call);
    if (result == ncclSuccess) {
        sn_premul *p = calloc(1, sizeof(*p));
        if (p == NULL)
            sg_fatal("memory", "out of memory for an operator");
        p->index = ncclNumOps + ++comm->next_premul;
        p->type = type;
        p->on_device = residence == ncclScalarDevice;
        p->ptr = scalar;
        if (!p->on_device)
            memcpy(p->scalar, scalar, sn_type_size(type));
        p->next = comm->premuls;
        comm->premuls = p;
        *op = (ncclRedOp_t)p->index;
    }
    sg_unlock();
    return result;
}
SN_ALIAS(ncclRedOpCreatePreMulSum);

ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm)
{
    const char *call = "ncclRedOpDestroy";
    int error = -1;
    ncclResult_t result;
    sg_verdict verdict = sg_call(&error, call, "op=%d comm=%p", (int)op, (void *)comm);
    if (sn_stop(verdict, &error, call, comm, &result))
        return result;
    sg_lock();
    result = sn_comm_check(comm, call);
    if (result == ncclSuccess) {
        sn_premul **at = &comm->premuls;
        while (*at != NULL && (*at)->index != (int)op)
            at = &(*at)->next;
        sn_premul *found = *at;
        if (found == NULL) {
            sg_finding("nccl-op", "%s: there is no operator %d on %s", call, (int)op, comm->name);
            result = sn_error(comm, ncclInvalidArgument, "%s: no such operator", call);
        } else {
            *at = found->next;
            free(found);
        }
    }
    sg_unlock();
    return result;
}
SN_ALIAS(ncclRedOpDestroy);
