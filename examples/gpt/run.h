/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the trainer share: the run, its exit statuses and its way of failing.
 *
 * A function returns 0 or an exit status and has said why before it returns one. What may go wrong
 * on one rank alone (a file that cannot be read there, memory) is agreed on by run_agree before the
 * next collective call, so that every rank ends with the same status and none is left waiting.
 */
#ifndef GPT_RUN_H
#define GPT_RUN_H

#include <tutti/tutti.h>

#include "args.h"
#include "data.h"
#include "evaluate.h"
#include "model.h"
#include "optim.h"
#include "report.h"
#include "split.h"

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_STOPPED = 143 };

typedef struct run {
    const args *options;
    tutti_ctx *ctx;
    tutti_comm *world; /* borrowed from ctx */
    tutti_stream stream; /* where the model computes: inline on the host, one of CUDA's */
    const gpt_device *dev;
    int rank, ranks; /* of the world */
    split split;
    corpus text;
    model model;
    tutti_reducer *reducer;
    const tutti_piece *pieces; /* borrowed from the reducer */
    size_t piece_count;
    adamw optimizer;
    token_buffers made; /* the host's: of every micro-step of a step; evaluation uses the first */
    token_buffers tokens; /* the device's: of every set of memory that the model has */
    real *losses; /* the host's: of the tokens of an evaluation */
    float *hop; /* the residual stream between stages, when no pipeline runs */
    float *scalars; /* the device's: loss and norm */
    double loss_scale; /* of gradients: above 1 with f16, where small ones would vanish */
    int64_t good_steps; /* since it was changed */
    int64_t step; /* optimizer steps done */
    report report;
} run;

/* Collective: `problem` is NULL or what went wrong here. The first rank with a problem prints it,
 * all return EXIT_FAILED. */
int run_agree(run *r, const char *problem);

/* A status of the library turned into 0 or EXIT_FAILED; its text is printed, once if all ranks got
 * the same. */
int run_check(const run *r, tutti_status status);

/* train.c: the steps from r->step on, then the held-out loss; 0, EXIT_FAILED or EXIT_STOPPED. */
int train(run *r);
/* Collective: the model's held-out loss. */
int held_out_loss(run *r, double *loss_out);
/* Collective over the model's ranks: `rows` sequences of the host's through all stages; on the last
 * one m->logits, or with targets probabilities and m->loss. */
tutti_status forward_only(run *r, token_buffers tokens, int rows, int time);

/* sample.c: prints --sample bytes of the model's own, by the ranks of its first copy. */
int sample_text(run *r);

/* save.c: hands the state after r->step steps to the checkpoint writer; collective. */
int save_begin(run *r);
/* Waits until what was handed over is on disk; *step_out gets the newest durable step or -1. */
int save_finish(run *r, int64_t *step_out);
int save_finish_copy(run *r); /* and into --ckpt-copy */
/* With --resume loads the newest checkpoint into the run, if there is one; without, makes sure that
 * there is none. A run that begins saves its beginning: a folder that cannot be written shows now,
 * not after an hour. */
int start_from_checkpoints(run *r);

#endif
