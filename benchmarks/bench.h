/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of `tutti bench`. A *case* is one row's question (operation, type, bytes, place); a
 * *variant* is one who answers it (tutti itself, or a peer in the same processes) and brings its
 * own memory. Filling, checking and timing treat all variants alike, so that a ratio compares like
 * with like; their rounds are interleaved.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdio.h>

#include "boot/context.h"
#include "core/status.h"
#include "quantile.h"
#include "tutti/tutti.h"

enum {
    BENCH_EXIT_FAILED = 1, /* an error, or wrong elements */
    BENCH_EXIT_USAGE = 2,
    BENCH_EXIT_SLOWER = 3, /* a row is beyond the threshold of --baseline */
    BENCH_PEERS_MAX = 4,
    BENCH_ROUNDS_MAX = 101
};

typedef enum bench_place { BENCH_OUT_OF_PLACE = 1, BENCH_IN_PLACE = 2 } bench_place;
typedef enum bench_memory { BENCH_REGISTERED = 1, BENCH_PLAIN = 2 } bench_memory;
typedef enum bench_format { BENCH_TABLE, BENCH_JSON, BENCH_CSV } bench_format;

typedef struct bench_op bench_op;

typedef struct bench_options {
    const bench_op *op;
    size_t min_bytes, max_bytes;
    double factor; /* from one size to the next */
    tutti_dtype dtype;
    tutti_op redop;
    int root;
    unsigned places, memories; /* bits of bench_place and bench_memory */
    unsigned peers; /* bits: 1 << index into bench_peers() */
    bool cold, stream;
    int group; /* calls a group; 1: none */
    int rounds;
    double seconds; /* a row's and variant's timed calls, about */
    int ranks; /* that must have come; 0: any */
    bench_format format;
    const char *svg, *baseline;
    double threshold;
} bench_options;

/* One row's question. */
typedef struct bench_case {
    const bench_op *op;
    size_t bytes; /* of the largest buffer of a rank: what nccl-tests calls size */
    size_t n; /* the call's count, in elements */
    tutti_dtype dtype;
    tutti_op redop;
    int root, rank, size;
    bool in_place;
} bench_case;

/* A collective as it is benched. */
struct bench_op {
    const char *name;
    bool reduces, has_root, has_in_place;
    bool divides; /* bytes are shared out: n = bytes / ranks / element */
    /* Traffic factors for p ranks: what a rank sends beyond itself per byte (bus bandwidth, as
     * nccl-tests defines it), and what it reads and writes in memory when all ranks share one. */
    double (*bus)(int p);
    double (*reads)(int p);
    double (*writes)(int p);
    /* Elements that a rank reads from `in` and writes to `out`. */
    size_t (*in_count)(const bench_case *c);
    size_t (*out_count)(const bench_case *c);
    /* In place, where in `in`'s buffer out begins (negative: in begins there in out's), elements.
     */
    ptrdiff_t (*shift)(const bench_case *c);
    tutti_status (*call)(tutti_comm *comm, const bench_case *c, const void *in, void *out,
                         tutti_stream stream);
};
const bench_op *bench_op_find(const char *name); /* NULL: none */
const bench_op *bench_op_at(size_t index); /* NULL after the last */

typedef struct bench_job {
    tutti_ctx *ctx;
    tutti_comm *world;
    tutti_stream stream; /* inline, or one of its own */
    int rank, size;
    double link_gbps; /* between nodes, one way, GB/s; 0 with one node */
} bench_job;

typedef struct bench_variant bench_variant;
struct bench_variant {
    const char *name;
    void *state;
    char *in, *out; /* two arenas of `bytes` */
    size_t bytes;
    bool device; /* the arenas are not the host's to touch */
    bool (*can)(const bench_variant *v, const bench_case *c);
    tutti_status (*call)(bench_variant *v, const bench_case *c, const void *in, void *out);
    tutti_status (*finish)(bench_variant *v); /* waits for what was queued; NULL: nothing is */
    void (*close)(bench_variant *v);
};
/* job.c: tutti_init, and the end: what failed is told once; the exit status. `ranks` 0: any. */
tutti_status bench_job_open(bench_job *job, int ranks);
int bench_job_close(bench_job *job, tutti_status status, int rc);

tutti_status bench_tutti_open(bench_job *job, const bench_options *o, bench_memory memory,
                              size_t bytes, bench_variant *out);

typedef struct bench_peer {
    const char *name;
    tutti_status (*open)(bench_job *job, size_t bytes, bench_variant *out); /* collective */
} bench_peer;
const bench_peer *bench_peer_at(size_t index); /* NULL after the last */
tutti_status bench_mpi_open(bench_job *job, size_t bytes, bench_variant *out);
tutti_status bench_limit_open(bench_job *job, size_t bytes, bench_variant *out);

/* Seconds a call takes: of the round in the middle, of the fastest sample, of the sample that only
 * one in a hundred exceeds; each the slowest rank's. */
typedef struct bench_time {
    double median, min, p99;
    double round[BENCH_ROUNDS_MAX];
} bench_time;

typedef struct bench_row {
    bench_case c;
    bool registered, cold;
    bench_time us; /* in microseconds */
    double bound_us;
    uint64_t wrong; /* elements, over all ranks */
    size_t peers;
    struct {
        const char *name;
        double us, ratio; /* median of the rounds' peer time / tutti time; 0: not measured */
        uint64_t wrong;
    } peer[BENCH_PEERS_MAX];
    double baseline_ratio; /* this run / the earlier one; 0: not there */
} bench_row;

/* data.c */
tutti_status bench_fill(bench_job *job, bench_variant *v, const bench_case *c, size_t at);
tutti_status bench_clear(bench_job *job, bench_variant *v, const bench_case *c);
tutti_status bench_check(bench_job *job, bench_variant *v, const bench_case *c, size_t at,
                         uint64_t *wrong_out);
void bench_place_of(const bench_variant *v, const bench_case *c, size_t at, const char **in_out,
                    char **out_out);

/* measure.c: all collective. */
tutti_status bench_measure(bench_job *job, const bench_options *o, bench_variant *v[], size_t count,
                           bench_row *row);
size_t bench_stride(const bench_options *o, const bench_case *c);
size_t bench_arena_bytes(const bench_options *o);

/* bound.c */
tutti_status bench_link_measure(bench_job *job);
tutti_status bench_bound(bench_job *job, const bench_case *c, double *us_out);

/* report.c, on rank 0 */
void bench_report_begin(const bench_job *job, const bench_options *o);
void bench_report_row(const bench_job *job, const bench_options *o, const bench_row *row);
tutti_status bench_report_end(const bench_job *job, const bench_options *o, const bench_row *rows,
                              size_t n); /* the picture too, if one is asked for */

/* baseline.c */
typedef struct bench_baseline bench_baseline;
tutti_status bench_baseline_open(const char *path, bench_baseline **out);
void bench_baseline_close(bench_baseline *b);
double bench_baseline_us(const bench_baseline *b, const bench_row *row, int ranks); /* 0: no row */

/* options.c: 0, or the exit status; what is wrong is printed. */
int bench_options_parse(int argc, char **argv, bench_options *out);
bool bench_speaks(void); /* before init: this process is the one of its job that prints */

/* words.c. What is wrong with the command line, told once in a job; BENCH_EXIT_USAGE. */
int bench_wrong(const char *format, ...) TT_PRINTF(1, 2);
/* False: `text` is no number from min to max. */
bool bench_number(const char *text, double min, double max, double *out);
bool bench_count(const char *text, int min, int max, int *out); /* a whole one */

/* The options of one command. */
typedef struct bench_syntax {
    const char *shorts; /* getopt_long's, with the ':' that has missing values told apart */
    const struct option *longs;
    int help; /* the option that prints `usage` */
    const char *usage;
    bool (*take)(int opt, const char *value, void *into); /* false: there is no such value */
} bench_syntax;
/* Takes them into `into`; optind is then the first word that is none. 0, or the exit status, told;
 * -1: help was printed. */
int bench_take_options(int argc, char **argv, const bench_syntax *syntax, void *into);

/* chart.c: lines over a logarithmic x axis, as an SVG file. */
typedef struct bench_series {
    const char *name;
    const double *x, *y;
    size_t n;
} bench_series;
typedef struct bench_chart {
    const char *title, *x_label, *y_label;
    bool x_bytes, y_log;
    const bench_series *series;
    size_t n;
} bench_chart;
tutti_status bench_chart_write(const char *path, const bench_chart *chart);

/* The parts of `tutti bench`: argv[0] is the operation's name. */
int bench_collective(int argc, char **argv);
int command_bench(int argc, char **argv);

#endif
