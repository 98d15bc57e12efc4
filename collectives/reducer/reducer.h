/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of the reducer. Life: create -> add ... -> commit (plan.c, shard.c, commit.c) -> steps
 * (begin in begin.c, ready in ready.c, issue.c, wait and abandon in wait.c, gather in gather.c) ->
 * destroy. `lock` guards what a step changes, save what is atomic: `ready` takes it only when a
 * bucket is complete and nobody else issues.
 */
#ifndef TT_COLL_REDUCER_H
#define TT_COLL_REDUCER_H

#include "boot/live.h"
#include "comm/comm.h"
#include "comm/math.h"
#include "tutti/reducer.h"

enum { TT_RED_ALIGN = 64, TT_RED_SCALARS_MAX = 64, TT_RED_LEVELS_MAX = 30 };

typedef struct tt_red_param {
    char *name;
    uint64_t name_hash;
    tutti_dtype dtype;
    int ndim;
    int64_t shape[TUTTI_MAX_DIMS];
    size_t count, bytes;
    void *grad, *param;
    bool owned; /* the gradient lies in the arena */
    int tied; /* 1 + id of the parameter that it is another name of (count is 0 then), or 0 */
    uint32_t group, flags;
    int64_t whole[TUTTI_MAX_DIMS], box_offset[TUTTI_MAX_DIMS];
    int bucket;
    size_t index; /* of its first element within the bucket's concatenation */
    size_t offset; /* of an owned gradient within the arena */
    _Atomic uint64_t stamp; /* the micro-step (reducer's stamp) in which it was last made ready */
} tt_red_param;

/*
 * A contiguous part of a bucket's gradients or parameters: one collective. Its elements are those
 * of members first ... first + n - 1; in an owned bucket the gaps between them too.
 */
typedef struct tt_red_run {
    void *ptr, *work; /* its memory, and where it is reduced: the same but in checked mode */
    size_t count;
    int first, n;
    size_t at; /* bytes of all runs before it: where its partial sums lie */
} tt_red_run;

/*
 * One producer stream of a bucket. The event is recorded when as many gradients as in the last step
 * have come from the stream; before that another will follow, and a record would be wasted. Lists
 * only grow, at their head and under the lock, so that `ready` reads them without it.
 */
typedef struct tt_red_source {
    struct tt_red_source *next;
    tutti_stream stream;
    tt_event *event;
    int expected;
    _Atomic int seen, recorded; /* recorded: the event covers as many of those seen */
} tt_red_source;
typedef tt_red_source *_Atomic tt_red_sources;

typedef struct tt_red_bucket {
    tutti_dtype dtype;
    bool owned;
    int *ids, n; /* members, in the order of their memory; into reducer->members */
    int ties; /* parameters that are other names of members */
    int last_id; /* smallest id: the member expected last */
    size_t bytes;
    size_t elements; /* of the concatenation, with the gaps between members */
    size_t shard; /* of these, each rank's: rank r has r * shard ... (TUTTI_SHARD_OPTIMIZER) */
    size_t state; /* where its shard's optimizer state begins */
    tt_red_run *runs; /* into reducer->runs */
    int nruns;
    tt_red_run *param_runs; /* of parameters, to be gathered; into reducer->param_runs */
    int nparam_runs;
    tt_event *gathered;
    _Atomic int pending; /* members not yet ready in this micro-step */
    _Atomic bool complete;
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

typedef struct tt_red_micros tt_red_micros; /* micros.c */

struct tutti_reducer {
    tutti_ctx *ctx;
    tutti_comm *comm; /* a duplicate of the caller's: an order of calls of its own */
    char *name;
    uint32_t flags;
    tutti_dtype wire; /* 0: as they are */
    size_t bucket_bytes, first_bucket_bytes;
    int rank, ranks; /* of comm */
    tutti_comm *norm_comm; /* a duplicate, or NULL */
    tutti_bucket_hook hook;
    void *hook_arg;
    const tt_math_ops *math; /* NULL: the backend has none */
    tutti_stream stream; /* collectives run here */
    pthread_mutex_t lock;
    tt_live live;

    /* the plan, constant from commit on */
    tt_red_param *params;
    size_t nparams, params_cap;
    bool committed;
    tt_red_bucket *buckets;
    int nbuckets;
    int *members;
    tt_red_run *runs, *param_runs;
    size_t *counts; /* room for one per rank */
    char *arena;
    size_t arena_bytes, step_bytes, run_bytes;
    tutti_piece *pieces;
    size_t npieces, shard_count, padding;
    int64_t *sums; /* exact sums on the device: the norm's, then those of means */
    char *staging; /* of a bucket in the wire type */
    size_t staging_bytes;
    char
        *shadow; /* checked mode: gradients are reduced here, their own place holds NaN meanwhile */
    uint8_t *used, *used_by_all; /* per parameter: here, and by rank; FIND_UNUSED */
    char *partial[TT_RED_LEVELS_MAX]; /* sums over 1, 2, 4 ... micro-steps */
    double param_exposed_s;

    /* the order of issue */
    int *order; /* bucket to be issued k-th */
    bool learnt;
    int *completed; /* buckets as they completed in this step */
    _Atomic int ncompleted;
    _Atomic int told; /* completed buckets that whoever issues now has not looked at */

    /* the step in progress */
    bool in_step;
    int micro, micros;
    uint64_t stamp; /* micro-steps begun since commit */
    _Atomic size_t remaining; /* parameters not yet ready in this micro-step */
    int next; /* position of the bucket to be issued next */
    int64_t begin_ns; /* begin of the last micro-step */
    int present; /* ranks that have not joined; all but with UNEVEN */
    bool dropping; /* this rank gives what nobody looks at, or zeros: abandon, join */
    bool zero_pending; /* gradients are being zeroed on a stream that the next issue must follow */
    tt_event *zeroed, *done, *folded, *updated;
    uint64_t capture; /* the step is captured into this graph; 0: it is not */
    uint64_t done_in, gathered_in; /* the captures that `done` and `gathered` were recorded in */
    int nmeans; /* scalars of tutti_reducer_mean in this micro-step */
    float *means; /* where they go */
    bool mean_given;
    tt_red_scalar scalar[TT_RED_SCALARS_MAX];
    int nscalars, scalar_floats;
    tt_red_sources scalar_sources;
    float *scratch; /* TT_RED_SCALARS_MAX, memory of the device */

    int64_t steps; /* finished since commit */
    tt_red_times times[2];
    tt_red_figures figures; /* of the newest step that had passed when its times were reused */
    tt_red_figures *fresh; /* room to compute in */

    tt_red_micros *micros_told; /* NULL: not compared */

    uint64_t *hashes; /* of parameters, and one per rank */
    uint64_t *rank_hashes;
};

static inline bool tt_red_inline(tutti_stream stream)
{
    return stream.kind == TUTTI_STREAM_INLINE;
}

static inline tutti_status tt_red_check_stream(const tutti_reducer *red, tutti_stream stream,
                                               const char *call)
{
    tutti_status status = red->ctx->dev_ops->stream_check(red->ctx->dev, stream);
    return status == TUTTI_OK ? TUTTI_OK
                              : tt_fail_more(status, "reducer \"%s\": %s", red->name, call);
}

static inline tt_red_times *tt_red_times_now(tutti_reducer *red)
{
    return &red->times[(red->steps + 1) % 2];
}

static inline bool tt_red_sharded(const tutti_reducer *red)
{
    return (red->flags & TUTTI_SHARD_OPTIMIZER) != 0;
}

/* Micro-steps are added up here, not by the backward passes. */
static inline bool tt_red_folds(const tutti_reducer *red)
{
    return (red->flags & TUTTI_REDUCER_REPRODUCIBLE) != 0 && red->micros > 1;
}

static inline bool tt_red_last_micro(const tutti_reducer *red)
{
    return red->micro == red->micros - 1;
}

/* plan.c: from params, caps and `follows` (see there) to buckets, members and layout. */
tutti_status tt_red_plan_buckets(tutti_reducer *red);
/* `follows` has a byte per parameter: TT_RED_GRAD_FOLLOWS, TT_RED_PARAM_FOLLOWS. */
enum { TT_RED_GRAD_FOLLOWS = 1, TT_RED_PARAM_FOLLOWS = 2 };
void tt_red_plan_runs(tutti_reducer *red, const uint8_t *follows);
void tt_red_plan_follows(const tutti_reducer *red, uint8_t *follows_out);
/* All that commit made; collective where it made memory. */
void tt_red_plan_free(tutti_reducer *red);
void tt_red_memory_free(tutti_reducer *red, char **memory); /* of tutti_alloc; NULL: none */

/* shard.c */
void tt_red_shard_plan(tutti_reducer *red); /* after the buckets: their parts, and state */
tutti_status tt_red_pieces_create(tutti_reducer *red); /* after the runs */
/* Elements of each rank's part within a run, into red->counts; false: they are equal. */
bool tt_red_run_counts(const tutti_reducer *red, const tt_red_bucket *bucket,
                       const tt_red_run *run);

/* issue.c; the lock is held. */
tutti_status tt_red_issue(tutti_reducer *red, bool fill_nan); /* the next bucket, ready or not */
tutti_status tt_red_move_back(tutti_reducer *red); /* checked mode: averages to their place */

/* ready.c: with FIND_UNUSED, what this micro-step has not made ready is absent. Without the lock.
 */
tutti_status tt_red_rest_is_absent(tutti_reducer *red, tutti_stream stream);

/* begin.c, wait.c: a step's ends; the lock is held. */
tutti_status tt_red_begin_step(tutti_reducer *red, int micros, tutti_stream stream);
void tt_red_begin_micro(tutti_reducer *red, int micro);
tutti_status tt_red_end_step(tutti_reducer *red, tutti_stream stream);

/* join.c; collective: this rank begins a step of *micros_inout micro-steps, or has joined (0) and
 * gets what the others do; sets `present`. */
tutti_status tt_red_meet(tutti_reducer *red, int *micros_inout);

/* measure.c; collective: caps of buckets where the program gave none. */
tutti_status tt_red_choose_caps(tutti_reducer *red);

/* sources.c: streams that gradients come from. */
void tt_red_sources_free(tutti_reducer *red, tt_red_sources *sources);
void tt_red_sources_forget(tt_red_sources *sources); /* a new step */
tt_red_source *tt_red_source_find(const tt_red_sources *sources, tutti_stream stream);
/* Makes sure that the stream, checked, has a source; the lock is held. */
tutti_status tt_red_source_add(tutti_reducer *red, tt_red_sources *sources, tutti_stream stream,
                               int expected);
tutti_status tt_red_source_count(tutti_reducer *red, tt_red_source *source); /* one more seen */
/* The communication stream waits for what the sources gave in this micro-step. */
tutti_status tt_red_sources_follow(tutti_reducer *red, tt_red_sources *sources);

/* fold.c: sums over micro-steps, and means of scalars. */
tutti_status tt_red_fold_create(tutti_reducer *red, int micros); /* collective */
void tt_red_fold_free(tutti_reducer *red);
size_t tt_red_partial_bytes(const tutti_reducer *red);
tutti_status tt_red_fold(tutti_reducer *red, const tt_red_bucket *bucket);
tutti_status tt_red_means_launch(tutti_reducer *red); /* in the last bucket's group */
tutti_status tt_red_means_finish(tutti_reducer *red);

/* micros.c: the ranks take equally many micro-steps. On the host that is compared ahead of a step's
 * first bucket; else it is told beside the last one, in its group, kept behind it, and checked when
 * the host next comes by. */
tutti_status tt_red_micros_create(tutti_reducer *red);
tutti_status tt_red_micros_ahead(tutti_reducer *red);
tutti_status tt_red_micros_beside(tutti_reducer *red);
tutti_status tt_red_micros_keep(tutti_reducer *red);
tutti_status tt_red_micros_check(tutti_reducer *red);
void tt_red_micros_free(tutti_reducer *red);

/* scalar.c: STATE if this micro-step lacks the means that earlier ones had. */
tutti_status tt_red_means_check(const tutti_reducer *red);

/* learn.c; collective: brings `mine` and, if all are OK, the order of rank 0 to every rank. */
tutti_status tt_red_agree_step(tutti_reducer *red, tutti_status mine);

/* wait.c: "2 of 12 parameters: "a", "b"": those not made ready in this micro-step. */
const char *tt_red_missing_text(const tutti_reducer *red, char *buf, size_t cap);

/* check.c; collective. */
tutti_status tt_red_compare_params(tutti_reducer *red, const char *what);
/* Appends "1, 2, 5 and 9 more": the world ranks whose entry differs from `common`. */
void tt_red_odd_ranks(const tt_group *group, const uint64_t *value, uint64_t common, char *buf,
                      size_t cap);

/* capture.c */
tutti_status tt_red_capture_begin(tutti_reducer *red, tutti_stream stream); /* of a step */
tutti_status tt_red_capture_same(tutti_reducer *red, tutti_stream stream);
/* Waits for an event unless it belongs to another capture than the stream. */
tutti_status tt_red_wait_if(tutti_reducer *red, tt_event *event, uint64_t recorded_in,
                            tutti_stream stream);

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
