/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tutti bench step`: one made-up training step in four ways, and how close the overlapped one
 * comes to its floor.
 */
#include <string.h>

#include "synthetic.h"

static const char usage[] =
    "usage: tutti bench step [options]        (on every rank: mpirun -np 2 tutti bench step)\n"
    "\n"
    "A made-up step: per layer a fixed amount of computation, then its gradient is ready.\n"
    "\n"
    "  --model M       gpt2 (124M), resnet50 or uniform: sizes and costs of the layers, uniform\n"
    "  --layers N      uniform: layers, 12        --bytes B    uniform: a layer's gradient, 4M\n"
    "  --ms T          computation of a backward pass in milliseconds when undisturbed, 100\n"
    "  --compute C     cpu: arithmetic on the rank's core; device: none, the core is free "
    "meanwhile\n"
    "  --forward X     a forward pass before it, as a multiple of that, 0\n"
    "  --scale X       of all tensor sizes, 1     --bucket B   cap of a bucket\n"
    "  --wire T        f32, bf16 or f16           --zero       sharded optimizer (ZeRO-1)\n"
    "  --steps N       of each kind, 9            --ranks N    fail unless N ranks came\n"
    "  --limit X       exit status 3 if the step takes more than X floors\n"
    "  --json          one object\n"
    "\n"
    "compute: the passes alone. comm: all gradients ready at once, then wait. serial: one after "
    "the\n"
    "other. overlap: each gradient ready as soon as it is there. Medians of the slowest rank.\n"
    "exposed: what wait (and param_wait) blocked. overlap % = 1 - exposed / comm.\n"
    "last bucket: its collective by itself, between barriers. all buckets: their collectives in "
    "comm.\n"
    "floor = max(compute + last bucket, first gradient + all buckets).\n"
    "beyond = step - compute - last bucket: exposed although it could have been hidden.\n";

static double beyond(const synth_times *t)
{
    return t->step[SYNTH_OVERLAP] - t->step[SYNTH_COMPUTE] - t->last;
}

static void print_table(const bench_job *job, const synth_options *o, const synth_times *t)
{
    const double ms = 1e3;

    printf(
        "# tutti bench step: %s, %.1f MiB of gradients in %d buckets, %d rank%s on %d node%s%s\n",
        o->model, (double)t->bytes / 1048576, t->buckets, job->size, job->size == 1 ? "" : "s",
        tutti_node_count(job->ctx), tutti_node_count(job->ctx) == 1 ? "" : "s",
        o->zero ? ", sharded optimizer" : "");
    printf("%-26s %10.2f ms\n", "compute", t->step[SYNTH_COMPUTE] * ms);
    printf("%-26s %10.2f ms\n", "comm", t->step[SYNTH_COMM] * ms);
    printf("%-26s %10.2f ms\n", "serial", t->step[SYNTH_SERIAL] * ms);
    printf("%-26s %10.2f ms\n", "overlap", t->step[SYNTH_OVERLAP] * ms);
    printf("%-26s %10.2f ms   overlap %.0f %%\n", "  exposed", t->exposed * ms,
           t->comm > t->exposed ? 100 * (1 - t->exposed / t->comm) : 0);
    printf("%-26s %10.2f ms   the step takes %.2f floors\n", "floor", t->floor * ms,
           t->step[SYNTH_OVERLAP] / t->floor);
    printf("%-26s %10.2f ms\n", "  last bucket", t->last * ms);
    printf("%-26s %10.2f ms\n", "beyond", beyond(t) * ms);
}

static void print_json(const bench_job *job, const synth_options *o, const synth_times *t)
{
    const double ms = 1e3;

    printf("{\"bench\":\"step\",\"model\":\"%s\",\"ranks\":%d,\"nodes\":%d,\"bytes\":%zu,"
           "\"buckets\":%d,"
           "\"compute\":\"%s\",\"zero\":%s,\"compute_ms\":%.4f,\"comm_ms\":%.4f,\"serial_ms\":%.4f,"
           "\"step_ms\":%.4f,",
           o->model, job->size, tutti_node_count(job->ctx), t->bytes, t->buckets,
           o->device ? "device" : "cpu", o->zero ? "true" : "false", t->step[SYNTH_COMPUTE] * ms,
           t->step[SYNTH_COMM] * ms, t->step[SYNTH_SERIAL] * ms, t->step[SYNTH_OVERLAP] * ms);
    printf(
        "\"exposed_ms\":%.4f,\"first_ready_ms\":%.4f,\"buckets_ms\":%.4f,\"last_bucket_ms\":%.4f,"
        "\"floor_ms\":%.4f,\"over_floor\":%.4f,\"beyond_ms\":%.4f}\n",
        t->exposed * ms, t->first * ms, t->comm * ms, t->last * ms, t->floor * ms,
        t->step[SYNTH_OVERLAP] / t->floor, beyond(t) * ms);
}

static tutti_status run(bench_job *job, const synth_options *o, synth_times *t)
{
    synth_engine engine;

    TT_TRY(bench_job_open(job, o->ranks));
    if (job->ctx->dev_ops->kind != TUTTI_BACKEND_HOST)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "tutti bench step: its arithmetic is for the host "
                                              "backend (TUTTI_BACKEND=host)");
    TT_TRY(synth_engine_make(job->world, o, &engine));
    return synth_run(job->ctx, job->world, o, &engine, (1u << SYNTH_KINDS) - 1, 1, t);
}

int bench_step(int argc, char **argv)
{
    bench_job job = {0};
    synth_options o;
    synth_times t;
    tutti_status status;
    int end, rc = synth_parse(argc, argv, usage, &o, &end);

    if (rc != 0)
        return rc < 0 ? 0 : rc;
    if (end < argc) {
        if (bench_speaks())
            fprintf(stderr, "tutti bench step: what is '%s'?\n", argv[end]);
        return BENCH_EXIT_USAGE;
    }
    status = run(&job, &o, &t);
    if (status == TUTTI_OK && job.rank == 0)
        (o.json ? print_json : print_table)(&job, &o, &t);
    if (status == TUTTI_OK && o.limit > 0 && t.step[SYNTH_OVERLAP] > o.limit * t.floor)
        rc = BENCH_EXIT_SLOWER; /* the same on all ranks: their times are agreed on */
    return bench_job_close(&job, status, rc);
}
