/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tutti bench ckpt`: what a checkpoint costs beside the disk.
 *
 * A durable save against the best raw write of the same bytes, a load against a raw read, and how
 * long a save in the background stops the program against one memcpy. Each round measures tutti and
 * raw right after each other, in turn first; what counts is the median of the rounds' ratios, for
 * the speed of a disk changes from minute to minute and a ratio of medians would carry that.
 *
 * The first save is not counted: it makes HDF5's structure, the plan and the memory, which later
 * ones use again. Every rank holds one row of every tensor. What was loaded is compared.
 */
#include "ckpt.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "core/clock.h"

static const char usage[] =
    "usage: tutti bench ckpt DIR [options]     (on every rank: mpirun -np 2 tutti bench ckpt DIR)\n"
    "\n"
    "DIR is made, on the disk that is to be measured and seen by all ranks, and removed.\n"
    "\n"
    "  --save --load --stall    what is measured; none given: these\n"
    "  --copy        a save while the one before is copied into a second tier, DIR/copies\n"
    "  --mib N       of all ranks together, 256     --tensors N   they are divided into, 1\n"
    "  --rounds N    9                              --ranks N     fail unless N ranks came\n"
    "  --alone       one save and its loads, nothing raw: to be one of several programs that are\n"
    "                compared (the raw disk's seconds and ratios are 0)\n"
    "  --json        one object a row\n"
    "\n"
    "save: durable and committed, against as many files written, synced and renamed (through the\n"
    "page cache or past it, the better way). load: with checksums, against a read, caches dropped\n"
    "and not. stall: how long a save in the background stops the program, against a memcpy.\n"
    "copy: against a save with no copy under way. Ratios are medians over the rounds: raw / tutti, "
    "of\n"
    "stall tutti / memcpy.\n";

enum { FIRST_STEP = 1, CAP = BENCH_ROUNDS_MAX, COPY_STEPS = 2, COPY_STEP_NS = 20000000 };

typedef struct timings {
    double tutti[CAP], raw[CAP], ratio[CAP];
} timings;

static const char *tensor_name(int i, char name[32])
{
    snprintf(name, 32, "t%06d", i);
    return name;
}

static tutti_tensor tensor_of(const ckpt_bench *b, int i, const char *name, char *base)
{
    size_t each = b->bytes / (size_t)b->tensors;
    tutti_tensor t = TUTTI_TENSOR_INIT;
    t.name = name;
    t.dtype = TUTTI_FLOAT32;
    t.ndim = 2;
    t.shape[0] = b->job.size;
    t.shape[1] = t.extent[1] = (int64_t)(each / sizeof(float));
    t.offset[0] = b->job.rank;
    t.extent[0] = 1;
    t.data = base + (size_t)i * each;
    return t;
}

static tutti_status begin_and_add(ckpt_bench *b, int64_t step, tutti_ckpt **ck)
{
    char name[32];
    TT_TRY(tutti_ckpt_begin(b->job.ctx, b->dir, step, ck));
    for (int i = 0; i < b->tensors; i++) {
        tutti_tensor t = tensor_of(b, i, tensor_name(i, name), b->data);
        TT_TRY(tutti_ckpt_add(*ck, &t));
    }
    return TUTTI_OK;
}

static tutti_status save_to(ckpt_bench *b, int64_t step, const char *copies)
{
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    tutti_ckpt *ck;
    opts.flags = TUTTI_CKPT_SYNC;
    opts.copy_to = copies;
    opts.copy_keep_last = 1;
    TT_TRY(begin_and_add(b, step, &ck));
    return tutti_ckpt_commit(ck, (tutti_stream){0}, &opts);
}

static tutti_status save_now(ckpt_bench *b, int64_t step)
{
    return save_to(b, step, NULL);
}

static tutti_status remove_step(ckpt_bench *b, int64_t step)
{
    char path[CKPT_PATH_MAX];
    ckpt_path(b, path, "step-%012lld", (long long)step);
    tutti_status status = b->job.rank == 0 ? ckpt_remove(path) : TUTTI_OK;
    return tt_agree(&b->job.ctx->world, "tutti bench ckpt", status);
}

static tutti_status tutti_save(ckpt_bench *b, int64_t step, double *seconds_out)
{
    int64_t from;
    TT_TRY(ckpt_clock_start(b, &from));
    TT_TRY(ckpt_clock_stop(b, from, save_now(b, step), seconds_out));
    return remove_step(b, step);
}

static tutti_status tutti_load(ckpt_bench *b, bool cold, double *seconds_out)
{
    tutti_ckpt_open_opts opts = TUTTI_CKPT_OPEN_OPTS_INIT;
    tutti_ckpt_reader *rd = NULL;
    size_t n = (size_t)b->tensors;
    tutti_tensor *t = calloc(n, sizeof *t);
    char(*names)[32] = calloc(n, sizeof *names), path[CKPT_PATH_MAX];
    int64_t from = 0;
    tutti_status status = t == NULL || names == NULL
                              ? tt_fail(TUTTI_ERR_NO_MEMORY, "tutti bench ckpt: out of memory")
                              : TUTTI_OK;
    opts.flags = TUTTI_CKPT_OPEN_LAZY;
    ckpt_path(b, path, "step-%012d/shard-%05d.h5", FIRST_STEP, b->job.rank);
    for (int i = 0; i < b->tensors && status == TUTTI_OK; i++)
        t[i] = tensor_of(b, i, tensor_name(i, names[i]), b->copy);
    if (cold)
        ckpt_drop_cache(path);
    status = tt_agree(&b->job.ctx->world, "tutti bench ckpt", status);
    if (status == TUTTI_OK)
        status = ckpt_clock_start(b, &from);
    if (status == TUTTI_OK)
        status = tutti_ckpt_open_with(b->job.ctx, b->dir, FIRST_STEP, &opts, &rd);
    if (status == TUTTI_OK)
        status = tutti_ckpt_read(rd, t, n, (tutti_stream){0});
    if (status == TUTTI_OK)
        status = ckpt_clock_stop(b, from, status, seconds_out);
    tutti_ckpt_close(rd);
    free(names);
    free(t);
    return status;
}

static double median(const double *values, int n)
{
    double sorted[CAP];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, bench_ascending);
    return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void report(const ckpt_bench *b, const char *what, const timings *t)
{
    double bytes = (double)b->bytes * b->job.size, ours = median(t->tutti, b->rounds);
    double raw = median(t->raw, b->rounds), ratio = median(t->ratio, b->rounds);
    if (b->job.rank != 0)
        return;
    if (b->json)
        printf("{\"bench\":\"ckpt\",\"what\":\"%s\",\"bytes\":%.0f,\"tensors\":%d,\"ranks\":%d,"
               "\"nodes\":%d,\"rounds\":%d,\"ours_s\":%.6f,\"raw_s\":%.6f,\"ratio\":%.4f}\n",
               what, bytes, b->tensors, b->job.size, tutti_node_count(b->job.ctx), b->rounds, ours,
               raw, ratio);
    else
        printf("%-12s %10.4f %10.2f %10.4f %10.3f\n", what, ours, bytes / (1 << 30) / ours, raw,
               ratio);
    fflush(stdout);
}

static void print_head(const ckpt_bench *b)
{
    if (b->job.rank != 0 || b->json)
        return;
    printf("# tutti bench ckpt: %.1f MiB in %d tensor%s on %d rank%s, %d round%s, in %s\n",
           (double)b->bytes * b->job.size / (1 << 20), b->tensors, b->tensors == 1 ? "" : "s",
           b->job.size, b->job.size == 1 ? "" : "s", b->rounds, b->rounds == 1 ? "" : "s", b->dir);
    printf("%-12s %10s %10s %10s %10s\n", "", "tutti s", "GiB/s", "raw s", "ratio");
}

static tutti_status run_saves(ckpt_bench *b)
{
    timings t;
    double way[2][CAP];
    for (int i = 0; i < b->rounds; i++) {
        for (int k = 0; k < 3; k++) { /* tutti is first in every other round, else last */
            int what = i % 2 == 0 ? k : (k + 2) % 3;
            TT_TRY(what < 2 ? ckpt_raw_save(b, what == 1, &way[what][i])
                            : tutti_save(b, FIRST_STEP + 1 + i, &t.tutti[i]));
        }
    }
    const double *raw = way[median(way[1], b->rounds) < median(way[0], b->rounds)];
    for (int i = 0; i < b->rounds; i++) {
        t.raw[i] = raw[i];
        t.ratio[i] = raw[i] / t.tutti[i];
    }
    report(b, "save", &t);
    return TUTTI_OK;
}

static tutti_status check_loaded(const ckpt_bench *b)
{
    bool same = memcmp(b->data, b->copy, b->bytes) == 0;
    return tt_agree(&b->job.ctx->world, "tutti bench ckpt",
                    same ? TUTTI_OK
                         : tt_fail(TUTTI_ERR_INTERNAL, "tutti bench ckpt: what was loaded differs "
                                                       "from what was saved"));
}

static tutti_status run_loads(ckpt_bench *b)
{
    timings t;
    TT_TRY(ckpt_raw_make(b));
    for (int cold = 1; cold >= 0; cold--) {
        for (int i = 0; i < b->rounds; i++) {
            for (int k = 0; k < 2; k++)
                TT_TRY((i + k) % 2 == 0 ? ckpt_raw_load(b, cold == 1, &t.raw[i])
                                        : tutti_load(b, cold == 1, &t.tutti[i]));
            t.ratio[i] = t.raw[i] / t.tutti[i];
        }
        report(b, cold == 1 ? "load disk" : "load cache", &t);
    }
    memset(b->copy, 0, b->bytes);
    TT_TRY(tutti_load(b, false, &t.tutti[0]));
    return check_loaded(b);
}

static tutti_status stall_once(ckpt_bench *b, int64_t step, double *seconds_out)
{
    tutti_ckpt *ck;
    int64_t from;
    TT_TRY(begin_and_add(b, step, &ck));
    TT_TRY(ckpt_clock_start(b, &from));
    TT_TRY(ckpt_clock_stop(b, from, tutti_ckpt_commit(ck, (tutti_stream){0}, NULL), seconds_out));
    TT_TRY(tutti_ckpt_wait(b->job.ctx, NULL));
    return remove_step(b, step);
}

static tutti_status memcpy_once(ckpt_bench *b, double *seconds_out)
{
    int64_t from;
    TT_TRY(ckpt_clock_start(b, &from));
    memcpy(b->copy, b->data, b->bytes);
    return ckpt_clock_stop(b, from, TUTTI_OK, seconds_out);
}

static tutti_status run_stalls(ckpt_bench *b)
{
    timings t;
    TT_TRY(stall_once(b, FIRST_STEP + 1, &t.tutti[0])); /* makes the memory for the snapshot */
    for (int i = 0; i < b->rounds; i++) {
        TT_TRY(stall_once(b, FIRST_STEP + 2 + i, &t.tutti[i]));
        TT_TRY(memcpy_once(b, &t.raw[i]));
        t.ratio[i] = t.tutti[i] / t.raw[i];
    }
    report(b, "stall", &t);
    return TUTTI_OK;
}

/* What the peers of ckpt.sh do: nothing else is written before the loads. */
static tutti_status run_alone(ckpt_bench *b)
{
    timings t = {0};
    int64_t from;
    TT_TRY(ckpt_clock_start(b, &from));
    TT_TRY(ckpt_clock_stop(b, from, save_now(b, FIRST_STEP), &t.tutti[0]));
    report(b, "save", &t);
    memset(b->copy, 0, b->bytes);
    TT_TRY(tutti_load(b, true, &t.tutti[0]));
    report(b, "load disk", &t);
    TT_TRY(tutti_load(b, false, &t.tutti[0]));
    report(b, "load cache", &t);
    return check_loaded(b);
}

static tutti_status end_copy(ckpt_bench *b)
{
    tutti_ckpt_copy_info info = TUTTI_CKPT_COPY_INFO_INIT;
    TT_TRY(tutti_ckpt_copy_wait(b->job.ctx, 3600, &info));
    if (info.failed > 0 || info.pending != -1)
        return tt_fail(TUTTI_ERR_IO, "tutti bench ckpt: a copy: %s", info.text);
    return TUTTI_OK;
}

/* What was saved is written into the second tier from here on, step by step as in training. */
static tutti_status start_copy(ckpt_bench *b, int64_t step, const char *copies)
{
    TT_TRY(save_to(b, step, copies));
    for (int i = 0; i < COPY_STEPS; i++) {
        tt_sleep_ns(COPY_STEP_NS);
        TT_TRY(tutti_ckpt_copy_wait(b->job.ctx, 0, NULL));
    }
    return TUTTI_OK;
}

static tutti_status save_beside(ckpt_bench *b, int64_t step, const char *copies,
                                double *seconds_out)
{
    tutti_ckpt_copy_info info = TUTTI_CKPT_COPY_INFO_INIT;
    TT_TRY(start_copy(b, step, copies));
    TT_TRY(tutti_save(b, step + 1, seconds_out));
    TT_TRY(tutti_ckpt_copy_state(b->job.ctx, &info));
    TT_TRY(end_copy(b));
    if (info.pending < 0)
        return tt_fail(TUTTI_ERR_ARG, "tutti bench ckpt: the copy ended before the save did: take "
                                      "more --mib");
    return remove_step(b, step);
}

static tutti_status run_copies(ckpt_bench *b)
{
    char copies[CKPT_PATH_MAX];
    timings t;
    ckpt_path(b, copies, "copies");
    for (int i = 0; i < b->rounds; i++) {
        int64_t step = FIRST_STEP + 1 + 3 * i;
        for (int k = 0; k < 2; k++)
            TT_TRY((i + k) % 2 == 0 ? save_beside(b, step, copies, &t.tutti[i])
                                    : tutti_save(b, step + 2, &t.raw[i]));
        t.ratio[i] = t.raw[i] / t.tutti[i];
    }
    report(b, "save by copy", &t);
    return TUTTI_OK;
}

static tutti_status touched(size_t bytes, char **out)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return tt_fail_errno(TUTTI_ERR_NO_MEMORY, errno, "tutti bench ckpt: %zu bytes", bytes);
    madvise(p, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
        z ^= z >> 29;
        memcpy(p + i, &z, 8);
    }
    *out = p;
    return TUTTI_OK;
}

static tutti_status open_bench(ckpt_bench *b)
{
    TT_TRY(bench_job_open(&b->job, b->ranks));
    if (b->job.ctx->dev_ops->kind != TUTTI_BACKEND_HOST)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "tutti bench ckpt: its tensors are in host memory "
                                              "(TUTTI_BACKEND=host)");
    size_t grain = (size_t)b->tensors * 4096;
    size_t want = ((size_t)b->mib << 20) / (size_t)b->job.size;
    b->bytes = want < grain ? grain : want / grain * grain;
    tutti_status status = touched(b->bytes, &b->data);
    if (status == TUTTI_OK)
        status = touched(b->bytes, &b->copy);
    if (status == TUTTI_OK && b->job.rank == 0) {
        b->made = mkdir(b->dir, 0777) == 0;
        if (!b->made)
            status = tt_fail_errno(errno == EEXIST ? TUTTI_ERR_ARG : TUTTI_ERR_IO, errno,
                                   "tutti bench ckpt: cannot make %s", b->dir);
    }
    return tt_agree(&b->job.ctx->world, "tutti bench ckpt", status);
}

static tutti_status run(ckpt_bench *b)
{
    TT_TRY(open_bench(b));
    print_head(b);
    if (b->alone)
        return run_alone(b);
    TT_TRY(save_now(b, FIRST_STEP));
    if (b->save)
        TT_TRY(run_saves(b));
    if (b->load)
        TT_TRY(run_loads(b));
    if (b->stall)
        TT_TRY(run_stalls(b));
    return b->copies ? run_copies(b) : TUTTI_OK;
}

enum { SAVE, LOAD, STALL, COPY, ALONE, MIB, TENSORS, ROUNDS, RANKS, JSON, HELP };

static const struct option longs[] = {
    {"save", 0, NULL, SAVE},       {"load", 0, NULL, LOAD},     {"stall", 0, NULL, STALL},
    {"copy", 0, NULL, COPY},       {"alone", 0, NULL, ALONE},   {"mib", 1, NULL, MIB},
    {"tensors", 1, NULL, TENSORS}, {"rounds", 1, NULL, ROUNDS}, {"ranks", 1, NULL, RANKS},
    {"json", 0, NULL, JSON},       {"help", 0, NULL, HELP},     {NULL, 0, NULL, 0}};

static bool take(int opt, const char *value, void *into)
{
    ckpt_bench *b = into;
    switch (opt) {
    case SAVE:
        return b->save = true;
    case LOAD:
        return b->load = true;
    case STALL:
        return b->stall = true;
    case COPY:
        return b->copies = true;
    case ALONE:
        return b->alone = true;
    case JSON:
        return b->json = true;
    case MIB:
        return bench_count(value, 1, 1 << 20, &b->mib);
    case TENSORS:
        return bench_count(value, 1, 1000000, &b->tensors);
    case ROUNDS:
        return bench_count(value, 1, CAP, &b->rounds);
    default: /* RANKS */
        return bench_count(value, 1, 1 << 20, &b->ranks);
    }
}

/* 0, or the exit status, told; -1: help was printed. */
static int parse(int argc, char **argv, ckpt_bench *b)
{
    static const bench_syntax syntax = {":", longs, HELP, usage, take};
    int rc = bench_take_options(argc, argv, &syntax, b);
    if (rc != 0)
        return rc;
    if (optind + 1 != argc)
        return optind == argc ? bench_wrong("ckpt: a folder to be made is needed")
                              : bench_wrong("what is '%s'?", argv[optind + 1]);
    b->dir = argv[optind];
    if (b->dir[0] == '\0' || strlen(b->dir) > CKPT_PATH_MAX - 64)
        return bench_wrong("ckpt: no proper folder: '%.40s'", b->dir);
    if (b->alone && (b->save || b->load || b->stall || b->copies))
        return bench_wrong("ckpt: --alone goes with no other measurement");
    if (b->alone)
        b->rounds = 1;
    if (!b->save && !b->load && !b->stall && !b->copies)
        b->save = b->load = b->stall = true;
    return 0;
}

int bench_ckpt(int argc, char **argv)
{
    ckpt_bench b = {.mib = 256, .tensors = 1, .rounds = 9};
    int rc = parse(argc, argv, &b);
    if (rc != 0)
        return rc < 0 ? 0 : rc;
    tutti_status status = run(&b);
    rc = bench_job_close(&b.job, status, rc);
    if (b.made && ckpt_remove(b.dir) != TUTTI_OK) {
        fprintf(stderr, "%s\n", tutti_last_error());
        rc = rc == 0 ? BENCH_EXIT_FAILED : rc;
    }
    if (b.data != NULL)
        munmap(b.data, b.bytes);
    if (b.copy != NULL)
        munmap(b.copy, b.bytes);
    return rc;
}
