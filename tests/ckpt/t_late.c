/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A disk that does not answer: the save ends with a clear error on all ranks, the program goes on,
 * and when the disk has come back nothing is left of what was given up.
 */
#include "ckpt_test.h"

#include <semaphore.h>

#include "core/clock.h"
#include "tt_fs.h"

enum { RANKS = 2, SECONDS = 5 };

static char dir[PATH_CAP];
static sem_t hangs, let_go;

/* In the thread that writes. */
static void hang(void)
{
    sem_post(&hangs);
    while (sem_wait(&let_go) != 0)
        continue;
}

typedef struct late_job {
    bool sync, leave; /* leave: the job ends while it hangs */
    tutti_status status[RANKS], begin[RANKS];
    char text[RANKS][1024], begin_text[RANKS][1024];
    int64_t durable[RANKS];
} late_job;

static tutti_status late_save(tt_rank *r, const late_job *job)
{
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    opts.timeout_s = SECONDS;
    opts.flags = job->sync ? TUTTI_CKPT_SYNC : 0;
    return small_save(r, dir, 2, &opts);
}

/* Saves are refused until the disk has answered, then go well. */
static void save_after(tt_rank *r, late_job *job)
{
    tutti_status status = TUTTI_ERR_TIMEOUT;
    int64_t end = tt_now_ns() + INT64_C(120000000000);
    while (status == TUTTI_ERR_TIMEOUT && tt_now_ns() < end) {
        status = small_save(r, dir, 3, NULL);
        if (status == TUTTI_ERR_TIMEOUT)
            tt_sleep_ns(1000000);
    }
    TT_EXPECT_OK(r, status);
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, &job->durable[r->rank]));
}

static void late_body(tt_rank *r)
{
    late_job *job = r->arg;
    job->status[r->rank] = late_save(r, job);
    if (job->status[r->rank] == TUTTI_OK && !job->sync)
        job->status[r->rank] = tutti_ckpt_wait(r->ctx, NULL);
    snprintf(job->text[r->rank], sizeof job->text[0], "%s", tutti_last_error());
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL)); /* told once, and no wait for the disk */
    if (job->leave)
        return;
    job->begin[r->rank] = small_save(r, dir, 3, NULL);
    snprintf(job->begin_text[r->rank], sizeof job->begin_text[0], "%s", tutti_last_error());
    TT_EXPECT_OK(r, tutti_barrier(r->comm));
    if (r->rank == 0)
        sem_post(&let_go);
    save_after(r, job);
}

static void run(late_job *job, unsigned kinds, uint64_t at)
{
    tt_fs_plan plan = {.root = dir, .kinds = kinds, .at = at, .call = hang};
    sem_init(&hangs, 0, 0);
    sem_init(&let_go, 0, 0);
    tt_fs_begin(&plan);
    const char *report = tt_ranks_run(RANKS, NULL, late_body, job);
    tt_fs_end();
    assert_string_equal(report, "");
    assert_int_equal(sem_trywait(&hangs), 0);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(job->status[r], TUTTI_ERR_TIMEOUT);
        assert_string_equal(job->text[r], job->text[0]);
        assert_non_null(strstr(job->text[r], "checkpoint of step 2"));
        assert_non_null(strstr(job->text[r], "the disk of rank"));
    }
}

static void check_after(const late_job *job, int64_t want_2)
{
    char text[1024];
    int64_t step;
    tutti_status status;
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(job->begin[r], TUTTI_ERR_TIMEOUT);
        assert_non_null(strstr(job->begin_text[r], "still hangs"));
        assert_int_equal(job->durable[r], 3);
    }
    assert_int_equal(count_entries(dir, ".tmp"), 0);
    assert_int_equal(count_entries(dir, "step-000000000002"), want_2 == 2);
    for (int64_t want = 1; want <= 3; want++) {
        if (want == 2 && want_2 != 2)
            continue;
        assert_string_equal(small_job_load(RANKS, dir, want, &status, &step, text), "");
        assert_int_equal(status, TUTTI_OK);
        assert_int_equal(step, want);
    }
}

static void a_write_hangs(void **state)
{
    (void)state;
    late_job job = {0};
    scratch_make(dir);
    assert_string_equal(small_job_save(RANKS, dir, 1), "");
    run(&job, TT_FS_SYNC, 1);
    assert_non_null(strstr(job.text[0], "writing its data"));
    check_after(&job, -1);
    scratch_remove(dir);
}

/* The last sync of a save is that of the folder, behind the rename. */
static void the_commit_hangs(void **state)
{
    (void)state;
    late_job job = {.sync = true};
    tt_fs_plan count = {.root = dir, .kinds = TT_FS_SYNC};
    scratch_make(dir);
    tt_fs_begin(&count);
    assert_string_equal(small_job_save(RANKS, dir, 1), "");
    uint64_t syncs = tt_fs_end();
    run(&job, TT_FS_SYNC, syncs);
    assert_non_null(strstr(job.text[0], "committing it"));
    check_after(&job, 2);
    scratch_remove(dir);
}

static void the_job_ends_while_it_hangs(void **state)
{
    (void)state;
    late_job job = {.leave = true, .sync = true};
    char text[1024];
    int64_t step;
    tutti_status status;
    scratch_make(dir);
    assert_string_equal(small_job_save(RANKS, dir, 1), "");
    run(&job, TT_FS_SYNC, 1);
    assert_string_equal(small_job_load(RANKS, dir, -1, &status, &step, text), "");
    assert_true(status == TUTTI_OK && step == 1);
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_write_hangs), cmocka_unit_test(the_commit_hangs),
        cmocka_unit_test(the_job_ends_while_it_hangs), /* last: its thread stays where it is */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
