/* SPDX-License-Identifier: Apache-2.0 */
/* Shared segments: between processes, over the caller's own pages, and where memory is short. */
#include "tt_test.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/shm.h"

static size_t page;

static int entries_of(const char *path)
{
    DIR *dir = opendir(path);
    int n = 0;
    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n - 2;
}

static int open_files(void)
{
    return entries_of("/proc/self/fd");
}

/* Runs `body` in a child process; true if it returned true. */
static bool in_child(bool (*body)(void *arg), void *arg)
{
    int wait_status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        _exit(body(arg) ? 0 : 1);
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    return WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
}

static bool attach_and_answer(void *arg)
{
    tt_shm shm;
    if (tt_shm_attach(arg, &shm) != TUTTI_OK)
        return false;
    bool right = memcmp(shm.base, "from the parent", 16) == 0;
    memcpy((char *)shm.base + shm.bytes - 4, "kid", 4);
    tt_shm_close(&shm);
    return right && shm.base == NULL;
}

static void another_process_attaches(void **state)
{
    tt_shm shm = {0};
    tt_shm_handle handle;
    int files = open_files();

    (void)state;
    assert_int_equal(tt_shm_create(3 * page + 1, NULL, &shm, &handle), TUTTI_OK);
    assert_int_equal(shm.bytes, 4 * page);
    for (size_t i = 0; i < shm.bytes; i++)
        assert_int_equal(((char *)shm.base)[i], 0);
    memcpy(shm.base, "from the parent", 16);
    assert_true(in_child(attach_and_answer, &handle));
    assert_string_equal((char *)shm.base + shm.bytes - 4, "kid");
    tt_shm_seal(&shm);
    assert_false(in_child(attach_and_answer, &handle));
    tt_shm_close(&shm);
    assert_int_equal(open_files(), files);
    tt_shm_close(&shm); /* all zero now */
}

static bool attach_wrong(void *arg)
{
    tt_shm_handle *handle = arg;
    tt_shm shm;
    int other = dup(2);
    tt_shm_handle wrong = *handle;
    bool right = true;

    wrong.inode++;
    right = right && tt_shm_attach(&wrong, &shm) == TUTTI_ERR_UNSUPPORTED;
    right = right && strstr(tutti_last_error(), "another file") != NULL;
    wrong = *handle;
    wrong.pid = 0x3fffffff; /* above pid_max */
    right = right && tt_shm_attach(&wrong, &shm) == TUTTI_ERR_UNSUPPORTED;
    right = right && strstr(tutti_last_error(), "PID namespace") != NULL;
    wrong = *handle;
    wrong.fd = 1000000;
    right = right && tt_shm_attach(&wrong, &shm) == TUTTI_ERR_UNSUPPORTED;
    close(other);
    return right;
}

static void a_wrong_handle_is_refused(void **state)
{
    tt_shm shm = {0};
    tt_shm_handle handle;

    (void)state;
    assert_int_equal(tt_shm_create(page, NULL, &shm, &handle), TUTTI_OK);
    assert_true(in_child(attach_wrong, &handle));
    tt_shm_close(&shm);
}

static void threads_share_the_mapping(void **state)
{
    tt_shm mine = {0}, peer = {0};
    tt_shm_handle handle;

    (void)state;
    assert_int_equal(tt_shm_create(page, NULL, &mine, &handle), TUTTI_OK);
    assert_int_equal(tt_shm_attach(&handle, &peer), TUTTI_OK);
    assert_ptr_equal(peer.base, mine.base);
    tt_shm_close(&mine);
    *(volatile char *)peer.base = 1; /* until the last one closes it */
    tt_shm_close(&peer);
}

static void refused_sizes(void **state)
{
    tt_shm shm = {0};
    tt_shm_handle handle;

    (void)state;
    assert_int_equal(tt_shm_create(0, NULL, &shm, &handle), TUTTI_ERR_ARG);
    assert_int_equal(tt_shm_create(SIZE_MAX, NULL, &shm, &handle), TUTTI_ERR_ARG);
    assert_null(shm.base);
}

static unsigned char pattern(size_t i)
{
    return (unsigned char)(i * 131 + (i >> 12) * 7);
}

static void expect_pattern(const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != pattern(i))
            assert_int_equal(i, SIZE_MAX); /* says where */
}

static bool attach_and_compare(void *arg)
{
    tt_shm shm;
    if (tt_shm_attach(arg, &shm) != TUTTI_OK)
        return false;
    bool right = ((unsigned char *)shm.base)[page] == pattern(page);
    ((unsigned char *)shm.base)[0] = 0xee;
    tt_shm_close(&shm);
    return right;
}

static void own_pages_keep_their_content(void **state)
{
    size_t bytes = 5 * page;
    unsigned char *around = NULL, *at;
    tt_shm shm = {0};
    tt_shm_handle handle;

    (void)state;
    assert_int_equal(posix_memalign((void **)&around, page, bytes + 2 * page), 0);
    at = around + page;
    memset(around, 0x5a, bytes + 2 * page);
    for (size_t i = 0; i < bytes; i++)
        at[i] = pattern(i);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(tt_shm_create(bytes, at, &shm, &handle), TUTTI_OK);
        assert_ptr_equal(shm.base, at);
        expect_pattern(at, bytes);
        assert_true(in_child(attach_and_compare, &handle));
        assert_int_equal(at[0], 0xee); /* it is shared */
        at[0] = pattern(0);
        tt_shm_close(&shm);
        expect_pattern(at, bytes);
        assert_int_equal(tt_shm_unshare(at, bytes), TUTTI_OK);
        expect_pattern(at, bytes);
        assert_int_equal(around[0], 0x5a);
        assert_int_equal(around[bytes + 2 * page - 1], 0x5a);
    }
    free(around);
}

/* A tmpfs of 1 MiB, or a skipped test. */
static void small_tmpfs(char *dir)
{
    strcpy(dir, "/tmp/tutti-shm-XXXXXX");
    assert_non_null(mkdtemp(dir));
    if (mount("none", dir, "tmpfs", 0, "size=1m") != 0) {
        int err = errno;
        rmdir(dir);
        print_message("a small tmpfs cannot be mounted: %s\n", strerror(err));
        skip();
    }
    setenv("TUTTI_SHM_DIR", dir, 1);
}

static void remove_tmpfs(const char *dir)
{
    unsetenv("TUTTI_SHM_DIR");
    assert_int_equal(umount(dir), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void too_small_a_directory_is_an_error_with_sizes(void **state)
{
    char dir[32];
    tt_shm shm = {0}, second = {0};
    tt_shm_handle handle;
    int files = open_files();
    unsigned char *own = NULL;

    (void)state;
    small_tmpfs(dir);
    assert_int_equal(tt_shm_create(3 << 20, NULL, &shm, &handle), TUTTI_ERR_NO_MEMORY);
    assert_non_null(strstr(tutti_last_error(), "3.0 MiB needed"));
    assert_non_null(strstr(tutti_last_error(), "1.0 MiB free of 1.0 MiB"));
    assert_non_null(strstr(tutti_last_error(), "--shm-size"));
    assert_non_null(strstr(tutti_last_error(), dir));
    assert_int_equal(tt_shm_create(512 << 10, NULL, &shm, &handle), TUTTI_OK);
    assert_int_equal(tt_shm_create(640 << 10, NULL, &second, &handle), TUTTI_ERR_NO_MEMORY);
    assert_non_null(strstr(tutti_last_error(), "0.5 MiB free"));
    assert_null(second.base);
    tt_shm_close(&shm);
    assert_int_equal(posix_memalign((void **)&own, page, 2 << 20), 0);
    for (size_t i = 0; i < 2 << 20; i++)
        own[i] = pattern(i);
    assert_int_equal(tt_shm_create(2 << 20, own, &shm, &handle), TUTTI_ERR_NO_MEMORY);
    expect_pattern(own, 2 << 20);
    free(own);
    assert_int_equal(tt_shm_create(1 << 20, NULL, &shm, &handle), TUTTI_OK); /* all is free again */
    tt_shm_close(&shm);
    assert_int_equal(open_files(), files);
    remove_tmpfs(dir);
}

static bool hold_and_die(void *arg)
{
    tt_shm shm;
    tt_shm_handle handle;
    (void)arg;
    if (tt_shm_create(512 << 10, NULL, &shm, &handle) != TUTTI_OK)
        return false;
    return raise(SIGKILL) != 0;
}

static void a_killed_process_leaves_nothing(void **state)
{
    char dir[32];
    tt_shm shm = {0};
    tt_shm_handle handle;

    (void)state;
    small_tmpfs(dir);
    for (int i = 0; i < 3; i++) {
        assert_false(in_child(hold_and_die, NULL));
        assert_int_equal(entries_of(dir), 0);
    }
    assert_int_equal(tt_shm_create(1 << 20, NULL, &shm, &handle), TUTTI_OK);
    assert_int_equal(entries_of(dir), 0);
    tt_shm_close(&shm);
    remove_tmpfs(dir);
}

static void no_directory_is_an_error(void **state)
{
    tt_shm shm = {0};
    tt_shm_handle handle;

    (void)state;
    setenv("TUTTI_SHM_DIR", "/nowhere/at/all", 1);
    assert_int_equal(tt_shm_create(page, NULL, &shm, &handle), TUTTI_ERR_IO);
    assert_non_null(strstr(tutti_last_error(), "/nowhere/at/all"));
    setenv("TUTTI_SHM_DIR", "/proc", 1); /* lacks O_TMPFILE and everything else */
    assert_int_equal(tt_shm_create(page, NULL, &shm, &handle), TUTTI_ERR_IO);
    unsetenv("TUTTI_SHM_DIR");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_process_attaches),
        cmocka_unit_test(a_wrong_handle_is_refused),
        cmocka_unit_test(threads_share_the_mapping),
        cmocka_unit_test(refused_sizes),
        cmocka_unit_test(own_pages_keep_their_content),
        cmocka_unit_test(too_small_a_directory_is_an_error_with_sizes),
        cmocka_unit_test(a_killed_process_leaves_nothing),
        cmocka_unit_test(no_directory_is_an_error),
    };
    page = (size_t)sysconf(_SC_PAGESIZE);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
