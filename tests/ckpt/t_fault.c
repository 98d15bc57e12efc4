/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every write, fsync, rename, unlink, mkdir, fallocate of a save fails in turn, with every error: a
 * clear one on every rank, the checkpoint before it whole, nothing left of the new one, and the
 * next save goes well. And every read of a load.
 */
#include "ckpt_test.h"

#include <errno.h>

#include "tt_fs.h"

enum { RANKS = 2, ALL = TT_FS_WRITE | TT_FS_SYNC | TT_FS_NAME | TT_FS_SPACE };

typedef struct fault_job {
    const char *dir;
    int64_t step;
    tutti_status status[RANKS];
    char text[RANKS][1024];
} fault_job;

static tutti_status save_and_wait(tt_rank *r, const fault_job *job)
{
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    opts.keep_last = 2;
    opts.flags = TUTTI_CKPT_BEST;
    tutti_status status = small_save(r, job->dir, job->step, &opts);
    return status == TUTTI_OK ? tutti_ckpt_wait(r->ctx, NULL) : status;
}

static void fault_body(tt_rank *r)
{
    fault_job *job = r->arg;
    job->status[r->rank] = save_and_wait(r, job);
    snprintf(job->text[r->rank], sizeof job->text[0], "%s",
             job->status[r->rank] == TUTTI_OK ? "" : tutti_last_error());
}

static uint64_t faulty_save(fault_job *job, const char *dir, int64_t step, tt_fs_plan plan)
{
    *job = (fault_job){.dir = dir, .step = step};
    plan.root = dir;
    plan.kinds = plan.kinds == 0 ? ALL : plan.kinds;
    tt_fs_begin(&plan);
    const char *report = tt_ranks_run(RANKS, NULL, fault_body, job);
    uint64_t events = tt_fs_end();
    assert_string_equal(report, "");
    return events;
}

static void fresh(char dir[PATH_CAP])
{
    scratch_make(dir);
    for (int64_t step = 1; step <= 3; step++) { /* two stay, so that retention has work */
        assert_string_equal(small_job_save(RANKS, dir, step), "");
    }
}

#define CHECK(cond, ...)                                                                           \
    do {                                                                                           \
        if (!(cond))                                                                               \
            fail_msg(__VA_ARGS__);                                                                 \
    } while (0)

/* One fault at event `at`; then what must hold. */
static bool one_fault(const char *dir, uint64_t at, int64_t step, tt_fs_plan plan)
{
    fault_job job;
    tutti_status status;
    int64_t got;
    char text[1024], where[512];
    plan.at = at;
    faulty_save(&job, dir, step, plan);
    snprintf(where, sizeof where, "%s at event %llu, %s%s", plan.cut ? "cut" : strerror(plan.error),
             (unsigned long long)at, tt_fs_hit(), plan.stays ? ", and on" : "");
    CHECK(job.status[0] == job.status[1], "%s: rank 0 has %s, rank 1 %s", where,
          tutti_status_name(job.status[0]), tutti_status_name(job.status[1]));
    CHECK(job.status[0] == TUTTI_OK || (job.text[0][0] != '\0' && job.text[1][0] != '\0'),
          "%s: no text", where);
    CHECK(plan.error != ENOSPC || job.status[0] == TUTTI_OK || job.status[0] == TUTTI_ERR_NO_SPACE,
          "%s: %s", where, tutti_status_name(job.status[0]));
    const char *report = small_job_load(1, dir, -1, &status, &got, text);
    CHECK(report[0] == '\0' && status == TUTTI_OK, "%s: then %s %s %s", where, report,
          tutti_status_name(status), text);
    CHECK(got == step || (got == step - 1 && job.status[0] != TUTTI_OK),
          "%s: %s, and step %lld is the newest", where, tutti_status_name(job.status[0]),
          (long long)got);
    bool cleaning = strncmp(tt_fs_hit(), "unlink", 6) == 0 || plan.stays;
    CHECK(cleaning || count_entries(dir, ".tmp-") == 0, "%s: leftovers", where);
    return job.status[0] != TUTTI_OK;
}

/* A clean save in between: it works, and removes what a fault in the removal left. */
static void clean_save(const char *dir, int64_t step)
{
    fault_job job;
    faulty_save(&job, dir, step, (tt_fs_plan){0});
    CHECK(job.status[0] == TUTTI_OK, "after a fault: %s", job.text[0]);
    assert_int_equal(count_entries(dir, ".tmp-"), 0);
    assert_int_equal(count_entries(dir, ".del-"), 0);
    assert_int_equal(count_entries(dir, ".old-"), 0);
}

static void faults(uint64_t every, uint64_t from)
{
    static const struct {
        int error;
        bool cut, stays;
        unsigned kinds;
    } cases[] = {{ENOSPC, false, false, 0},     {EIO, false, false, 0},
                 {EROFS, false, true, 0},       {EACCES, false, false, 0},
                 {0, true, false, TT_FS_WRITE}, {ENOSPC, false, true, TT_FS_WRITE | TT_FS_SPACE}};
    char dir[PATH_CAP];
    fault_job job;
    int64_t step = 4;
    uint64_t tried = 0, failed = 0;
    fresh(dir);
    setenv("TUTTI_CKPT_BLOCK_BYTES", "65536", 1);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        tt_fs_plan plan = {.error = cases[c].error,
                           .cut = cases[c].cut,
                           .stays = cases[c].stays,
                           .kinds = cases[c].kinds};
        uint64_t events = faulty_save(&job, dir, step++, (tt_fs_plan){.kinds = plan.kinds});
        assert_true(events > 5);
        for (uint64_t at = 1 + (from + c) % every; at <= events; at += every) {
            failed += one_fault(dir, at, step++, plan);
            tried++;
            clean_save(dir, step++);
        }
    }
    /* the others hit what a save can do without: retention, the owner file, a cut write goes on */
    CHECK(failed > tried / 3, "only %llu of %llu faults made a save fail",
          (unsigned long long)failed, (unsigned long long)tried);
    print_message("%llu faults, %llu saves failed\n", (unsigned long long)tried,
                  (unsigned long long)failed);
    unsetenv("TUTTI_CKPT_BLOCK_BYTES");
    scratch_remove(dir);
}

static void some_faults(void **state)
{
    (void)state;
    faults(4, 1);
}

static void all_faults(void **state)
{
    (void)state;
    faults(1, 0);
}

/* One load whose newest checkpoint, at its event `at`, fails. */
static void faulty_load(const char *dir, tt_fs_plan plan, uint64_t *older)
{
    tutti_status status;
    int64_t got;
    char text[1024], where[512];
    tt_fs_begin(&plan);
    const char *report = small_job_load(RANKS, dir, -1, &status, &got, text);
    tt_fs_end();
    snprintf(where, sizeof where, "%s at event %llu, %s", strerror(plan.error),
             (unsigned long long)plan.at, tt_fs_hit());
    if (report[0] != '\0') { /* after the open: the read says so */
        CHECK(strstr(report, "opened, but") != NULL, "%s: %s", where, report);
        return;
    }
    CHECK(status != TUTTI_OK || got == 2 || got == 3, "%s: step %lld", where, (long long)got);
    CHECK(status == TUTTI_OK || strstr(text, strerror(plan.error)) != NULL, "%s: %s", where, text);
    CHECK(plan.error != EIO || status == TUTTI_OK, "%s: what is lost is passed over, not %s", where,
          text);
    *older += status == TUTTI_OK && got == 2;
}

/* The newest cannot be opened or read, once or from there on: what the disk lost is damage, and the
 * one before is taken; what may not be read is told by its name; no crash, no wrong data. */
static void faulty_reads(void **state)
{
    (void)state;
    static const struct {
        int error;
        bool stays;
    } cases[] = {{EIO, false}, {EIO, true}, {EACCES, false}, {EMFILE, true}};
    char dir[PATH_CAP], newest[PATH_CAP + 32];
    tutti_status status;
    int64_t got;
    uint64_t older = 0;
    fresh(dir);
    snprintf(newest, sizeof newest, "%s/step-000000000003", dir);
    tt_fs_plan plan = {.root = newest, .kinds = TT_FS_READ | TT_FS_OPEN};
    tt_fs_begin(&plan);
    assert_string_equal(small_job_load(RANKS, dir, -1, &status, &got, NULL), "");
    uint64_t events = tt_fs_end();
    assert_int_equal(got, 3);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        plan.error = cases[c].error;
        plan.stays = cases[c].stays;
        for (plan.at = 1; plan.at <= events; plan.at += c == 0 ? 1 : 3)
            faulty_load(dir, plan, &older);
    }
    assert_true(older >= 6); /* the folder, the manifest, the blocks of three files */
    scratch_remove(dir);
}

int main(int argc, char **argv)
{
    setenv("TUTTI_LOG", "error", 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(some_faults),
                                       cmocka_unit_test(faulty_reads)};
    const struct CMUnitTest longer[] = {cmocka_unit_test(all_faults)};
    if (argc > 1 && strcmp(argv[1], "long") == 0)
        return cmocka_run_group_tests(longer, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
