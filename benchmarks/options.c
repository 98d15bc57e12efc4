/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of `tutti bench OP`. Long options, and nccl-tests' short ones where it has them.
 */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/env.h"

static const char usage[] =
    "usage: tutti bench OP [options]        (alone, or on every rank: mpirun -np 2 tutti bench "
    "OP)\n"
    "\n"
    "OP: all_gather all_reduce all_to_all broadcast gather reduce reduce_scatter scatter "
    "send_recv\n"
    "\n"
    "  -b, --min BYTES      smallest row, 8           -e, --max BYTES   largest row, 64M\n"
    "  -f, --factor X       from row to row, 2        -d, --dtype T     f32 bf16 f16 f64 i8 u8 i32 "
    "...\n"
    "  -o, --redop OP       sum avg max min prod      -r, --root R      rank, 0\n"
    "      --place P        both, in or out           --memory M        registered, plain or both\n"
    "      --peer P[,P]     mpi: MPI's collective, interleaved; limit: a hand-written one (one "
    "node, "
    "fp32 sum)\n"
    "      --cold           cycle through buffers beyond the last-level cache\n"
    "      --stream         calls on a stream (the default on CUDA), several in flight\n"
    "  -m, --group N        N calls in one group, 1\n"
    "      --rounds N       interleaved rounds, 5     --time SECONDS    a row's timed calls, 0.5\n"
    "      --ranks N        fail unless N ranks came  --timeout SECONDS give up on a rank that is "
    "late\n"
    "      --json | --csv   a line a row              --svg FILE        draw bandwidth by size\n"
    "      --baseline FILE  ratio to an earlier --json; exit status 3 where a row took longer "
    "than\n"
    "      --threshold X    X times that, 1.25\n"
    "\n"
    "us: median over the rounds of a call's time on the slowest rank; p99 likewise over its "
    "samples.\n"
    "algbw = bytes / time; busbw and the meaning of bytes as nccl-tests define them, in GB/s "
    "(1e9).\n"
    "bound: what the memory (and the link between nodes) measured in this run would allow.\n";

enum {
    OPT_PLACE = 256,
    OPT_MEMORY,
    OPT_PEER,
    OPT_COLD,
    OPT_STREAM,
    OPT_ROUNDS,
    OPT_TIME,
    OPT_RANKS,
    OPT_TIMEOUT,
    OPT_JSON,
    OPT_CSV,
    OPT_SVG,
    OPT_BASELINE,
    OPT_THRESHOLD
};

static const struct option longs[] = {{"min", 1, NULL, 'b'},
                                      {"max", 1, NULL, 'e'},
                                      {"factor", 1, NULL, 'f'},
                                      {"dtype", 1, NULL, 'd'},
                                      {"redop", 1, NULL, 'o'},
                                      {"root", 1, NULL, 'r'},
                                      {"place", 1, NULL, OPT_PLACE},
                                      {"memory", 1, NULL, OPT_MEMORY},
                                      {"peer", 1, NULL, OPT_PEER},
                                      {"cold", 0, NULL, OPT_COLD},
                                      {"stream", 0, NULL, OPT_STREAM},
                                      {"group", 1, NULL, 'm'},
                                      {"rounds", 1, NULL, OPT_ROUNDS},
                                      {"time", 1, NULL, OPT_TIME},
                                      {"ranks", 1, NULL, OPT_RANKS},
                                      {"timeout", 1, NULL, OPT_TIMEOUT},
                                      {"json", 0, NULL, OPT_JSON},
                                      {"csv", 0, NULL, OPT_CSV},
                                      {"svg", 1, NULL, OPT_SVG},
                                      {"baseline", 1, NULL, OPT_BASELINE},
                                      {"threshold", 1, NULL, OPT_THRESHOLD},
                                      {"help", 0, NULL, 'h'},
                                      {NULL, 0, NULL, 0}};

static bool parse_dtype(const char *text, tutti_dtype *out)
{
    for (int d = TUTTI_FLOAT32; d <= TUTTI_UINT64; d++)
        if (strcmp(text, tutti_dtype_name((tutti_dtype)d)) == 0) {
            *out = (tutti_dtype)d;
            return true;
        }
    return false;
}

/* The position of a word in a list of words that ends in NULL; -1: not there. */
static int word(const char *text, const char *const *words)
{
    for (int i = 0; words[i] != NULL; i++)
        if (strcmp(text, words[i]) == 0)
            return i;
    return -1;
}

static bool parse_peers(const char *text, unsigned *out)
{
    char copy[64], *save = NULL, *name;

    if (strlen(text) >= sizeof copy)
        return false;
    strcpy(copy, text);
    for (name = strtok_r(copy, ",", &save); name != NULL; name = strtok_r(NULL, ",", &save)) {
        unsigned i = 0;

        while (bench_peer_at(i) != NULL && strcmp(bench_peer_at(i)->name, name) != 0)
            i++;
        if (bench_peer_at(i) == NULL)
            return false;
        *out |= 1u << i;
    }
    return *out != 0;
}

static bool set_timeout(const char *text)
{
    double seconds;

    if (!bench_number(text, 0, 86400, &seconds))
        return false;
    return setenv("TUTTI_TIMEOUT", text, 1) == 0 && setenv("TUTTI_INIT_TIMEOUT", text, 1) == 0;
}

/* What the rows are. False: the value is none. */
static bool take_case(int opt, const char *value, bench_options *o)
{
    static const char *const redops[] = {"sum", "avg", "max", "min", "prod", NULL};
    static const char *const places[] = {"out", "in", "both", NULL};
    static const char *const memories[] = {"registered", "plain", "both", NULL};
    int at;

    switch (opt) {
    case 'b':
        return tt_parse_bytes(value, &o->min_bytes) == TUTTI_OK && o->min_bytes > 0;
    case 'e':
        return tt_parse_bytes(value, &o->max_bytes) == TUTTI_OK && o->max_bytes > 0;
    case 'f':
        return bench_number(value, 1.01, 1e6, &o->factor);
    case 'd':
        return parse_dtype(value, &o->dtype);
    case 'o':
        at = word(value, redops);
        o->redop = (tutti_op)(at + 1);
        return at >= 0;
    case 'r':
        return bench_count(value, 0, 1 << 20, &o->root);
    case OPT_PLACE:
        at = word(value, places);
        o->places = (unsigned)at + 1;
        return at >= 0;
    default: /* OPT_MEMORY */
        at = word(value, memories);
        o->memories = (unsigned)at + 1;
        return at >= 0;
    }
}

/* How they are run and printed. */
static bool take_run(int opt, const char *value, bench_options *o)
{
    switch (opt) {
    case 'm':
        return bench_count(value, 1, 1024, &o->group);
    case OPT_PEER:
        return parse_peers(value, &o->peers);
    case OPT_ROUNDS:
        return bench_count(value, 1, BENCH_ROUNDS_MAX, &o->rounds);
    case OPT_TIME:
        return bench_number(value, 0.001, 3600, &o->seconds);
    case OPT_RANKS:
        return bench_count(value, 1, 1 << 20, &o->ranks);
    case OPT_TIMEOUT:
        return set_timeout(value);
    case OPT_THRESHOLD:
        return bench_number(value, 0.01, 1e6, &o->threshold);
    case OPT_SVG:
        o->svg = value;
        return *value != '\0';
    default: /* OPT_BASELINE */
        o->baseline = value;
        return *value != '\0';
    }
}

static bool take(int opt, const char *value, void *into)
{
    bench_options *o = into;
    switch (opt) {
    case OPT_COLD:
        o->cold = true;
        return true;
    case OPT_STREAM:
        o->stream = true;
        return true;
    case OPT_JSON:
    case OPT_CSV:
        o->format = opt == OPT_JSON ? BENCH_JSON : BENCH_CSV;
        return true;
    case 'b':
    case 'e':
    case 'f':
    case 'd':
    case 'o':
    case 'r':
    case OPT_PLACE:
    case OPT_MEMORY:
        return take_case(opt, value, o);
    default:
        return take_run(opt, value, o);
    }
}

int bench_options_parse(int argc, char **argv, bench_options *out)
{
    bench_options o = {.op = bench_op_find(argv[0]),
                       .min_bytes = 8,
                       .max_bytes = (size_t)64 << 20,
                       .factor = 2,
                       .dtype = TUTTI_FLOAT32,
                       .redop = TUTTI_SUM,
                       .places = BENCH_OUT_OF_PLACE | BENCH_IN_PLACE,
                       .memories = BENCH_REGISTERED,
                       .group = 1,
                       .rounds = 5,
                       .seconds = 0.5,
                       .threshold = 1.25};
    static const bench_syntax syntax = {":b:e:f:d:o:r:m:h", longs, 'h', usage, take};
    int rc;

    if (o.op == NULL)
        return bench_wrong("there is no operation '%s'", argv[0]);
    rc = bench_take_options(argc, argv, &syntax, &o);
    if (rc != 0)
        return rc;
    if (optind < argc)
        return bench_wrong("what is '%s'?", argv[optind]);
    if (o.min_bytes > o.max_bytes)
        return bench_wrong("--min is larger than --max");
    if (!o.op->has_in_place && o.places == BENCH_IN_PLACE)
        return bench_wrong("%s has no in-place form", o.op->name);
    if (!o.op->has_in_place)
        o.places = BENCH_OUT_OF_PLACE;
    *out = o;
    return 0;
}
