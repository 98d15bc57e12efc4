/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_nodes [BYTES] [ROUNDS]: all_reduce of fp32 in place between two nodes of equally many
 * ranks, beside what the link can carry: the same bytes exchanged by pipelined Isend and Irecv,
 * with no sum and no hand-over, each rank its share with the rank of the same index in the other
 * node.
 *
 * First the exchange is tried in pieces of 32 KiB to 1 MiB, 4 to 64 of them under way; the best of
 * these goes on. Then rounds: exchange, tutti with registered memory, tutti with plain memory,
 * MPI_Allreduce, in turns, so that all see the same machine; each time is that of the slowest rank.
 * Printed are the medians, the exchange's time over tutti's, and MPI's; and the processor time of
 * all ranks together, which is what bounds a fast link between nodes that share their cores, and
 * which other work on the machine changes less.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "quantile.h"
#include "tutti/tutti.h"

enum { DEPTH_MOST = 64, ROUNDS_MOST = 101, TRIES = 3 };
enum { EXCHANGE, REGISTERED, PLAIN, MPI, WAYS };
static const char *const names[WAYS] = {"exchange", "registered", "plain", "MPI_Allreduce"};

typedef struct bench {
    tutti_ctx *ctx;
    tutti_comm *world;
    int rank, size;
    size_t bytes;
    char *plain;
    void *registered;
    size_t piece; /* of the exchange */
    int depth;
} bench;

typedef struct sample {
    double ms, cpu_ms;
} sample;

/* Of this process, all threads. */
static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* This rank's share goes out and as much comes in. */
static void exchange(const bench *b)
{
    const size_t share = b->bytes / (size_t)(b->size / 2);
    const int peer = (b->rank + b->size / 2) % b->size;
    const int pieces = (int)((share + b->piece - 1) / b->piece);
    char *out = b->plain, *in = (char *)b->registered;
    MPI_Request request[2 * DEPTH_MOST];
    for (int i = 0; i < 2 * DEPTH_MOST; i++)
        request[i] = MPI_REQUEST_NULL;
    for (int i = 0; i < pieces + b->depth; i++) {
        MPI_Request *slot = &request[2 * (i % b->depth)];
        MPI_Waitall(2, slot, MPI_STATUSES_IGNORE);
        if (i >= pieces)
            continue;
        size_t at = (size_t)i * b->piece, n = share - at < b->piece ? share - at : b->piece;
        MPI_Irecv(in + at, (int)n, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &slot[0]);
        MPI_Isend(out + at, (int)n, MPI_BYTE, peer, 0, MPI_COMM_WORLD, &slot[1]);
    }
}

static tutti_status reduce(const bench *b, void *data)
{
    return tutti_all_reduce(b->world, data, data, b->bytes / sizeof(float), TUTTI_FLOAT32,
                            TUTTI_SUM, (tutti_stream){0});
}

/* The slowest rank's time; all ranks' processor time. Zeros stay zeros. */
static sample timed(const bench *b, int way)
{
    tutti_status status = TUTTI_OK;
    double most, cpu, all_cpu;
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime(), cpu_begin = cpu_seconds();
    if (way == EXCHANGE)
        exchange(b);
    else if (way == MPI)
        MPI_Allreduce(MPI_IN_PLACE, b->plain, (int)(b->bytes / sizeof(float)), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
    else
        status = reduce(b, way == REGISTERED ? b->registered : b->plain);
    const double seconds = MPI_Wtime() - begin;
    cpu = cpu_seconds() - cpu_begin;
    if (status != TUTTI_OK)
        tutti_abort(b->ctx, 1, tutti_last_error());
    MPI_Allreduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    MPI_Allreduce(&cpu, &all_cpu, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return (sample){most * 1e3, all_cpu * 1e3};
}

static void find_best(bench *b)
{
    static const size_t pieces[] = {32 << 10, 60 << 10, 128 << 10, 256 << 10, 1 << 20};
    static const int depths[] = {4, 16, 64};
    double best_ms = 0;
    bench best = *b;
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        for (size_t j = 0; j < sizeof depths / sizeof *depths; j++) {
            double ms[TRIES];
            b->piece = pieces[i];
            b->depth = depths[j];
            for (int k = 0; k < TRIES; k++)
                ms[k] = timed(b, EXCHANGE).ms;
            const double time = bench_quantile(ms, TRIES, 0.5);
            if (best_ms == 0 || time < best_ms) {
                best_ms = time;
                best = *b;
            }
        }
    }
    *b = best;
}

static void report(const bench *b, sample samples[WAYS][ROUNDS_MOST], int rounds)
{
    double time[WAYS], cpu[WAYS], ms[ROUNDS_MOST], cpu_ms[ROUNDS_MOST];
    for (int way = 0; way < WAYS; way++) {
        for (int i = 0; i < rounds; i++) {
            ms[i] = samples[way][i].ms;
            cpu_ms[i] = samples[way][i].cpu_ms;
        }
        time[way] = bench_quantile(ms, (size_t)rounds, 0.5);
        cpu[way] = bench_quantile(cpu_ms, (size_t)rounds, 0.5);
    }
    printf("%zu bytes, %d ranks; exchange in pieces of %zu KiB, %d under way\n", b->bytes, b->size,
           b->piece >> 10, b->depth);
    printf("%-14s %10s %11s %7s %8s\n", "", "ms", "x exchange", "x MPI", "cpu ms");
    for (int way = 0; way < WAYS; way++)
        printf("%-14s %10.2f %11.3f %7.2f %8.2f\n", names[way], time[way],
               time[EXCHANGE] / time[way], time[MPI] / time[way], cpu[way]);
    fflush(stdout);
}

static tutti_status open(bench *b)
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    opts.backend = TUTTI_BACKEND_HOST;
    tutti_status status = tutti_init(&opts, &b->ctx);
    if (status != TUTTI_OK)
        return status;
    b->world = tutti_world(b->ctx);
    b->rank = tutti_rank(b->world);
    b->size = tutti_size(b->world);
    return tutti_alloc(b->world, b->bytes, &b->registered);
}

/* A whole number from `least` to `most`; -1: it is none. */
static long long number(const char *text, long long least, long long most)
{
    char *end;
    long long value = strtoll(text, &end, 10);
    return end == text || *end != '\0' || value < least || value > most ? -1 : value;
}

int main(int argc, char **argv)
{
    static sample samples[WAYS][ROUNDS_MOST];
    /* MPI counts in ints */
    long long bytes = argc > 1 ? number(argv[1], 1 << 10, 1LL << 32) : 16 << 20;
    int rounds = argc > 2 ? (int)number(argv[2], 1, ROUNDS_MOST) : 5;
    if (bytes < 0 || rounds < 0 || argc > 3) {
        fprintf(stderr, "usage: bench_nodes [BYTES (1024 to 2^32)] [ROUNDS (1 to %d)]\n",
                ROUNDS_MOST);
        return 2;
    }
    bench b = {.bytes = (size_t)bytes};
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &(int){0});
    b.plain = calloc(1, b.bytes);
    if (b.plain == NULL || open(&b) != TUTTI_OK) {
        fprintf(stderr, "bench_nodes: %s\n", tutti_last_error());
        return 1;
    }
    memset(b.registered, 0, b.bytes);
    if (b.size % 2 != 0)
        tutti_abort(b.ctx, 2, "bench_nodes is for two nodes of equally many ranks");
    for (int way = 0; way < WAYS; way++) { /* warm */
        b.piece = 64 << 10;
        b.depth = 4;
        timed(&b, way);
    }
    find_best(&b);
    for (int i = 0; i < rounds; i++)
        for (int way = 0; way < WAYS; way++)
            samples[way][i] = timed(&b, way);
    if (b.rank == 0)
        report(&b, samples, rounds);
    tutti_status status = tutti_free(b.world, b.registered);
    if (tutti_finalize(b.ctx) != TUTTI_OK || status != TUTTI_OK)
        return 1;
    free(b.plain);
    MPI_Finalize();
    return 0;
}
