/* SPDX-License-Identifier: Apache-2.0 */
/* What is removed and what is not: old checkpoints, leftovers of the dead, files of others. */
#include "ckpt_test.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/dir.h"

static char dir[PATH_CAP];

static int setup(void **state)
{
    (void)state;
    scratch_make(dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(dir);
    return 0;
}

static const char *at(const char *name)
{
    static char path[PATH_CAP + 300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static bool there(const char *name)
{
    struct stat st;
    return lstat(at(name), &st) == 0;
}

typedef struct plan {
    int64_t step;
    int keep;
    int64_t every;
    bool best;
} plan;

static void save_body(tt_rank *r)
{
    const plan *p = r->arg;
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    opts.keep_last = p->keep;
    opts.keep_every = p->every;
    opts.mesh = "dp2";
    if (p->best)
        opts.flags |= TUTTI_CKPT_BEST;
    opts.flags |= TUTTI_CKPT_SYNC;
    TT_EXPECT_OK(r, small_save(r, dir, p->step, &opts));
}

static void save(int64_t step, int keep)
{
    plan p = {.step = step, .keep = keep};
    TT_ASSERT_RANKS(2, NULL, save_body, &p);
}

static void order_is_numeric(void **state)
{
    (void)state;
    save(9, 0);
    save(10, 0);
    save(100, 2);
    assert_false(there("step-000000000009"));
    assert_true(there("step-000000000010"));
    assert_true(there("step-000000000100"));
    save(1000000000000, 1); /* thirteen digits: a longer name, a larger number */
    assert_int_equal(count_entries(dir, ""), 1);
    assert_true(there("step-1000000000000"));
}

static void damaged_do_not_count(void **state)
{
    (void)state;
    tutti_status status;
    int64_t got;
    for (int64_t step = 1; step <= 3; step++)
        save(step, 0);
    assert_int_equal(unlink(at("step-000000000003/shard-00000.h5")), 0);
    save(4, 2);
    assert_true(there("step-000000000004"));
    assert_true(there("step-000000000003")); /* not whole, so not counted; newer than the second */
    assert_true(there("step-000000000002"));
    assert_false(there("step-000000000001"));
    assert_int_equal(unlink(at("step-000000000004/index.h5")), 0);
    assert_string_equal(small_job_load(3, dir, -1, &status, &got, NULL), "");
    assert_int_equal(status, TUTTI_OK);
    assert_int_equal(got, 2);
}

static void higher_steps_of_an_earlier_run(void **state)
{
    (void)state;
    save(50, 0);
    save(60, 0);
    save(10, 1); /* a run that was started anew */
    assert_true(there("step-000000000010"));
    assert_true(there("step-000000000060"));
    assert_false(there("step-000000000050"));
}

static void every_and_best(void **state)
{
    (void)state;
    tutti_status status;
    int64_t got;
    for (int64_t step = 1; step <= 9; step++) {
        plan p = {step, 2, 4, step == 3};
        TT_ASSERT_RANKS(2, NULL, save_body, &p);
    }
    assert_int_equal(count_entries(dir, "step-"), 4); /* 3, the best; 4; 8 and 9 */
    assert_true(there("step-000000000003") && there("step-000000000004"));
    assert_true(there("step-000000000008") && there("step-000000000009"));
    assert_string_equal(small_job_load(3, dir, TUTTI_CKPT_STEP_BEST, &status, &got, NULL), "");
    assert_int_equal(status, TUTTI_OK);
    assert_int_equal(got, 3);
    plan better = {10, 1, 0, true};
    TT_ASSERT_RANKS(2, NULL, save_body, &better);
    assert_int_equal(count_entries(dir, "step-"), 1);
    file_put(at("best"), "step-x\n", 7);
    assert_string_equal(small_job_load(2, dir, TUTTI_CKPT_STEP_BEST, &status, NULL, NULL), "");
    assert_int_equal(status, TUTTI_ERR_CORRUPT);
    unlink(at("best"));
    assert_string_equal(small_job_load(2, dir, TUTTI_CKPT_STEP_BEST, &status, NULL, NULL), "");
    assert_int_equal(status, TUTTI_ERR_NOT_FOUND);
}

static void files_of_others_stay(void **state)
{
    (void)state;
    save(1, 0);
    file_put(at("step-000000000001/owner-notes.txt"), "mine", 4);
    file_put(at("readme"), "mine", 4);
    assert_int_equal(mkdir(at("step-7"), 0777), 0); /* not a name of ours */
    assert_int_equal(mkdir(at(".tmp-mine"), 0777), 0);
    save(2, 1);
    assert_true(there("step-000000000001/owner-notes.txt"));
    assert_true(there("step-000000000001/manifest.json"));
    assert_true(there("readme") && there("step-7") && there(".tmp-mine"));
    unlink(at("step-000000000001/owner-notes.txt"));
    save(3, 1);
    assert_false(there("step-000000000001"));
    assert_false(there("step-000000000002"));
}

/* A file system that cannot exchange two names; `broken`: nor move the new one in. */
static bool no_exchange, broken, moved_away, owned;

int renameat2(int from, const char *name, int to, const char *new_name, unsigned flags)
{
    if (no_exchange && flags != 0) {
        errno = EINVAL;
        return -1;
    }
    return (int)syscall(SYS_renameat2, from, name, to, new_name, flags);
}

int renameat(int from, const char *name, int to, const char *new_name)
{
    char owner[TT_TEMP_NAME_MAX + 16];
    snprintf(owner, sizeof owner, "%s/" TT_OWNER_NAME, name);
    owned = strncmp(new_name, "step-", 5) == 0 && faccessat(from, owner, F_OK, 0) == 0;
    if (broken && moved_away && strncmp(name, TT_TEMP_HEAD, strlen(TT_TEMP_HEAD)) == 0) {
        errno = EIO;
        return -1;
    }
    moved_away = moved_away || strncmp(new_name, TT_OLD_HEAD, strlen(TT_OLD_HEAD)) == 0;
    return (int)syscall(SYS_renameat2, from, name, to, new_name, 0);
}

static void broken_body(tt_rank *r)
{
    tutti_ckpt_save_opts opts = TUTTI_CKPT_SAVE_OPTS_INIT;
    opts.flags = TUTTI_CKPT_SYNC;
    TT_EXPECT(r, small_save(r, dir, 4, &opts) == TUTTI_ERR_IO);
}

static void same_step_without_exchange(void **state)
{
    (void)state;
    tutti_status status;
    int64_t got;
    no_exchange = true;
    save(4, 0);
    save(4, 0);
    assert_int_equal(count_entries(dir, ""), 1);
    moved_away = false;
    broken = true;
    TT_ASSERT_RANKS(2, NULL, broken_body, NULL);
    no_exchange = broken = false;
    assert_true(moved_away);
    assert_int_equal(count_entries(dir, ""), 1);
    assert_string_equal(small_job_load(2, dir, 4, &status, &got, NULL), "");
    assert_int_equal(status, TUTTI_OK);
}

static void make_temp(const char *name)
{
    char path[PATH_CAP + 300];
    assert_int_equal(mkdir(at(name), 0777), 0);
    snprintf(path, sizeof path, "%s/shard-00000.h5", name);
    file_put(at(path), "half", 4);
}

/* The name that this process would give, with `from` in it replaced by `to`. */
static void temp_name(char name[TT_TEMP_NAME_MAX], const char *from, const char *to)
{
    char real[TT_TEMP_NAME_MAX];
    assert_int_equal(tt_owner_temp_name(77, TT_TEMP_HEAD, real), TUTTI_OK);
    const char *found = strstr(real, from);
    assert_non_null(found);
    snprintf(name, TT_TEMP_NAME_MAX, "%.*s%s%s", (int)(found - real), real, to,
             found + strlen(from));
}

/* The name that another living process would give; it lives until *stop_out is closed. */
static pid_t living_name(char name[TT_TEMP_NAME_MAX], int *stop_out)
{
    int tell[2], stop[2];
    char byte;
    assert_int_equal(pipe(tell), 0);
    assert_int_equal(pipe(stop), 0);
    pid_t child = fork();
    if (child == 0) {
        close(stop[1]);
        if (tt_owner_temp_name(78, TT_TEMP_HEAD, name) != TUTTI_OK ||
            write(tell[1], name, TT_TEMP_NAME_MAX) != TT_TEMP_NAME_MAX)
            _exit(1);
        _exit(read(stop[0], &byte, 1) < 0);
    }
    assert_int_equal(read(tell[0], name, TT_TEMP_NAME_MAX), TT_TEMP_NAME_MAX);
    close(tell[0]);
    close(tell[1]);
    close(stop[0]);
    *stop_out = stop[1];
    return child;
}

static void leftovers(void **state)
{
    (void)state;
    char dead[TT_TEMP_NAME_MAX], alive[TT_TEMP_NAME_MAX], other[TT_TEMP_NAME_MAX];
    char own[TT_TEMP_NAME_MAX], pid[32], host[65];
    int stop;
    snprintf(pid, sizeof pid, "-%d-", (int)getpid());
    gethostname(host, sizeof host);
    temp_name(dead, pid, "-4194999-"); /* above the kernel's largest pid */
    temp_name(own, pid, pid); /* this very process, which could not remove it */
    pid_t child = living_name(alive, &stop);
    temp_name(other, host, "another-host");
    for (char *c = strchr(other, '\0') - 1; *c != '-'; c--)
        *c = *c == 'a' ? 'b' : *c;
    make_temp(dead);
    make_temp(alive);
    make_temp(own);
    make_temp(other);
    /* as from another boot, or the lock of this kernel decides */
    char *boot = strstr(other, "another-host-") + 13;
    boot[0] = boot[0] == '0' ? '1' : '0';
    assert_int_equal(mkdir(at(other), 0777), 0);
    assert_int_equal(mkdir(at(".del-step-000000000003-h-0123456789ab-1-1-0123456789abcdef"), 0777),
                     0);
    save(1, 0);
    assert_false(there(dead));
    assert_false(there(own));
    assert_true(there(alive));
    assert_true(there(other));
    close(stop);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(count_entries(dir, ".del-"), 0);
}

/* A process of another container: its pid means nothing here, the lock does. */
static void lock_tells(void **state)
{
    (void)state;
    char name[TT_TEMP_NAME_MAX], pid[32];
    int ready[2], stop[2], sub, fd;
    char byte;
    snprintf(pid, sizeof pid, "-%d-", (int)getpid());
    temp_name(name, pid, "-4194999-");
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(stop), 0);
    make_temp(name);
    pid_t child = fork();
    if (child == 0) {
        int top = -1;
        close(stop[1]);
        if (tt_dir_open(dir, &top) != TUTTI_OK || tt_dir_open_at(top, name, &sub) != TUTTI_OK ||
            tt_owner_lock(sub, name, &fd) != TUTTI_OK || write(ready[1], "x", 1) != 1)
            _exit(1);
        _exit(read(stop[0], &byte, 1) < 0);
    }
    close(stop[0]);
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    save(1, 0);
    assert_true(there(name));
    close(stop[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    save(2, 0);
    assert_false(there(name));
    assert_true(owned); /* up to the commit */
    assert_false(there("step-000000000002/" TT_OWNER_NAME));
    close(ready[0]);
}

static void names(void **state)
{
    (void)state;
    int64_t step = -1;
    assert_true(tt_step_parse("step-000000000012", &step));
    assert_int_equal(step, 12);
    assert_true(tt_step_parse("step-9223372036854775807", &step));
    assert_int_equal(step, INT64_MAX);
    assert_false(tt_step_parse("step-9223372036854775808", &step));
    assert_false(tt_step_parse("step-12", &step));
    assert_false(tt_step_parse("step-0000000000012", &step));
    assert_false(tt_step_parse("step--00000000012", &step));
    assert_false(tt_step_parse("step-+00000000012", &step));
    assert_false(tt_step_parse("step-", &step));
    assert_false(tt_step_parse("step-000000000012x", &step));
    assert_true(tt_ckpt_file_name_ok("shard-00000.h5"));
    assert_true(tt_ckpt_file_name_ok("shard-123456.h5"));
    assert_true(tt_ckpt_file_name_ok("index.h5"));
    assert_false(tt_ckpt_file_name_ok("shard-.h5"));
    assert_false(tt_ckpt_file_name_ok("shard-0000/.h5"));
    assert_false(tt_ckpt_file_name_ok("../shard-00000.h5"));
    assert_false(tt_ckpt_file_name_ok(""));
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    setenv("TUTTI_LOG", "error", 0); /* what is left alone is said as a warning */
    const struct CMUnitTest tests[] = {
        T(order_is_numeric), T(damaged_do_not_count), T(higher_steps_of_an_earlier_run),
        T(every_and_best),   T(files_of_others_stay), T(same_step_without_exchange),
        T(leftovers),        T(lock_tells),           T(names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
