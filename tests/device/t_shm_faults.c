/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory on systems that lack something, or that refuse half way. The linker puts the
 * functions below in front of the C library's (--wrap).
 */
#include "tt_test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/shm.h"

static bool no_tmpfile, no_populate, no_mremap, mremap_unmaps;
static int interrupted, refused;

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __real_madvise(void *at, size_t bytes, int advice);
int __wrap_madvise(void *at, size_t bytes, int advice);
void *__real_mremap(void *at, size_t bytes, size_t to_bytes, int flags, void *to);
void *__wrap_mremap(void *at, size_t bytes, size_t to_bytes, int flags, void *to);
int __real_posix_fallocate(int fd, off_t at, off_t bytes);
int __wrap_posix_fallocate(int fd, off_t at, off_t bytes);

int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    int mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(args, int) : 0;
    va_end(args);
    if (no_tmpfile && (flags & O_TMPFILE) == O_TMPFILE) {
        refused++;
        errno = EOPNOTSUPP;
        return -1;
    }
    return __real_open(path, flags, mode);
}

int __wrap_madvise(void *at, size_t bytes, int advice)
{
    if (no_populate && advice == 23) { /* MADV_POPULATE_WRITE */
        refused++;
        errno = EINVAL;
        return -1;
    }
    return __real_madvise(at, bytes, advice);
}

void *__wrap_mremap(void *at, size_t bytes, size_t to_bytes, int flags, void *to)
{
    if (mremap_unmaps)
        munmap(to, bytes);
    if (no_mremap || mremap_unmaps) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return __real_mremap(at, bytes, to_bytes, flags, to);
}

int __wrap_posix_fallocate(int fd, off_t at, off_t bytes)
{
    if (interrupted > 0) {
        interrupted--;
        return EINTR;
    }
    return __real_posix_fallocate(fd, at, bytes);
}

static size_t page;

static int set_up(void **state)
{
    (void)state;
    no_tmpfile = no_populate = no_mremap = mremap_unmaps = false;
    interrupted = refused = 0;
    return 0;
}

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

static void use_from_a_child(const tt_shm *shm, const tt_shm_handle *handle)
{
    int wait_status = 0;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        tt_shm there;
        if (tt_shm_attach(handle, &there) != TUTTI_OK)
            _exit(1);
        ((char *)there.base)[1] = 'x';
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &wait_status, 0), pid);
    assert_int_equal(wait_status, 0);
    assert_int_equal(((char *)shm->base)[1], 'x');
}

static void a_file_system_without_unnamed_files(void **state)
{
    char dir[] = "/tmp/tutti-shm-XXXXXX";
    tt_shm shm = {0};
    tt_shm_handle handle;

    (void)state;
    no_tmpfile = true;
    assert_non_null(mkdtemp(dir));
    setenv("TUTTI_SHM_DIR", dir, 1);
    assert_int_equal(tt_shm_create(2 * page, NULL, &shm, &handle), TUTTI_OK);
    assert_int_equal(entries_of(dir), 0);
    assert_int_equal(refused, 1);
    use_from_a_child(&shm, &handle);
    tt_shm_close(&shm);
    unsetenv("TUTTI_SHM_DIR");
    assert_int_equal(rmdir(dir), 0);
}

static void a_kernel_that_cannot_populate(void **state)
{
    tt_shm shm = {0};
    tt_shm_handle handle;

    (void)state;
    no_populate = true;
    assert_int_equal(tt_shm_create(2 * page, NULL, &shm, &handle), TUTTI_OK);
    assert_int_equal(refused, 1);
    use_from_a_child(&shm, &handle);
    tt_shm_close(&shm);
}

static void signals_while_reserving(void **state)
{
    tt_shm shm = {0};
    tt_shm_handle handle;

    (void)state;
    interrupted = 3;
    assert_int_equal(tt_shm_create(2 * page, NULL, &shm, &handle), TUTTI_OK);
    assert_int_equal(interrupted, 0);
    tt_shm_close(&shm);
}

static bool is_filled(const unsigned char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != (unsigned char)(i % 251))
            return false;
    return true;
}

/* The kernel refuses to move the mapping, with and without having unmapped what was there. */
static void own_pages_survive_a_refusal(void **state)
{
    size_t bytes = 3 * page;
    unsigned char *own;
    tt_shm shm = {0};
    tt_shm_handle handle;

    (void)state;
    own = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(own != MAP_FAILED);
    for (size_t i = 0; i < bytes; i++)
        own[i] = (unsigned char)(i % 251);
    for (int unmaps = 0; unmaps < 2; unmaps++) {
        no_mremap = unmaps == 0;
        mremap_unmaps = unmaps == 1;
        assert_int_equal(tt_shm_create(bytes, own, &shm, &handle), TUTTI_ERR_NO_MEMORY);
        assert_null(shm.base);
        assert_true(is_filled(own, bytes));
        no_mremap = mremap_unmaps = false;
        assert_int_equal(tt_shm_create(bytes, own, &shm, &handle), TUTTI_OK);
        no_mremap = unmaps == 0;
        mremap_unmaps = unmaps == 1;
        assert_int_equal(tt_shm_unshare(own, bytes), TUTTI_ERR_NO_MEMORY);
        assert_true(is_filled(own, bytes));
        no_mremap = mremap_unmaps = false;
        assert_int_equal(tt_shm_unshare(own, bytes), TUTTI_OK);
        assert_true(is_filled(own, bytes));
        tt_shm_close(&shm);
    }
    munmap(own, bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_file_system_without_unnamed_files, set_up),
        cmocka_unit_test_setup(a_kernel_that_cannot_populate, set_up),
        cmocka_unit_test_setup(signals_while_reserving, set_up),
        cmocka_unit_test_setup(own_pages_survive_a_refusal, set_up),
    };
    page = (size_t)sysconf(_SC_PAGESIZE);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
