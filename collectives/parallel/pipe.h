/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of a pipeline. */
#ifndef TT_PARALLEL_PIPE_H
#define TT_PARALLEL_PIPE_H

#include "boot/live.h"
#include "comm/comm.h"
#include "parallel/schedule.h"

enum { TT_PIPE_NONE = -1, TT_PIPE_EVENTS = 16 };

typedef struct tt_datum { /* what moves or is kept */
    int first, last; /* units */
    int buffer;
} tt_datum;

typedef struct tt_unit {
    size_t first, count; /* steps */
    bool group;
    int wait; /* a pass: the unit of the last group to wait for, or TT_PIPE_NONE */
    int cache;
} tt_unit;

struct tutti_pipe {
    tutti_ctx *ctx;
    tutti_comm *comm;
    tt_schedule s;
    int stage;
    size_t bytes;
    tutti_pipe_step *steps;
    size_t step_count;
    tt_unit *units;
    size_t unit_count;
    tt_datum *in, *d_out; /* [chunks][micros]: what a part reads; what comes back to it */
    tt_datum *out, *d_in; /* what it makes for another stage */
    int in_flight, buffers;
    char *memory;
    tutti_stream transfers;
    tt_event *moved[TT_PIPE_EVENTS]; /* of the groups, in turn */
    tt_event *computed, *ended;
    tt_live live;
};

/* Works out everything that one rank can know alone: units, lives, buffers, caches, waits. */
tutti_status tt_pipe_lay_out(tutti_pipe *pipe);

static inline size_t tt_pipe_at(const tutti_pipe *pipe, int chunk, int micro)
{
    return (size_t)chunk * (size_t)pipe->s.micros + (size_t)micro;
}

/* The datum that a transfer reads from or writes to, seen from its own rank. */
tt_datum *tt_pipe_moved(tutti_pipe *pipe, const tutti_pipe_step *step);

/* The chunk of this rank that comes before (backward: behind) `chunk`, TT_PIPE_NONE if another
 * rank's. */
int tt_pipe_own_source(const tutti_pipe *pipe, bool backward, int chunk);

#endif
