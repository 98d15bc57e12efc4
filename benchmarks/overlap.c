/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tutti bench overlap`: how much of one all-reduce a computation beside it hides, by the formula
 * of the OSU benchmarks: with t the time of the two together,
 *
 *     overlap = 1 - (t - compute) / communication, at least 0
 *
 * where the computation takes as long as the communication alone. tutti's runs on a stream; MPI's
 * is MPI_Iallreduce, with no call of MPI while the computation runs and with 32 of MPI_Test.
 */
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/env.h"
#include "synthetic.h"

static const char usage[] =
    "usage: tutti bench overlap [options]        (on every rank)\n"
    "\n"
    "How much of an all-reduce a computation of the same length hides: tutti's on a stream, and "
    "MPI's\n"
    "MPI_Iallreduce with 0 and with 32 calls of MPI_Test in it. fp32 sums, in place, medians.\n"
    "\n"
    "  --bytes B       largest size, 4M: rows are B/64, B/8 and B\n"
    "  --steps N       of each, 9                 --ranks N    fail unless N ranks came\n"
    "  --compute C     cpu: arithmetic on the rank's core; device: none, the core is free "
    "meanwhile\n"
    "  --json          a line a row\n"
    "\n"
    "overlap = 1 - (both - compute) / comm, at least 0 (OSU's formula).\n";

enum { WAYS = 3, POLLS = 32 };
static const char *const way_name[WAYS] = {"tutti", "mpi", "mpi+test"};

typedef struct overlap_run {
    bench_job job;
    synth_options o;
    float *registered, *plain;
    tutti_stream stream;
    synth_engine engine;
} overlap_run;

static double now(void)
{
    return (double)tt_now_ns() * 1e-9;
}

static tutti_status begin(overlap_run *r, int way, size_t n, MPI_Request *req)
{
    if (way == 0)
        return tutti_all_reduce(r->job.world, r->registered, r->registered, n, TUTTI_FLOAT32,
                                TUTTI_SUM, r->stream);
    MPI_Iallreduce(MPI_IN_PLACE, r->plain, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, req);
    return TUTTI_OK;
}

static tutti_status end(overlap_run *r, int way, MPI_Request *req)
{
    if (way == 0)
        return tutti_stream_sync(r->job.ctx, r->stream);
    MPI_Wait(req, MPI_STATUS_IGNORE);
    return TUTTI_OK;
}

static void compute(overlap_run *r, int way, double seconds, MPI_Request *req)
{
    int parts = way == 2 ? POLLS : 1, done;

    for (int i = 0; i < parts; i++) {
        synth_compute(&r->engine, seconds / parts);
        if (way == 2)
            MPI_Test(req, &done, MPI_STATUS_IGNORE);
    }
}

/* One try; what it took on the slowest rank. Both parts, or one. */
static tutti_status once(overlap_run *r, int way, size_t n, double seconds, bool communicate,
                         double *took_out)
{
    MPI_Request req = MPI_REQUEST_NULL;
    double from;

    TT_TRY(tutti_barrier(r->job.world));
    synth_engine_rest(&r->engine);
    from = now();
    if (communicate)
        TT_TRY(begin(r, way, n, &req));
    if (seconds > 0)
        compute(r, way, seconds, &req);
    if (communicate)
        TT_TRY(end(r, way, &req));
    *took_out = now() - from;
    return tutti_all_reduce_host(r->job.world, took_out, 1, TUTTI_MAX);
}

static tutti_status median(overlap_run *r, int way, size_t n, double seconds, bool communicate,
                           double *out)
{
    double took[SYNTH_STEPS_MAX];

    for (int i = 0; i < r->o.steps; i++)
        TT_TRY(once(r, way, n, seconds, communicate, &took[i]));
    *out = bench_quantile(took, (size_t)r->o.steps, 0.5);
    return TUTTI_OK;
}

static tutti_status row(overlap_run *r, size_t bytes)
{
    size_t n = bytes / sizeof(float);

    for (int way = 0; way < WAYS; way++) {
        double comm, alone, both, overlap;

        TT_TRY(median(r, way, n, 0, true, &comm)); /* once to warm up */
        TT_TRY(median(r, way, n, 0, true, &comm));
        TT_TRY(median(r, way, n, comm, false, &alone));
        TT_TRY(median(r, way, n, comm, true, &both));
        overlap = fmin(1, fmax(0, 1 - (both - alone) / comm));
        if (r->job.rank != 0)
            continue;
        if (r->o.json)
            printf(
                "{\"bench\":\"overlap\",\"way\":\"%s\",\"bytes\":%zu,\"ranks\":%d,\"comm_us\":%.3f,"
                "\"compute_us\":%.3f,\"both_us\":%.3f,\"overlap\":%.4f}\n",
                way_name[way], bytes, r->job.size, comm * 1e6, alone * 1e6, both * 1e6, overlap);
        else
            printf("%12zu %-9s %12.1f %12.1f %12.1f %8.0f%%\n", bytes, way_name[way], comm * 1e6,
                   alone * 1e6, both * 1e6, 100 * overlap);
        fflush(stdout);
    }
    return TUTTI_OK;
}

static tutti_status run(overlap_run *r)
{
    void *memory;

    TT_TRY(bench_job_open(&r->job, r->o.ranks));
    if (r->job.ctx->dev_ops->kind != TUTTI_BACKEND_HOST)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "tutti bench overlap: its arithmetic is for the host "
                                              "backend (TUTTI_BACKEND=host)");
    TT_TRY(synth_engine_make(r->job.world, &r->o, &r->engine));
    TT_TRY(tutti_stream_create(r->job.ctx, "bench", 0, &r->stream));
    TT_TRY(tutti_alloc(r->job.world, r->o.bytes, &memory));
    r->registered = memory;
    r->plain = calloc(1, r->o.bytes);
    if (r->plain == NULL)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "tutti bench overlap: out of memory");
    if (r->job.rank == 0 && !r->o.json)
        printf(
            "# tutti bench overlap: all_reduce of f32 beside a computation of its own length, %d "
            "ranks\n%12s %-9s %12s %12s %12s %9s\n",
            r->job.size, "bytes", "", "comm us", "compute us", "both us", "overlap");
    for (size_t bytes = r->o.bytes / 64; bytes <= r->o.bytes; bytes *= 8)
        TT_TRY(row(r, bytes));
    return tutti_free(r->job.world, r->registered);
}

int bench_overlap(int argc, char **argv)
{
    overlap_run r = {0};
    int after, rc = synth_parse(argc, argv, usage, &r.o, &after);
    tutti_status status;

    if (rc != 0)
        return rc < 0 ? 0 : rc;
    if (after < argc || r.o.bytes < 256) {
        if (bench_speaks())
            fprintf(stderr,
                    after < argc ? "tutti bench overlap: what is '%s'?\n"
                                 : "tutti bench overlap: --bytes at least 256%s\n",
                    after < argc ? argv[after] : "");
        return BENCH_EXIT_USAGE;
    }
    status = run(&r);
    free(r.plain);
    return bench_job_close(&r.job, status, rc);
}
