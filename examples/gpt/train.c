/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The training loop: what a data-parallel program does with tutti.
 *
 * Each step: every rank works on its part of the batch; during the backward pass the reducer is
 * told which gradients are final and averages them meanwhile; `wait` gives the averages, the same
 * bits on every rank, so that the optimizer, run on every rank, leaves the same weights everywhere.
 * With --zero 1 a rank gets its pieces of the average alone and updates these; `gather` sends them
 * to the others, and the next forward pass waits for a layer's weights just before it uses them.
 *
 * A batch of `batch` sequences is cut into copies x accum equal parts; each part gives the
 * gradients of its own mean loss, which the reducer averages over micro-steps and copies. The parts
 * of a copy go through its stages as the pipeline says, with one stage one by one. The numbering:
 * r->step counts finished steps; the lines printed and checkpoints count from 1, tutti_step from 0.
 */
#include "run.h"

#include <math.h>
#include <stdio.h>

/* Called by the backward pass: these gradients are final. The reducer issues the all-reduce of
 * every bucket that is now complete, on its own stream. */
static int gradients_ready(void *arg, int first, int count)
{
    run *r = arg;
    int ids[BLOCK_PARAMS];

    for (int i = 0; i < count; i++)
        ids[i] = first + i;
    return (int)tutti_reducer_ready(r->reducer, ids, (size_t)count, r->stream);
}

static int micro_sequences(const run *r)
{
    return (int)(r->options->batch / (r->split.dp_size * r->options->accum));
}

/* Where a pass finds its tokens: the set of memory that the pipeline gave its micro-step. */
static token_buffers tokens_of(const run *r, int set)
{
    const size_t at = (size_t)set * (size_t)r->model.max_batch * (size_t)r->model.shape.context;

    return (token_buffers){r->tokens.inputs + at, r->tokens.targets + at};
}

/* A micro-step's part of the batch, made on the host and brought to the device. What was made stays
 * until the step's end, when the device has read it for sure. */
static void bring_batch(run *r, const batch_request *request, int micro, token_buffers to)
{
    const size_t bytes = (size_t)request->count * (size_t)request->context;
    const size_t at = (size_t)micro * bytes;
    const token_buffers made = {r->made.inputs + at, r->made.targets + at};

    text_batch(&r->text, request, made.inputs, made.targets);
    r->dev->upload(to.inputs, made.inputs, bytes);
    r->dev->upload(to.targets, made.targets, bytes);
}

static model_pass model_pass_of(const run *r, const tutti_pipe_pass *p)
{
    return (model_pass){p->cache, micro_sequences(r), r->model.shape.context,
                        tokens_of(r, p->cache).inputs, p->in};
}

static size_t stream_bytes(const run *r)
{
    return (size_t)micro_sequences(r) * (size_t)r->model.shape.context *
           (size_t)r->model.shape.width * sizeof(float);
}

static tutti_status forward(run *r, const tutti_pipe_pass *p)
{
    const int sequences = micro_sequences(r);
    const int64_t per_copy = r->options->accum * sequences;
    const batch_request request = {(uint64_t)r->options->seed, r->step,
                                   r->split.dp_rank * per_copy + (int64_t)p->micro * sequences,
                                   sequences, r->model.shape.context};
    const model_pass pass = model_pass_of(r, p);
    const token_buffers tokens = tokens_of(r, p->cache);
    int status;

    if (p->first || p->last)
        bring_batch(r, &request, p->micro, tokens);
    report_lap(&r->report, PHASE_OTHER);
    status = model_forward_part(&r->model, &pass);
    if (status == 0 && p->last)
        status = model_loss_part(&r->model, tokens.targets);
    if (status == 0 && p->last) /* the last stage's backward pass comes next */
        r->dev->mean(r->model.loss, pass.batch * pass.time, r->scalars);
    if (status == 0 && !p->last)
        r->dev->copy(p->out, model_out(&r->model), stream_bytes(r));
    report_lap(&r->report, PHASE_FORWARD);
    return (tutti_status)status;
}

static tutti_status backward(run *r, const tutti_pipe_pass *p)
{
    const model_pass pass = model_pass_of(r, p);
    const int count = (int)r->options->accum;
    const double scale = r->loss_scale / ((double)pass.batch * pass.time);
    const model_gradient from = {tokens_of(r, p->cache).targets, (real)scale, p->d_out,
                                 gradients_ready, r};
    tutti_status status = tutti_reducer_begin(r->reducer, p->micro, count, r->stream);

    report_lap(&r->report, PHASE_OTHER);
    if (status == TUTTI_OK) /* the loss travels with the gradients */
        status = tutti_reducer_mean(r->reducer, r->scalars, 1, r->stream);
    if (status == TUTTI_OK)
        status = (tutti_status)model_backward_part(&r->model, &pass, &from);
    if (status == TUTTI_OK && !p->first)
        r->dev->copy(p->d_in, r->model.d_residual, stream_bytes(r));
    report_lap(&r->report, PHASE_BACKWARD);
    return status;
}

/* The pipeline's function; with one stage it is called for the forward and the backward pass of one
 * micro-step after the other. */
static tutti_status do_pass(void *arg, const tutti_pipe_pass *p, tutti_stream stream)
{
    run *r = arg;

    (void)stream;
    if (r->split.pp_size > 1)
        report_lap(&r->report, PHASE_STAGES); /* waiting for what the pass needs */
    return p->kind == TUTTI_PIPE_FORWARD ? forward(r, p) : backward(r, p);
}

/* After this every rank has the averaged gradients, the mean loss of the whole batch and the norm
 * of the whole gradient, which is no number if one of the gradients is none. */
static int average_gradients(run *r, double *loss_out, double *norm_out)
{
    tutti_reducer_stats stats = {.size = sizeof stats};
    float scalars[2] = {0, 0};
    int status;

    status = run_check(r, tutti_pipe_run(r->split.pipe, do_pass, r, r->stream));
    if (r->split.pp_size > 1)
        report_lap(&r->report, PHASE_STAGES);
    if (status == 0)
        status = run_check(r, tutti_reducer_wait(r->reducer, r->stream));
    if (status == 0)
        status = run_check(r, tutti_reducer_grad_norm(r->reducer, r->stream, r->scalars + 1));
    if (status == 0)
        status = run_check(r, tutti_stream_sync(r->ctx, r->stream));
    if (status == 0)
        status = run_check(r, tutti_reducer_stats_get(r->reducer, &stats));
    if (status != 0)
        return status;
    r->dev->download(scalars, r->scalars, sizeof scalars);
    report_lap_split(&r->report, PHASE_OTHER, PHASE_EXPOSED, stats.exposed_s);
    *loss_out = r->model.part.last ? (double)scalars[0] : 0;
    *norm_out = (double)scalars[1] / r->loss_scale;
    if (r->split.pp_size > 1) /* the last stage's */
        status = run_check(r, tutti_all_reduce_host(r->split.pp, loss_out, 1, TUTTI_SUM));
    return status;
}

/* With f16 gradients that overflowed cost a step, and the scale comes down; after many that did not
 * it is tried higher. The norm is the same on all ranks, and so is what they do. Whether the step
 * counts. */
static bool scale_holds(run *r, double norm)
{
    if (r->loss_scale > 1 && !isfinite(norm)) {
        r->loss_scale /= 2;
        r->good_steps = 0;
        return false;
    }
    if (r->loss_scale > 1 && ++r->good_steps % 200 == 0 && r->loss_scale < 16777216)
        r->loss_scale *= 2;
    return true;
}

/* Not by what is no number (the same on every rank): weights that it spoilt would be saved. */
static int update_weights(run *r, double loss, double norm)
{
    const double rate = learning_rate(r->options->lr, r->step, r->options->steps);
    const double scale = clip_factor(norm) / r->loss_scale;
    int status = 0;

    if (!isfinite(loss))
        return run_agree(r, "the loss is not a finite number: try a lower --lr");
    if (scale_holds(r, norm)) {
        if (!(scale > 0))
            return run_agree(r, "the gradients are not finite numbers: try a lower --lr");
        adamw_update(&r->optimizer, r->pieces, r->piece_count, (adamw_step){r->step, rate, scale});
        status = run_check(r, tutti_reducer_gather(r->reducer, r->stream));
    }
    r->step++;
    if (status == 0 && r->dev->problem() != NULL) {
        fprintf(stderr, "gpt: rank %d: %s\n", r->rank, r->dev->problem());
        tutti_abort(r->ctx, EXIT_FAILED, "the GPU failed");
    }
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
    double loss, norm;
    int status = average_gradients(r, &loss, &norm);

    if (status == 0)
        status = update_weights(r, loss, norm);
    if (status != 0)
        return status;
    report_step(&r->report, r->step, loss);
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
    if (status == 0 && durable >= 0)
        report_say(&r->report, "checkpoint of step %lld is in %s", (long long)durable,
                   r->options->ckpt);
    if (status == 0)
        status = save_finish_copy(r);
    report_lap(&r->report, PHASE_CHECKPOINT);
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

tutti_status forward_only(run *r, token_buffers tokens, int rows, int time)
{
    model *m = &r->model;
    const int stage = tutti_rank(r->split.pp);
    const size_t bytes = (size_t)rows * (size_t)time, count = bytes * (size_t)m->shape.width;
    const model_pass pass = {0, rows, time, r->tokens.inputs, r->hop};
    tutti_status status = TUTTI_OK;

    if (m->part.first)
        r->dev->upload(r->tokens.inputs, tokens.inputs, bytes);
    else
        status = tutti_recv(r->split.pp, r->hop, count, TUTTI_FLOAT32, stage - 1, r->stream);
    if (status == TUTTI_OK)
        status = (tutti_status)model_forward_part(m, &pass);
    if (status == TUTTI_OK && !m->part.last)
        status = tutti_send(r->split.pp, model_out(m), count, TUTTI_FLOAT32, stage + 1, r->stream);
    if (status == TUTTI_OK && m->part.last && tokens.targets != NULL) {
        r->dev->upload(r->tokens.targets, tokens.targets, bytes);
        status = (tutti_status)model_loss_part(m, r->tokens.targets);
    }
    return status;
}

static int pass_held_out(void *arg, token_buffers b, int rows, int time, real *losses_out)
{
    run *r = arg;
    const size_t bytes = (size_t)rows * (size_t)time * sizeof(real);
    tutti_status status = forward_only(r, b, rows, time);

    if (status == TUTTI_OK) /* so that b may change */
        status = tutti_stream_sync(r->ctx, r->stream);
    if (status == TUTTI_OK && r->model.part.last)
        r->dev->download(losses_out, r->model.loss, bytes);
    return (int)status;
}

int held_out_loss(run *r, double *loss_out)
{
    const held_out_job job = {&r->model,        &r->text,         r->made,       r->losses,
                              r->split.dp_rank, r->split.dp_size, pass_held_out, r};
    loss_sum share = {0, 0};
    double values[2];
    int status = run_check(r, (tutti_status)held_out_share(&job, &share));

    if (status != 0)
        return status;
    values[0] = split_counts(&r->split, true) ? share.sum : 0;
    values[1] = split_counts(&r->split, true) ? share.count : 0;
    status = run_check(r, tutti_all_reduce_host(r->world, values, 2, TUTTI_SUM));
    if (status == 0)
        *loss_out = values[0] / values[1];
    return status;
}
