/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power cuts. The file operations of a run of saves are recorded (its retention, a step saved
 * again, a tag); then, for each moment of it, states are made that a power cut there may leave: a
 * complete checkpoint no older than the last acknowledged one must be found, with its content, and
 * the next save must go well. With and without a file system that exchanges names. And of two nodes
 * with folders of their own, whose power fails at one time; and of these with a second tier, which
 * must by itself hold what was told to be copied.
 */
#include "nodes_test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tt_crash.h"

enum { RANKS = 2, COPIED = 1000 /* added to a step that is noted as copied */ };

static bool node_local; /* the ranks save into a/ and b/ of the folder */
static bool copying; /* and what is finished is copied into c/ */

/* Every other copy is still under way while the next save is made. */
static void note_copy(tt_rank *r, bool wait)
{
    tutti_ckpt_copy_info info = TUTTI_CKPT_COPY_INFO_INIT;
    TT_EXPECT_OK(r, tutti_ckpt_copy_wait(r->ctx, wait ? 120 : 0, &info));
    TT_EXPECT(r, info.failed == 0);
    if (r->rank == 0 && info.step >= 0)
        tt_fs_note(COPIED + info.step);
}

static void saves_body(tt_rank *r)
{
    static const int64_t steps[] = {1, 2, 3, 3, 4, 4};
    tutti_ckpt_begin_opts begin = TUTTI_CKPT_BEGIN_OPTS_INIT;
    char dir[PATH_CAP], copies[PATH_CAP];
    snprintf(dir, sizeof dir, "%s%s", (const char *)r->arg,
             !node_local    ? ""
             : r->rank == 0 ? "/a"
                            : "/b");
    snprintf(copies, sizeof copies, "%s/c", (const char *)r->arg);
    begin.flags = node_local ? TUTTI_CKPT_NODE_LOCAL : 0;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
        opts.keep_last = 2;
        opts.copy_to = copying ? copies : NULL;
        opts.flags = i == 1 ? TUTTI_CKPT_BEST : 0;
        TT_EXPECT_OK(r, small_save_with(r, dir, steps[i], &begin, &opts));
        TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
        if (r->rank == 0)
            tt_fs_note(steps[i]);
        if (copying)
            note_copy(r, i % 2 == 0);
    }
}

static const char *fate_name(tt_crash_fate fate)
{
    return fate == TT_CRASH_NOTHING ? "nothing unsynced survives"
           : fate == TT_CRASH_ALL   ? "everything survives"
                                    : "some survives";
}

/* What was acknowledged by then, of saves or of copies. */
static int64_t acknowledged(const tt_fs_op *ops, size_t n, bool copied)
{
    int64_t last = -1;
    for (size_t i = 0; i < n; i++)
        if (ops[i].kind == TT_FS_OP_NOTE && (ops[i].at >= COPIED) == copied)
            last = ops[i].at % COPIED;
    return last;
}

static const char *load(const char *dir, tutti_status *status, int64_t *got, char text[1024])
{
    nodes_job job = {.top = dir, .nodes = "2x1", .folders = "ab", .step = -1};
    job.copy = copying ? "c" : NULL;
    if (!node_local)
        return small_job_load(1, dir, -1, status, got, text);
    const char *report = nodes_load(&job);
    *status = job.status;
    *got = job.got;
    memcpy(text, job.text, sizeof job.text);
    return report;
}

static int leftovers(const char *dir)
{
    return count_entries(dir, ".tmp-") + count_entries(dir, ".old-") + count_entries(dir, ".del-");
}

/* "" where it goes well and leaves nothing of those that did not. */
static const char *save_again(const char *dir)
{
    char part[PATH_CAP];
    nodes_job job = {.top = dir, .nodes = "2x1", .folders = "ab", .step = 9};
    job.copy = copying ? "c" : NULL;
    if (!node_local) {
        const char *report = small_job_save(1, dir, 9);
        return report[0] == '\0' && count_entries(dir, ".tmp-") > 0 ? "leftovers" : report;
    }
    const char *report = nodes_save(&job);
    if (report[0] == '\0' && job.status != TUTTI_OK)
        return "the next save fails";
    for (int r = 0; r < RANKS && report[0] == '\0'; r++) {
        nodes_dir(&job, r, part);
        if (leftovers(part) > 0)
            return "leftovers";
    }
    snprintf(part, sizeof part, "%s/c", dir);
    return report[0] == '\0' && copying && leftovers(part) > 0 ? "leftovers of copies" : report;
}

/* "" or what is wrong with the second tier by itself. */
static const char *check_copies(const tt_fs_op *ops, size_t n, const char *dir)
{
    static char text[2048];
    char copies[PATH_CAP], why[1024] = "";
    tutti_status status;
    int64_t got = -1, last = acknowledged(ops, n, true);
    snprintf(copies, sizeof copies, "%s/c", dir);
    const char *report = small_job_load(1, copies, -1, &status, &got, why);
    if (report[0] != '\0')
        return report;
    if (last < 0 || (status == TUTTI_OK && got >= last))
        return "";
    snprintf(text, sizeof text, "copies: step %lld after %lld: %s", (long long)got, (long long)last,
             why);
    return text;
}

static void check_state(const tt_fs_op *ops, size_t n, tt_crash_fate fate, uint64_t seed, bool save)
{
    char dir[PATH_CAP], text[1024] = "";
    tt_rng rng = {seed};
    tutti_status status;
    int64_t got = -1, last = acknowledged(ops, n, false);
    scratch_make(dir);
    tt_crash_make(ops, n, fate, &rng, dir);
    const char *report = load(dir, &status, &got, text);
    bool good = report[0] == '\0' && (status == TUTTI_OK ? got >= last : last < 0);
    if (good && copying) {
        report = check_copies(ops, n, dir);
        good = report[0] == '\0';
    }
    if (good && save) {
        report = save_again(dir);
        good = report[0] == '\0';
    }
    if (!good)
        fail_msg("after operation %zu (seed %llu, %s) in %s: %s %s %s, step %lld after %lld", n,
                 (unsigned long long)seed, fate_name(fate), dir, report, tutti_status_name(status),
                 text, (long long)got, (long long)last);
    scratch_remove(dir);
}

/* This process, which lives, made the names: as if one of another life had. */
static char *of_the_dead(const char *name)
{
    char pid[32], *dead = NULL;
    snprintf(pid, sizeof pid, "-%d-", (int)getpid());
    const char *at = name == NULL ? NULL : strstr(name, pid);
    if (at == NULL)
        return name == NULL ? NULL : strdup(name);
    assert_true(asprintf(&dead, "%.*s-1-%s", (int)(at - name), name, at + strlen(pid)) > 0);
    return dead;
}

static tt_fs_op *recorded(size_t *n_out)
{
    const tt_fs_op *ops = tt_fs_record(n_out);
    tt_fs_op *copy = calloc(*n_out, sizeof *copy);
    assert_non_null(copy);
    for (size_t i = 0; i < *n_out; i++) {
        copy[i] = ops[i];
        copy[i].name = of_the_dead(ops[i].name);
        copy[i].to = of_the_dead(ops[i].to);
    }
    return copy;
}

/* The nodes' folders, which are recorded as if a save had made them. */
static void make_folders(const char *dir)
{
    int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_int_equal(mkdirat(at, "a", 0777), 0);
    assert_int_equal(mkdirat(at, "b", 0777), 0);
    assert_int_equal(fsync(at), 0);
    close(at);
}

/* Every `every`-th prefix, in all fates and `dice` random ones. */
static void crashes(size_t every, int dice)
{
    char dir[PATH_CAP];
    size_t n;
    scratch_make(dir);
    setenv("TUTTI_CKPT_BLOCK_BYTES", "65536", 1);
    tt_fs_plan plan = {.root = dir, .record = true};
    tt_fs_begin(&plan);
    if (node_local)
        make_folders(dir);
    const char *report = tt_ranks_run(RANKS, node_local ? "2x1" : NULL, saves_body, dir);
    tt_fs_end();
    assert_string_equal(report, "");
    scratch_remove(dir);
    tt_fs_op *ops = recorded(&n);
    assert_true(n > 150);
    for (size_t i = 0; i <= n; i += every) {
        check_state(ops, i, TT_CRASH_NOTHING, 0, i % 8 == 0);
        check_state(ops, i, TT_CRASH_ALL, 0, i % 8 == 4);
        for (int k = 0; k < dice; k++)
            check_state(ops, i, TT_CRASH_RANDOM, i * 1000 + (uint64_t)k, k % 4 == 0);
    }
    print_message("%zu operations, %zu states\n", n, (n / every + 1) * (size_t)(2 + dice));
    for (size_t i = 0; i < n; i++) {
        free(ops[i].name);
        free(ops[i].to);
    }
    free(ops);
    unsetenv("TUTTI_CKPT_BLOCK_BYTES");
}

static void some(void **state)
{
    (void)state;
    crashes(9, 1);
}

static void many(void **state)
{
    (void)state;
    crashes(1, 20);
}

static void nodes(void **state)
{
    (void)state;
    node_local = true;
    crashes(23, 1);
    node_local = false;
}

static void nodes_many(void **state)
{
    (void)state;
    node_local = true;
    crashes(1, 20);
    node_local = false;
}

static void copies(void **state)
{
    (void)state;
    copying = node_local = true;
    crashes(41, 1);
    copying = node_local = false;
}

static void copies_many(void **state)
{
    (void)state;
    copying = node_local = true;
    crashes(1, 5);
    copying = node_local = false;
}

/* A model that forgets nothing would prove nothing. */
static void the_model_forgets(void **state)
{
    (void)state;
    char dir[PATH_CAP], to[PATH_CAP], path[PATH_CAP + 16];
    tt_rng rng = {1};
    struct stat st;
    size_t n;
    scratch_make(dir);
    tt_fs_plan plan = {.root = dir, .record = true};
    tt_fs_begin(&plan);
    int at = open(dir, O_RDONLY | O_DIRECTORY);
    int fd = openat(at, "a", O_RDWR | O_CREAT, 0666);
    assert_int_equal(pwrite(fd, "12345678", 8, 0), 8);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(fsync(at), 0);
    assert_int_equal(pwrite(fd, "abcdefgh", 8, 8), 8);
    assert_int_equal(renameat(at, "a", at, "b"), 0);
    tt_fs_end();
    const tt_fs_op *ops = tt_fs_record(&n);
    assert_int_equal(n, 6);
    for (int fate = 0; fate < 2; fate++) {
        scratch_make(to);
        tt_crash_make(ops, n, fate == 0 ? TT_CRASH_NOTHING : TT_CRASH_ALL, &rng, to);
        snprintf(path, sizeof path, "%s/%s", to, fate == 0 ? "a" : "b");
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, fate == 0 ? 8 : 16);
        assert_int_equal(count_entries(to, ""), 1);
        scratch_remove(to);
    }
    close(fd);
    close(at);
    scratch_remove(dir);
}

int main(int argc, char **argv)
{
    setenv("TUTTI_LOG", "error", 0);
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_model_forgets), cmocka_unit_test(some),
                                       cmocka_unit_test(nodes), cmocka_unit_test(copies)};
    const struct CMUnitTest longer[] = {cmocka_unit_test(copies_many), cmocka_unit_test(nodes_many),
                                        cmocka_unit_test(many)};
    if (argc > 1 && strcmp(argv[1], "long") == 0)
        return cmocka_run_group_tests(longer, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
