/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a row could take at least, by this machine's own speed measured in this run:
 *
 *     bound = max((reads + writes) / memory, sent / link)
 *
 * `reads` and `writes` are the bytes a rank must touch (ops.c). `memory` is what one rank reads and
 * writes in a second in a loop that adds two buffers of its own into both, all ranks at once, with
 * a working set of the row's size: an all-reduce's work without any exchange between cores, in the
 * same level of cache. `link` is what one node sends another in a second in large pieces, both ways
 * at once, all its ranks sending; an operation sends its bus bytes over it.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/clock.h"
#include "core/mem.h"

#if defined(__x86_64__)
#define WIDE __attribute__((target_clones("avx512f", "avx2", "default"), optimize("O3")))
#else
#define WIDE
#endif

WIDE static void add_both(float *restrict a, float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float sum = a[i] + b[i];

        a[i] = sum;
        b[i] = sum;
    }
}

static double pass_seconds(float *a, float *b, size_t n, int passes)
{
    int64_t start = tt_now_ns();

    for (int i = 0; i < passes; i++) {
        add_both(a, b, n);
        __asm__ volatile("" : : "r"(a), "r"(b) : "memory");
    }
    return (double)(tt_now_ns() - start) * 1e-9 / passes;
}

/* Bytes read and written a second, by the slowest rank; the best of some tries. */
static tutti_status memory_speed(bench_job *job, size_t bytes, double *speed_out)
{
    size_t n = (bytes < 256 ? 256 : bytes) / 2 / sizeof(float);
    double best = 0, seconds;
    float *a;
    int try, passes = 1;

    TT_TRY(tt_calloc(2 * n + 32, sizeof *a, &a));
    while (passes < 1 << 20 && pass_seconds(a, a + n, n, passes) * passes < 100e-6)
        passes *= 2;
    for (try = 0; try < 5; try++) {
        tutti_status status = tutti_barrier(job->world);

        seconds = pass_seconds(a, a + n, n, passes);
        if (status == TUTTI_OK)
            status = tutti_all_reduce_host(job->world, &seconds, 1, TUTTI_MAX);
        if (status != TUTTI_OK) {
            free(a);
            return status;
        }
        if (try == 0 || seconds < best)
            best = seconds;
    }
    free(a);
    *speed_out = 4.0 * (double)n * sizeof *a / best; /* two buffers, each read and written */
    return TUTTI_OK;
}

enum { LINK_BYTES = 8 << 20, LINK_TRIES = 3 };

/* Every rank to the rank of the same place on the next node, from the one before. */
static tutti_status exchange(bench_job *job, char *buf, size_t bytes, int next, int before)
{
    tutti_status status, ended;

    TT_TRY(tutti_group_begin());
    status = tutti_send(job->world, buf, bytes, TUTTI_UINT8, next, job->stream);
    if (status == TUTTI_OK)
        status = tutti_recv(job->world, buf + bytes, bytes, TUTTI_UINT8, before, job->stream);
    ended = tutti_group_end();
    if (status != TUTTI_OK || ended != TUTTI_OK)
        return status != TUTTI_OK ? status : ended;
    return tutti_stream_sync(job->ctx, job->stream);
}

tutti_status bench_link_measure(bench_job *job)
{
    int nodes = tutti_node_count(job->ctx), each = job->size / (nodes > 0 ? nodes : 1), try;
    int next = (job->rank + each) % job->size, before = (job->rank + job->size - each) % job->size;
    double seconds = 0, best = 0;
    char *buf;
    tutti_status status = TUTTI_OK;

    job->link_gbps = 0;
    if (nodes < 2 || each * nodes != job->size || job->ctx->dev_ops->kind != TUTTI_BACKEND_HOST)
        return TUTTI_OK;
    TT_TRY(tt_calloc(2, LINK_BYTES, &buf));
    for (try = 0; try < LINK_TRIES && status == TUTTI_OK; try++) {
        int64_t start;

        status = tutti_barrier(job->world);
        start = tt_now_ns();
        if (status == TUTTI_OK)
            status = exchange(job, buf, LINK_BYTES, next, before);
        seconds = (double)(tt_now_ns() - start) * 1e-9;
        if (status == TUTTI_OK)
            status = tutti_all_reduce_host(job->world, &seconds, 1, TUTTI_MAX);
        if (try == 0 || seconds < best)
            best = seconds;
    }
    free(buf);
    if (status == TUTTI_OK)
        job->link_gbps = (double)LINK_BYTES * each / best * 1e-9;
    return status;
}

tutti_status bench_bound(bench_job *job, const bench_case *c, double *us_out)
{
    int nodes = tutti_node_count(job->ctx), local = tutti_local_size(job->ctx);
    double moved = (c->op->reads(local) + c->op->writes(local)) * (double)c->bytes;
    double speed, seconds, link = 0;

    *us_out = 0;
    if (job->ctx->dev_ops->kind != TUTTI_BACKEND_HOST)
        return TUTTI_OK;
    TT_TRY(memory_speed(job, c->bytes, &speed));
    seconds = moved / speed;
    if (job->link_gbps > 0)
        link = c->op->bus(nodes) * (double)c->bytes / (job->link_gbps * 1e9);
    *us_out = (seconds > link ? seconds : link) * 1e6;
    return TUTTI_OK;
}
