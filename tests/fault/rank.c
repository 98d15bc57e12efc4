/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank of a job that goes wrong: rank MODE [BYTES]. The last rank is the culprit. It uses public
 * headers only, as a user's program would. A rank whose call fails writes "STATUS text" to
 * $WORK/said.RANK, one that ends by itself its exit status to $WORK/end.RANK. (mpirun gives the
 * others a second once one has ended.) t_fault.py looks at these.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tutti/tutti.h"

enum { WORDS = 4096 };

typedef struct job {
    tutti_ctx *ctx;
    tutti_comm *world;
    int rank, size;
    bool culprit;
    size_t bytes;
    float *in, *out;
} job;

static const tutti_stream in_line = {0};

/* A file that appears with its content. */
static void leave_note(const char *name, const char *rank, int number, const char *text)
{
    const char *work = getenv("WORK");
    char hidden[512], path[512];
    FILE *file;

    if (work == NULL)
        return;
    snprintf(hidden, sizeof(hidden), "%s/.%s.%s", work, name, rank);
    snprintf(path, sizeof(path), "%s/%s.%s", work, name, rank);
    file = fopen(hidden, "w");
    if (file == NULL)
        return;
    fprintf(file, "%d %s\n", number, text);
    fclose(file);
    rename(hidden, path);
}

static void here(const char *rank)
{
    leave_note("here", rank, (int)getpid(), "");
}

static tutti_status all_reduce(const job *j, size_t n, tutti_dtype dtype, tutti_op op)
{
    return tutti_all_reduce(j->world, j->in, j->out, n, dtype, op, in_line);
}

static tutti_status mode_count(job *j)
{
    return all_reduce(j, j->culprit ? 1000 : 1001, TUTTI_FLOAT32, TUTTI_SUM);
}

static tutti_status mode_dtype(job *j)
{
    return all_reduce(j, 1000, j->culprit ? TUTTI_INT32 : TUTTI_FLOAT32, TUTTI_SUM);
}

static tutti_status mode_op(job *j)
{
    return all_reduce(j, 1000, TUTTI_FLOAT32, j->culprit ? TUTTI_MAX : TUTTI_SUM);
}

static tutti_status mode_root(job *j)
{
    return tutti_broadcast(j->world, j->in, j->out, 1000, TUTTI_FLOAT32, j->culprit ? 1 : 0,
                           in_line);
}

static tutti_status mode_order(job *j)
{
    if (j->culprit)
        return tutti_all_gather(j->world, j->in, j->out, WORDS / 64, TUTTI_FLOAT32, in_line);
    return all_reduce(j, 1000, TUTTI_FLOAT32, TUTTI_SUM);
}

/* Two communicators of all ranks, called in different orders. */
static tutti_status mode_swapped(job *j)
{
    tutti_comm_opts opts = TUTTI_COMM_OPTS_INIT;
    tutti_comm *first = NULL, *second = NULL;
    tutti_status status;

    opts.name = "first";
    status = tutti_comm_split(j->world, 0, j->rank, &opts, &first);
    opts.name = "second";
    if (status == TUTTI_OK)
        status = tutti_comm_split(j->world, 0, j->rank, &opts, &second);
    for (int i = 0; i < 2 && status == TUTTI_OK; i++)
        status = tutti_all_reduce(j->culprit == (i == 0) ? second : first, j->in, j->out, 1000,
                                  TUTTI_FLOAT32, TUTTI_SUM, in_line);
    return status;
}

static tutti_status mode_alloc_sizes(job *j)
{
    void *memory;

    return tutti_alloc(j->world, j->culprit ? 4096 : 8192, &memory);
}

/* One rank computes for ever while the others wait for it. */
static tutti_status mode_late(job *j)
{
    while (j->culprit)
        pause();
    return all_reduce(j, 1000, TUTTI_FLOAT32, TUTTI_SUM);
}

static tutti_status mode_exit(job *j)
{
    if (j->culprit)
        exit(0);
    return all_reduce(j, 1000, TUTTI_FLOAT32, TUTTI_SUM);
}

static tutti_status mode_underscore_exit(job *j)
{
    if (j->culprit)
        _exit(0);
    return all_reduce(j, 1000, TUTTI_FLOAT32, TUTTI_SUM);
}

static tutti_status mode_segfault(job *j)
{
    if (j->culprit)
        raise(SIGSEGV);
    return all_reduce(j, 1000, TUTTI_FLOAT32, TUTTI_SUM);
}

static tutti_status mode_abort(job *j)
{
    if (j->culprit)
        tutti_abort(j->ctx, 9, "the tokenizer met a word it does not know");
    return all_reduce(j, 1000, TUTTI_FLOAT32, TUTTI_SUM);
}

/* Shared memory of a given size; every page is used. */
static tutti_status mode_alloc(job *j)
{
    void *memory;
    tutti_status status = tutti_alloc(j->world, j->bytes, &memory);

    if (status != TUTTI_OK)
        return status;
    memset(memory, j->rank, j->bytes);
    status = tutti_all_reduce(j->world, memory, memory, j->bytes, TUTTI_UINT8, TUTTI_MAX, in_line);
    if (status == TUTTI_OK && ((unsigned char *)memory)[j->bytes - 1] != j->size - 1)
        return TUTTI_ERR_CORRUPT;
    return status == TUTTI_OK ? tutti_free(j->world, memory) : status;
}

/* Collectives of all kinds for ever, on plain and on shared memory, until somebody kills one. */
static tutti_status mode_busy(job *j)
{
    float *shared = NULL;
    tutti_status status = tutti_alloc(j->world, WORDS * sizeof(float), (void **)&shared);
    size_t part = WORDS / (size_t)j->size;

    memset(j->in, 0, WORDS * sizeof(float));
    while (status == TUTTI_OK) {
        void *again = NULL;

        status = all_reduce(j, WORDS, TUTTI_FLOAT32, TUTTI_SUM);
        if (status == TUTTI_OK)
            status =
                tutti_all_reduce(j->world, j->in, shared, WORDS, TUTTI_FLOAT32, TUTTI_SUM, in_line);
        if (status == TUTTI_OK)
            status = tutti_all_gather(j->world, j->in, j->out, part, TUTTI_FLOAT32, in_line);
        if (status == TUTTI_OK)
            status = tutti_barrier(j->world);
        if (status == TUTTI_OK)
            status = tutti_alloc(j->world, 65536, &again);
        if (status == TUTTI_OK)
            status = tutti_free(j->world, again);
    }
    return status;
}

static tutti_status mode_fine(job *j)
{
    return all_reduce(j, WORDS, TUTTI_FLOAT32, TUTTI_SUM);
}

typedef struct mode {
    const char *name;
    tutti_status (*run)(job *j);
} mode;
static const mode modes[] = {
    {"abort", mode_abort},
    {"alloc", mode_alloc},
    {"alloc-sizes", mode_alloc_sizes},
    {"busy", mode_busy},
    {"count", mode_count},
    {"dtype", mode_dtype},
    {"exit", mode_exit},
    {"fine", mode_fine},
    {"late", mode_late},
    {"op", mode_op},
    {"order", mode_order},
    {"root", mode_root},
    {"segfault", mode_segfault},
    {"swapped", mode_swapped},
    {"swapped-funneled", mode_swapped},
    {"underscore-exit", mode_underscore_exit},
};

static tutti_status (*find_mode(const char *name))(job *)
{
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++)
        if (strcmp(modes[i].name, name) == 0)
            return modes[i].run;
    return NULL;
}

/* Where all but the culprit have something to say, mpirun's second may be too short for it. */
static void let_others_speak(const char *name, const char *rank, int size)
{
    const char *work = getenv("WORK");
    char path[512];

    if (work == NULL || (strncmp(name, "absent", 6) != 0 && strcmp(name, "late") != 0))
        return;
    for (int i = 0, tries = 0; i < size - 1 && tries < 3000; tries++) {
        snprintf(path, sizeof(path), "%s/said.%d", work, i);
        if (i == atoi(rank) || access(path, F_OK) == 0)
            i++;
        else
            usleep(10000);
    }
}

/* The culprit never comes to tutti_init: before MPI_Init, or after it. */
static void stay_away(const char *name)
{
    if (strcmp(name, "absent-mpi") == 0)
        MPI_Init(NULL, NULL);
    for (;;)
        pause();
}

static int run(const char *name, const char *rank, int size, size_t bytes)
{
    static float in[WORDS], out[WORDS];
    job j = {.culprit = atoi(rank) == size - 1, .bytes = bytes, .in = in, .out = out};
    tutti_status (*body)(job *) = find_mode(strncmp(name, "absent", 6) == 0 ? "fine" : name);
    tutti_status status, left;

    if (body == NULL)
        return 2;
    if (strcmp(name, "swapped-funneled") == 0)
        MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &(int){0});
    status = tutti_init(NULL, &j.ctx);
    if (status == TUTTI_OK) {
        here(rank);
        j.world = tutti_world(j.ctx);
        j.rank = tutti_rank(j.world);
        j.size = tutti_size(j.world);
        status = body(&j);
    }
    if (status != TUTTI_OK) {
        leave_note("said", rank, (int)status, tutti_last_error());
        fprintf(stderr, "rank %s: %s\n", rank, tutti_last_error());
        let_others_speak(name, rank, size);
    }
    left = tutti_finalize(j.ctx);
    leave_note("end", rank, status != TUTTI_OK || left != TUTTI_OK, "");
    return status != TUTTI_OK || left != TUTTI_OK;
}

int main(int argc, char **argv)
{
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    size_t bytes = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;

    if (argc < 2 || rank == NULL || size == NULL)
        return 2;
    if (atoi(rank) == atoi(size) - 1 && strncmp(argv[1], "absent", 6) == 0)
        stay_away(argv[1]);
    return run(argv[1], rank, atoi(size), bytes);
}
