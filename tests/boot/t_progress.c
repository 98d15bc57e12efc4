/* SPDX-License-Identifier: Apache-2.0 */
#include "with_boot.h"

#include <pthread.h>
#include <signal.h>

#include "boot/internal.h"
#include "core/clock.h"

enum { STEPS = 40 };

/* Rank 1 is slow, rank 2 asks to stop before step 20: all see it in the same call. */
static void steps_and_stop(tt_rank *r)
{
    for (int64_t step = 0; step < STEPS; step++) {
        uint32_t todo = 77;
        if (r->rank == 1 % r->size && step % 8 == 0)
            tt_sleep_ns(3000000);
        if (r->rank == 2 % r->size && step == 20)
            tutti_request_stop(r->ctx);
        TT_EXPECT_OK(r, tutti_step(r->ctx, step, &todo));
        TT_EXPECT(r, todo == (step > 20 ? (TUTTI_DO_SAVE | TUTTI_DO_STOP) : 0));
    }
}

static void all_stop_at_one_step(void **state)
{
    static const int sizes[] = {1, 2, 3, 4, 7, 8, 16};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        on_ranks(sizes[i], NULL, steps_and_stop, NULL);
}

/* A fast rank gets one step ahead of a slow one, and not two. */
static void one_step_ahead(tt_rank *r)
{
    static _Atomic int64_t slow_at;
    uint32_t todo;
    if (r->rank == 0)
        atomic_store(&slow_at, -1);
    TT_EXPECT_OK(r, tt_barrier(&r->ctx->world, "start"));
    for (int64_t step = 0; step < 10; step++) {
        if (r->rank == 0) {
            tt_sleep_ns(5000000);
            atomic_store(&slow_at, step);
        }
        TT_EXPECT_OK(r, tutti_step(r->ctx, step, &todo));
        TT_EXPECT(r, atomic_load(&slow_at) >= step - 1);
    }
}

static void ranks_run_ahead_by_one(void **state)
{
    (void)state;
    on_ranks(3, NULL, one_step_ahead, NULL);
}

static void steps_differ(tt_rank *r)
{
    uint32_t todo = 77;
    tutti_status status = TUTTI_OK;
    TT_EXPECT(r, tutti_step(r->ctx, -1, &todo) == TUTTI_ERR_ARG);
    for (int64_t step = 0; step < 5 && status == TUTTI_OK; step++)
        status = tutti_step(r->ctx, r->rank == 1 && step == 2 ? 7 : step, &todo);
    TT_EXPECT(r, status == TUTTI_ERR_MISMATCH);
    TT_EXPECT(r, strstr(tutti_last_error(), "is at step 2") != NULL);
    TT_EXPECT(r, strstr(tutti_last_error(), "at step 7") != NULL);
    r->ctx = NULL;
}

static void different_steps_are_told_apart(void **state)
{
    (void)state;
    on_ranks(4, NULL, steps_differ, NULL);
}

static void wait_for_failure(tt_rank *r, tutti_status *status_out)
{
    int64_t until = tt_now_ns() + 60000000000;
    *status_out = TUTTI_OK;
    while (*status_out == TUTTI_OK && tt_now_ns() < until) {
        tt_sleep_ns(1000000);
        *status_out = tutti_ctx_error(r->ctx, NULL, 0);
    }
}

static void one_fails(tt_rank *r)
{
    tutti_status status;
    char text[TT_ERROR_TEXT_MAX];
    int bad = r->size / 2;
    tt_all_here(r); /* a failure must not reach a rank that is still in tutti_init */
    if (r->rank == bad)
        tt_ctx_fail(r->ctx, tt_fail(TUTTI_ERR_DEVICE, "the fan has stopped"));
    wait_for_failure(r, &status);
    TT_EXPECT(r, tutti_ctx_error(r->ctx, text, sizeof text) == status);
    if (r->rank == bad) {
        TT_EXPECT(r, status == TUTTI_ERR_DEVICE && strcmp(text, "the fan has stopped") == 0);
    } else {
        char want[32];
        snprintf(want, sizeof want, "rank %d (", bad);
        TT_EXPECT(r, status == TUTTI_ERR_REMOTE && strstr(text, want) == text);
        TT_EXPECT(r, strstr(text, "): the fan has stopped") != NULL);
    }
    /* everything ends at once from now on */
    TT_EXPECT(r, tt_barrier(&r->ctx->world, "never") == status);
    uint32_t todo;
    TT_EXPECT(r, tutti_step(r->ctx, 0, &todo) == status);
    char few[4];
    TT_EXPECT(r, tutti_ctx_error(r->ctx, few, sizeof few) == status && strlen(few) == 3);
    r->ctx = NULL;
}

static void failures_are_told(void **state)
{
    (void)state;
    on_ranks(2, NULL, one_fails, NULL);
    on_ranks(8, "2x4", one_fails, NULL);
}

/* A rank that waits is freed by the failure of another, long before its own limit. */
static void fails_while_others_wait(tt_rank *r)
{
    tt_all_here(r);
    if (r->rank == 0) {
        tt_sleep_ns(20000000);
        tt_ctx_fail(r->ctx, tt_fail(TUTTI_ERR_DEVICE, "gone"));
    } else {
        TT_EXPECT(r, tt_barrier(&r->ctx->world, "meeting") == TUTTI_ERR_REMOTE);
    }
    r->ctx = NULL;
}

static void failures_end_waits(void **state)
{
    (void)state;
    on_ranks(5, NULL, fails_while_others_wait, NULL);
}

/* The announcement of one rank moves the limit (2 s) of all. */
static void quiet(tt_rank *r)
{
    if (r->rank == 0) {
        tutti_expect_quiet(r->ctx, -5);
        tutti_expect_quiet(r->ctx, 20);
        tt_sleep_ns(6500000000);
    } else {
        tt_sleep_ns(1500000000);
    }
    TT_EXPECT_OK(r, tt_barrier(&r->ctx->world, "after the quiet"));
}

static void quiet_times_move_limits(void **state)
{
    (void)state;
    setenv("TUTTI_TIMEOUT", "2", 1);
    on_ranks(3, NULL, quiet, NULL);
    unsetenv("TUTTI_TIMEOUT");
}

static bool nobody(void *arg, char *buf, size_t cap)
{
    int *asked = arg;
    snprintf(buf, cap, "rank 9 has not arrived");
    return ++*asked > 1; /* the first time it has just ended */
}

static void waits_time_out(tt_rank *r)
{
    _Atomic uint32_t word = 0;
    tt_op_wait wait;
    int asked = 0;
    tutti_status status = TUTTI_OK;
    r->ctx->timeout_s = 0.05;
    r->ctx->warn_after_s = 0;
    tt_op_wait_begin(&wait, r->ctx, &r->ctx->caller_patience, "all_reduce", nobody, &asked);
    while (status == TUTTI_OK)
        status = tt_op_wait_once(&wait, &word, 0);
    TT_EXPECT(r, status == TUTTI_ERR_TIMEOUT && asked == 2);
    TT_EXPECT(r, strstr(tutti_last_error(), "all_reduce: rank 9 has not arrived after ") ==
                     tutti_last_error());
    TT_EXPECT(r, tutti_ctx_error(r->ctx, NULL, 0) == TUTTI_ERR_TIMEOUT);
    r->ctx = NULL;
}

static void waits_have_limits(void **state)
{
    (void)state;
    on_ranks(1, NULL, waits_time_out, NULL);
}

static void seen_here(const tutti_ctx *ctx, char *buf, size_t cap)
{
    snprintf(buf, cap, "in all_reduce %d on comm dp for %d.5 s", ctx->world.rank == 2 ? 7 : 8,
             ctx->world.rank);
}

static bool one_is_late(void *arg, char *buf, size_t cap)
{
    (void)arg;
    snprintf(buf, cap, "one is late");
    return true;
}

static void late_ranks_tell(tt_rank *r)
{
    _Atomic uint32_t word = 0;
    tt_op_wait wait;
    tutti_status status = TUTTI_OK;
    tt_ctx_set_last_seen(r->ctx, seen_here);
    tt_all_here(r);
    if (r->rank == 0) {
        r->ctx->timeout_s = 0.1;
        tt_op_wait_begin(&wait, r->ctx, &r->ctx->caller_patience, "x", one_is_late, NULL);
        while (status == TUTTI_OK)
            status = tt_op_wait_once(&wait, &word, 0);
        TT_EXPECT(r, strstr(tutti_last_error(), "local rank 2) was in all_reduce 7 on comm dp for "
                                                "2.5 s") != NULL);
        TT_EXPECT(r, strstr(tutti_last_error(), "local rank 1)") == NULL);
    } else {
        wait_for_failure(r, &status);
    }
    TT_EXPECT(r, status == TUTTI_ERR_TIMEOUT);
    tt_ctx_set_last_seen(r->ctx, NULL);
    r->ctx = NULL;
}

static void time_outs_say_where_ranks_were(void **state)
{
    (void)state;
    on_ranks(4, NULL, late_ranks_tell, NULL);
}

static _Atomic int chained;
static void earlier_handler(int signal)
{
    (void)signal;
    atomic_fetch_add(&chained, 1);
}

static void signalled(tt_rank *r)
{
    static const int which[] = {SIGTERM, SIGUSR1, SIGUSR2};
    uint32_t todo;
    TT_EXPECT_OK(r, tutti_step(r->ctx, 0, &todo));
    TT_EXPECT_OK(r, tt_barrier(&r->ctx->world, "before the signal"));
    if (r->rank == 0)
        raise(which[*(int *)r->arg]);
    TT_EXPECT_OK(r, tt_barrier(&r->ctx->world, "after the signal"));
    TT_EXPECT_OK(r, tutti_step(r->ctx, 1, &todo));
    TT_EXPECT(r, todo == 0);
    TT_EXPECT_OK(r, tutti_step(r->ctx, 2, &todo));
    TT_EXPECT(r, todo == (TUTTI_DO_SAVE | TUTTI_DO_STOP));
}

static void no_stop(tt_rank *r)
{
    uint32_t todo;
    for (int64_t step = 0; step < 3; step++) {
        TT_EXPECT_OK(r, tutti_step(r->ctx, step, &todo));
        TT_EXPECT(r, todo == 0);
    }
}

static void signals_ask_to_stop(void **state)
{
    struct sigaction before = {.sa_handler = earlier_handler}, after;
    (void)state;
    sigaction(SIGUSR1, &before, NULL);
    for (int i = 0; i < 3; i++)
        on_ranks(2, NULL, signalled, &i);
    assert_int_equal(chained, 1); /* SIGUSR1's */
    sigaction(SIGUSR1, NULL, &after);
    assert_ptr_equal(after.sa_handler, earlier_handler);
    sigaction(SIGTERM, NULL, &after);
    assert_ptr_equal(after.sa_handler, SIG_DFL);
    signal(SIGUSR1, SIG_DFL);
    on_ranks(2, NULL, no_stop, NULL); /* an old signal is not for a new context */
}

static struct sigaction below;
static void handler_above(int signal)
{
    if (atomic_fetch_add(&chained, 1) < 10) /* a circle would not end */
        below.sa_sigaction(signal, NULL, NULL);
}

/* The program puts a handler over ours that calls it, and leaves it there or takes it away, after
 * our last context has gone. */
static void put_above(tt_rank *r)
{
    struct sigaction above = {.sa_handler = handler_above};
    if (r->rank == 0)
        sigaction(SIGUSR2, &above, &below);
    TT_EXPECT_OK(r, tt_barrier(&r->ctx->world, "the handler is in place"));
}

static void signals_of_layered_handlers(void **state)
{
    int which = 2;
    (void)state;
    on_ranks(2, NULL, put_above, NULL);
    for (int round = 0; round < 2; round++) {
        atomic_store(&chained, 0);
        on_ranks(2, NULL, signalled, &which);
        assert_int_equal(chained, round == 0 ? 1 : 0);
        sigaction(SIGUSR2, &below, NULL);
    }
    signal(SIGUSR2, SIG_DFL);
    on_ranks(2, NULL, signalled, &which);
    signal(SIGUSR2, SIG_DFL);
}

static void device_names_collide(void **state)
{
    static const char *const none[] = {"", "", "", ""}, *const two[] = {"a", "", "b", "b"},
                             *const all_own[] = {"a", "b", "c", ""};
    int first = -1;
    (void)state;
    assert_int_equal(tt_duplicate_find(none, 4, &first), 0);
    assert_int_equal(tt_duplicate_find(all_own, 4, &first), 0);
    assert_int_equal(tt_duplicate_find(two, 4, &first), 3);
    assert_int_equal(first, 2);
}

static char findings[2048];
static void note(void *arg, bool of_tutti, const char *line)
{
    size_t used = strlen(findings);
    (void)arg;
    snprintf(findings + used, sizeof findings - used, "%d %s\n", of_tutti, line);
}

static tutti_status compare(const char *const (*values)[4], int n)
{
    static const char *names[] = {"", "TUTTI_CHECK", "TUTTI_LOG", "NCCL_DEBUG"};
    const char *set_names[3][4], *set_values[3][4];
    tt_settings ranks[3] = {{0}};
    for (int i = 0; i < n; i++) {
        ranks[i].names = set_names[i];
        ranks[i].values = set_values[i];
        for (int k = 0; k < 4; k++)
            if (values[i][k] != NULL) {
                set_names[i][ranks[i].n] = names[k];
                set_values[i][ranks[i].n++] = values[i][k];
            }
    }
    findings[0] = '\0';
    return tt_parity_compare(ranks, n, note, NULL);
}

static void settings_are_compared(void **state)
{
    static const char *const equal[][4] = {{"1", "0", "warn", "INFO"}, {"1", "0", "warn", "INFO"}};
    static const char *const finding[][4] = {
        {"1", "0", "warn", NULL}, {"1", "0", "info", "INFO"}, {"1", "0", "warn", NULL}};
    static const char *const check[][4] = {
        {"1", "0", "warn", NULL}, {"1", "1", "warn", NULL}, {"1", "0", "warn", NULL}};
    static const char *const version[][4] = {{"1", "0", "warn", NULL}, {"2", "0", "warn", NULL}};
    (void)state;
    assert_int_equal(compare(equal, 2), TUTTI_OK);
    assert_string_equal(findings, "");
    assert_int_equal(compare(finding, 3), TUTTI_OK);
    assert_non_null(strstr(findings, "1 TUTTI_LOG is \"warn\" on rank 0, 2; \"info\" on rank 1\n"));
    assert_non_null(strstr(findings, "0 NCCL_DEBUG is not set on rank 0, 2; \"INFO\" on rank 1\n"));
    assert_int_equal(compare(check, 3), TUTTI_ERR_MISMATCH);
    assert_non_null(
        strstr(tutti_last_error(), "TUTTI_CHECK is \"0\" on rank 0, 2; \"1\" on rank 1"));
    assert_int_equal(compare(version, 2), TUTTI_ERR_MISMATCH);
    assert_non_null(strstr(tutti_last_error(), "version of libtutti is \"1\" on rank 0"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_stop_at_one_step),
        cmocka_unit_test(ranks_run_ahead_by_one),
        cmocka_unit_test(different_steps_are_told_apart),
        cmocka_unit_test(failures_are_told),
        cmocka_unit_test(failures_end_waits),
        cmocka_unit_test(quiet_times_move_limits),
        cmocka_unit_test(waits_have_limits),
        cmocka_unit_test(time_outs_say_where_ranks_were),
        cmocka_unit_test(signals_ask_to_stop),
        cmocka_unit_test(signals_of_layered_handlers),
        cmocka_unit_test(device_names_collide),
        cmocka_unit_test(settings_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
