/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the reducer. Life: create -> add ... -> commit (plan.c, commit.c) -> steps (begin in
 * reducer.c, ready in issue.c, wait and abandon in wait.c) -> destroy. `lock` guards everything
 * that a step changes.
 */
#ifndef TT_COLL_REDUCER_H
#define TT_COLL_REDUCER_H

#include "comm/comm.h"
#include "tutti/reducer.h"

enum { TT_RED_ALIGN = 64, TT_RED_SCALARS_MAX = 64 };

typedef struct tt_red_param {
    char *name;
    uint64_t name_hash;
    tutti_dtype dtype;
    int ndim;
    int64_t shape[TUTTI_MAX_DIMS];
    size_t count, bytes;
    void *grad, *param;
    bool owned; /* the gradient lies in the arena */
    uint32_t group;
    int bucket;
    size_t offset; /* of an owned gradient within the arena */
    uint64_t stamp; /* the micro-step (reducer's stamp) in which it was last made ready */
} tt_red_param;

/* A contiguous part of a bucket: one all-reduce. */
typedef struct tt_red_run {
    void *ptr;
    size_t count;
} tt_red_run;

/*
 * One producer stream of a bucket. The event is recorded when as many gradients as in the last step
 * have come from the stream; before that another will follow, and a record would be wasted.
 */
typedef struct tt_red_source {
    tutti_stream stream;
    tt_event *event;
    int expected, seen;
    bool recorded; /* the event covers everything seen */
} tt_red_source;

typedef struct tt_red_sources {
    tt_red_source *list;
    size_t n, cap;
} tt_red_sources;

typedef struct tt_red_bucket {
    tutti_dtype dtype;
    bool owned;
    int *ids, n; /* members, in the order of their memory; into reducer->members */
    int last_id; /* smallest id: the member expected last */
    size_t bytes;
    tt_red_run *runs; /* into reducer->runs */
    int nruns;
    int pending; /* members not yet ready in the last micro-step */
    bool complete;
    int issues; /* in this step */
    tt_red_sources sources;
    char label[48]; /* "reducer bucket 3" */
} tt_red_bucket;

typedef struct tt_red_scalar {
    float *values;
    uint32_t n;
    uint32_t op;
} tt_red_scalar;

/* What is measured of one step; two are in use in turn, for the host may be a step ahead. */
typedef struct tt_red_times {
    int64_t step; /* number of the finished step it holds, from 1; 0: none */
    bool inline_wait;
    double exposed_s; /* of an inline wait */
    tt_event *wait_from, *wait_to; /* on the stream given to wait */
    int *order; /* bucket issued k-th */
    double *issued_s; /* by position */
    tt_event **from, **to; /* by position, around its all-reduce */
} tt_red_times;

/* Results of a step, computed from its times. */
typedef struct tt_red_figures {
    int64_t step;
    double comm_s, exposed_s, first_ready_s, last_bucket_s;
    tutti_bucket_stats *bucket; /* one per bucket, by position */
} tt_red_figures;

struct tutti_reducer {
    tutti_ctx *ctx;
    tutti_comm *comm; /* a duplicate of the caller's: an order of calls of its own */
    char *name;
    uint32_t flags;
    size_t bucket_bytes, first_bucket_bytes;
    tutti_stream stream; /* all-reduces run here */
    pthread_mutex_t lock;
    struct tutti_reducer *prev_live, *next_live; /* the context's live reducers */
    bool listed;

    /* the plan, constant from commit on */
    tt_red_param *params;
    size_t nparams, params_cap;
    bool committed;
    tt_red_bucket *buckets;
    int nbuckets;
    int *members;
    tt_red_run *runs;
    char *arena;
    size_t arena_bytes, step_bytes;
    tutti_piece *pieces;
    size_t shard_count;

    /* the order of issue */
    int *order; /* bucket to be issued k-th */
    bool learnt;
    int *completed, ncompleted; /* buckets as they completed in this step */

    /* the step in progress */
    bool in_step;
    int micro, micros;
    uint64_t stamp; /* micro-steps begun since commit */
    size_t remaining; /* parameters not yet ready in this micro-step */
    int next; /* position of the bucket to be issued next */
    int64_t begin_ns; /* begin of the last micro-step */
    bool zero_pending; /* gradients are being zeroed on a stream that the next issue must follow */
    tt_event *zeroed, *done;
    tt_red_scalar scalar[TT_RED_SCALARS_MAX];
    int nscalars, scalar_floats;
    tt_red_sources scalar_sources;
    float scratch[TT_RED_SCALARS_MAX];

    int64_t steps; /* finished since commit */
    tt_red_times times[2];
    tt_red_figures figures; /* of the newest step that had passed when its times were reused */
    tt_red_figures *fresh; /* room to compute in */

    uint64_t *hashes; /* of parameters, and one per rank */
    uint64_t *rank_hashes;
};

static inline bool tt_red_inline(tutti_stream stream)
{
    return stream.kind == TUTTI_STREAM_INLINE;
}

static inline tt_red_times *tt_red_times_now(tutti_reducer *red)
{
    return &red->times[(red->steps + 1) % 2];
}

/* plan.c: from params, caps and `follows` (see there) to buckets, members and layout. */
tutti_status tt_red_plan_buckets(tutti_reducer *red);
void tt_red_plan_runs(tutti_reducer *red, const uint8_t *follows);
void tt_red_plan_follows(const tutti_reducer *red, uint8_t *follows_out);
void tt_red_plan_free(
    tutti_reducer *red); /* all that commit made; collective where it made an arena */

/* issue.c; the lock is held. */
tutti_status tt_red_issue(tutti_reducer *red, bool fill_nan); /* the next bucket, ready or not */
void tt_red_sources_free(tutti_reducer *red, tt_red_sources *sources);

/* learn.c; collective: brings `mine` and, if all are OK, the order of rank 0 to every rank. */
tutti_status tt_red_agree_step(tutti_reducer *red, tutti_status mine);

/* wait.c: "2 of 12 parameters: "a", "b"": those not made ready in this micro-step. */
const char *tt_red_missing_text(const tutti_reducer *red, char *buf, size_t cap);

/* check.c; collective. */
tutti_status tt_red_compare_params(tutti_reducer *red, const char *what);
/* Appends "1, 2, 5 and 9 more": the world ranks whose entry differs from `common`. */
void tt_red_odd_ranks(const tt_group *group, const uint64_t *value, uint64_t common, char *buf,
                      size_t cap);

/* stats.c */
tutti_status tt_red_times_create(tutti_reducer *red);
void tt_red_times_free(tutti_reducer *red);
void tt_red_times_keep(tutti_reducer *red); /* before the current times are used again */

/* Passes a status on; one that leaves the communicator failed fails the context. */
static inline tutti_status tt_red_failed(tutti_reducer *red, tutti_status status)
{
    return status <= TUTTI_ERR_TIMEOUT ? tt_ctx_fail(red->ctx, status) : status;
}

#endif
