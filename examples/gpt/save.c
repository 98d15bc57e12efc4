/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints: weights and AdamW's two means, tensor by tensor under the parameters' names, and a
 * few lines that say what they belong to. Every rank adds what it holds: the weights of its part of
 * the model, and of the means, with --zero 1, its pieces. The library writes everything once, the
 * ranks sharing the work, while training goes on. What is stored is the same however the model was
 * split, and loads into any split. The random numbers of a run are a
 * function of (seed, step, index), so "seed" and "step" are its whole generator state.
 *
 * What a resumed run must agree on is the model's shape. Another batch, rate, length or text is
 * the user's right, but it will not give the same losses, and so is pointed out.
 */
#include "run.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_BYTES = 512 };

typedef struct config {
    int64_t layers, width, heads, context; /* must be equal */
    int64_t batch, steps, seed; /* should be equal */
    double lr, text;
} config;

static config config_of(const run *r)
{
    const args *o = r->options;

    return (config){o->layers,  o->width, o->heads,
                    o->context, o->batch, o->steps,
                    o->seed,    o->lr,    text_fingerprint(&r->text)};
}

static size_t config_write(const config *c, char *to)
{
    return (size_t)snprintf(
        to, CONFIG_BYTES,
        "layers %" PRId64 "\nwidth %" PRId64 "\nheads %" PRId64 "\ncontext %" PRId64
        "\nbatch %" PRId64 "\nsteps %" PRId64 "\nseed %" PRId64 "\nlr %.17g\ntext %.0f\n",
        c->layers, c->width, c->heads, c->context, c->batch, c->steps, c->seed, c->lr, c->text);
}

static bool config_read(config *c, const char *from)
{
    return sscanf(from,
                  "layers %" SCNd64 " width %" SCNd64 " heads %" SCNd64 " context %" SCNd64
                  " batch %" SCNd64 " steps %" SCNd64 " seed %" SCNd64 " lr %lf text %lf",
                  &c->layers, &c->width, &c->heads, &c->context, &c->batch, &c->steps, &c->seed,
                  &c->lr, &c->text) == 9;
}

/* This rank's box of a parameter's values, described in `name` (memory of the caller's). */
static tutti_tensor tensor_of(const param *p, char name[64])
{
    tutti_tensor t = TUTTI_TENSOR_INIT;

    snprintf(name, 64, "weights/%s", p->name);
    t.name = name;
    t.dtype = TUTTI_FLOAT32;
    t.ndim = p->cols == 0 ? 1 : 2;
    t.shape[0] = p->whole_rows;
    t.shape[1] = p->whole_cols;
    t.offset[0] = p->first_row;
    t.offset[1] = p->first_col;
    t.extent[0] = p->rows;
    t.extent[1] = p->cols;
    t.data = p->value;
    return t;
}

static tutti_status add_all(run *r, tutti_ckpt *ck)
{
    const config c = config_of(r);
    char text[CONFIG_BYTES], name[64];
    /* Weights of other ranks may still be on their way. */
    tutti_status status = tutti_reducer_param_wait(r->reducer, NULL, 0, r->stream);

    for (int i = 0; i < r->model.param_count && status == TUTTI_OK; i++) {
        tutti_tensor t = tensor_of(r->model.params[i], name);

        status = tutti_ckpt_add(ck, &t);
    }
    if (status == TUTTI_OK)
        status = tutti_ckpt_add_state(ck, r->reducer, "adam_m/%", r->optimizer.m, TUTTI_FLOAT32);
    if (status == TUTTI_OK)
        status = tutti_ckpt_add_state(ck, r->reducer, "adam_v/%", r->optimizer.v, TUTTI_FLOAT32);
    if (status == TUTTI_OK)
        status = tutti_ckpt_add_bytes(ck, "config", text, config_write(&c, text), TUTTI_CKPT_SAME);
    if (status == TUTTI_OK)
        status = tutti_ckpt_add_bytes(ck, "step", &r->step, sizeof r->step, TUTTI_CKPT_SAME);
    if (status == TUTTI_OK)
        status = tutti_ckpt_add_bytes(ck, "seed", &c.seed, sizeof c.seed, TUTTI_CKPT_SAME);
    return status;
}

int save_begin(run *r)
{
    tutti_ckpt_begin_opts begin = TUTTI_CKPT_BEGIN_OPTS_INIT;
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    char mesh[64];
    tutti_ckpt *ck;
    int status;

    begin.flags = r->options->node_local ? TUTTI_CKPT_NODE_LOCAL : 0;
    status = run_check(r, tutti_ckpt_begin_with(r->ctx, r->options->ckpt, r->step, &begin, &ck));
    if (status != 0)
        return status;
    /* A rank that could not add something still takes part in the commit, which then fails on every
     * rank because the tensors are not covered. */
    status = run_check(r, add_all(r, ck));
    split_name(&r->split, mesh, sizeof mesh);
    opts.mesh = mesh;
    opts.keep_last = (int)r->options->keep;
    opts.copy_to = r->options->copy;
    if (run_check(r, tutti_ckpt_commit(ck, r->stream, &opts)) != 0)
        return EXIT_FAILED;
    return status;
}

int save_finish(run *r, int64_t *step_out)
{
    return run_check(r, tutti_ckpt_wait(r->ctx, step_out));
}

/* A run whose last copy could not be made has its checkpoint all the same: that is told, no more.
 */
int save_finish_copy(run *r)
{
    tutti_ckpt_copy_info info = TUTTI_CKPT_COPY_INFO_INIT;
    int status;

    if (r->options->copy == NULL)
        return 0;
    status = run_check(r, tutti_ckpt_copy_wait(r->ctx, -1, &info));
    if (status != 0)
        return status;
    if (info.step >= 0)
        report_say(&r->report, "checkpoint of step %lld is copied to %s", (long long)info.step,
                   r->options->copy);
    if (info.pending >= 0 || info.status != TUTTI_OK)
        report_say(&r->report, "note: the newest checkpoint is not copied to %s: %s",
                   r->options->copy, info.pending >= 0 ? "it takes too long" : info.text);
    return 0;
}

/* One difference as "width 64 there, 128 here"; what is equal adds nothing. */
static void differ(char *to, size_t cap, const char *what, double there, double here)
{
    size_t used = strlen(to);

    if (there != here)
        snprintf(to + used, cap - used, "%s%s %.10g there, %.10g here", used == 0 ? "" : "; ", what,
                 there, here);
}

/* NULL, or why this checkpoint cannot be loaded (static memory). */
static const char *check_shape(const config *there, const config *here)
{
    static char text[256];
    char d[192] = "";

    differ(d, sizeof d, "--layers", (double)there->layers, (double)here->layers);
    differ(d, sizeof d, "--width", (double)there->width, (double)here->width);
    differ(d, sizeof d, "--heads", (double)there->heads, (double)here->heads);
    differ(d, sizeof d, "--context", (double)there->context, (double)here->context);
    if (d[0] == '\0')
        return NULL;
    snprintf(text, sizeof text, "the checkpoint is of another model: %s", d);
    return text;
}

static void point_out(run *r, const config *there, const config *here)
{
    char d[256] = "";

    differ(d, sizeof d, "--batch", (double)there->batch, (double)here->batch);
    differ(d, sizeof d, "--steps", (double)there->steps, (double)here->steps);
    differ(d, sizeof d, "--seed", (double)there->seed, (double)here->seed);
    differ(d, sizeof d, "--lr", there->lr, here->lr);
    if (there->text != here->text)
        differ(d, sizeof d, "text (fingerprint)", there->text, here->text);
    if (d[0] != '\0')
        report_say(&r->report, "note: losses will differ from the run that was saved: %s", d);
}

/* Local: what the reader's lines say about it. */
static const char *check_config(const tutti_ckpt_reader *rd, config *there, const config *here)
{
    char text[CONFIG_BYTES + 1] = "";
    size_t bytes = 0;

    if (tutti_ckpt_read_bytes((tutti_ckpt_reader *)rd, "config", 0, text, CONFIG_BYTES, &bytes) !=
        TUTTI_OK)
        return tutti_last_error();
    text[bytes] = '\0';
    if (!config_read(there, text))
        return "the checkpoint's \"config\" is not one of this program";
    return check_shape(there, here);
}

static int load_weights(run *r, tutti_ckpt_reader *rd)
{
    const size_t n = (size_t)r->model.param_count;
    tutti_tensor *tensors = calloc(n, sizeof *tensors);
    char(*names)[64] = calloc(n, sizeof *names);
    int status = run_agree(r, tensors == NULL || names == NULL ? "out of memory" : NULL);

    if (status != 0 || tensors == NULL || names == NULL)
        goto free_lists;
    for (size_t i = 0; i < n; i++)
        tensors[i] = tensor_of(r->model.params[i], names[i]);
    status = run_check(r, tutti_ckpt_read(rd, tensors, n, r->stream));

free_lists:
    free(names);
    free(tensors);
    return status;
}

static int load_tensors(run *r, tutti_ckpt_reader *rd)
{
    const adamw *a = &r->optimizer;
    int status = load_weights(r, rd);

    if (status == 0)
        status = run_check(
            r, tutti_ckpt_read_state(rd, r->reducer, "adam_m/%", a->m, TUTTI_FLOAT32, r->stream));
    if (status == 0)
        status = run_check(
            r, tutti_ckpt_read_state(rd, r->reducer, "adam_v/%", a->v, TUTTI_FLOAT32, r->stream));
    return status;
}

static int resume(run *r, tutti_ckpt_reader *rd)
{
    const config here = config_of(r);
    config there = here;
    int status = run_agree(r, check_config(rd, &there, &here));

    if (status == 0)
        status = load_tensors(r, rd);
    if (status != 0)
        return status;
    r->step = tutti_ckpt_step(rd);
    report_say(&r->report, "resumed from step %lld in %s, written by %d rank%s", (long long)r->step,
               tutti_ckpt_dir(rd), tutti_ckpt_world(rd), tutti_ckpt_world(rd) == 1 ? "" : "s");
    point_out(r, &there, &here);
    return 0;
}

int start_from_checkpoints(run *r)
{
    tutti_ckpt_open_opts opts = TUTTI_CKPT_OPEN_OPTS_INIT;
    tutti_ckpt_reader *rd;
    tutti_status found;
    int status;

    opts.flags = r->options->node_local ? TUTTI_CKPT_OPEN_NODE_LOCAL : 0;
    opts.copy = r->options->copy;
    found = tutti_ckpt_open_with(r->ctx, r->options->ckpt, TUTTI_CKPT_STEP_NEWEST, &opts, &rd);
    if (found == TUTTI_ERR_NOT_FOUND) {
        if (r->options->resume)
            report_say(&r->report, "no checkpoint in %s: starting afresh", r->options->ckpt);
        return save_begin(r);
    }
    status = run_check(r, found);
    if (status != 0)
        return status;
    if (r->options->resume)
        status = resume(r, rd);
    else
        status = run_agree(r, "the folder of --ckpt (or --ckpt-copy) has checkpoints already: add "
                              "--resume to go on from them, or name another folder");
    tutti_ckpt_close(rd);
    return status;
}
