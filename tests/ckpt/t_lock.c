/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One job at a time saves into a folder: a second is refused by name or waits, with file locks and
 * with leases; what the dead held is taken over; who lost the lock commits nothing. And an old
 * version of a step that gave way to one that never came is found and put back.
 */
#include "ckpt_test.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/identity.h"

static char dir[PATH_CAP];

static int setup(void **state)
{
    (void)state;
    scratch_make(dir);
    setenv("TUTTI_CKPT_WAIT_LOCK", "0.3", 1);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    scratch_remove(dir);
    unsetenv("TUTTI_CKPT_LOCK");
    return 0;
}

static const char *at(const char *name)
{
    static char path[2 * PATH_CAP];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void hold(tt_folder_lock **lock)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(tt_folder_lock_take(fd, dir, 0, lock), TUTTI_OK);
    assert_true(tt_folder_lock_is_of(*lock, fd));
    close(fd);
}

static bool says_who(void)
{
    char pid[32];
    snprintf(pid, sizeof pid, "process %d ", (int)getpid());
    return strstr(tutti_last_error(), "is in use") != NULL &&
           strstr(tutti_last_error(), pid) != NULL;
}

static void save_while_held(tt_rank *r)
{
    TT_EXPECT(r, small_save(r, dir, 2, NULL) == TUTTI_ERR_STATE);
    TT_EXPECT(r, says_who());
}

/* A job holds the lock from its first save to its end. */
static void holder_body(tt_rank *r)
{
    tt_folder_lock *lock;
    TT_EXPECT_OK(r, small_save(r, dir, 1, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    tutti_status status = tt_folder_lock_take(fd, dir, 0.3, &lock);
    close(fd);
    TT_EXPECT(r, status == TUTTI_ERR_STATE && says_who());
    TT_EXPECT_OK(r, small_save(r, dir, 3, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
}

static void refused(void **state)
{
    (void)state;
    static const char *const modes[] = {"auto", "lease"};
    for (int i = 0; i < 2; i++) {
        tt_folder_lock *lock;
        setenv("TUTTI_CKPT_LOCK", modes[i], 1);
        TT_ASSERT_RANKS(2, NULL, holder_body, NULL);
        assert_int_equal(count_entries(dir, ".lease"), 0); /* given back */
        hold(&lock);
        TT_ASSERT_RANKS(2, NULL, save_while_held, NULL);
        tt_folder_lock_release(lock);
        assert_int_equal(count_entries(dir, ".tmp-"), 0);
        assert_string_equal(small_job_save(2, dir, 4), ""); /* it is free again */
    }
    assert_int_equal(count_entries(dir, "step-"), 3);
}

static void *release_soon(void *lock)
{
    usleep(300000);
    tt_folder_lock_release(lock);
    return NULL;
}

static void waits(void **state)
{
    (void)state;
    static const char *const modes[] = {"auto", "lease"};
    setenv("TUTTI_CKPT_WAIT_LOCK", "60", 1);
    for (int i = 0; i < 2; i++) {
        tt_folder_lock *lock;
        pthread_t thread;
        setenv("TUTTI_CKPT_LOCK", modes[i], 1);
        hold(&lock);
        assert_int_equal(pthread_create(&thread, NULL, release_soon, lock), 0);
        assert_string_equal(small_job_save(2, dir, i), "");
        pthread_join(thread, NULL);
    }
}

static void put_lease(const char *token, int age_s)
{
    struct timespec times[2];
    file_put(at(".lease"), token, strlen(token));
    clock_gettime(CLOCK_REALTIME, &times[0]);
    times[0].tv_sec -= age_s;
    times[1] = times[0];
    assert_int_equal(utimensat(AT_FDCWD, at(".lease"), times, 0), 0);
}

static void dead_leases(void **state)
{
    (void)state;
    static const char dead[] = ".tmp-step-000000000000-%s-%s-%d-1-0123456789abcdef";
    char token[TT_TEMP_NAME_MAX];
    tt_identity self;
    tt_identity_self(&self);
    setenv("TUTTI_CKPT_LOCK", "lease", 1);
    snprintf(token, sizeof token, dead, self.host, self.boot, 1); /* not process 1 of that start */
    put_lease(token, 0);
    assert_string_equal(small_job_save(2, dir, 1), "");
    snprintf(token, sizeof token, dead, "elsewhere", "0123456789ab", 77);
    put_lease(token, 61);
    assert_string_equal(small_job_save(2, dir, 2), "");
    put_lease("", 61); /* killed before it wrote */
    assert_string_equal(small_job_save(2, dir, 3), "");
    put_lease(token, 30); /* renewed half a minute ago, on a machine that cannot be seen */
    const char *report = small_job_save(2, dir, 4);
    assert_non_null(strstr(report, "process 77 on elsewhere"));
    assert_int_equal(count_entries(dir, ".lease-"), 0);
    assert_int_equal(count_entries(dir, "step-"), 3);
}

static void lose_lock(tt_rank *r)
{
    TT_EXPECT_OK(r, small_save(r, dir, 1, NULL));
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
    tutti_ckpt *ck;
    TT_EXPECT_OK(r, tutti_ckpt_begin(r->ctx, dir, 2, &ck));
    float value = 1;
    tutti_tensor t = tensor_1d("v", TUTTI_FLOAT32, 1, 0, 0, &value);
    TT_EXPECT_OK(r, tutti_ckpt_add(ck, &t));
    if (r->rank == 0)
        unlink(at(r->arg));
    TT_EXPECT_OK(r, tutti_ckpt_commit(ck, (tutti_stream){0}, NULL));
    TT_EXPECT(r, tutti_ckpt_wait(r->ctx, NULL) == TUTTI_ERR_STATE);
    TT_EXPECT(r, strstr(tutti_last_error(), "was lost") != NULL);
    TT_EXPECT_OK(r, small_save(r, dir, 3, NULL)); /* takes it again */
    TT_EXPECT_OK(r, tutti_ckpt_wait(r->ctx, NULL));
}

static void lost(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(2, NULL, lose_lock, (char[]){".lock"});
    setenv("TUTTI_CKPT_LOCK", "lease", 1);
    TT_ASSERT_RANKS(2, NULL, lose_lock, (char[]){".lease"});
    assert_int_equal(count_entries(dir, ".tmp-"), 0);
    assert_int_equal(count_entries(dir, "step-"), 2);
}

static void modes(void **state)
{
    (void)state;
    setenv("TUTTI_CKPT_LOCK", "flock", 1);
    assert_non_null(strstr(small_job_save(1, dir, 1), "not auto, lease or off"));
    setenv("TUTTI_CKPT_LOCK", "off", 1);
    assert_string_equal(small_job_save(1, dir, 1), "");
    assert_int_equal(count_entries(dir, ""), 1);
}

static void cut_off_exchange(void **state)
{
    (void)state;
    static const char old[] = ".old-step-000000000002-h-0123456789ab-1-1-0123456789abcdef";
    char from[PATH_CAP + 64];
    tutti_status status;
    int64_t got;
    assert_string_equal(small_job_save(2, dir, 1), "");
    assert_string_equal(small_job_save(2, dir, 2), "");
    snprintf(from, sizeof from, "%s/step-000000000002", dir);
    assert_int_equal(rename(from, at(old)), 0);
    assert_string_equal(small_job_load(2, dir, -1, &status, &got, NULL), "");
    assert_int_equal(status, TUTTI_OK);
    assert_int_equal(got, 2);
    assert_string_equal(small_job_save(2, dir, 3), "");
    assert_int_equal(count_entries(dir, ".old-"), 0);
    assert_int_equal(count_entries(dir, "step-"), 3);
    assert_int_equal(mkdir(at(old), 0777), 0); /* the new one had come */
    assert_string_equal(small_job_save(2, dir, 4), "");
    assert_int_equal(count_entries(dir, ".old-"), 0);
}

#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
int main(void)
{
    setenv("TUTTI_LOG", "error", 0);
    const struct CMUnitTest tests[] = {T(refused), T(waits), T(dead_leases),
                                       T(lost),    T(modes), T(cut_off_exchange)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
