/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rank 0 prints, and where the time goes.
 */
#ifndef GPT_REPORT_H
#define GPT_REPORT_H

#include <stdbool.h>
#include <stdint.h>

typedef enum phase {
    PHASE_FORWARD,
    PHASE_BACKWARD,
    PHASE_STAGES, /* waiting for the stages before and behind */
    PHASE_EXPOSED, /* communication that no computation hid */
    PHASE_OPTIMIZER,
    PHASE_CHECKPOINT, /* while a checkpoint held up training */
    PHASE_OTHER,
    PHASE_COUNT
} phase;

typedef struct report {
    bool speaks, terminal; /* rank 0; stdout is a terminal */
    bool line_open; /* an unfinished progress line is on the terminal */
    int64_t first_step, steps, tokens_per_step;
    double lap, drawn; /* when the last lap ended; when the line was last drawn */
    double seconds[PHASE_COUNT]; /* of the steps so far */
} report;

void report_start(report *p, bool speaks, int64_t first_step, int64_t steps, int64_t tokens);
/* Books the time since the last lap to a phase, and `moved` of it to another. */
void report_lap(report *p, phase to);
void report_lap_split(report *p, phase to, phase other, double moved);
/* Forgets the time since the last lap (evaluation). */
void report_skip(report *p);

/* Step `step` (from 1) had this loss: a progress line that is redrawn, short enough
 * for 80 columns, or where stdout is no terminal a plain line. */
void report_step(report *p, int64_t step, double loss);
/* A line that stays, below or above the progress line; rank 0 only. */
void report_say(report *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The table of phases; nothing before the first step. */
void report_table(report *p, int64_t steps_done);

#endif
