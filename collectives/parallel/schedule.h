/* SPDX-License-Identifier: Apache-2.0 */
/* A whole pipeline's schedule: the passes of every stage and the slots they are done in. */
#ifndef TT_PARALLEL_SCHEDULE_H
#define TT_PARALLEL_SCHEDULE_H

#include "core/status.h"
#include "tutti/pipeline.h"

typedef struct tt_pass {
    int micro, chunk;
    bool backward;
    int slot;
} tt_pass;

typedef struct tt_schedule {
    int stages, micros, chunks;
    bool overlap;
    size_t passes; /* of each stage: 2 * micros * chunks */
    tt_pass *pass; /* [stages][passes] in order */
    int *slot; /* [2][stages][chunks][micros]: of the forward, of the backward pass */
} tt_schedule;

tutti_status tt_pipe_shape_check(const tutti_pipe_shape *shape);
tutti_status tt_schedule_create(const tutti_pipe_shape *shape, tt_schedule *out);
void tt_schedule_free(tt_schedule *s);

static inline size_t tt_schedule_at(const tt_schedule *s, bool backward, int stage, int chunk,
                                    int micro)
{
    return (((size_t)backward * (size_t)s->stages + (size_t)stage) * (size_t)s->chunks +
            (size_t)chunk) *
               (size_t)s->micros +
           (size_t)micro;
}

/* -1 while it has none. */
static inline int tt_schedule_slot(const tt_schedule *s, bool backward, int stage, int chunk,
                                   int micro)
{
    return s->slot[tt_schedule_at(s, backward, stage, chunk, micro)];
}

/*
 * The part of the model before (backward: behind) part (stage, chunk): parts are numbered chunk *
 * stages + stage. False: there is none.
 */
bool tt_pipe_source(const tt_schedule *s, bool backward, int stage, int chunk, int *stage_out,
                    int *chunk_out);

/* The steps of a stage, to be freed. */
tutti_status tt_schedule_steps(const tt_schedule *s, int stage, tutti_pipe_step **steps_out,
                               size_t *count_out);

#endif
