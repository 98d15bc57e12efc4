/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Caps of buckets where nobody gave one.
 *
 * An all-reduce of s bytes takes alpha + beta s. Buckets should be so large that alpha is a small
 * part of their time, and no larger, since the last one is exposed. Two sizes are timed on the
 * reducer's own communicator and stream, each several times: the best of each gives alpha and beta,
 * and the cap is where alpha is a twentieth of the whole. Rank 0's figures count. Small models are
 * not measured, nor are reproducible reducers: their sums do not depend on buckets on the host, but
 * where a backend's do, a plan that varies from run to run would show.
 */
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"
#include "reducer/reducer.h"

enum { SMALL = 4096, LARGE = 1 << 20, TIMES = 5, STEP = 64 << 10 };
static const size_t least = 1 << 20, most = 25 << 20, first_least = 1 << 20;
static const double alphas = 20;

static tutti_status time_one(tutti_reducer *red, void *buf, size_t bytes, double *best_out)
{
    *best_out = 1e9;
    for (int i = 0; i <= TIMES; i++) {
        int64_t from = tt_now_ns();
        double took;
        TT_TRY(tutti_all_reduce(red->comm, buf, buf, bytes / sizeof(float), TUTTI_FLOAT32,
                                TUTTI_SUM, red->stream));
        TT_TRY(tutti_stream_sync(red->ctx, red->stream));
        took = (double)(tt_now_ns() - from) * 1e-9;
        if (i > 0 && took < *best_out) /* the first one connects */
            *best_out = took;
    }
    return TUTTI_OK;
}

static size_t cap_for(double small_s, double large_s)
{
    double beta = (large_s - small_s) / (LARGE - SMALL), cap;

    if (!(beta > 0)) /* dominated by what does not grow with size */
        return most;
    cap = alphas * small_s / beta;
    if (cap >= (double)most)
        return most;
    return cap <= (double)least ? least : tt_round_up((size_t)cap, STEP);
}

static tutti_status measure(tutti_reducer *red)
{
    tt_buf told = {0};
    double small_s = 0, large_s = 0;
    void *buf = NULL;
    tutti_status status;

    TT_TRY(tutti_alloc(red->comm, LARGE, &buf));
    status = time_one(red, buf, SMALL, &small_s);
    if (status == TUTTI_OK)
        status = time_one(red, buf, LARGE, &large_s);
    if (status == TUTTI_OK)
        status = tutti_free(red->comm, buf);
    TT_TRY(tt_red_failed(red, status));
    red->bucket_bytes = cap_for(small_s, large_s);
    status = tt_bcast_blob(&red->comm->group, "the size of buckets", 0, &red->bucket_bytes,
                           sizeof red->bucket_bytes, &told);
    if (status == TUTTI_OK)
        tt_buf_get(&told, &red->bucket_bytes, sizeof red->bucket_bytes);
    tt_buf_free(&told);
    if (red->rank == 0)
        tt_log_info(TT_RED, "\"%s\": buckets of %.2f MiB: all-reduce takes %.1f us and %.2f GiB/s",
                    red->name, (double)red->bucket_bytes / 1048576, small_s * 1e6,
                    (LARGE - SMALL) / (large_s - small_s) / 1073741824);
    return status;
}

tutti_status tt_red_choose_caps(tutti_reducer *red)
{
    bool fixed = (red->flags & TUTTI_REDUCER_REPRODUCIBLE) != 0 || red->ranks == 1;
    size_t total = 0;

    for (size_t id = 0; id < red->nparams && total <= most; id++)
        total += tt_min_size(red->params[id].bytes, most);
    if (red->bucket_bytes == 0 && (fixed || total <= 2 * least))
        red->bucket_bytes = most;
    if (red->bucket_bytes == 0)
        TT_TRY(measure(red));
    if (red->first_bucket_bytes == 0)
        red->first_bucket_bytes = tt_min_size(first_least, red->bucket_bytes);
    return TUTTI_OK;
}
