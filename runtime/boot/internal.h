/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of boot only: the steps of tt_context_create and what they share. */
#ifndef TT_BOOT_INTERNAL_H
#define TT_BOOT_INTERNAL_H

#include "boot/circle.h"
#include "boot/context.h"

/* environment.c: rank 0's TUTTI_* and NCCL_* variables to the ranks that lack them, then the parity
 * check. Collective; the same status on all ranks. */
tutti_status tt_env_share(tutti_ctx *ctx);
tutti_status tt_parity_check(tutti_ctx *ctx);

/* One rank's settings, for the comparison: `names` and `values` of n variables. */
typedef struct tt_settings {
    size_t n;
    const char **names, **values;
} tt_settings;
/* The pure part of the parity check: MISMATCH when ranks differ in the version (the variable "")
 * or in a row that must agree; other differences go to `finding`, one line each. */
typedef void (*tt_finding_fn)(void *arg, bool of_tutti, const char *line);
tutti_status tt_parity_compare(const tt_settings *ranks, int n, tt_finding_fn finding, void *arg);

/* place.c: fills ctx->place, node_count, local_size and the patience of waits. Collective. */
tutti_status tt_places_find(tutti_ctx *ctx);

/* device_pick.c: opens this rank's device and refuses two ranks on one. Collective. */
tutti_status tt_device_pick(tutti_ctx *ctx, tutti_backend wanted);
/* The pure part: ids[i] == "" never collides; 0 or the later of the first two equal ones. */
int tt_duplicate_find(const char *const *ids, int n, int *first_out);

/* abort.c: while a context over MPI lives, exit() is an abort. */
tutti_status tt_exit_watch(tutti_ctx *ctx);
void tt_exit_unwatch(tutti_ctx *ctx);

/* context.c: the first failure wins; true when this is it. Tells nobody: tt_ctx_fail does. */
bool tt_ctx_mark_failed(tutti_ctx *ctx, tutti_status status);

/* progress.c */
tutti_status tt_progress_create(tutti_ctx *ctx);
/* Ends an agreement that is under way and tells a failure that is still untold, both bounded; takes
 * a context that has none. */
void tt_progress_destroy(tutti_ctx *ctx);
void tt_progress_failed(tutti_ctx *ctx); /* the context has failed: the others are to know */
void tt_progress_flush(tutti_ctx *ctx, double seconds); /* until they have been told */
void tt_progress_kick(tutti_ctx *ctx); /* there is something to do */
/* Asks all ranks where they were last seen and waits for answers, at most about a second. Text to
 * append to a time-out: "; rank 5 (node-b, local rank 1) was in ...", "" when all are where this
 * one is. */
void tt_progress_ask(tutti_ctx *ctx, char *buf, size_t cap);

/* circle.c. A probe's way began at the stay `serial` of rank `from`; `spot` is what whoever gets it
 * has to come to. */
typedef struct tt_probe {
    int32_t from, lowest; /* lowest rank on its way */
    uint64_t serial, look;
    uint32_t hops;
    tt_spot spot;
} tt_probe;
tutti_status tt_circles_create(tutti_ctx *ctx);
void tt_circles_destroy(tutti_ctx *ctx);
void tt_circles_pass(tutti_ctx *ctx); /* in a pass of the progress part, as is take */
void tt_circle_take(tutti_ctx *ctx, const tt_probe *probe, const char *text);
void tt_progress_probe(tutti_ctx *ctx, int to, const tt_probe *probe, const char *text);

/* step.c: the agreement of tutti_step. One exchange at a time, begun by the caller, advanced by
 * tt_step_advance under the progress lock. */
typedef struct tt_step {
    tt_group group; /* the world with rounds of its own */
    tt_xchg *xchg; /* under the progress lock */
    _Atomic uint32_t running; /* futex word: an exchange is under way */
    uint32_t todo; /* of the last one that ended: TUTTI_DO_... */
    bool begun; /* one was begun at the call before */
    _Atomic bool stop; /* this rank was asked to */
    _Atomic bool save; /* this rank wants a save, once */
    uint32_t signals_before;
    bool has_signals;
} tt_step;
void tt_step_create(tutti_ctx *ctx, tt_step *step);
void tt_step_destroy(tt_step *step);
void tt_step_advance(tutti_ctx *ctx, tt_step *step);

typedef struct tt_notice tt_notice;
typedef struct tt_answer {
    bool got;
    char text[160];
} tt_answer;
struct tt_progress {
    pthread_mutex_t lock; /* of what a pass touches */
    pthread_t thread, owner; /* owner: who made the context, and polls where there is no thread */
    bool threaded;
    _Atomic uint32_t kick; /* futex word of the thread where the bootstrap has no bell */
    _Atomic bool quit;
    _Atomic bool untold; /* a failure that the others do not know */
    _Atomic int64_t quiet_ns; /* an announcement to be sent */
    tt_notice *in; /* being received */
    tt_req in_req;
    tt_notice *out; /* being sent */
    _Atomic bool sending;
    tt_last_seen_fn last_seen; /* under lock, as is what follows */
    tt_watch_fn watch;
    int64_t answers_until_ns; /* of a question asked by a watch */
    tt_answer *answers; /* of every rank, once they were asked */
    _Atomic bool asking; /* the question is to be sent */
    _Atomic int answered;
    tt_step step;
};

#endif
