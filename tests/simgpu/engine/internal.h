/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the engine share. Everything here is called with the lock held. */
#ifndef SIMGPU_INTERNAL_H
#define SIMGPU_INTERNAL_H

#include "../engine.h"

#include <pthread.h>

enum { SG_SLOTS = 1024, SG_MAX_DEVICES = 64 };

/* ---- settings (config.c) ---- */

typedef enum sg_schedule { SG_LATE, SG_EAGER, SG_RANDOM } sg_schedule;
typedef enum sg_on_finding { SG_FINDING_EXIT, SG_FINDING_ABORT, SG_FINDING_IGNORE } sg_on_finding;

typedef struct sg_settings {
    sg_schedule schedule;
    uint64_t seed;
    sg_on_finding on_finding;
    long patience_ms;
    bool deadlock; /* SIMGPU_DEADLOCK=0: waits that cannot end are suffered */
    const char *report, *log, *fault, *skip, *machine, *kernels, *mig;
    int host; /* index of this process's host, or of the first */
    int hosts; /* how many hosts threads of this process may be on */
    int rank; /* of an MPI process, for the report; -1 */
} sg_settings;

extern sg_settings sg_set;
void sg_config_read(void);
pthread_mutex_t *sg_mutex(void); /* the lock */

void sg_machine_on_host(sg_gpu *gpu, int host); /* gives it that host's UUID (machine.c) */

/* ---- time ---- */

double sg_now(void);

/* ---- texts with a count of users (report.c) ---- */

typedef struct sg_text {
    int refs;
    char s[];
} sg_text;
sg_text *sg_text_new(const char *s);
sg_text *sg_text_keep(sg_text *text);
void sg_text_drop(sg_text *text); /* takes NULL */
void sg_report_open(void);
void sg_report_last(int status); /* the checks at the end of the process */
void *sg_must(void *ptr); /* ends the process if ptr is NULL: out of memory */

/* ---- calls (fault.c) ---- */

void sg_fault_read(void);
bool sg_fault_seen(void); /* a hang or a loss was injected: waits may be without end */

/* ---- vector clocks (clock.c) ---- */

typedef struct sg_clock { /* never changed once made */
    int refs;
    unsigned n;
    uint32_t at[];
} sg_clock;
unsigned sg_slot_take(void);
void sg_slot_give(unsigned slot); /* given out again once the host has seen all of it */
unsigned sg_slots(void); /* how many are in use or were */
uint32_t sg_slot_next(unsigned slot); /* the epoch of the next operation */
sg_clock *sg_clock_copy(const uint32_t *at);
sg_clock *sg_clock_keep(sg_clock *clock);
void sg_clock_drop(sg_clock *clock);
void sg_clock_join(uint32_t *into, const sg_clock *from); /* from may be NULL */
sg_clock *sg_host_clock(void); /* what the host has seen; a reference */
void sg_host_sees(const sg_clock *clock);
void sg_host_sees_raw(const uint32_t *at);
bool sg_host_saw(unsigned slot, uint32_t epoch);

/* ---- memory (memory.c, guard.c) ---- */

typedef struct sg_access {
    size_t lo, hi;
    unsigned slot;
    uint32_t epoch;
    bool write;
    sg_text *label;
    const void *site;
} sg_access;

typedef struct sg_alloc {
    char *base;
    size_t bytes, span; /* span: with the poisoned gap, whole pages */
    sg_memory_kind kind;
    int device;
    uint64_t id;
    bool freed, windowable;
    char origin[64], freed_by[64];
    sg_access *accesses;
    size_t n_accesses, cap_accesses;
} sg_alloc;

void sg_memory_start(void);
sg_alloc *sg_alloc_at(const void *ptr); /* also freed ones and the gap behind */
void sg_memory_leaks(void);
bool sg_memory_window(const void *ptr, bool *pinned_out);
/* Opens and closes an operation's ranges at their published addresses. */
void sg_memory_open(const sg_range *ranges, size_t n);
void sg_memory_close(const sg_range *ranges, size_t n);
void sg_guard_start(void);
void sg_guard_running(
    const char *label); /* the operation that a fault is the doing of; NULL none */
/* The allocation of a fault address without locks: for the handler only. */
const sg_alloc *sg_alloc_peek(const void *ptr);

/* ---- pinned memory and the host (pinned.c) ---- */

void sg_pinned_watch(sg_op *op);
void sg_pinned_apply(void);
void sg_pinned_refresh(void); /* the host has seen more */
bool sg_pinned_fault(void *address, bool write, char *why, size_t cap); /* from the handler */

/* ---- operations and streams ---- */

enum { SG_STREAM_MAGIC = 0x5347534d };

struct sg_mark {
    int refs;
    bool done;
    sg_stream *stream;
    sg_clock *clock; /* once done */
    double when;
    uint64_t capture; /* of a captured mark */
    int *nodes;
    size_t n_nodes;
};

struct sg_op {
    sg_stream *stream;
    sg_op *next;
    sg_text *label;
    const void *site;
    sg_range *ranges;
    size_t n_ranges;
    sg_step (*run)(void *arg, sg_op *op);
    void *arg;
    void (*release)(void *arg);
    void (*explain)(void *arg, char *buf, size_t cap);
    unsigned flags;
    sg_clock *seen; /* by the host when it enqueued */
    sg_mark **deps;
    size_t n_deps;
    sg_mark *mark; /* passes when this operation completes */
    bool started, running, blocked;
    uint32_t epoch;
};

typedef struct sg_capture sg_capture;

struct sg_stream {
    uint32_t magic;
    bool alive, internal;
    int device, priority;
    unsigned flags;
    bool legacy;
    uint64_t id;
    char name[48];
    unsigned slot;
    uint32_t epoch; /* of the last operation started */
    uint32_t data_epoch; /* of the last that was no mark or wait */
    uint32_t *clock; /* of what has completed or started here */
    sg_op *head, *tail;
    size_t queued, queued_data;
    bool visiting;
    sg_mark *tail_mark; /* cached mark of the end of the queue */
    sg_capture *capture;
    int *cap_nodes; /* what the next captured operation depends on */
    size_t n_cap_nodes;
    int branch; /* within the capture */
    int not_ready; /* queries to be answered "not ready" still; -1: not drawn */
    sg_stream *next; /* stays as it was when the stream leaves the list: who walks it goes on */
    sg_stream *next_dead;
};

extern sg_stream *sg_streams; /* that are alive, or destroyed with work in their queue */
sg_stream *sg_stream_make(int ordinal, unsigned flags, int priority, bool internal);
sg_stream *sg_stream_legacy(int ordinal);
sg_op *sg_op_new(sg_stream *stream, const char *label);
void sg_op_free(sg_op *op);
sg_mark *sg_op_mark(sg_op *op); /* passes when it completes; a reference */
void sg_op_append(sg_op *op); /* puts it in the queue and lets the schedule act */
int sg_op_queue(sg_stream *stream, const sg_op_desc *desc, sg_mark *const *deps, size_t n_deps);
void sg_stream_drop_queue(sg_stream *stream);
void sg_stream_finish(sg_stream *stream); /* destroyed and empty: its slot goes back */
const uint32_t *sg_stream_gone(int ordinal); /* the clock of all finished streams of a device */
void sg_streams_left(void); /* at the end: streams, pending work */

/* ---- running (schedule.c, wait.c) ---- */

extern uint64_t sg_stamp; /* counts every change of state */
bool sg_step_stream(sg_stream *stream); /* one operation; false: none could run */
bool sg_advance(sg_stream *stream, sg_mark *until); /* what is needed; false: no progress */
bool sg_run_any(void); /* one operation of any stream */
void sg_schedule_enqueued(sg_stream *stream);
void sg_schedule_called(void);
bool sg_remote_blocked(void);
bool sg_unlocked_running(void);
void sg_ticker_start(void);
void sg_thread_called(const char *name); /* this thread made a call */
bool sg_in_host_function(void);
const char *sg_op_blocked_text(const sg_op *op, char *buf, size_t cap);

/* ---- threads and deadlock (wait.c, deadlock.c) ---- */

/* A thread that has called the engine. */
typedef struct sg_thread_entry {
    int tid;
    const char *call; /* the wait it is in; NULL: none */
    char what[160]; /* what it waits for */
    bool bounded; /* the wait has a deadline */
    uint64_t seen_stamp; /* the state of the engine it last found no progress in */
    unsigned fruitless; /* queries in a row that found nothing */
    bool host_function;
    long switches; /* of contexts, when a waiter last looked at it; and since when it sleeps */
    double looked, asleep_since;
    struct sg_thread_entry *next;
} sg_thread_entry;

extern sg_thread_entry *sg_threads;
extern double sg_last_change; /* of the state of the engine */
extern int sg_ticker_tid;
sg_thread_entry *sg_me(void);
/* This thread has found that nothing can run: reports a deadlock if nothing ever will. */
void sg_consider_deadlock(bool remote);

/* ---- races (race.c) ---- */

void sg_race_check(sg_op *op); /* also bounds, freed memory and foreign devices */
bool sg_alloc_unseen(const sg_alloc *alloc, char *who, size_t cap); /* work the host has not seen */

/* ---- capture (capture.c) ---- */

int sg_capture_add(sg_stream *stream, const sg_op_desc *desc);
void sg_capture_mark(sg_stream *stream, sg_mark *mark);
int sg_capture_wait(sg_stream *stream, sg_mark *mark, const char *label);

/* A captured operation. Dependencies are indices of earlier nodes, so the order of the nodes is one
 * in which they may run. */
typedef struct sg_node {
    int kind;
    sg_op_desc desc; /* owns label and ranges */
    void (*launch)(void *arg, sg_stream *stream); /* instead of an operation: event nodes */
    int branch;
    int device;
    int *deps;
    size_t n_deps;
} sg_node;

struct sg_graph {
    int refs;
    sg_node *nodes;
    size_t n, cap;
    int branches;
    int branch_device[64];
};
sg_graph *sg_graph_new(void);
sg_graph *sg_graph_keep(sg_graph *graph);

/* ---- kernels ---- */

void sg_fiber_block(void (*body)(void *const *args), void *const *args, unsigned threads,
                    void (*enter)(unsigned index), const char *name);

#endif
