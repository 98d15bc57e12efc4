/* SPDX-License-Identifier: Apache-2.0 */
/* What ends the process is run in a child. */
#include "tt_test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "boot/context.h"
#include "core/clock.h"

static char output[4096];

/* The child's exit status, its standard error in `output`; -1 when it does not end. */
static int run_child(void (*child)(void))
{
    int fd[2], status = -1;
    size_t used = 0;
    ssize_t n;
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(fd[1], STDERR_FILENO);
        close(fd[0]);
        alarm(60);
        child();
        _exit(99);
    }
    close(fd[1]);
    while ((n = read(fd[0], output + used, sizeof output - 1 - used)) > 0)
        used += (size_t)n;
    output[used] = '\0';
    close(fd[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void one_aborts(tt_rank *r)
{
    if (r->rank == 1) {
        tt_fail(TUTTI_ERR_IO, "the disk is gone");
        tutti_abort(r->ctx, 5, "cannot go on");
    }
    tt_sleep_ns(60000000000);
}

static void abort_of_a_thread(void)
{
    tt_ranks_run(3, NULL, one_aborts, NULL);
}

static void all_abort(tt_rank *r)
{
    tutti_abort(r->ctx, 0, NULL);
}

static void abort_of_all(void)
{
    tt_ranks_run(3, NULL, all_abort, NULL);
}

static void abort_without_context(void)
{
    tutti_abort(NULL, 7, "before init");
}

static void must(tt_rank *r)
{
    uint32_t todo;
    TUTTI_MUST(r->ctx, tutti_step(r->ctx, -3, &todo));
}

static void must_fails(void)
{
    tt_ranks_run(1, NULL, must, NULL);
}

static void aborts_end_the_process(void **state)
{
    (void)state;
    assert_int_equal(run_child(abort_of_a_thread), 5);
    assert_non_null(strstr(output, "r1/3"));
    assert_non_null(strstr(output, "aborting the job: cannot go on: the disk is gone"));
    assert_int_equal(run_child(abort_of_all), 1);
    assert_non_null(strstr(output, "no reason given"));
    assert_int_equal(run_child(abort_without_context), 7);
    assert_non_null(strstr(output, "aborting the job: before init"));
    assert_int_equal(run_child(must_fails), 1);
    assert_non_null(strstr(output, "tutti_step(r->ctx, -3, &todo): tutti_step: step -3"));
}

static void finalize_failed(tt_rank *r)
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tutti_ctx *ctx = NULL;
    opts.threads = r->threads;
    opts.rank = r->rank;
    TT_EXPECT_OK(r, tutti_init(&opts, &ctx));
    tt_all_here(r); /* a failure must not reach a rank in tutti_init */
    if (r->rank == 0)
        tt_ctx_fail(ctx, tt_fail(TUTTI_ERR_DEVICE, "the fan has stopped"));
    while (r->rank == 1 && tutti_ctx_error(ctx, NULL, 0) == TUTTI_OK)
        tt_sleep_ns(1000000);
    tutti_status status = tutti_finalize(ctx); /* of rank 2: from within its barrier */
    TT_EXPECT(r, status == (r->rank == 0 ? TUTTI_ERR_DEVICE : TUTTI_ERR_REMOTE));
    TT_EXPECT(r, strstr(tutti_last_error(), "the fan has stopped") != NULL);
}

static void failed_contexts_can_be_finalized(void **state)
{
    (void)state;
    assert_string_equal(tt_threads_run(3, NULL, finalize_failed, NULL), "");
    assert_int_equal(tutti_finalize(NULL), TUTTI_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(aborts_end_the_process),
        cmocka_unit_test(failed_contexts_can_be_finalized),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
