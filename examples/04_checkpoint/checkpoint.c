/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A matrix split by rows over the ranks goes through steps and is saved every few of them. Started
 * again, on any number of ranks, it goes on from the newest checkpoint; what comes out is the same
 * as if it had never stopped. Asked to stop by a signal it saves once more and ends with status
 * 143.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tutti/tutti.h>

enum { ROWS = 1000, COLS = 512, SAVE_EVERY = 5, KEEP = 2 };

typedef struct state {
    tutti_ctx *ctx;
    tutti_comm *world;
    const char *dir;
    int64_t step; /* done so far */
    int64_t first_row, rows; /* of this rank */
    double *x; /* rows x COLS */
    bool stopped; /* by a signal to any of the ranks: all agree on the step */
} state;

/* This rank's rows of the whole matrix. */
static tutti_tensor describe(const state *s)
{
    tutti_tensor t = TUTTI_TENSOR_INIT;

    t.name = "model/x";
    t.dtype = TUTTI_FLOAT64;
    t.ndim = 2;
    t.shape[0] = ROWS;
    t.shape[1] = COLS;
    t.offset[0] = s->first_row;
    t.extent[0] = s->rows;
    t.extent[1] = COLS;
    t.data = s->x;
    return t;
}

static void begin_anew(state *s)
{
    s->step = 0;
    for (int64_t i = 0; i < s->rows * COLS; i++)
        s->x[i] = (double)(s->first_row * COLS + i);
}

static tutti_status load(state *s)
{
    const tutti_stream in_this_thread = {0};
    const tutti_tensor mine = describe(s);
    tutti_ckpt_reader *rd;
    tutti_status status = tutti_ckpt_open(s->ctx, s->dir, -1, &rd);

    if (status == TUTTI_ERR_NOT_FOUND) { /* on all ranks: a fresh start */
        begin_anew(s);
        return TUTTI_OK;
    }
    if (status != TUTTI_OK)
        return status;
    status = tutti_ckpt_read(rd, &mine, 1, in_this_thread);
    if (status == TUTTI_OK) {
        s->step = tutti_ckpt_step(rd);
        if (tutti_rank(s->world) == 0)
            printf("resumed after step %lld, which %d ranks saved\n", (long long)s->step,
                   tutti_ckpt_world(rd));
    }
    tutti_ckpt_close(rd);
    return status;
}

static tutti_status save(state *s)
{
    const tutti_stream in_this_thread = {0};
    const tutti_tensor mine = describe(s);
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    tutti_ckpt *ck;
    tutti_status status = tutti_ckpt_begin(s->ctx, s->dir, s->step, &ck);

    if (status != TUTTI_OK)
        return status;
    opts.keep_last = KEEP;
    /* A rank whose add fails still commits: the failure is then returned to all ranks. */
    status = tutti_ckpt_add(ck, &mine);
    if (status != TUTTI_OK)
        fprintf(stderr, "checkpoint: %s\n", tutti_last_error());
    /* Returns when the data is copied: x may change while it is written. */
    return tutti_ckpt_commit(ck, in_this_thread, &opts);
}

static tutti_status run(state *s, int64_t last)
{
    tutti_status status = load(s);

    while (status == TUTTI_OK && s->step < last && !s->stopped) {
        uint32_t todo = 0;

        for (int64_t i = 0; i < s->rows * COLS; i++)
            s->x[i] = 0.75 * s->x[i] + (double)(s->step % 7);
        s->step++;
        status = tutti_step(s->ctx, s->step, &todo); /* also commits what is written by now */
        if (status == TUTTI_OK && (s->step % SAVE_EVERY == 0 || (todo & TUTTI_DO_SAVE) != 0))
            status = save(s);
        s->stopped = (todo & TUTTI_DO_STOP) != 0;
    }
    return status == TUTTI_OK ? tutti_ckpt_wait(s->ctx, NULL) : status;
}

/* The sum of all elements' bits: the same whatever the ranks, and different after any change. */
static tutti_status print_sum(const state *s)
{
    uint64_t sum = 0;
    tutti_status status;

    for (int64_t i = 0; i < s->rows * COLS; i++) {
        uint64_t bits;

        memcpy(&bits, &s->x[i], sizeof bits);
        sum += bits * (uint64_t)(2 * (s->first_row * COLS + i) + 1);
    }
    status = tutti_all_reduce(s->world, &sum, &sum, 1, TUTTI_UINT64, TUTTI_SUM, (tutti_stream){0});
    if (status == TUTTI_OK && tutti_rank(s->world) == 0)
        printf("after step %lld: %016llx\n", (long long)s->step, (unsigned long long)sum);
    return status;
}

int main(int argc, char **argv)
{
    state s = {0};
    tutti_status status = tutti_init(NULL, &s.ctx), left;
    int rank, size;

    if (status != TUTTI_OK) {
        fprintf(stderr, "checkpoint: %s\n", tutti_last_error());
        return 1;
    }
    s.world = tutti_world(s.ctx);
    rank = tutti_rank(s.world);
    size = tutti_size(s.world);
    s.dir = argc > 1 ? argv[1] : "ckpt";
    s.first_row = (int64_t)ROWS * rank / size;
    s.rows = (int64_t)ROWS * (rank + 1) / size - s.first_row;
    s.x = malloc(sizeof *s.x * (size_t)s.rows * COLS + 1);
    if (s.x == NULL)
        tutti_abort(s.ctx, 1, "no memory for the matrix");
    status = run(&s, argc > 2 ? atoll(argv[2]) : 20);
    if (status == TUTTI_OK)
        status = print_sum(&s);
    if (status != TUTTI_OK)
        fprintf(stderr, "checkpoint: rank %d: %s\n", rank, tutti_last_error());
    left = tutti_finalize(s.ctx);
    free(s.x);
    if (status != TUTTI_OK || left != TUTTI_OK)
        return 1;
    if (fclose(stdout) != 0) { /* a full disk */
        perror("checkpoint: standard output");
        return 1;
    }
    return s.stopped ? 143 : 0;
}
