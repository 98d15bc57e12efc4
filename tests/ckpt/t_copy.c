/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The second tier: copies equal their originals and load by themselves, on any number of ranks; a
 * lost or damaged first tier is made up for; what happens to copies never happens to saves.
 */
#include "ckpt_test.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "tt_fs.h"

static char top[PATH_CAP], fast[PATH_CAP], copies[PATH_CAP];

static int setup(void **state)
{
    (void)state;
    setenv("TUTTI_CKPT_BLOCK_BYTES", "16384", 1);
    setenv("TUTTI_CKPT_WAIT_LOCK", "120", 1);
    scratch_make(top);
    snprintf(fast, sizeof fast, "%s/fast", top);
    snprintf(copies, sizeof copies, "%s/copies", top);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(top);
    unsetenv("TUTTI_CKPT_COPY_WAIT");
    return 0;
}

typedef struct copy_job {
    const char *folders; /* of the ranks, node-local; NULL: all in `fast` */
    tutti_ckpt_save_opts opts;
    int64_t from, to; /* steps that are saved, one after the other */
    tutti_ckpt_copy_info info; /* at the end, of rank 0 */
} copy_job;

static copy_job job_of(int64_t from, int64_t to)
{
    copy_job job = {NULL, TUTTI_CKPT_SAVE_OPTS_INIT, from, to, TUTTI_CKPT_COPY_INFO_INIT};
    job.opts.copy_to = copies;
    return job;
}

static tutti_status save(tt_rank *r, const copy_job *job, int64_t step)
{
    tutti_ckpt_begin_opts begin = TUTTI_CKPT_BEGIN_OPTS_INIT;
    char dir[PATH_CAP];
    if (job->folders == NULL)
        snprintf(dir, sizeof dir, "%s", fast);
    else
        snprintf(dir, sizeof dir, "%s/%c", top, job->folders[r->rank]);
    begin.flags = job->folders == NULL ? 0 : TUTTI_CKPT_NODE_LOCAL;
    tutti_status status = small_save_with(r, dir, step, &begin, &job->opts);
    return status == TUTTI_OK ? tutti_ckpt_wait(r->ctx, NULL) : status;
}

static tutti_ckpt_copy_info wait_copy(tt_rank *r)
{
    tutti_ckpt_copy_info info = TUTTI_CKPT_COPY_INFO_INIT;
    if (tutti_ckpt_copy_wait(r->ctx, 120, &info) != TUTTI_OK || info.pending != -1)
        tt_say(r, "the copy does not end: %s", tutti_last_error());
    return info;
}

/* Every copy is waited for. */
static void save_body(tt_rank *r)
{
    copy_job *job = r->arg;
    for (int64_t step = job->from; step <= job->to; step++) {
        TT_EXPECT_OK(r, save(r, job, step));
        tutti_ckpt_copy_info info = wait_copy(r);
        if (r->rank == 0)
            job->info = info;
    }
}

static void run_saves(int n, const char *nodes, copy_job *job)
{
    TT_ASSERT_RANKS(n, nodes, save_body, job);
    if (job->info.status != TUTTI_OK || job->info.step != job->to)
        fail_msg("copied up to step %lld: %s", (long long)job->info.step, job->info.text);
}

static char *in(const char *dir, int64_t step, const char *name)
{
    static char path[4][2 * PATH_CAP];
    static int turn;
    char *to = path[turn++ % 4];
    snprintf(to, sizeof path[0], "%s/step-%012lld/%s", dir, (long long)step, name);
    return to;
}

static int files_of(const char *dir, int64_t step)
{
    return access(in(dir, step, ""), F_OK) != 0 ? 0 : count_entries(in(dir, step, ""), "");
}

static bool same_file(int64_t step, const char *name)
{
    size_t a_bytes, b_bytes;
    unsigned char *a = file_get(in(fast, step, name), &a_bytes);
    unsigned char *b = file_get(in(copies, step, name), &b_bytes);
    bool same = a_bytes == b_bytes && memcmp(a, b, a_bytes) == 0;
    free(a);
    free(b);
    return same;
}

static void load_copy(int n, int64_t step)
{
    tutti_status status;
    int64_t got;
    char text[1024] = "";
    assert_string_equal(small_job_load(n, copies, -1, &status, &got, text), "");
    if (status != TUTTI_OK || got != step)
        fail_msg("%d ranks: step %lld: %s", n, (long long)got, text);
}

static void equal_on_any_ranks(void **state)
{
    (void)state;
    for (int n = 1; n <= 4; n++) {
        copy_job job = job_of(n, n);
        char shard[32];
        run_saves(n, NULL, &job);
        for (int r = 0; r < n; r++) {
            snprintf(shard, sizeof shard, "shard-%05d.h5", r);
            assert_true(same_file(n, shard));
        }
        assert_true(same_file(n, "index.h5"));
        assert_true(same_file(n, "manifest.json"));
        assert_int_equal(files_of(copies, n), n + 2);
        load_copy(1 + n % 4, n);
        assert_int_equal(job.info.copied, 1);
    }
}

/* What an open of both tiers finds. */
typedef struct open_job {
    const char *folders;
    int64_t step;
    uint32_t flags;
    tutti_status status;
    int64_t got;
    bool copy; /* it came from the second tier */
    char text[1024];
} open_job;

static void open_body(tt_rank *r)
{
    open_job *job = r->arg;
    tutti_ckpt_open_opts opts = TUTTI_CKPT_OPEN_OPTS_INIT;
    tutti_ckpt_reader *rd = NULL;
    char dir[PATH_CAP];
    int64_t got = -1;
    bool copy = false;
    if (job->folders == NULL)
        snprintf(dir, sizeof dir, "%s", fast);
    else
        snprintf(dir, sizeof dir, "%s/%c", top, job->folders[r->rank]);
    opts.flags = job->flags | (job->folders == NULL ? 0 : TUTTI_CKPT_OPEN_NODE_LOCAL);
    opts.copy = copies;
    tutti_status status = tutti_ckpt_open_with(r->ctx, dir, job->step, &opts, &rd);
    if (status == TUTTI_OK) {
        copy = strcmp(tutti_ckpt_dir(rd), copies) == 0;
        TT_EXPECT(r, copy || strcmp(tutti_ckpt_dir(rd), dir) == 0);
        status = small_check_opened(r, rd, &got);
    }
    if (r->rank != r->size - 1)
        return;
    job->status = status;
    job->got = got;
    job->copy = copy;
    snprintf(job->text, sizeof job->text, "%s", status == TUTTI_OK ? "" : tutti_last_error());
}

static open_job opened(const char *nodes, const char *folders, int64_t step, uint32_t flags)
{
    open_job job = {.folders = folders, .step = step, .flags = flags};
    TT_ASSERT_RANKS(folders == NULL ? 2 : (int)strlen(folders), nodes, open_body, &job);
    return job;
}

static void expect_open(const char *nodes, const char *folders, int64_t want, bool copy)
{
    open_job job = opened(nodes, folders, -1, 0);
    if (job.status != TUTTI_OK || job.got != want || job.copy != copy)
        fail_msg("step %lld of the %s tier: %s", (long long)job.got, job.copy ? "second" : "first",
                 job.text);
}

static void node_disks_are_lost(void **state)
{
    (void)state;
    copy_job job = job_of(1, 2);
    char disk[2 * PATH_CAP];
    job.folders = "aabb";
    run_saves(4, "2x2", &job);
    assert_int_equal(files_of(copies, 2), 6); /* all shards together, no part-00000 */
    load_copy(3, 2);
    expect_open("2x2", "aabb", 2, false);
    snprintf(disk, sizeof disk, "%s/b", top);
    scratch_remove(disk);
    expect_open("2x2", "aabb", 2, true);
    expect_open("2x1", "ac", 2, true); /* another node in its place */
    job.opts.copy_to = NULL;
    job.from = job.to = 3; /* goes on, without copies: the new step is the newest */
    TT_ASSERT_RANKS(4, "2x2", save_body, &job);
    expect_open("2x2", "aabb", 3, false);
    scratch_remove(disk);
    expect_open("2x2", "aabb", 2, true);
}

/* In place: a copy may be looking at the file's size. */
static bool flip(const char *path)
{
    struct stat st;
    unsigned char byte = 0;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    bool done = fd >= 0 && fstat(fd, &st) == 0 && pread(fd, &byte, 1, st.st_size / 2) == 1;
    byte ^= 16;
    done = done && pwrite(fd, &byte, 1, st.st_size / 2) == 1;
    close(fd);
    return done;
}

static void both_tiers_are_one_list(void **state)
{
    (void)state;
    copy_job job = job_of(1, 3);
    job.opts.flags = TUTTI_CKPT_BEST;
    run_saves(2, NULL, &job);
    job.opts.flags = 0;
    job.from = job.to = 4;
    run_saves(2, NULL, &job);
    assert_true(flip(in(fast, 4, "shard-00001.h5")));
    expect_open(NULL, NULL, 4, true);
    open_job strict = opened(NULL, NULL, -1, TUTTI_CKPT_OPEN_STRICT);
    assert_true(strict.status == TUTTI_OK && strict.got == 4 && strict.copy);
    assert_true(flip(in(copies, 4, "index.h5")));
    expect_open(NULL, NULL, 3, false);
    strict = opened(NULL, NULL, -1, TUTTI_CKPT_OPEN_STRICT);
    assert_int_equal(strict.status, TUTTI_ERR_CORRUPT);
    assert_int_equal(opened(NULL, NULL, 4, 0).status, TUTTI_ERR_CORRUPT);
    assert_int_equal(opened(NULL, NULL, 9, 0).status, TUTTI_ERR_NOT_FOUND);
    open_job best = opened(NULL, NULL, TUTTI_CKPT_STEP_BEST, 0);
    assert_true(best.status == TUTTI_OK && best.got == 3 && !best.copy);
    assert_true(flip(in(fast, 3, "manifest.json")));
    best = opened(NULL, NULL, TUTTI_CKPT_STEP_BEST, 0);
    assert_true(best.status == TUTTI_OK && best.got == 3 && best.copy);
    scratch_remove(fast);
    expect_open(NULL, NULL, 3, true);
    assert_true(opened(NULL, NULL, 2, 0).copy);
    best = opened(NULL, NULL, TUTTI_CKPT_STEP_BEST, 0);
    assert_true(best.status == TUTTI_OK && best.got == 3 && best.copy);
    scratch_remove(copies);
    assert_int_equal(opened(NULL, NULL, -1, 0).status, TUTTI_ERR_NOT_FOUND);
}

static void retention_of_its_own(void **state)
{
    (void)state;
    copy_job job = job_of(1, 7);
    job.opts.keep_last = 1;
    job.opts.copy_keep_last = 2;
    job.opts.copy_keep_every = 3;
    run_saves(1, NULL, &job);
    assert_int_equal(count_entries(fast, "step-"), 1);
    assert_int_equal(count_entries(copies, "step-"), 3); /* 3, 6, 7 */
    assert_int_equal(files_of(copies, 3), 3);
    assert_int_equal(job.info.copied, 7);
    job.from = job.to = 8;
    job.opts.copy_keep_last = 0;
    job.opts.copy_keep_every = -1;
    run_saves(1, NULL, &job); /* as the first tier: the newest */
    assert_int_equal(count_entries(copies, "step-"), 1);
    job.from = 9, job.to = 10;
    job.opts.copy_keep_last = -1;
    run_saves(1, NULL, &job);
    assert_int_equal(count_entries(copies, "step-"), 3);
    assert_int_equal(count_entries(fast, "step-"), 1);
}

static tt_folder_lock *hold(tt_rank *r)
{
    tt_folder_lock *lock = NULL;
    if (r->rank != 0)
        return NULL;
    mkdir(copies, 0777);
    int fd = open(copies, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (tt_folder_lock_take(fd, copies, 0, &lock) != TUTTI_OK)
        tt_say(r, "%s", tutti_last_error());
    close(fd);
    return lock;
}

/* Another job copies into the folder: this one's first copy waits, and saves go on. */
static void held_body(tt_rank *r)
{
    copy_job *job = r->arg;
    tutti_ckpt_copy_info info = TUTTI_CKPT_COPY_INFO_INIT;
    tt_folder_lock *lock = hold(r);
    for (int64_t step = 1; step <= 4; step++)
        TT_EXPECT_OK(r, save(r, job, step));
    TT_EXPECT_OK(r, tutti_ckpt_copy_wait(r->ctx, 0, &info));
    TT_EXPECT(r, info.pending == 4 && info.step == -1 && info.copied == 0 && info.skipped == 2);
    if (r->rank == 0) {
        TT_EXPECT(r, files_of(fast, 1) > 0); /* which is to be copied */
        TT_EXPECT(r, files_of(fast, 2) == 0);
    }
    tt_folder_lock_release(lock);
    info = wait_copy(r);
    TT_EXPECT(r, info.step == 4 && info.copied == 2 && info.skipped == 2 && info.failed == 0);
    TT_EXPECT_OK(r, save(r, job, 5));
    info = wait_copy(r);
    if (r->rank == 0)
        job->info = info;
}

static void the_newest_waits(void **state)
{
    (void)state;
    copy_job job = job_of(1, 5);
    job.opts.keep_last = 1;
    job.opts.copy_keep_last = -1;
    TT_ASSERT_RANKS(2, NULL, held_body, &job);
    assert_int_equal(job.info.step, 5);
    assert_int_equal(count_entries(copies, "step-"), 3); /* 1, 4, 5 */
    assert_int_equal(count_entries(fast, "step-"), 1);
}

static void refused_body(tt_rank *r)
{
    const copy_job *job = r->arg;
    char pid[32];
    tt_folder_lock *lock = hold(r);
    TT_EXPECT_OK(r, save(r, job, 1));
    tutti_ckpt_copy_info info = wait_copy(r);
    snprintf(pid, sizeof pid, "process %d ", (int)getpid());
    TT_EXPECT(r, info.status == TUTTI_ERR_STATE && info.failed == 1);
    TT_EXPECT(r, strstr(info.text, "is in use") != NULL && strstr(info.text, pid) != NULL);
    tt_folder_lock_release(lock);
    TT_EXPECT_OK(r, save(r, job, 2));
    info = wait_copy(r);
    TT_EXPECT(r, info.status == TUTTI_OK && info.text[0] == '\0' && info.step == 2);
}

static void another_job_is_named(void **state)
{
    (void)state;
    copy_job job = job_of(1, 2);
    setenv("TUTTI_CKPT_WAIT_LOCK", "0.1", 1);
    TT_ASSERT_RANKS(2, NULL, refused_body, &job);
    load_copy(1, 2);
}

/* The first tier goes bad between the commit and the copy. */
static void rotten_body(tt_rank *r)
{
    const copy_job *job = r->arg;
    tt_folder_lock *lock = hold(r);
    TT_EXPECT_OK(r, save(r, job, 1));
    if (r->rank == 0)
        TT_EXPECT(r, flip(in(fast, 1, "shard-00001.h5")));
    tt_folder_lock_release(lock);
    tutti_ckpt_copy_info info = wait_copy(r);
    TT_EXPECT(r, info.status == TUTTI_ERR_CORRUPT && info.failed == 1 && info.step == -1);
    TT_EXPECT(r, strstr(info.text, "shard-00001.h5 of the first tier") != NULL);
    TT_EXPECT(r, strstr(info.text, "checksum differs") != NULL);
    if (r->rank == 0)
        TT_EXPECT(r, count_entries(copies, "") == 0);
    TT_EXPECT_OK(r, save(r, job, 2));
    TT_EXPECT(r, wait_copy(r).step == 2);
}

static void rot_does_not_spread(void **state)
{
    (void)state;
    copy_job job = job_of(1, 2);
    TT_ASSERT_RANKS(2, NULL, rotten_body, &job);
    load_copy(3, 2);
}

/* The job ends though the copy cannot be made. */
static void ends_body(tt_rank *r)
{
    const copy_job *job = r->arg;
    tutti_ckpt_copy_info info = TUTTI_CKPT_COPY_INFO_INIT;
    TT_EXPECT_OK(r, save(r, job, job->from));
    if (job->opts.keep_last == 1) /* then the end of the job waits no more */
        TT_EXPECT_OK(r, tutti_ckpt_copy_wait(r->ctx, -1, &info));
    TT_EXPECT(r, info.copied == 0);
}

static void the_end_does_not_wait_for_ever(void **state)
{
    (void)state;
    copy_job job = job_of(1, 1);
    tt_rank outside = {0};
    tt_folder_lock *lock = hold(&outside);
    setenv("TUTTI_CKPT_COPY_WAIT", "0.1", 1);
    TT_ASSERT_RANKS(2, NULL, ends_body, &job);
    job.from = 2, job.opts.keep_last = 1;
    TT_ASSERT_RANKS(2, NULL, ends_body, &job);
    tt_folder_lock_release(lock);
    assert_int_equal(count_entries(copies, ""), 0);
    setenv("TUTTI_CKPT_COPY_WAIT", "120", 1);
    job.from = 3, job.opts.keep_last = 0;
    TT_ASSERT_RANKS(2, NULL, ends_body, &job); /* which waits for it */
    load_copy(1, 3);
}

/* A directory of a machine that is not this one, changed so many seconds ago. */
static void leave_temp(const char *dir, const char *name, int64_t age_s)
{
    char path[2 * PATH_CAP];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    const struct timespec then[2] = {{now.tv_sec - age_s, 0}, {now.tv_sec - age_s, 0}};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(mkdir(path, 0777), 0);
    snprintf(path, sizeof path, "%s/%s/shard-00000.h5", dir, name);
    file_put(path, "half", 4);
    assert_int_equal(utimensat(AT_FDCWD, path, then, 0), 0);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(utimensat(AT_FDCWD, path, then, 0), 0);
}

/* Spot nodes do not come back to clean up. */
static void lost_nodes_leave_nothing(void **state)
{
    (void)state;
    copy_job job = job_of(1, 1);
    mkdir(copies, 0777);
    mkdir(fast, 0777);
    leave_temp(copies, ".tmp-step-000000000001-gone-0123456789ab-77-99-0123456789abcdef", 4000);
    leave_temp(copies, ".tmp-step-000000000001-slow-0123456789ab-77-99-0123456789abcdef", 3000);
    leave_temp(fast, ".tmp-step-000000000001-gone-0123456789ab-77-99-0123456789abcdef", 4000);
    run_saves(2, NULL, &job);
    assert_int_equal(count_entries(copies, ".tmp-step-000000000001-slow"), 1);
    assert_int_equal(count_entries(copies, ".tmp-"), 1);
    assert_int_equal(count_entries(fast, ".tmp-"), 1); /* saves judge nobody by his age */
}

static void wrong_body(tt_rank *r)
{
    copy_job job = *(copy_job *)r->arg;
    job.opts.copy_to = fast;
    TT_EXPECT(r, save(r, &job, 1) == TUTTI_ERR_ARG);
    job.opts.copy_to = "";
    TT_EXPECT(r, save(r, &job, 1) == TUTTI_ERR_ARG);
    job.opts.copy_to = r->rank == 0 ? copies : top;
    TT_EXPECT(r, save(r, &job, 1) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "other options") != NULL);
    job.opts.copy_to = copies;
    job.opts.copy_keep_last = -2;
    TT_EXPECT(r, save(r, &job, 1) == TUTTI_ERR_ARG);
    tutti_ckpt_copy_info info = wait_copy(r);
    TT_EXPECT(r, info.step == -1 && info.failed == 0);
    info.size = 8;
    TT_EXPECT(r, tutti_ckpt_copy_state(r->ctx, &info) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_ckpt_copy_wait(r->ctx, NAN, NULL) == TUTTI_ERR_ARG);
    char alias[2 * PATH_CAP];
    snprintf(alias, sizeof alias, "%s/.", fast);
    job.opts.copy_keep_last = 0;
    job.opts.copy_to = alias;
    TT_EXPECT_OK(r, save(r, &job, 1));
    TT_EXPECT(r, wait_copy(r).status == TUTTI_ERR_ARG);
    job.opts.copy_to = "/proc/nowhere/copies";
    TT_EXPECT_OK(r, save(r, &job, 2));
    TT_EXPECT(r, wait_copy(r).failed == 2);
}

static void wrong_folders(void **state)
{
    (void)state;
    copy_job job = job_of(1, 1);
    TT_ASSERT_RANKS(2, NULL, wrong_body, &job);
}

/* Every so many file operations of a copy fail; the save is acknowledged (save_body says so), and
 * the next copy goes well and leaves nothing. */
static void one_fault(uint64_t at, int error, bool node_local, int64_t step, int *failed)
{
    copy_job job = job_of(step, step);
    tt_fs_plan plan = {.root = copies, .at = at, .error = error, .stays = at % 3 == 0};
    plan.kinds = TT_FS_WRITE | TT_FS_SYNC | TT_FS_NAME | TT_FS_SPACE;
    job.opts.keep_last = job.opts.copy_keep_last = 2;
    job.folders = node_local ? "ab" : NULL;
    tt_fs_begin(&plan);
    const char *report = tt_ranks_run(2, node_local ? "2x1" : NULL, save_body, &job);
    tt_fs_end();
    assert_string_equal(report, "");
    bool there = files_of(copies, step) > 0;
    if (job.info.status == TUTTI_OK ? !there : job.info.failed != 1 || job.info.text[0] == '\0')
        fail_msg("%s: %s: %s", tt_fs_hit(), tutti_status_name(job.info.status), job.info.text);
    if (error == ENOSPC && job.info.status != TUTTI_OK && job.info.status != TUTTI_ERR_NO_SPACE)
        fail_msg("%s: %s", tt_fs_hit(), job.info.text);
    *failed += job.info.status != TUTTI_OK;
    job.from = job.to = step + 1;
    run_saves(2, node_local ? "2x1" : NULL, &job);
    assert_int_equal(count_entries(copies, ".tmp-") + count_entries(copies, ".del-"), 0);
    assert_in_range(count_entries(copies, "step-"), 1, 2);
}

static void faults(uint64_t from, uint64_t every)
{
    int64_t step = 1;
    int failed = 0, tried = 0;
    mkdir(copies, 0777);
    for (uint64_t at = from; at <= 45; at += every, step += 2, tried++)
        one_fault(at, at % 2 == 0 ? EIO : ENOSPC, at % 4 > 1, step, &failed);
    assert_in_range(failed, tried / 2, tried);
    print_message("%d faults, %d copies failed\n", tried, failed);
    load_copy(1, step - 1);
}

static void some_faults(void **state)
{
    (void)state;
    faults(2, 6);
}

static void all_faults(void **state)
{
    (void)state;
    faults(1, 1);
}

#define TEST(body) cmocka_unit_test_setup_teardown(body, setup, teardown)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {TEST(equal_on_any_ranks),
                                       TEST(node_disks_are_lost),
                                       TEST(both_tiers_are_one_list),
                                       TEST(retention_of_its_own),
                                       TEST(the_newest_waits),
                                       TEST(another_job_is_named),
                                       TEST(rot_does_not_spread),
                                       TEST(the_end_does_not_wait_for_ever),
                                       TEST(wrong_folders),
                                       TEST(lost_nodes_leave_nothing),
                                       TEST(some_faults)};
    const struct CMUnitTest longer[] = {TEST(all_faults)};
    setenv("TUTTI_LOG", "error", 0);
    if (argc > 1 && strcmp(argv[1], "long") == 0)
        return cmocka_run_group_tests(longer, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
