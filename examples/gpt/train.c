/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training loop: what a data-parallel program does with tutti.
 *
 * Each step: every rank works on its part of the batch; during the backward pass the reducer is
 * told which gradients are final and averages them meanwhile; `wait` gives the averages, the same
 * bits on every rank, so that the optimizer, run on every rank, leaves the same weights everywhere.
 * With --zero 1 a rank gets its pieces of the average alone and updates these; `gather` sends them
 * to the others, and the next forward pass waits for a layer's weights just before it uses them. A
 * batch of `batch` sequences is cut into ranks x accum equal parts; each part gives the gradients
 * of its own mean loss, which the reducer averages over micro-steps and ranks.
 * The numbering: r->step counts finished steps; the lines printed and checkpoints count from 1,
 * tutti_step from 0.
 */
#include "run.h"

#include <math.h>

/* One part of a batch. */
typedef struct micro_step {
    int index, count, sequences;
} micro_step;

/* Called by the backward pass: these gradients are final. The reducer issues the all-reduce of
 * every bucket that is now complete, on its own stream. */
static int gradients_ready(void *arg, int first, int count)
{
    run *r = arg;
    int ids[BLOCK_PARAMS];

    for (int i = 0; i < count; i++)
        ids[i] = first + i;
    return run_check(r, tutti_reducer_ready(r->reducer, ids, (size_t)count, (tutti_stream){0}));
}

static int run_micro_step(run *r, micro_step micro, float *loss)
{
    const int context = r->model.shape.context;
    const int64_t per_rank = (int64_t)micro.count * micro.sequences;
    const batch_request request = {(uint64_t)r->options->seed, r->step,
                                   r->rank * per_rank + (int64_t)micro.index * micro.sequences,
                                   micro.sequences, context};
    const double scale = 1 / ((double)micro.sequences * context);
    int status;

    text_batch(&r->text, &request, r->buffers.inputs, r->buffers.targets);
    report_lap(&r->report, PHASE_OTHER);
    model_forward(&r->model, r->buffers.inputs, micro.sequences, context);
    *loss = (float)model_loss(&r->model, r->buffers.targets);
    report_lap(&r->report, PHASE_FORWARD);

    status =
        run_check(r, tutti_reducer_begin(r->reducer, micro.index, micro.count, (tutti_stream){0}));
    if (status == 0) /* the loss travels with the gradients */
        status = run_check(r, tutti_reducer_mean(r->reducer, loss, 1, (tutti_stream){0}));
    if (status == 0)
        status = model_backward(&r->model, r->buffers.targets, (real)scale, gradients_ready, r);
    report_lap(&r->report, PHASE_BACKWARD);
    return status;
}

/* After this every rank has the averaged gradients and the mean loss of the whole batch. */
static int average_gradients(run *r, float *loss)
{
    const int accum = (int)r->options->accum;
    const int sequences = (int)(r->options->batch / (r->ranks * accum));
    tutti_reducer_stats stats = {.size = sizeof stats};
    int status = 0;

    for (int i = 0; i < accum && status == 0; i++)
        status = run_micro_step(r, (micro_step){i, accum, sequences}, loss);
    if (status == 0)
        status = run_check(r, tutti_reducer_wait(r->reducer, (tutti_stream){0}));
    if (status == 0)
        status = run_check(r, tutti_reducer_stats_get(r->reducer, &stats));
    report_lap_split(&r->report, PHASE_OTHER, PHASE_EXPOSED, stats.exposed_s);
    return status;
}

/* Not by what is no number (the same on every rank): weights that it spoilt would be saved. */
static int update_weights(run *r, float loss)
{
    const double rate = learning_rate(r->options->lr, r->step, r->options->steps);
    float norm = 0; /* of the whole gradient, the same on every rank */
    int status = run_check(r, tutti_reducer_grad_norm(r->reducer, (tutti_stream){0}, &norm));
    const double scale = clip_factor((double)norm);

    if (status != 0)
        return status;
    if (!isfinite(loss))
        return run_agree(r, "the loss is not a finite number: try a lower --lr");
    if (!(scale > 0))
        return run_agree(r, "the gradients are not finite numbers: try a lower --lr");
    adamw_update(&r->optimizer, r->pieces, r->piece_count, (adamw_step){r->step, rate, scale});
    r->step++;
    status = run_check(r, tutti_reducer_gather(r->reducer, (tutti_stream){0}));
    report_lap(&r->report, PHASE_OPTIMIZER);
    return status;
}

/* The boundary of a step: what all ranks agreed to do, and the checkpoints that are due. */
static int end_step(run *r, bool *stop_out)
{
    const args *o = r->options;
    uint32_t todo = 0;
    int status = run_check(r, tutti_step(r->ctx, r->step - 1, &todo));
    bool due = r->step % o->every == 0 || r->step == o->steps || (todo & TUTTI_DO_SAVE) != 0;

    report_lap(&r->report, PHASE_OTHER);
    if (status == 0 && o->ckpt != NULL && due) {
        status = save_begin(r);
        report_lap(&r->report, PHASE_CHECKPOINT);
    }
    *stop_out = (todo & TUTTI_DO_STOP) != 0;
    return status;
}

static int one_step(run *r, bool *stop_out)
{
    float loss;
    int status = average_gradients(r, &loss);

    if (status == 0)
        status = update_weights(r, loss);
    if (status != 0)
        return status;
    report_step(&r->report, r->step, (double)loss);
    return end_step(r, stop_out);
}

static int evaluate(run *r)
{
    double loss;
    int status = held_out_loss(r, &loss);

    if (status == 0)
        report_say(&r->report, "step %lld held-out loss %.6f", (long long)r->step, loss);
    report_skip(&r->report);
    return status;
}

static int finish_saves(run *r)
{
    int64_t durable = -1;
    int status;

    report_skip(&r->report);
    if (r->options->ckpt == NULL)
        return 0;
    status = save_finish(r, &durable);
    report_lap(&r->report, PHASE_CHECKPOINT);
    if (status == 0 && durable >= 0)
        report_say(&r->report, "checkpoint of step %lld is in %s", (long long)durable,
                   r->options->ckpt);
    return status;
}

static int stop_early(run *r)
{
    int status = finish_saves(r);

    if (status != 0)
        return status;
    report_say(&r->report, "stopped after step %lld as asked%s", (long long)r->step,
               r->options->ckpt == NULL ? "; nothing is saved without --ckpt" : "");
    return EXIT_STOPPED;
}

int train(run *r)
{
    const args *o = r->options;
    bool stop = false;
    int status = 0;

    report_start(&r->report, r->rank == 0, r->step, o->steps, o->batch * o->context);
    if (r->step == 0)
        status = evaluate(r);
    while (status == 0 && r->step < o->steps && !stop) {
        status = one_step(r, &stop);
        if (status == 0 && !stop && r->step < o->steps && o->eval_every > 0 &&
            r->step % o->eval_every == 0)
            status = evaluate(r);
    }
    if (status == 0 && stop)
        return stop_early(r);
    if (status == 0)
        status = finish_saves(r);
    if (status == 0 && r->step > 0)
        status = evaluate(r);
    return status;
}

int held_out_loss(run *r, double *loss_out)
{
    loss_sum share = held_out_share(&r->model, &r->text, r->buffers, r->rank, r->ranks);
    double values[2] = {share.sum, share.count};
    int status = run_check(r, tutti_all_reduce_host(r->world, values, 2, TUTTI_SUM));

    if (status == 0)
        *loss_out = values[0] / values[1];
    return status;
}
