/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a checkpoint costs beside the disk: durable save against the best raw write of the same
 * bytes, load against a raw read, and how long an asynchronous save stops the program against one
 * memcpy. Ranks are threads of this process. Each round measures tutti and raw right after each
 * other, in turn first; what counts is the median of the rounds' ratios.
 *
 * raw write: as many files of as many bytes, made in a temporary directory, written by as many
 * threads, each file and the directory synced, renamed, the parent synced; once through the page
 * cache and once past it (O_DIRECT); the way with the smaller median counts. raw read: the same
 * files, read in 4 MiB pieces.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "quantile.h"
#include "tutti/tutti.h"

enum { MAX_RANKS = 16, MAX_ROUNDS = 101, PIECE = 4 << 20, PATH_CAP = 512 };

typedef struct bench {
    const char *dir;
    size_t bytes; /* of all ranks */
    int tensors, ranks, rounds;
    bool save, load, stall, json;
    pthread_barrier_t gate;
    double ratio[3][MAX_ROUNDS], tutti_s[3][MAX_ROUNDS], raw_s[3][MAX_ROUNDS];
    double raw_way[2][MAX_ROUNDS]; /* buffered, direct */
    char *data; /* of all ranks */
    char *copy;
    _Atomic bool failed;
} bench;
enum { SAVE, LOAD, STALL, CACHED };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static void remove_tree(const char *path)
{
    char command[PATH_CAP + 16];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command) != 0)
        die(path);
}

static void remove_step(const bench *b, int64_t step)
{
    char path[PATH_CAP];
    snprintf(path, sizeof path, "%s/step-%012lld", b->dir, (long long)step);
    remove_tree(path);
}

static char *touched(size_t bytes)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        die("mmap");
    madvise(p, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u;
        z ^= z >> 29;
        memcpy(p + i, &z, 8);
    }
    return p;
}

typedef struct raw_file {
    char path[PATH_CAP];
    const char *data;
    char *to;
    size_t bytes;
    bool direct, read;
} raw_file;

static void raw_write(const raw_file *f)
{
    int fd = open(f->path, O_WRONLY | O_CREAT | O_EXCL | (f->direct ? O_DIRECT : 0), 0666);
    if (fd < 0 || (fallocate(fd, 0, 0, (off_t)f->bytes) != 0 && errno != EOPNOTSUPP))
        die(f->path);
    for (size_t at = 0; at < f->bytes;) {
        size_t take = f->bytes - at < PIECE ? f->bytes - at : PIECE;
        ssize_t n = pwrite(fd, f->data + at, take, (off_t)at);
        if (n <= 0)
            die(f->path);
        at += (size_t)n;
    }
    if (fsync(fd) != 0 || close(fd) != 0)
        die(f->path);
}

static void raw_read(const raw_file *f)
{
    int fd = open(f->path, O_RDONLY);
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    for (size_t at = 0; at < f->bytes;) {
        size_t take = f->bytes - at < PIECE ? f->bytes - at : PIECE;
        ssize_t n = pread(fd, f->to + at, take, (off_t)at);
        if (n <= 0)
            die(f->path);
        at += (size_t)n;
    }
    close(fd);
}

static void *raw_thread(void *arg)
{
    const raw_file *f = arg;
    if (f->read)
        raw_read(f);
    else
        raw_write(f);
    return NULL;
}

static void raw_all(raw_file *f, int n)
{
    pthread_t thread[MAX_RANKS];
    for (int i = 1; i < n; i++)
        if (pthread_create(&thread[i], NULL, raw_thread, &f[i]) != 0)
            die("pthread_create");
    raw_thread(&f[0]);
    for (int i = 1; i < n; i++)
        pthread_join(thread[i], NULL);
}

static void raw_files(const bench *b, raw_file *f, const char *dir, bool direct)
{
    size_t each = b->bytes / (size_t)b->ranks;
    for (int i = 0; i < b->ranks; i++) {
        f[i] = (raw_file){.data = b->data + (size_t)i * each,
                          .to = b->copy + (size_t)i * each,
                          .bytes = each,
                          .direct = direct};
        snprintf(f[i].path, PATH_CAP, "%s/raw-%d", dir, i);
    }
}

static void sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0 || fsync(fd) != 0)
        die(path);
    close(fd);
}

/* The same protocol with nothing in it: shards, two small files, directory, rename, parent. */
static double raw_save(const bench *b, bool direct)
{
    char temp[PATH_CAP - 32], final[PATH_CAP - 32];
    raw_file f[MAX_RANKS], small[2];
    snprintf(temp, sizeof temp, "%s/raw.tmp", b->dir);
    snprintf(final, sizeof final, "%s/raw", b->dir);
    double start = now();
    if (mkdir(temp, 0777) != 0)
        die(temp);
    raw_files(b, f, temp, direct);
    raw_all(f, b->ranks);
    for (int i = 0; i < 2; i++) {
        small[i] = (raw_file){.data = b->data, .bytes = 4096};
        snprintf(small[i].path, PATH_CAP, "%s/small-%d", temp, i);
        raw_write(&small[i]);
    }
    sync_dir(temp);
    if (rename(temp, final) != 0)
        die(final);
    sync_dir(b->dir);
    double took = now() - start;
    remove_tree(final);
    return took;
}

static void raw_saves(bench *b, int round)
{
    for (int direct = 0; direct < 2; direct++)
        b->raw_way[direct][round] = raw_save(b, direct == 1);
}

typedef struct rank_arg {
    bench *b;
    tutti_threads *threads;
    int rank;
    tutti_ctx *ctx;
} rank_arg;

static void check(rank_arg *r, tutti_status status, const char *what)
{
    if (status == TUTTI_OK)
        return;
    fprintf(stderr, "bench_ckpt: rank %d: %s: %s\n", r->rank, what, tutti_last_error());
    exit(1);
}

static tutti_tensor tensor_of(const rank_arg *r, int i, char name[32], char *base)
{
    const bench *b = r->b;
    size_t each = b->bytes / (size_t)b->ranks / (size_t)b->tensors;
    tutti_tensor t = TUTTI_TENSOR_INIT;
    snprintf(name, 32, "t%06d", i);
    t.name = name;
    t.dtype = TUTTI_FLOAT32;
    t.ndim = 2;
    t.shape[0] = b->ranks;
    t.shape[1] = (int64_t)each / 4;
    t.offset[0] = r->rank;
    t.extent[0] = 1;
    t.extent[1] = t.shape[1];
    t.data = base + ((size_t)r->rank * (size_t)b->tensors + (size_t)i) * each;
    return t;
}

static void begin_and_add(rank_arg *r, int64_t step, tutti_ckpt **ck)
{
    char name[32];
    check(r, tutti_ckpt_begin(r->ctx, r->b->dir, step, ck), "begin");
    for (int i = 0; i < r->b->tensors; i++) {
        tutti_tensor t = tensor_of(r, i, name, r->b->data);
        check(r, tutti_ckpt_add(*ck, &t), "add");
    }
}

static double save(rank_arg *r, int64_t step)
{
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    tutti_ckpt *ck;
    opts.flags = TUTTI_CKPT_SYNC;
    pthread_barrier_wait(&r->b->gate);
    double start = now();
    begin_and_add(r, step, &ck);
    check(r, tutti_ckpt_commit(ck, (tutti_stream){0}, &opts), "commit");
    return now() - start;
}

static double stall(rank_arg *r, int64_t step)
{
    tutti_ckpt *ck;
    begin_and_add(r, step, &ck);
    pthread_barrier_wait(&r->b->gate);
    double start = now();
    check(r, tutti_ckpt_commit(ck, (tutti_stream){0}, NULL), "commit");
    double took = now() - start;
    check(r, tutti_ckpt_wait(r->ctx, NULL), "wait");
    if (r->rank == 0)
        remove_step(r->b, step);
    return took;
}

static void drop_caches(const char *dir, const bench *b, bool raw)
{
    char path[PATH_CAP];
    for (int i = 0; i < b->ranks; i++) {
        if (raw)
            snprintf(path, sizeof path, "%s/raw-%d", dir, i);
        else
            snprintf(path, sizeof path, "%s/shard-%05d.h5", dir, i);
        int fd = open(path, O_RDONLY);
        if (fd < 0)
            continue;
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

static double load(rank_arg *r, int64_t step)
{
    bench *b = r->b;
    tutti_ckpt_open_opts opts = TUTTI_CKPT_OPEN_OPTS_INIT;
    tutti_ckpt_reader *rd;
    tutti_tensor *t = calloc((size_t)b->tensors, sizeof *t);
    char(*names)[32] = calloc((size_t)b->tensors, sizeof *names);
    for (int i = 0; i < b->tensors; i++)
        t[i] = tensor_of(r, i, names[i], b->copy);
    opts.flags = TUTTI_CKPT_OPEN_LAZY;
    pthread_barrier_wait(&b->gate);
    double start = now();
    check(r, tutti_ckpt_open_with(r->ctx, b->dir, step, &opts, &rd), "open");
    check(r, tutti_ckpt_read(rd, t, (size_t)b->tensors, (tutti_stream){0}), "read");
    double took = now() - start;
    tutti_ckpt_close(rd);
    free(names);
    free(t);
    return took;
}

/* Rank 0's part of a round: tutti and raw, in turn first. All ranks take part in tutti's. */
static void save_round(rank_arg *r, int round)
{
    bench *b = r->b;
    if (r->rank == 0 && round % 2 == 0)
        raw_saves(b, round);
    double took = save(r, 100 + round);
    if (r->rank == 0)
        remove_step(b, 100 + round);
    if (r->rank == 0 && round % 2 == 1)
        raw_saves(b, round);
    if (r->rank == 0)
        b->tutti_s[SAVE][round] = took;
    pthread_barrier_wait(&b->gate);
}

static double raw_load(bench *b, bool cold)
{
    raw_file f[MAX_RANKS];
    char dir[PATH_CAP - 32];
    snprintf(dir, sizeof dir, "%s/raw", b->dir);
    raw_files(b, f, dir, false);
    for (int i = 0; i < b->ranks; i++)
        f[i].read = true;
    if (cold)
        drop_caches(dir, b, true);
    double start = now();
    raw_all(f, b->ranks);
    return now() - start;
}

static double tutti_load(rank_arg *r, bool cold)
{
    char dir[PATH_CAP - 64];
    if (r->rank == 0 && cold) {
        snprintf(dir, sizeof dir, "%s/step-000000000001", r->b->dir);
        drop_caches(dir, r->b, false);
    }
    return load(r, 1);
}

static void load_round(rank_arg *r, int round, bool cold)
{
    bench *b = r->b;
    double raw = 0, took;
    if (r->rank == 0 && round % 2 == 0)
        raw = raw_load(b, cold);
    took = tutti_load(r, cold);
    pthread_barrier_wait(&b->gate);
    if (r->rank == 0 && round % 2 == 1)
        raw = raw_load(b, cold);
    if (r->rank == 0) {
        int row = cold ? LOAD : STALL;
        b->tutti_s[row][round] = took;
        b->raw_s[row][round] = raw;
        b->ratio[row][round] = raw / took;
    }
    pthread_barrier_wait(&b->gate);
}

static void stall_round(rank_arg *r, int round)
{
    bench *b = r->b;
    size_t each = b->bytes / (size_t)b->ranks;
    double took = stall(r, 2 + round);
    pthread_barrier_wait(&b->gate);
    double start = now();
    memcpy(b->copy + (size_t)r->rank * each, b->data + (size_t)r->rank * each, each);
    double raw = now() - start;
    if (r->rank == 0) {
        b->tutti_s[STALL][round] = took;
        b->raw_s[STALL][round] = raw;
        b->ratio[STALL][round] = took / raw;
    }
    pthread_barrier_wait(&b->gate);
}

static double median(const double *values, int n)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, values, (size_t)n * sizeof *sorted);
    qsort(sorted, (size_t)n, sizeof *sorted, bench_ascending);
    return n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

/* The better way of writing raw is what tutti is compared with. */
static void compare_saves(bench *b)
{
    int way = median(b->raw_way[1], b->rounds) < median(b->raw_way[0], b->rounds);
    for (int i = 0; i < b->rounds; i++) {
        b->raw_s[SAVE][i] = b->raw_way[way][i];
        b->ratio[SAVE][i] = b->raw_s[SAVE][i] / b->tutti_s[SAVE][i];
    }
}

static void report(const bench *b, int row, const char *what, const char *ratio)
{
    double gib = (double)b->bytes / (1 << 30);
    double tutti_s = median(b->tutti_s[row], b->rounds), raw_s = median(b->raw_s[row], b->rounds);
    if (b->json)
        printf("{\"what\": \"%s\", \"bytes\": %zu, \"tensors\": %d, \"ranks\": %d, \"rounds\": %d, "
               "\"tutti_s\": %.6f, \"raw_s\": %.6f, \"ratio\": %.4f}\n",
               what, b->bytes, b->tensors, b->ranks, b->rounds, tutti_s, raw_s,
               median(b->ratio[row], b->rounds));
    else
        printf("%-22s %5.2f GiB %6d tensors %2d ranks  tutti %7.4f s (%5.2f GiB/s)  raw %7.4f s  "
               "%s %.3f\n",
               what, gib, b->tensors, b->ranks, tutti_s, gib / tutti_s, raw_s, ratio,
               median(b->ratio[row], b->rounds));
    fflush(stdout);
}

/* The raw files that loads are compared with. */
static void make_raw(const bench *b)
{
    char dir[PATH_CAP - 32];
    raw_file f[MAX_RANKS];
    snprintf(dir, sizeof dir, "%s/raw", b->dir);
    if (mkdir(dir, 0777) != 0)
        die(dir);
    raw_files(b, f, dir, false);
    raw_all(f, b->ranks);
}

static void run_loads(rank_arg *r)
{
    bench *b = r->b;
    save(r, 1);
    if (r->rank == 0)
        make_raw(b);
    pthread_barrier_wait(&b->gate);
    for (int cold = 1; cold >= 0; cold--) {
        for (int i = 0; i < b->rounds; i++)
            load_round(r, i, cold == 1);
        if (r->rank == 0 && cold == 1)
            report(b, LOAD, "load from disk", "raw/tutti");
        else if (r->rank == 0)
            report(b, STALL, "load from page cache", "raw/tutti");
    }
    size_t each = b->bytes / (size_t)b->ranks;
    if (memcmp(b->copy + (size_t)r->rank * each, b->data + (size_t)r->rank * each, each) != 0)
        die("what was loaded differs");
}

static void *rank_main(void *arg)
{
    rank_arg *r = arg;
    bench *b = r->b;
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    opts.threads = r->threads;
    opts.rank = r->rank;
    opts.backend = TUTTI_BACKEND_HOST;
    check(r, tutti_init(&opts, &r->ctx), "init");
    if (b->save) {
        save(r, 1);
        for (int i = 0; i < b->rounds; i++)
            save_round(r, i);
        if (r->rank == 0) {
            compare_saves(b);
            report(b, SAVE, "durable save", "raw/tutti");
        }
    }
    if (b->load)
        run_loads(r);
    if (b->stall) {
        stall(r, 1);
        for (int i = 0; i < b->rounds; i++)
            stall_round(r, i);
        if (r->rank == 0)
            report(b, STALL, "stall of an async save", "tutti/memcpy");
    }
    check(r, tutti_finalize(r->ctx), "finalize");
    return NULL;
}

static int usage(void)
{
    fputs(
        "usage: bench_ckpt DIR [--mib N] [--tensors T] [--ranks R] [--rounds K] [--save] [--load] "
        "[--stall] [--json]\nDIR is made and removed; it must not exist.\n",
        stderr);
    return 2;
}

static bool take_option(bench *b, const char *name, const char *value, int *i)
{
    int *number = strcmp(name, "--tensors") == 0  ? &b->tensors
                  : strcmp(name, "--ranks") == 0  ? &b->ranks
                  : strcmp(name, "--rounds") == 0 ? &b->rounds
                                                  : NULL;
    bool *flag = strcmp(name, "--save") == 0    ? &b->save
                 : strcmp(name, "--load") == 0  ? &b->load
                 : strcmp(name, "--stall") == 0 ? &b->stall
                 : strcmp(name, "--json") == 0  ? &b->json
                                                : NULL;
    if (flag != NULL)
        return *flag = true;
    if (value == NULL || atoi(value) < 1)
        return false;
    ++*i;
    if (strcmp(name, "--mib") == 0)
        b->bytes = (size_t)atoi(value) << 20;
    else if (number != NULL)
        *number = atoi(value);
    else
        return false;
    return true;
}

int main(int argc, char **argv)
{
    static bench b = {.bytes = (size_t)1 << 30, .tensors = 1, .ranks = 1, .rounds = 9};
    pthread_t thread[MAX_RANKS];
    rank_arg arg[MAX_RANKS];
    tutti_threads *threads;
    if (argc < 2)
        return usage();
    b.dir = argv[1];
    for (int i = 2; i < argc; i++)
        if (!take_option(&b, argv[i], i + 1 < argc ? argv[i + 1] : NULL, &i))
            return usage();
    if (b.ranks > MAX_RANKS || b.rounds > MAX_ROUNDS || mkdir(b.dir, 0777) != 0)
        return usage();
    size_t grain = (size_t)b.ranks * (size_t)b.tensors * 4096;
    b.bytes = b.bytes < grain ? grain : b.bytes / grain * grain;
    b.data = touched(b.bytes);
    b.copy = touched(b.bytes);
    if (tutti_threads_create(b.ranks, &threads) != TUTTI_OK ||
        pthread_barrier_init(&b.gate, NULL, (unsigned)b.ranks) != 0)
        die("threads");
    for (int i = 0; i < b.ranks; i++) {
        arg[i] = (rank_arg){&b, threads, i, NULL};
        if (pthread_create(&thread[i], NULL, rank_main, &arg[i]) != 0)
            die("pthread_create");
    }
    for (int i = 0; i < b.ranks; i++)
        pthread_join(thread[i], NULL);
    tutti_threads_destroy(threads);
    remove_tree(b.dir);
    return 0;
}
