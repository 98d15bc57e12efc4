/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SIGKILL at random moments of a job that saves all the time. Afterwards there is a complete
 * checkpoint, with the content of its step, no older than the last one that the job was told is
 * durable; and the next job goes on from it and leaves nothing of its predecessors.
 */
#include "ckpt_test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 2, KEEP = 2, ACK_FD = 3 };

static void victim_body(tt_rank *r)
{
    const char *dir = r->arg;
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    tutti_ckpt_reader *rd;
    int64_t step = 0, durable;
    opts.keep_last = KEEP;
    tutti_status status = tutti_ckpt_open(r->ctx, dir, -1, &rd);
    if (status == TUTTI_OK) {
        step = tutti_ckpt_step(rd);
        status = small_check(r, rd, step);
        tutti_ckpt_close(rd);
    } else if (status == TUTTI_ERR_NOT_FOUND) {
        status = TUTTI_OK;
    }
    TT_EXPECT(r, status == TUTTI_OK);
    for (;;) {
        uint32_t todo;
        step++;
        TT_EXPECT_OK(r, small_save(r, dir, step, &opts));
        TT_EXPECT_OK(r, tutti_step(r->ctx, step, &todo));
        TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, &durable));
        TT_EXPECT(r, durable == step);
        if (r->rank == 0 && write(ACK_FD, &durable, sizeof durable) != sizeof durable)
            tt_say(r, "the acknowledgement was not taken");
    }
}

/* The victim: never returns but on an error. */
static int victim(char *dir)
{
    fprintf(stderr, "%s\n", tt_ranks_run(RANKS, NULL, victim_body, dir));
    return 1;
}

/* Lets a victim run for `us` after its first acknowledgement (or from its start); what it
 * acknowledged last. */
static int64_t run_victim(const char *dir, useconds_t us, bool from_start)
{
    int ack[2], rc;
    int64_t last = -1, step;
    assert_int_equal(pipe2(ack, O_CLOEXEC), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ack[1], ACK_FD);
        execl("/proc/self/exe", "t_ckpt_kill", "victim", dir, (char *)NULL);
        _exit(127);
    }
    assert_true(child > 0);
    close(ack[1]);
    if (!from_start)
        assert_int_equal(read(ack[0], &last, sizeof last), sizeof last);
    usleep(us);
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &rc, 0), child);
    assert_true(WIFSIGNALED(rc) && WTERMSIG(rc) == SIGKILL);
    while (read(ack[0], &step, sizeof step) == sizeof step)
        last = step;
    close(ack[0]);
    return last;
}

static void killed(int times, uint64_t seed)
{
    char dir[PATH_CAP];
    tt_rng rng = {seed};
    int64_t acknowledged = -1, got;
    tutti_status status;
    int kinds[2] = {0, 0};
    scratch_make(dir);
    for (int i = 0; i < times; i++) {
        useconds_t us = (useconds_t)tt_rand_below(&rng, 40000);
        int64_t last = run_victim(dir, us, i > 0 && i % 3 == 0);
        if (last > acknowledged)
            acknowledged = last;
        kinds[count_entries(dir, ".tmp-") > 0]++;
        const char *report = small_job_load(1 + i % 3, dir, -1, &status, &got, NULL);
        if (report[0] != '\0' || status != TUTTI_OK || got < acknowledged)
            fail_msg("kill %d (seed %llu, %u us): got step %lld after %lld was durable: %s", i,
                     (unsigned long long)seed, us, (long long)got, (long long)acknowledged,
                     report[0] != '\0' ? report : tutti_status_name(status));
        assert_in_range(count_entries(dir, ""), 1, KEEP + 4);
    }
    print_message("%d kills, %d of them in a save; step %lld was the last\n", times, kinds[1],
                  (long long)acknowledged);
    assert_true(kinds[1] > 0);
    assert_string_equal(small_job_save(2, dir, acknowledged + 10), "");
    assert_int_equal(count_entries(dir, "."), 0);
    scratch_remove(dir);
}

static void killed_at_random(void **state)
{
    (void)state;
    killed(24, 11);
}

static void killed_often(void **state)
{
    (void)state;
    killed(400, 12);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(killed_at_random)};
    const struct CMUnitTest longer[] = {cmocka_unit_test(killed_often)};
    if (argc > 2 && strcmp(argv[1], "victim") == 0)
        return victim(argv[2]);
    if (argc > 1 && strcmp(argv[1], "long") == 0)
        return cmocka_run_group_tests(longer, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
