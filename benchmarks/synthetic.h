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
    double comm, last; /* of SYNTH_COMM: all buckets; the one issued last */
    double floor; /* max(compute + last, first + comm), and with --zero the gather's rest */
    size_t bytes; /* of gradients */
    int buckets;
} synth_times;

/* Reads options that begin at argv[1] up to "--"; *end_out is what follows it, or argc. 0, or the
 * exit status, told; -1: help was printed. */
int synth_parse(int argc, char **argv, const char *usage, synth_options *out, int *end_out);

/* Rounds of arithmetic that take one second on a core of their own; the same on all ranks. */
tutti_status synth_calibrate(tutti_comm *comm, double *rounds_out);

void synth_work(double rounds);

/* Times the kinds of `kinds` (bits) on comm; `share` of the arithmetic is this rank's (1: all). */
tutti_status synth_run(tutti_ctx *ctx, tutti_comm *comm, const synth_options *o, double rounds,
                       unsigned kinds, double share, synth_times *out);

int bench_step(int argc, char **argv);
int bench_scaling(int argc, char **argv);
int bench_overlap(int argc, char **argv);

#endif
