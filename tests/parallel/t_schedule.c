/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules as data: sound for every shape, as good as theory says, and broken ones are found out.
 */
#include "tt_test.h"

enum { STAGES_MAX = 16 };

typedef struct all_steps {
    tutti_pipe_step *of[STAGES_MAX];
    size_t count[STAGES_MAX];
    int stages;
} all_steps;

static void make(const tutti_pipe_shape *shape, all_steps *all)
{
    memset(all, 0, sizeof *all);
    all->stages = shape->stages;
    for (int s = 0; s < shape->stages; s++) {
        size_t n;

        assert_int_equal(tutti_pipe_steps(shape, s, NULL, 0, &n), TUTTI_OK);
        all->of[s] = calloc(n, sizeof *all->of[s]);
        assert_non_null(all->of[s]);
        assert_int_equal(tutti_pipe_steps(shape, s, all->of[s], n, &all->count[s]), TUTTI_OK);
        assert_int_equal(all->count[s], n);
    }
}

static void drop(all_steps *all)
{
    for (int s = 0; s < all->stages; s++)
        free(all->of[s]);
}

static tutti_status check(const tutti_pipe_shape *shape, const all_steps *all)
{
    return tutti_pipe_check(shape, (const tutti_pipe_step *const *)all->of, all->count);
}

static tutti_pipe_shape shape_of(int stages, int micros, int chunks, uint32_t flags)
{
    tutti_pipe_shape shape = TUTTI_PIPE_SHAPE_INIT;

    shape.stages = stages;
    shape.micros = micros;
    shape.chunks = chunks;
    shape.flags = flags;
    return shape;
}

/* The most passes forward whose way back is still to come. */
static int in_flight(const all_steps *all, int stage)
{
    int now = 0, most = 0;

    for (size_t i = 0; i < all->count[stage]; i++) {
        now += all->of[stage][i].kind == TUTTI_PIPE_FORWARD;
        most = now > most ? now : most;
        now -= all->of[stage][i].kind == TUTTI_PIPE_BACKWARD;
    }
    return most;
}

static int slots(const all_steps *all)
{
    int last = 0;

    for (int s = 0; s < all->stages; s++)
        for (size_t i = 0; i < all->count[s]; i++)
            if (all->of[s][i].kind <= TUTTI_PIPE_BACKWARD && all->of[s][i].slot > last)
                last = all->of[s][i].slot;
    return last + 1;
}

static void every_shape_is_sound(void **state)
{
    int stages, micros, chunks;

    (void)state;
    for (stages = 1; stages <= 9; stages++)
        for (micros = 1; micros <= 20; micros++)
            for (chunks = 1; chunks <= 4; chunks++)
                for (uint32_t flags = 0; flags <= TUTTI_PIPE_OVERLAP; flags++) {
                    tutti_pipe_shape shape = shape_of(stages, micros, chunks, flags);
                    all_steps all;
                    tutti_status status;

                    if (chunks > 1 && micros % stages != 0)
                        continue;
                    make(&shape, &all);
                    status = check(&shape, &all);
                    if (status != TUTTI_OK)
                        fail_msg("%d stages, %d micros, %d chunks, flags %u: %s", stages, micros,
                                 chunks, flags, tutti_last_error());
                    drop(&all);
                }
}

/* 1F1B: stage s keeps at most stages - s micro-batches, and a step lasts 2 (micros + stages - 1)
 * passes; chunks shorten the idle part. */
static void as_little_memory_and_idle_time_as_theory_says(void **state)
{
    (void)state;
    for (int stages = 2; stages <= 8; stages++) {
        int micros = 4 * stages, s, plain, many;
        tutti_pipe_shape shape = shape_of(stages, micros, 1, 0);
        all_steps all;

        make(&shape, &all);
        for (s = 0; s < stages; s++)
            assert_int_equal(in_flight(&all, s), stages - s);
        plain = slots(&all) - 2 * micros;
        assert_int_equal(plain, 2 * (stages - 1));
        drop(&all);

        shape.chunks = 2; /* a pass is half as long: idle slots halve in time */
        make(&shape, &all);
        many = slots(&all) - 2 * 2 * micros;
        assert_int_equal(many, plain);
        drop(&all);

        shape = shape_of(stages, micros, 1, TUTTI_PIPE_OVERLAP);
        make(&shape, &all);
        for (s = 0; s < stages; s++)
            assert_int_equal(in_flight(&all, s), 2 * (stages - s) - 1);
        assert_int_equal(slots(&all) - 2 * micros, 4 * (stages - 1));
        drop(&all);

        shape.chunks = 3;
        make(&shape, &all);
        assert_int_equal(slots(&all) - 3 * 2 * micros, 4 * (stages - 1));
        drop(&all);
    }
}

/* With overlap what a pass needs has come at least one whole slot before it. */
static void overlap_leaves_a_slot_for_every_transfer(void **state)
{
    tutti_pipe_shape shape = shape_of(4, 8, 2, TUTTI_PIPE_OVERLAP);
    all_steps all;

    (void)state;
    make(&shape, &all);
    for (int s = 0; s < 4; s++)
        for (size_t i = 0; i < all.count[s]; i++) {
            const tutti_pipe_step *recv = &all.of[s][i];

            for (size_t j = i; recv->kind == TUTTI_PIPE_RECV && j < all.count[s]; j++) {
                const tutti_pipe_step *pass = &all.of[s][j];

                if (pass->kind == (recv->gradient ? TUTTI_PIPE_BACKWARD : TUTTI_PIPE_FORWARD) &&
                    pass->micro == recv->micro && pass->chunk == recv->chunk)
                    assert_true(pass->slot >= recv->slot + 2);
            }
        }
    drop(&all);
}

static size_t find(const all_steps *all, int stage, tutti_pipe_kind kind, int micro)
{
    for (size_t i = 0; i < all->count[stage]; i++)
        if (all->of[stage][i].kind == kind && all->of[stage][i].micro == micro)
            return i;
    fail_msg("no such step");
    return 0;
}

static void swap(tutti_pipe_step *a, tutti_pipe_step *b)
{
    tutti_pipe_step keep = *a;

    *a = *b;
    *b = keep;
}

static void broken(const tutti_pipe_shape *shape, const all_steps *all, const char *said)
{
    assert_int_equal(check(shape, all), TUTTI_ERR_STATE);
    if (strstr(tutti_last_error(), said) == NULL)
        fail_msg("'%s' does not say '%s'", tutti_last_error(), said);
}

static void broken_schedules_are_named(void **state)
{
    tutti_pipe_shape shape = shape_of(2, 4, 1, 0);
    all_steps all;
    size_t i, j;

    (void)state;
    /* Both send before they receive, each in groups of their own: only a transport that buffers
     * would get through. */
    make(&shape, &all);
    i = find(&all, 0, TUTTI_PIPE_SEND, 2);
    j = find(&all, 0, TUTTI_PIPE_RECV, 1);
    assert_true(j == i + 1 && all.of[0][i].slot == all.of[0][j].slot);
    all.of[0][j].slot = 1000;
    assert_int_equal(check(&shape, &all), TUTTI_OK); /* the other end's group takes both */
    i = find(&all, 1, TUTTI_PIPE_RECV, 2);
    j = find(&all, 1, TUTTI_PIPE_SEND, 1);
    assert_int_equal(j, i + 1);
    swap(&all.of[1][i], &all.of[1][j]);
    all.of[1][j].slot = 1000;
    broken(&shape, &all, "deadlock: stage 0 waits in step");
    drop(&all);

    make(&shape, &all); /* one end of a transfer left out */
    i = find(&all, 1, TUTTI_PIPE_SEND, 2);
    memmove(&all.of[1][i], &all.of[1][i + 1], (all.count[1] - i - 1) * sizeof all.of[1][0]);
    all.count[1]--;
    broken(&shape, &all, "receive of the gradient of micro-batch 2");
    drop(&all);

    make(&shape, &all); /* two micro-batches in another order on one end */
    i = find(&all, 0, TUTTI_PIPE_FORWARD, 0);
    j = find(&all, 0, TUTTI_PIPE_FORWARD, 1);
    swap(&all.of[0][i], &all.of[0][j]);
    broken(&shape, &all, "which it has not made");
    drop(&all);

    make(&shape, &all); /* a pass forgotten */
    i = find(&all, 0, TUTTI_PIPE_BACKWARD, 3);
    assert_int_equal(i, all.count[0] - 1);
    all.count[0]--;
    broken(&shape, &all, "the backward pass of micro-batch 3, chunk 0 is missing");
    drop(&all);

    make(&shape, &all); /* a pass before its input */
    i = find(&all, 1, TUTTI_PIPE_FORWARD, 0);
    j = find(&all, 1, TUTTI_PIPE_RECV, 0);
    swap(&all.of[1][i], &all.of[1][j]);
    broken(&shape, &all, "before what it needs");
    drop(&all);

    make(&shape, &all); /* the same pass twice */
    i = find(&all, 0, TUTTI_PIPE_FORWARD, 1);
    all.of[0][i].micro = 0;
    broken(&shape, &all, "twice");
    drop(&all);
}

static void wrong_arguments_are_refused(void **state)
{
    tutti_pipe_shape shape = shape_of(2, 3, 1, 0);
    tutti_pipe_step step = {TUTTI_PIPE_FORWARD, 0, 0, 0, -1, false}, far = step;
    const tutti_pipe_step *steps[2] = {&step, &far};
    size_t counts[2] = {1, 1}, n;

    (void)state;
    assert_int_equal(tutti_pipe_steps(NULL, 0, NULL, 0, &n), TUTTI_ERR_ARG);
    assert_int_equal(tutti_pipe_steps(&shape, 2, NULL, 0, &n), TUTTI_ERR_ARG);
    assert_int_equal(tutti_pipe_steps(&shape, -1, NULL, 0, &n), TUTTI_ERR_ARG);
    assert_int_equal(tutti_pipe_steps(&shape, 0, NULL, 1, &n), TUTTI_ERR_ARG);
    assert_int_equal(tutti_pipe_steps(&shape, 0, NULL, 0, NULL), TUTTI_ERR_ARG);
    far.micro = 3;
    assert_int_equal(tutti_pipe_check(&shape, steps, counts), TUTTI_ERR_ARG);
    far = (tutti_pipe_step){TUTTI_PIPE_SEND, 0, 0, 0, 1, false};
    assert_int_equal(tutti_pipe_check(&shape, steps, counts), TUTTI_ERR_ARG);
    far = (tutti_pipe_step){(tutti_pipe_kind)9, 0, 0, 0, 0, false};
    assert_int_equal(tutti_pipe_check(&shape, steps, counts), TUTTI_ERR_ARG);
    shape.chunks = 2;
    assert_int_equal(tutti_pipe_steps(&shape, 0, NULL, 0, &n), TUTTI_ERR_ARG);
    assert_non_null(strstr(tutti_last_error(), "multiple of the 2 stages"));
    shape = shape_of(2, 3, 1, 0x10);
    assert_int_equal(tutti_pipe_steps(&shape, 0, NULL, 0, &n), TUTTI_ERR_ARG);
    shape = shape_of(1024, 65536, 256, 0);
    assert_int_equal(tutti_pipe_steps(&shape, 0, NULL, 0, &n), TUTTI_ERR_ARG);
    shape.size = 3;
    assert_int_equal(tutti_pipe_steps(&shape, 0, NULL, 0, &n), TUTTI_ERR_ARG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_shape_is_sound),
        cmocka_unit_test(as_little_memory_and_idle_time_as_theory_says),
        cmocka_unit_test(overlap_leaves_a_slot_for_every_transfer),
        cmocka_unit_test(broken_schedules_are_named),
        cmocka_unit_test(wrong_arguments_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
