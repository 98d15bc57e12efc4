/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tutti bench OP`: one row a size and memory, in and out of place. Every rank runs this; rank 0
 * prints. The exit status is the same on all ranks: wrong elements and rows slower than the
 * baseline allows are agreed on.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/mem.h"

typedef struct bench_run {
    bench_job job;
    bench_options o;
    bench_baseline *baseline;
    bench_variant peers[BENCH_PEERS_MAX], tutti;
    size_t peer_count;
    bench_row *rows;
    size_t count, cap;
    bool slower, unwritten; /* known to rank 0 */
    uint64_t wrong;
} bench_run;

static tutti_status open_job(bench_run *run)
{
    bench_job *job = &run->job;

    TT_TRY(bench_job_open(job, run->o.ranks));
    if (run->o.root >= job->size)
        return tt_fail(TUTTI_ERR_ARG, "tutti bench: --root %d, but the ranks are 0 to %d",
                       run->o.root, job->size - 1);
    if (job->ctx->dev_ops->kind != TUTTI_BACKEND_HOST && run->o.memories != BENCH_REGISTERED)
        return tt_fail(TUTTI_ERR_UNSUPPORTED,
                       "tutti bench: --memory plain is for the host backend");
    if (run->o.stream || job->ctx->dev_ops->kind != TUTTI_BACKEND_HOST)
        TT_TRY(tutti_stream_create(job->ctx, "bench", 0, &job->stream));
    return bench_link_measure(job);
}

static tutti_status open_peers(bench_run *run)
{
    unsigned i;

    for (i = 0; bench_peer_at(i) != NULL; i++) {
        if ((run->o.peers >> i & 1) == 0)
            continue;
        TT_TRY(bench_peer_at(i)->open(&run->job, bench_arena_bytes(&run->o),
                                      &run->peers[run->peer_count]));
        run->peer_count++;
    }
    return TUTTI_OK;
}

static bench_case case_of(const bench_run *run, size_t bytes, bool in_place)
{
    const bench_options *o = &run->o;
    size_t parts = o->op->divides ? (size_t)run->job.size : 1;
    size_t element = tutti_dtype_size(o->dtype);
    bench_case c = {o->op,   bytes,         bytes / parts / element, o->dtype, o->redop,
                    o->root, run->job.rank, run->job.size,           in_place};

    c.bytes = c.n * parts * element;
    return c;
}

static tutti_status measure(bench_run *run, bench_memory memory, size_t bytes, bool in_place)
{
    bench_variant *variants[1 + BENCH_PEERS_MAX] = {&run->tutti};
    bench_row *row;
    double before;
    size_t i;

    TT_TRY(tt_grow(&run->rows, &run->cap, run->count + 1, sizeof *run->rows));
    row = &run->rows[run->count];
    memset(row, 0, sizeof *row);
    row->c = case_of(run, bytes, in_place);
    row->registered = memory == BENCH_REGISTERED;
    row->cold = run->o.cold;
    for (i = 0; i < run->peer_count; i++)
        variants[i + 1] = &run->peers[i];
    if (row->c.n == 0)
        return TUTTI_OK; /* fewer bytes than ranks */
    TT_TRY(bench_bound(&run->job, &row->c, &row->bound_us));
    TT_TRY(bench_measure(&run->job, &run->o, variants, run->peer_count + 1, row));
    run->wrong += row->wrong;
    for (i = 0; i < run->peer_count; i++)
        run->wrong += row->peer[i].wrong;
    before = run->baseline != NULL ? bench_baseline_us(run->baseline, row, run->job.size) : 0;
    row->baseline_ratio = before > 0 ? row->us.median / before : 0;
    run->slower = run->slower || row->baseline_ratio > run->o.threshold;
    run->count++;
    if (run->job.rank == 0)
        bench_report_row(&run->job, &run->o, row);
    return TUTTI_OK;
}

static tutti_status all_rows(bench_run *run, bench_memory memory)
{
    double bytes;

    TT_TRY(bench_tutti_open(&run->job, &run->o, memory, bench_arena_bytes(&run->o), &run->tutti));
    for (bytes = (double)run->o.min_bytes; bytes <= (double)run->o.max_bytes * 1.0000001;
         bytes = floor(bytes * run->o.factor)) {
        if (run->o.places & BENCH_OUT_OF_PLACE)
            TT_TRY(measure(run, memory, (size_t)bytes, false));
        if (run->o.places & BENCH_IN_PLACE)
            TT_TRY(measure(run, memory, (size_t)bytes, true));
    }
    run->tutti.close(&run->tutti);
    return TUTTI_OK;
}

/* The file is rank 0's. */
static tutti_status open_baseline(bench_run *run)
{
    tutti_status status = TUTTI_OK;
    double worst;

    if (run->o.baseline != NULL && run->job.rank == 0)
        status = bench_baseline_open(run->o.baseline, &run->baseline);
    worst = status;
    TT_TRY(tutti_all_reduce_host(run->job.world, &worst, 1, TUTTI_MIN));
    return (tutti_status)worst;
}

static tutti_status bench(bench_run *run)
{
    TT_TRY(open_job(run));
    TT_TRY(open_baseline(run));
    TT_TRY(open_peers(run));
    if (run->job.rank == 0)
        bench_report_begin(&run->job, &run->o);
    if (run->o.memories & BENCH_REGISTERED)
        TT_TRY(all_rows(run, BENCH_REGISTERED));
    if (run->o.memories & BENCH_PLAIN)
        TT_TRY(all_rows(run, BENCH_PLAIN));
    if (run->count == 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti bench: no row: --max is less than one element a rank");
    if (run->job.rank == 0 &&
        bench_report_end(&run->job, &run->o, run->rows, run->count) != TUTTI_OK) {
        fprintf(stderr, "%s\n", tutti_last_error());
        run->unwritten = true;
    }
    return TUTTI_OK;
}

static void close_peers(bench_run *run)
{
    for (size_t i = 0; i < run->peer_count; i++)
        run->peers[i].close(&run->peers[i]);
}

int bench_collective(int argc, char **argv)
{
    bench_run run = {0};
    tutti_status status;
    double ends[2];
    int rc = bench_options_parse(argc, argv, &run.o);

    if (rc != 0)
        return rc < 0 ? 0 : rc;
    status = bench(&run);
    if (status == TUTTI_OK) {
        close_peers(&run);
        ends[0] = run.slower;
        ends[1] = run.unwritten;
        status = tutti_all_reduce_host(run.job.world, ends, 2, TUTTI_MAX);
        rc = run.wrong > 0 || ends[1] > 0 ? BENCH_EXIT_FAILED : ends[0] > 0 ? BENCH_EXIT_SLOWER : 0;
    }
    rc = bench_job_close(&run.job, status, rc);
    bench_baseline_close(run.baseline);
    free(run.rows);
    return rc;
}
