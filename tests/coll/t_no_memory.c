/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that runs out of memory, at each allocation of each call in turn: all ranks return an
 * error or the context fails on all of them, and nobody waits for a time-out. The linker puts the
 * functions below in front of the C library's (--wrap).
 */
#include <stdatomic.h>

#include "core/log.h"
#include "tt_test.h"

enum { RANKS = 3, BAD = 1, N = 6000, ALLOCATIONS_MAX = 200 };

static _Thread_local bool is_bad; /* the caller's thread of that rank */
static _Atomic int countdown; /* to the allocation that fails; 0: none does */
static _Atomic bool fired;

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__real_realloc(void *ptr, size_t size);
void *__wrap_realloc(void *ptr, size_t size);

static bool fails_now(void)
{
    int rank, size;
    tt_log_identity_get(&rank, &size);
    if ((!is_bad && rank != BAD) || atomic_load(&countdown) <= 0 ||
        atomic_fetch_sub(&countdown, 1) != 1)
        return false;
    atomic_store(&fired, true);
    return true;
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails_now() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *ptr, size_t size)
{
    return fails_now() ? NULL : __real_realloc(ptr, size);
}

typedef struct bench {
    tutti_comm *pair; /* ranks 0 and 1 */
    float *shared, *plain;
    tutti_stream stream;
    void *pages; /* to be registered, or that are */
} bench;

static tutti_status do_split(tt_rank *r, bench *b)
{
    tutti_comm *made = NULL;
    (void)b;
    return tutti_comm_split(r->comm, r->rank == 2 ? 0 : 1, 0, NULL, &made);
}

static tutti_status do_alloc(tt_rank *r, bench *b)
{
    void *ptr;
    (void)b;
    return tutti_alloc(r->comm, 4096, &ptr);
}

static tutti_status do_register(tt_rank *r, bench *b)
{
    return tutti_register(r->comm, b->pages, 4096);
}

static tutti_status do_free(tt_rank *r, bench *b)
{
    return tutti_free(r->comm, b->shared);
}

static tutti_status do_barrier(tt_rank *r, bench *b)
{
    return r->rank == 2 ? TUTTI_OK : tutti_barrier(b->pair);
}

static tutti_status do_scalars(tt_rank *r, bench *b)
{
    double value[300] = {1};
    (void)b;
    return tutti_all_reduce_host(r->comm, value, 300, TUTTI_SUM);
}

static tutti_status do_sum(tt_rank *r, bench *b)
{
    return tutti_all_reduce(r->comm, b->plain, b->plain, N, TUTTI_FLOAT32, TUTTI_SUM,
                            (tutti_stream){0});
}

static tutti_status do_sum_shared(tt_rank *r, bench *b)
{
    return tutti_all_reduce(r->comm, b->shared, b->shared, N, TUTTI_FLOAT32, TUTTI_SUM,
                            (tutti_stream){0});
}

static tutti_status do_sum_stream(tt_rank *r, bench *b)
{
    tutti_status status =
        tutti_all_reduce(r->comm, b->shared, b->plain, N, TUTTI_FLOAT32, TUTTI_SUM, b->stream);
    return status == TUTTI_OK ? tutti_stream_sync(r->ctx, b->stream) : status;
}

static tutti_status do_gather(tt_rank *r, bench *b)
{
    const size_t counts[RANKS] = {N / 3, 0, N / 3};
    return tutti_all_gatherv(r->comm, b->plain, b->shared, counts, TUTTI_FLOAT32,
                             (tutti_stream){0});
}

static tutti_status do_pairs(tt_rank *r, bench *b)
{
    const size_t counts[RANKS] = {N / 3, N / 3, N / 3};
    return tutti_all_to_allv(r->comm, b->plain, counts, b->shared, counts, TUTTI_FLOAT32,
                             b->stream);
}

static tutti_status do_group(tt_rank *r, bench *b)
{
    const tutti_stream stream[] = {{0}, b->stream};
    const int to = (r->rank + 1) % r->size, from = (r->rank + r->size - 1) % r->size;
    tutti_status status = tutti_group_begin();
    for (int i = 0; i < 2 && status == TUTTI_OK; i++) {
        status = tutti_send(r->comm, b->plain, N / 2, TUTTI_FLOAT32, to, stream[i]);
        if (status == TUTTI_OK)
            status =
                tutti_recv(r->comm, b->shared + i * N / 2, N / 2, TUTTI_FLOAT32, from, stream[i]);
    }
    tutti_status end = tutti_group_end();
    if (status == TUTTI_OK)
        status = end;
    return status == TUTTI_OK ? tutti_stream_sync(r->ctx, b->stream) : status;
}

static tutti_status do_steps(tt_rank *r, bench *b)
{
    uint32_t todo;
    tutti_status status = TUTTI_OK;
    (void)b;
    for (int64_t step = 0; step < 3 && status == TUTTI_OK; step++)
        status = tutti_step(r->ctx, step, &todo);
    return status;
}

typedef tutti_status (*call_fn)(tt_rank *r, bench *b);

typedef struct trial {
    call_fn call; /* NULL: tutti_finalize */
    int allocation;
    tutti_status status[RANKS], after[RANKS];
    char text[RANKS][256];
} trial;

static void arm(const trial *t, int rank)
{
    is_bad = rank == BAD;
    if (is_bad)
        atomic_store(&countdown, t->allocation);
}

static void disarm(void)
{
    if (is_bad)
        atomic_store(&countdown, 0);
    is_bad = false;
}

static void note(trial *t, int rank, tutti_status status)
{
    t->status[rank] = status;
    if (status != TUTTI_OK)
        snprintf(t->text[rank], sizeof t->text[rank], "%s", tutti_last_error());
}

static void set_up(tt_rank *r, bench *b)
{
    const size_t bytes = N * sizeof(float);
    TT_EXPECT_OK(r, tutti_comm_split(r->comm, r->rank == 2 ? 0 : 1, 0, NULL, &b->pair));
    TT_EXPECT_OK(r, tutti_alloc(r->comm, bytes, (void **)&b->shared));
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "s", 0, &b->stream));
    b->plain = malloc(bytes);
    TT_EXPECT(r, b->plain != NULL && posix_memalign(&b->pages, 4096, 4096) == 0);
    memset(b->plain, 0, bytes);
    memset(b->pages, 0, 4096);
}

static void body(tt_rank *r)
{
    trial *t = r->arg;
    bench b = {0};
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    opts.threads = r->threads;
    opts.rank = r->rank;
    TT_EXPECT_OK(r, tutti_init(&opts, &r->ctx));
    r->comm = tutti_world(r->ctx);
    set_up(r, &b);
    tt_all_here(r); /* nobody is in a call when one of them runs out of memory */
    if (t->call != NULL && !r->failed) {
        arm(t, r->rank);
        note(t, r->rank, t->call(r, &b));
        disarm();
        t->after[r->rank] = tutti_barrier(r->comm);
        if (t->after[r->rank] != TUTTI_OK && t->text[r->rank][0] == '\0')
            snprintf(t->text[r->rank], sizeof t->text[r->rank], "%s", tutti_last_error());
    }
    if (t->call == NULL)
        arm(t, r->rank);
    tutti_status left = tutti_finalize(r->ctx);
    if (t->call == NULL)
        note(t, r->rank, left);
    disarm();
    free(b.plain);
    free(b.pages);
    r->ctx = NULL;
}

/* "" or what is wrong with the outcome. */
static const char *verdict(const trial *t)
{
    int failed = 0, lost = 0;
    for (int i = 0; i < RANKS; i++) {
        failed += t->status[i] != TUTTI_OK;
        lost += t->after[i] != TUTTI_OK;
        if (t->status[i] == TUTTI_ERR_TIMEOUT || t->after[i] == TUTTI_ERR_TIMEOUT)
            return "a rank waited for its time-out";
        if (t->status[i] == TUTTI_ERR_INTERNAL || t->after[i] == TUTTI_ERR_INTERNAL)
            return "an internal error";
    }
    if (lost != 0 && lost != RANKS)
        return "some ranks can go on, others cannot";
    if (failed != 0 && failed != RANKS && lost != RANKS && t->call != do_barrier && t->call != NULL)
        return "some ranks returned an error, others none, and the context lives";
    return "";
}

static void each_allocation(call_fn call, const char *name)
{
    for (int allocation = 1; allocation < ALLOCATIONS_MAX; allocation++) {
        trial t = {.call = call, .allocation = allocation};
        atomic_store(&fired, false);
        const char *said = tt_threads_run(RANKS, "2,1", body, &t);
        const char *wrong = said[0] != '\0' ? said : verdict(&t);
        if (wrong[0] != '\0')
            fail_msg("%s, allocation %d: %s\n%s %s: %s\n%s %s: %s\n%s %s: %s", name, allocation,
                     wrong, tutti_status_name(t.status[0]), tutti_status_name(t.after[0]),
                     t.text[0], tutti_status_name(t.status[1]), tutti_status_name(t.after[1]),
                     t.text[1], tutti_status_name(t.status[2]), tutti_status_name(t.after[2]),
                     t.text[2]);
        if (!atomic_load(&fired))
            return;
    }
    fail_msg("%s never ends without a failure", name);
}

#define CALL(name)                                                                                 \
    static void name##_without_memory(void **state)                                                \
    {                                                                                              \
        (void)state;                                                                               \
        each_allocation(do_##name, #name);                                                         \
    }
CALL(split)
CALL(alloc)
CALL(register)
CALL(free)
CALL(barrier)
CALL(scalars)
CALL(sum)
CALL(sum_shared)
CALL(sum_stream)
CALL(gather)
CALL(pairs)
CALL(group)
CALL(steps)

static void finalize_without_memory(void **state)
{
    (void)state;
    each_allocation(NULL, "finalize");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(split_without_memory),      cmocka_unit_test(alloc_without_memory),
        cmocka_unit_test(register_without_memory),   cmocka_unit_test(free_without_memory),
        cmocka_unit_test(barrier_without_memory),    cmocka_unit_test(scalars_without_memory),
        cmocka_unit_test(sum_without_memory),        cmocka_unit_test(sum_shared_without_memory),
        cmocka_unit_test(sum_stream_without_memory), cmocka_unit_test(gather_without_memory),
        cmocka_unit_test(pairs_without_memory),      cmocka_unit_test(group_without_memory),
        cmocka_unit_test(steps_without_memory),      cmocka_unit_test(finalize_without_memory),
    };
    setenv("TUTTI_TIMEOUT", "120", 1); /* none is expected */
    setenv("TUTTI_CHUNK_BYTES", "4K", 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
