/* SPDX-License-Identifier: Apache-2.0 */
#include "world.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 16 };

static pthread_barrier_t barrier;

void world_say(world_rank *r, const char *fmt, ...)
{
    va_list args;
    if (r->failed)
        return;
    r->failed = true;
    va_start(args, fmt);
    vsnprintf(r->message, sizeof(r->message), fmt, args);
    va_end(args);
}

void world_barrier(void)
{
    pthread_barrier_wait(&barrier);
}

void world_put(world_rank *r, void *device, const void *host, size_t bytes)
{
    CUDA_OK(r, cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, r->stream));
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
}

void world_get(world_rank *r, void *host, const void *device, size_t bytes)
{
    CUDA_OK(r, cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, r->stream));
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
}

void world_with_comm(world_rank *r, world_body body)
{
    NCCL_OK(r, ncclCommInitRank(&r->comm, r->size, r->id, r->rank));
    CUDA_OK(r, cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
    body(r);
    if (r->failed)
        return;
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    if (r->comm != NULL)
        NCCL_OK(r, ncclCommDestroy(r->comm));
    CUDA_OK(r, cudaStreamDestroy(r->stream));
}

typedef struct start {
    world_rank rank;
    world_body body;
    bool bare;
} start;

static void *thread_main(void *arg)
{
    start *s = arg;
    world_rank *r = &s->rank;
    if (cudaSetDevice(r->rank) != cudaSuccess)
        world_say(r, "cudaSetDevice(%d)", r->rank);
    else if (s->bare)
        s->body(r);
    else
        world_with_comm(r, s->body);
    if (r->failed) {
        /* The others would wait for this rank. */
        fprintf(stderr, "rank %d: %s\n", r->rank, r->message);
        fflush(stderr);
        _Exit(1);
    }
    return NULL;
}

static const char *threads(int n, world_body body, void *arg, bool bare)
{
    static start ranks[RANKS];
    pthread_t ids[RANKS];
    ncclUniqueId id, spare[4];
    if (ncclGetUniqueId(&id) != ncclSuccess)
        return "ncclGetUniqueId";
    for (int i = 0; i < 4; i++)
        if (ncclGetUniqueId(&spare[i]) != ncclSuccess)
            return "ncclGetUniqueId";
    pthread_barrier_init(&barrier, NULL, (unsigned)n);
    for (int r = 0; r < n; r++) {
        ranks[r] = (start){
            .rank = {.rank = r, .size = n, .id = id, .arg = arg}, .body = body, .bare = bare};
        memcpy(ranks[r].rank.spare, spare, sizeof(spare));
        if (pthread_create(&ids[r], NULL, thread_main, &ranks[r]) != 0)
            return "pthread_create";
    }
    for (int r = 0; r < n; r++)
        pthread_join(ids[r], NULL);
    pthread_barrier_destroy(&barrier);
    return "";
}

const char *world_threads(int n, world_body body, void *arg)
{
    return threads(n, body, arg, false);
}

const char *world_threads_bare(int n, world_body body, void *arg)
{
    return threads(n, body, arg, true);
}
