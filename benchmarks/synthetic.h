/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A made-up training step: tensors with the sizes of a known model, and for each a fixed amount of
 * arithmetic in proportion to what its layer costs. Shared by `tutti bench step` and `tutti bench
 * scaling`.
 */
#ifndef BENCH_SYNTHETIC_H
#define BENCH_SYNTHETIC_H

#include "bench.h"

enum { SYNTH_STEPS_MAX = 201 };

typedef struct synth_tensor {
    size_t count; /* elements */
    double cost; /* of its layer's backward pass, as a share of 1 */
} synth_tensor;

typedef struct synth_options {
    const char *model; /* "gpt2", "resnet50" or "uniform" */
    int layers; /* uniform */
    size_t bytes; /* uniform: a layer's gradient */
    double ms; /* the whole backward pass on one rank */
    double forward; /* the forward pass, as a multiple of that */
    double scale; /* of the tensors' sizes */
    size_t bucket_bytes;
    bool zero;
    tutti_dtype wire; /* 0: fp32 */
    int steps; /* of each kind; the median counts */
    bool device; /* computation leaves the core free, as a GPU's does */
    bool json;
    double limit; /* > 0: fail when a step is longer than this many floors */
    const char *svg;
    bool strong;
    int ranks; /* that must have come; 0: any */
    const char *match; /* scaling of a program: its throughput stands before this word */
} synth_options;

typedef enum synth_kind {
    SYNTH_COMPUTE, /* computing alone */
    SYNTH_COMM, /* communicating alone */
    SYNTH_SERIAL, /* one after the other */
    SYNTH_OVERLAP, /* both at once */
    SYNTH_KINDS
} synth_kind;

/* Seconds, each a median over the steps of the slowest rank's. */
typedef struct synth_times {
    double step[SYNTH_KINDS];
    double exposed; /* of SYNTH_OVERLAP: what wait, and with --zero param_wait, blocked */
    double first; /* of SYNTH_OVERLAP: until the first gradient was ready */
    double comm; /* of SYNTH_COMM: all buckets */
    double last; /* one collective of the last bucket's size, by itself */
    double floor; /* max(compute + last, first + comm), and with --zero the gather's rest */
    size_t bytes; /* of gradients */
    int buckets;
} synth_times;

/* Reads options that begin at argv[1] up to "--"; *end_out is what follows it, or argc. 0, or the
 * exit status, told; -1: help was printed. */
int synth_parse(int argc, char **argv, const char *usage, synth_options *out, int *end_out);

/* What computes: the core, or as it were a device, whose work takes the time it takes. */
typedef struct synth_engine {
    double rounds; /* of arithmetic that a core of its own does in a second; 0: a device */
    int64_t busy_until_ns; /* the device, with what it was given */
} synth_engine;

/* Measures the core; the engine is the same on all ranks. */
tutti_status synth_engine_make(tutti_comm *comm, const synth_options *o, synth_engine *out);

/* The device has nothing to do. */
void synth_engine_rest(synth_engine *e);

/* As much computation as takes so many seconds undisturbed; returns when it is done. */
void synth_compute(synth_engine *e, double seconds);

/* Times the kinds of `kinds` (bits) on comm; `share` of the computation is this rank's (1: all). */
tutti_status synth_run(tutti_ctx *ctx, tutti_comm *comm, const synth_options *o,
                       const synth_engine *engine, unsigned kinds, double share, synth_times *out);

int bench_step(int argc, char **argv);
int bench_scaling(int argc, char **argv);
int bench_overlap(int argc, char **argv);

#endif
