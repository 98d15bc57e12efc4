/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpt: trains a byte-level GPT on text over the ranks of an MPI job: data parallel, and with --mesh
 * in pipeline stages and with shared matrices.
 *
 * main.c joins the job, makes the parts and takes them down; train.c is the training loop; split.c
 * says who holds what; model.c,
 * backward.c and kernels.c the model; data.c the text; save.c the checkpoints.
 */
#include "run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int run_agree(run *r, const char *problem)
{
    double first = problem == NULL ? r->ranks : r->rank;
    tutti_status status = tutti_all_reduce_host(r->world, &first, 1, TUTTI_MIN);

    if (status != TUTTI_OK)
        return run_check(r, status);
    if ((int)first == r->ranks)
        return 0;
    if ((int)first == r->rank)
        fprintf(stderr, "gpt: rank %d: %s\n", r->rank, problem);
    return EXIT_FAILED;
}

int run_check(const run *r, tutti_status status)
{
    if (status == TUTTI_OK)
        return 0;
    if (status <= TUTTI_ERR_TIMEOUT) /* the ranks no longer agree, and rank 0 may be gone */
        fprintf(stderr, "gpt: rank %d: %s (%s)\n", r->rank, tutti_last_error(),
                tutti_status_name(status));
    else if (r->rank == 0)
        fprintf(stderr, "gpt: %s (%s)\n", tutti_last_error(), tutti_status_name(status));
    return EXIT_FAILED;
}

/* All ranks must see the same text, or each would train on its own. */
static int load_text(run *r)
{
    const args *o = r->options;
    const char *problem = NULL;
    double range[2] = {0, 0};
    int status;

    (void)text_load(&r->text, o->text, o->text_count, (int)o->context, &problem);
    status = run_agree(r, problem);
    if (status != 0)
        return status;
    range[0] = text_fingerprint(&r->text);
    range[1] = -range[0];
    status = run_check(r, tutti_all_reduce_host(r->world, range, 2, TUTTI_MAX));
    if (status != 0)
        return status;
    return run_agree(r, range[0] == -range[1] ? NULL : "the text differs between ranks");
}

/* Starts the program over with OpenBLAS's kernels for this processor; see matmul_better_kernels.
 * Before tutti_init, so that nobody notices. If it fails the old ones have to do. */
static void choose_kernels(char **argv)
{
    const char *kernels = matmul_better_kernels();
    char path[4096]; /* not the link itself: it would be the process's name in ps and top */
    ssize_t length = readlink("/proc/self/exe", path, sizeof path);

    if (kernels == NULL || length <= 0 || (size_t)length >= sizeof path)
        return;
    path[length] = '\0';
    if (setenv("OPENBLAS_CORETYPE", kernels, 1) == 0)
        execv(path, argv);
}

static int micro_sequences(const run *r)
{
    return (int)(r->options->batch / (r->split.dp_size * r->options->accum));
}

/* Passes for evaluation are not made smaller than this many sequences. */
static int pass_size(const run *r)
{
    int micro = micro_sequences(r);

    return micro < 8 ? 8 : micro;
}

static int make_split(run *r)
{
    const char *wrong;
    int status = run_check(r, split_create(&r->split, r->ctx, r->options, &wrong));

    if (status != 0)
        return status;
    if (wrong != NULL) {
        if (r->rank == 0)
            fprintf(stderr, "gpt: %s\n", wrong);
        return EXIT_USAGE;
    }
    if ((size_t)pass_size(r) * (size_t)r->options->context > (size_t)1 << 24)
        return run_agree(r, "more than 2^24 bytes of text in a pass: raise --accum");
    return run_check(r, split_pipe(&r->split, r->options, micro_sequences(r)));
}

/* Token buffers: the host's, and the device's. */
static bool take_tokens(run *r, size_t pass_tokens, size_t sets)
{
    const size_t step = (size_t)(r->options->accum * micro_sequences(r) * r->options->context);
    const size_t made = step > pass_tokens ? step : pass_tokens;

    r->made.inputs = r->dev->take_host(made);
    r->made.targets = r->dev->take_host(made);
    r->tokens.inputs = r->dev->take(pass_tokens * sets);
    r->tokens.targets = r->dev->take(pass_tokens * sets);
    r->losses = r->dev->take_host(pass_tokens * sizeof *r->losses);
    r->scalars = r->dev->take(2 * sizeof *r->scalars);
    return r->made.inputs != NULL && r->made.targets != NULL && r->tokens.inputs != NULL &&
           r->tokens.targets != NULL && r->losses != NULL && r->scalars != NULL;
}

static int make_model(run *r)
{
    const model_shape shape = args_shape(r->options);
    const model_part part = split_part(&r->split, shape);
    const int pass = pass_size(r);
    const size_t tokens = (size_t)pass * (size_t)r->options->context; /* at most 2^24 */
    bool ok;

    ok = model_create_part(&r->model, r->dev, shape, part, pass, (uint64_t)r->options->seed) &&
         split_links(&r->split, r->dev, r->stream, tokens, &r->model.links) &&
         take_tokens(r, tokens, (size_t)part.passes);
    r->hop = r->dev->take(part.first ? 1 : tokens * (size_t)shape.width * sizeof(float));
    r->loss_scale = strcmp(r->options->precision, "f16") == 0 ? 65536 : 1;
    return run_agree(r, ok && r->hop != NULL ? NULL : "not enough memory for the model");
}

static tutti_status add_params(run *r)
{
    tutti_status status = TUTTI_OK;

    for (int i = 0; i < r->model.param_count && status == TUTTI_OK; i++) {
        const param *p = r->model.params[i];
        tutti_param described = TUTTI_PARAM_INIT;
        int id;

        described.name = p->name;
        described.dtype = TUTTI_FLOAT32;
        described.ndim = p->cols == 0 ? 1 : 2;
        described.shape[0] = p->rows;
        described.shape[1] = p->cols;
        described.whole[0] = p->whole_rows;
        described.whole[1] = p->whole_cols;
        described.offset[0] = p->first_row;
        described.offset[1] = p->first_col;
        described.param = p->value;
        described.group = p->decay ? GROUP_DECAY : GROUP_PLAIN;
        described.flags = split_counts(&r->split, p->replica) ? 0 : TUTTI_PARAM_UNCOUNTED;
        status = tutti_reducer_add(r->reducer, &described, &id);
    }
    return status;
}

/* With --zero 1 the other ranks' updates may still be on their way. If they do not come, the next
 * call of the reducer says so. */
static void parameters_needed(void *arg, int first, int count)
{
    run *r = arg;
    int ids[BLOCK_PARAMS];

    for (int i = 0; i < count; i++)
        ids[i] = first + i;
    (void)run_check(r, tutti_reducer_param_wait(r->reducer, ids, (size_t)count, r->stream));
}

/* The reducer owns the gradients, so that a bucket is one piece of memory; about one bucket per
 * block lets averaging begin while most of the backward pass is still to come. */
static int make_reducer(run *r)
{
    tutti_reducer_opts opts = TUTTI_REDUCER_OPTS_INIT;
    const args *o = r->options;
    int status;

    opts.name = "gpt";
    opts.flags = TUTTI_REDUCER_AVERAGE_MICRO | (o->zero > 0 ? TUTTI_SHARD_OPTIMIZER : 0u) |
                 (o->reproducible ? TUTTI_REDUCER_REPRODUCIBLE : 0u);
    if (tutti_size(r->split.model) > 1)
        opts.norm_comm = r->world;
    if (strcmp(o->wire, "f32") != 0)
        opts.wire = strcmp(o->wire, "bf16") == 0 ? TUTTI_BFLOAT16 : TUTTI_FLOAT16;
    opts.bucket_bytes = 12u * sizeof(float) * (size_t)(o->width * o->width);
    if (opts.bucket_bytes < 256 * 1024)
        opts.bucket_bytes = 256 * 1024;
    status = run_check(r, tutti_reducer_create(r->split.dp, &opts, &r->reducer));
    if (status == 0)
        status = run_check(r, add_params(r));
    if (status == 0)
        status = run_check(r, tutti_reducer_commit(r->reducer));
    if (status != 0)
        return status;
    for (int i = 0; i < r->model.param_count; i++)
        r->model.params[i]->grad = tutti_reducer_grad(r->reducer, i);
    r->model.need = parameters_needed;
    r->model.need_arg = r;
    r->piece_count = tutti_reducer_pieces(r->reducer, &r->pieces);
    return run_agree(r, adamw_create(&r->optimizer, r->dev, tutti_reducer_shard_count(r->reducer))
                            ? NULL
                            : "not enough memory for the optimizer");
}

/* What AdamW's two means take on this rank. */
static void introduce_optimizer(run *r)
{
    const size_t count = tutti_reducer_shard_count(r->reducer);

    if (r->options->zero > 0)
        report_say(
            &r->report,
            "optimizer: state for %zu parameters on each rank, 1/%d of %zu and %zu of padding",
            count, r->split.dp_size, r->model.weight_count,
            count - r->model.weight_count / (size_t)r->split.dp_size);
}

static void introduce(run *r, const char *products)
{
    const long long batch = (long long)r->options->batch;

    report_say(&r->report, "text: %d files, %zu bytes to learn, %zu held out", r->text.files,
               r->text.train_bytes, r->text.held_out_bytes);
    report_say(&r->report,
               "model: %zu parameters (%d layers, width %d, %d heads, context %d); products by %s",
               r->model.whole_count, r->model.shape.layers, r->model.shape.width,
               r->model.shape.heads, r->model.shape.context, products);
    report_say(&r->report, "job: %d rank%s, %lld steps of %lld sequences, %lld on each %s",
               r->ranks, r->ranks == 1 ? "" : "s", (long long)r->options->steps, batch,
               batch / r->split.dp_size, tutti_size(r->split.model) == 1 ? "rank" : "copy");
    if (tutti_size(r->split.model) > 1)
        report_say(&r->report,
                   "split: %d stages, %d copies, matrices in %d shares; rank 0 has %zu parameters",
                   r->split.pp_size, r->split.dp_size, r->split.tp_size, r->model.weight_count);
    introduce_optimizer(r);
}

/* What a reproducible run's sums over micro-steps cost. */
static void report_sums(run *r)
{
    tutti_reducer_stats stats = {.size = sizeof stats};

    if (r->options->reproducible && tutti_reducer_stats_get(r->reducer, &stats) == TUTTI_OK)
        report_say(&r->report, "reproducible: sums over micro-steps took %.1f MiB on each rank",
                   (double)stats.partial_bytes / 1048576);
}

static void report_trigrams(run *r)
{
    double loss;

    if (r->rank != 0)
        return;
    loss = trigram_held_out_loss(&r->text, r->model.shape.context);
    if (loss >= 0)
        report_say(&r->report,
                   "trigram table's held-out loss %.6f (counts interpolated after Witten and Bell; "
                   "nats per byte over the same bytes)",
                   loss);
}

static uint64_t hash_param(run *r, const param *p, uint64_t hash)
{
    const size_t bytes = p->count * sizeof *p->value;
    unsigned char *here = r->dev->take_host(bytes);

    if (here == NULL)
        return 0;
    r->dev->download(here, p->value, bytes);
    for (size_t j = 0; j < bytes; j++)
        hash = (hash ^ here[j]) * 0x100000001b3u;
    r->dev->give_host(here);
    return hash;
}

/* Equal runs end with equal weights, bit for bit: a number to compare. Of a split model the sum of
 * its ranks' numbers, modulo 2^64; a double holds the sums of 16 bits exactly. */
static int report_weights(run *r)
{
    uint64_t hash = 0xcbf29ce484222325u;
    double parts[4] = {0};
    int status;

    for (int i = 0; i < r->model.param_count; i++)
        hash = hash_param(r, r->model.params[i], hash);
    for (int i = 0; i < 4; i++)
        parts[i] = (double)(hash >> 16 * i & 0xffff);
    status = run_check(r, tutti_all_reduce_host(r->split.model, parts, 4, TUTTI_SUM));
    hash = 0;
    for (int i = 0; i < 4; i++)
        hash += (uint64_t)parts[i] << 16 * i;
    report_say(&r->report, "weights %016llx (a fingerprint of all parameters)",
               (unsigned long long)hash);
    return status;
}

/* On tutti's backend: the host's processor, or the GPU and a stream of its own. */
static int choose_device(run *r)
{
    const char *precision = r->options->precision, *problem = NULL;
    const gpt_precision how = strcmp(precision, "bf16") == 0  ? PRECISION_BF16
                              : strcmp(precision, "f16") == 0 ? PRECISION_F16
                                                              : PRECISION_F32;
    int status;

    if (tutti_device(r->ctx) < 0) {
        r->dev = &gpt_device_host;
        if (how == PRECISION_F32)
            return 0;
        return run_agree(r, "--precision bf16 and f16 are for a GPU: this job has none");
    }
    status = run_check(r, tutti_stream_create(r->ctx, "gpt", 0, &r->stream));
    if (status != 0)
        return status;
    r->dev = gpt_device_cuda(r->stream.handle, how, &problem);
    return run_agree(r, r->dev != NULL ? NULL : problem);
}

static int work(run *r)
{
    const char *products = matmul_setup();
    int status = choose_device(r);

    if (status == 0)
        status = make_split(r);

    if (status == 0)
        status = load_text(r);
    if (status == 0)
        status = make_model(r);
    if (status == 0)
        status = make_reducer(r);
    if (status != 0)
        return status;
    introduce(r, r->dev == &gpt_device_host ? products : "cuBLAS");
    status = r->options->ckpt == NULL ? 0 : start_from_checkpoints(r);
    if (status == 0)
        status = train(r);
    if (status != 0)
        return status;
    report_sums(r);
    report_trigrams(r);
    status = report_weights(r);
    report_table(&r->report, r->step);
    return status != 0 ? status : sample_text(r);
}

static void take_down(run *r)
{
    tutti_reducer_destroy(r->reducer);
    split_destroy(&r->split);
    adamw_destroy(&r->optimizer);
    model_destroy(&r->model);
    text_free(&r->text);
    if (r->dev == NULL)
        return;
    r->dev->give_host(r->made.inputs);
    r->dev->give_host(r->made.targets);
    r->dev->give_host(r->losses);
    r->dev->give(r->tokens.inputs);
    r->dev->give(r->tokens.targets);
    r->dev->give(r->scalars);
    r->dev->give(r->hop);
    gpt_device_cuda_close();
    tutti_stream_destroy(r->ctx, r->stream);
}

/* --help and mistakes on the command line: the same on every rank, printed by rank 0. */
static int usage(const run *r, const char *wrong)
{
    if (r->options->help && r->rank == 0)
        args_help("gpt");
    else if (wrong != NULL && r->rank == 0)
        fprintf(stderr, "gpt: %s\n", wrong);
    return wrong != NULL ? EXIT_USAGE : 0;
}

int main(int argc, char **argv)
{
    tutti_init_opts init = TUTTI_INIT_OPTS_INIT;
    args options;
    run r = {.options = &options};
    const char *wrong = args_parse(&options, argc, argv);
    int status;

    choose_kernels(argv);
    if (wrong == NULL && strcmp(options.device, "auto") != 0)
        init.backend =
            strcmp(options.device, "cuda") == 0 ? TUTTI_BACKEND_CUDA : TUTTI_BACKEND_HOST;
    if (tutti_init(&init, &r.ctx) != TUTTI_OK) {
        fprintf(stderr, "gpt: %s\n", tutti_last_error());
        args_free(&options);
        return EXIT_FAILED;
    }
    r.world = tutti_world(r.ctx);
    r.rank = tutti_rank(r.world);
    r.ranks = tutti_size(r.world);
    report_start(&r.report, r.rank == 0, 0, 0, 0);
    if (wrong != NULL || options.help)
        status = usage(&r, wrong);
    else
        status = work(&r);
    take_down(&r);
    if (tutti_finalize(r.ctx) != TUTTI_OK && status == 0) {
        fprintf(stderr, "gpt: rank %d: %s\n", r.rank, tutti_last_error());
        status = EXIT_FAILED;
    }
    args_free(&options);
    if (fclose(stdout) != 0 && status == 0) { /* a full disk must not look like success */
        perror("gpt: standard output");
        status = EXIT_FAILED;
    }
    return status;
}
