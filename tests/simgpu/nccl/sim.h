/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the NCCL stand-in share. All state is guarded by the engine's lock; functions
 * here are called with it held unless they say otherwise.
 *
 * A clique is a set of ranks that share a communicator; each process has its own view of it, over a
 * control block that all map (clique.c). A communicator is one rank's handle on it. Tasks
 * (collectives, sends, receives) that one group brings onto one communicator make a plan, which is
 * one operation of the engine: what NCCL launches as one kernel.
 */
#ifndef SIMGPU_NCCL_SIM_H
#define SIMGPU_NCCL_SIM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include <nccl.h>
#pragma GCC visibility pop

#include "../engine.h"

enum {
    SN_RANKS = 64, /* most ranks of a communicator */
    SN_STAMPS = 128, /* how far the ranks' numbers of calls are compared apart */
    SN_WINDOW = 4, /* rounds and messages whose data lies in shared memory at a time */
    SN_OTHERS = 8, /* other communicators whose order is compared */
    SN_ROUNDS = 256 /* lists of rounds that have not ended, by number */
};

/* nccl.h declares these without saying that they take nothing. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
void ncclResetDebugInit(void);

#define SN_ALIAS(name) extern __typeof__(name) p##name __attribute__((alias(#name)))

/* ---- what is called ---- */

typedef enum sn_kind {
    SN_ALL_REDUCE,
    SN_REDUCE,
    SN_BROADCAST,
    SN_REDUCE_SCATTER,
    SN_ALL_GATHER,
    SN_ALL_TO_ALL,
    SN_GATHER,
    SN_SCATTER,
    SN_SEND,
    SN_RECV
} sn_kind;

static inline bool sn_is_p2p(sn_kind kind)
{
    return kind == SN_SEND || kind == SN_RECV;
}
const char *sn_kind_name(sn_kind kind); /* "ncclAllReduce" */
const char *sn_type_name(ncclDataType_t type);
size_t sn_type_size(ncclDataType_t type); /* 0: no such type */

typedef struct sn_task {
    sn_kind kind;
    const void *in;
    void *out;
    size_t count;
    ncclDataType_t type;
    ncclRedOp_t op; /* ncclNumOps stands for every pre-multiplied sum */
    int peer; /* or root; -1 */
    bool scalar_on_device;
    unsigned char scalar[8];
    const void *scalar_ptr;
    ncclComm_t comm;
    sg_stream *stream;
    const void *site;
    uint64_t seq; /* given when it is launched */
    struct sn_round *round; /* local.c */
    bool published, done;
} sn_task;

size_t sn_sends(const sn_task *task); /* bytes that this rank gives, 0 if it gives none */
size_t sn_receives(const sn_task *task);

/* What must agree between ranks. */
typedef struct sn_stamp {
    uint8_t kind, type, op, captured;
    int32_t root;
    uint64_t count;
    uint32_t group_at, group_n; /* place within the collectives of the group */
    uint32_t n_others;
    struct {
        uint64_t token, issued;
    } others[SN_OTHERS]; /* collectives issued before this on the other communicators */
} sn_stamp;

/* ---- cliques ---- */

typedef struct sn_member {
    _Atomic uint32_t present; /* 0 no, 1 being filled in, 2 yes */
    int32_t pid, host;
    _Atomic int32_t data_fd; /* -1 until there is data */
    unsigned char uuid[16];
    _Atomic uint32_t gone; /* aborted or revoked */
    _Atomic int32_t failed; /* an injected error: the others see ncclRemoteError */
    _Atomic uint64_t issued, started, read; /* collectives */
} sn_member;

enum { SN_XCHG_BYTES = 112, SN_XCHGS = 8 };
typedef struct sn_xrec {
    _Atomic uint64_t seq; /* of the last exchange posted here, from 1 */
    uint32_t kind;
    unsigned char data[SN_XCHG_BYTES];
} sn_xrec;

typedef struct sn_data {
    uint64_t offset, bytes;
} sn_data;

typedef struct sn_message {
    uint64_t count;
    int32_t type;
    sn_data data;
} sn_message;

/* Mapped by all ranks of the clique; pages never touched cost nothing. */
typedef struct sn_control {
    _Atomic uint32_t size; /* ranks */
    sn_member member[SN_RANKS];
    sn_xrec xchg[SN_RANKS][SN_XCHGS], shrink[SN_RANKS][SN_XCHGS];
    sn_data data[SN_RANKS][SN_WINDOW];
    _Atomic uint64_t sent[SN_RANKS][SN_RANKS], received[SN_RANKS][SN_RANKS]; /* [from][to] */
    sn_message message[SN_RANKS][SN_RANKS][SN_WINDOW];
    sn_stamp stamp[SN_RANKS][SN_STAMPS];
} sn_control;

/* The place of a control block: in a unique id, and in a split's exchange. */
typedef struct sn_token {
    char magic[8];
    uint64_t token; /* unlike any other */
    uint64_t number; /* the same in every run: seeds the order of sums */
    int32_t pid, fd;
} sn_token;

typedef struct sn_clique {
    struct sn_clique *next;
    sn_token where;
    int size, id; /* id: its number in this process, for findings */
    bool complete, local; /* local: every rank is in this process */
    sn_control *ctl;
    ncclComm_t member[SN_RANKS]; /* those of this process */
    struct sn_round *rounds[SN_ROUNDS];
    char *data[SN_RANKS]; /* the peers' data, mapped */
    int refs;
} sn_clique;

bool sn_token_make(uint64_t number, sn_token *out);
void sn_token_drop(const sn_token *token); /* a candidate that was not taken */
/* Joins as `rank`; more than one call for one rank is a finding. */
ncclResult_t sn_clique_join(const sn_token *where, int size, int rank, ncclComm_t comm,
                            sn_clique **out);
bool sn_clique_poll(sn_clique *clique); /* all there? */
void sn_clique_leave(sn_clique *clique, int rank);
char *sn_clique_data(sn_clique *clique, int rank); /* NULL: not to be had */
enum { SN_DATA_BYTES = 1 << 30 };

enum { SN_XCHG_SPLIT = 1, SN_XCHG_WINDOW = 2 };
/* One small record of each rank to all. Returns its number. At most half the slots may be under way
 * at a time (several splits of one group). */
uint64_t sn_xchg_post(ncclComm_t comm, uint32_t kind, const void *data, size_t bytes);
bool sn_xchg_done(ncclComm_t comm, uint64_t seq);
const void *sn_xchg_get(ncclComm_t comm, uint64_t seq, int rank);

/* ---- communicators ---- */

typedef enum sn_state {
    SN_STARTING,
    SN_READY,
    SN_FINALIZED,
    SN_REVOKED,
    SN_DESTROYED,
    SN_ABORTED
} sn_state;

typedef struct sn_registration {
    struct sn_registration *next;
    ncclComm_t comm;
    char *ptr;
    size_t bytes;
    bool window;
} sn_registration;

typedef struct sn_premul {
    struct sn_premul *next;
    int index;
    ncclDataType_t type;
    bool on_device;
    unsigned char scalar[8];
    const void *ptr;
} sn_premul;

struct ncclComm {
    uint64_t magic;
    ncclComm_t next;
    int id;
    char name[48]; /* "comm 3 (dp) rank 1": for findings */
    sn_state state;
    sn_clique *clique;
    ncclComm_t root; /* made by an init; itself or what it was split from */
    int rank, size, device;
    bool blocking;
    ncclConfig_t config;
    char comm_name[32];
    ncclResult_t async;
    char error[256];
    uint64_t issued, sent[SN_RANKS], received[SN_RANKS];
    uint64_t exchanges, shrinks;
    size_t plans, captured; /* not yet released; recorded in graphs */
    struct sn_job *job; /* what is in progress (non-blocking) */
    sn_registration *registrations;
    sn_premul *premuls;
    int next_premul;
    uint64_t data_head; /* of this rank's shared data */
};

extern ncclComm_t sn_comms; /* all ever made */
ncclComm_t sn_comm_new(int size, int rank, const ncclConfig_t *config, ncclComm_t parent);
void sn_comm_rename(ncclComm_t comm);
/* The start of each call on a communicator: NULL, with a finding, if it is not to be used. */
ncclResult_t sn_comm_check(ncclComm_t comm, const char *call);
ncclResult_t sn_error(ncclComm_t comm, ncclResult_t result, const char *fmt, ...) SG_PRINTF(3, 4);
/* ncclSuccess: go on; else *out is what the call returns. Takes no lock. */
bool sn_stop(sg_verdict verdict, const int *error, const char *call, ncclComm_t comm,
             ncclResult_t *out);
ncclResult_t sn_config_read(const ncclConfig_t *given, const ncclConfig_t *inherit,
                            ncclConfig_t *out);
int sn_version(void);
/* Refuses a call that the version played does not have. */
bool sn_since(int version, const char *call, ncclResult_t *out);
uint64_t sn_mix(uint64_t a, uint64_t b);
uint64_t sn_seed(void);

/* ---- jobs: calls that wait for other ranks ---- */

typedef struct sn_job {
    struct sn_job *next;
    const char *call;
    ncclComm_t comm; /* whose state tells how far it is; of a split: the parent */
    ncclComm_t made; /* the new communicator, or NULL */
    /* Asked until it says true; the result lies in `result` then. */
    bool (*poll)(struct sn_job *job);
    void (*explain)(struct sn_job *job, char *buf, size_t cap);
    ncclResult_t result;
    uint64_t seq; /* of its exchange */
    int delay;
    int exclude[SN_RANKS], n_exclude;
    sn_token where;
    struct sn_plan *plans; /* put off: what a group launches, in order */
    ncclComm_t *comms; /* theirs */
    size_t n_comms;
    void *ptr; /* window */
    size_t bytes;
    ncclWindow_t *win;
    int flags;
} sn_job;

ncclResult_t sn_jobs_run(sn_job *jobs); /* a list; without the lock */
sn_job *sn_job_new(const char *call, ncclComm_t comm);
/* Starts it, or keeps it for the end of the group. */
ncclResult_t sn_job_submit(sn_job *job);
bool sn_job_poll(sn_job *job); /* with the delays; true: over, and freed */

/* ---- groups and plans ---- */

typedef struct sn_plan {
    struct sn_plan *next,
        **prev; /* of its group; then, both ways, of those launched and not over */
    ncclComm_t comm;
    size_t n;
    sn_task *tasks;
    sg_op *op; /* while it runs */
    bool started, doomed, captured, launched;
} sn_plan;

ncclResult_t sn_submit(const sn_task *task); /* one call; without the lock */
int sn_group_depth(void);
ncclResult_t sn_group_job(sn_job *job); /* into the open group */
bool sn_group_open(bool tell); /* is any; told as findings */
/* The tasks of one group and communicator. */
sn_plan *sn_plan_make(ncclComm_t comm, const sn_task *tasks, size_t n);
ncclResult_t sn_plan_enqueue(sn_plan *plan); /* takes it */
void sn_plan_drop(sn_plan *plans); /* a list, never enqueued */

/* ---- data ---- */

/* One task: true when it has ended. */
bool sn_local_try(sn_task *task, sg_op *op);
void sn_local_issue(sn_task *task, const sn_stamp *stamp);
void sn_local_release(sn_task *task);
void sn_local_explain(const sn_task *task, char *buf, size_t cap);
bool sn_remote_try(sn_task *task);
void sn_remote_issue(sn_task *task, const sn_stamp *stamp);
void sn_remote_explain(const sn_task *task, char *buf, size_t cap);

/* What rank `rank` receives, computed from what all gave. in[i] may be NULL where rank i gives
 * nothing. `scratch` is not kept. */
void sn_compute(const sn_task *task, int rank, const void *const *in, void *out);
/* The input, pre-multiplied where the op says so, as it travels. */
void sn_prepare(const sn_task *task, void *out);
void sn_order(const sn_task *task, uint64_t slice, int *order);

/* ---- rules ---- */

ncclResult_t sn_task_check(const sn_task *task);
void sn_plan_check(const sn_task *tasks, size_t n);
void sn_stamp_make(const sn_task *task, uint32_t at, uint32_t n, bool captured, sn_stamp *out);
/* True if the ranks may go on together; a finding else. */
bool sn_stamp_compare(const sn_clique *clique, uint64_t seq, int rank_a, const sn_stamp *a,
                      int rank_b, const sn_stamp *b);
void sn_registrations_at_destroy(ncclComm_t comm);
bool sn_plans_touch(const sn_registration *reg);

#endif
