/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaced by definition: a symbol of the executable goes before one of libc, for the library,
 * which is linked into the test, and for HDF5, which is not. One lock around everything keeps the
 * record in the order of what happened. Inodes get numbers of our own, for a file system uses its
 * numbers again.
 */
#include "tt_fs.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { INODES = 1024 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tt_fs_plan plan;
static bool active;
static _Thread_local bool striking; /* in the plan's call, whose own operations do not count */
static uint64_t events;
static char root[PATH_MAX], hit[256];
static ino_t inode[INODES]; /* by our number */
static int inodes;
static tt_fs_op *ops;
static size_t nops, ops_cap;

static bool begins_with_root(const char *path)
{
    size_t bytes = strlen(root);
    return strncmp(path, root, bytes) == 0 && (path[bytes] == '/' || path[bytes] == '\0');
}

static bool off(void)
{
    return !active || striking;
}

static bool below_root(int dir, const char *name)
{
    char link[64], path[PATH_MAX];
    if (name != NULL && name[0] == '/')
        return begins_with_root(name);
    if (dir == AT_FDCWD)
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    return begins_with_root(path);
}

static void describe(const char *what, int fd, const char *name)
{
    char link[64], path[PATH_MAX];
    if (name == NULL) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path - 1);
        path[n > 0 ? n : 0] = '\0';
        name = path + (n > (ssize_t)strlen(root) ? strlen(root) + 1 : 0);
    }
    snprintf(hit, sizeof hit, "%s of %s", what, name);
}

/* 0: go on; an errno: fail; -1: a short write. The lock is held, but not while the plan's call is
 * made: it may take long, and other threads go on. */
static int event(unsigned kind, const char *what, int fd, const char *name)
{
    if (!active || (plan.kinds & kind) == 0 || !below_root(fd, name))
        return 0;
    events++;
    if (plan.at == 0 || events < plan.at || (events > plan.at && !plan.stays))
        return 0;
    int result = plan.cut && kind == TT_FS_WRITE ? -1 : plan.error;
    if (events == plan.at) {
        describe(what, fd, name);
        if (plan.call != NULL) {
            striking = true;
            pthread_mutex_unlock(&lock);
            plan.call();
            pthread_mutex_lock(&lock);
            striking = false;
        }
    }
    return result;
}

static int number_of(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        abort();
    for (int i = inodes - 1; i >= 0; i--)
        if (inode[i] == st.st_ino)
            return i;
    if (inodes == INODES)
        abort();
    inode[inodes] = st.st_ino;
    return inodes++;
}

static int new_number(int fd)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || inodes == INODES)
        abort();
    for (int i = 0; i < inodes; i++)
        if (inode[i] == st.st_ino)
            inode[i] = 0;
    inode[inodes] = st.st_ino;
    return inodes++;
}

static tt_fs_op *append(tt_fs_op_kind kind)
{
    if (nops == ops_cap) {
        ops_cap = ops_cap == 0 ? 256 : 2 * ops_cap;
        ops = realloc(ops, ops_cap * sizeof *ops);
        if (ops == NULL)
            abort();
    }
    ops[nops] = (tt_fs_op){.kind = kind, .file = -1, .dir = -1, .to_dir = -1};
    return &ops[nops++];
}

static bool recording(int dir, const char *name)
{
    return active && plan.record && below_root(dir, name);
}

/* The directory that `name` is in, and its last part. */
static int parent_of(int dir, const char *name, const char **last_out)
{
    char path[PATH_MAX];
    const char *slash = strrchr(name, '/');
    *last_out = slash == NULL ? name : slash + 1;
    if (slash == NULL)
        return number_of(dir);
    snprintf(path, sizeof path, "%.*s", (int)(slash - name), name);
    int fd = (int)syscall(SYS_openat, dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -1; /* the root's own parent: not ours */
    int n = number_of(fd);
    close(fd);
    return n;
}

static void free_ops(void)
{
    for (size_t i = 0; i < nops; i++) {
        free(ops[i].name);
        free(ops[i].to);
        free(ops[i].data);
    }
    nops = 0;
}

void tt_fs_begin(const tt_fs_plan *new_plan)
{
    pthread_mutex_lock(&lock);
    plan = *new_plan;
    if (realpath(plan.root, root) == NULL)
        abort();
    events = 0;
    hit[0] = '\0';
    if (plan.record) {
        free_ops();
        inodes = 0;
        int fd = (int)syscall(SYS_openat, AT_FDCWD, root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        number_of(fd);
        close(fd);
    }
    active = true;
    pthread_mutex_unlock(&lock);
}

uint64_t tt_fs_end(void)
{
    pthread_mutex_lock(&lock);
    active = false;
    pthread_mutex_unlock(&lock);
    return events;
}

const char *tt_fs_hit(void)
{
    return hit;
}

void tt_fs_note(int64_t value)
{
    pthread_mutex_lock(&lock);
    if (active && plan.record)
        append(TT_FS_OP_NOTE)->at = value;
    pthread_mutex_unlock(&lock);
}

const tt_fs_op *tt_fs_record(size_t *n_out)
{
    *n_out = nops;
    return ops;
}

static int fail(int error)
{
    pthread_mutex_unlock(&lock);
    errno = error;
    return -1;
}

static int leave(int result)
{
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

int openat(int dir, const char *name, int flags, ...)
{
    mode_t mode = 0;
    if ((flags & O_CREAT) != 0) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    bool makes = (flags & O_CREAT) != 0;
    if (off() || (!makes && (plan.kinds & TT_FS_OPEN) == 0))
        return (int)syscall(SYS_openat, dir, name, flags, mode);
    pthread_mutex_lock(&lock);
    int error = event(makes ? TT_FS_NAME : TT_FS_OPEN, "open", dir, name);
    if (error > 0)
        return fail(error);
    bool record = makes && recording(dir, name);
    bool was = record && faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    int fd = (int)syscall(SYS_openat, dir, name, flags, mode);
    if (fd >= 0 && record && !was) {
        const char *last;
        int file = new_number(fd);
        int parent = parent_of(dir, name, &last);
        tt_fs_op *op = append(TT_FS_OP_CREATE);
        op->file = file;
        op->dir = parent;
        op->name = strdup(last);
    }
    return leave(fd);
}

int open(const char *name, int flags, ...)
{
    mode_t mode = 0;
    if ((flags & O_CREAT) != 0) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    return openat(AT_FDCWD, name, flags, mode);
}

static ssize_t write_at(int fd, const void *data, size_t bytes, off_t at, bool here)
{
    pthread_mutex_lock(&lock);
    int error = event(TT_FS_WRITE, "write", fd, NULL);
    if (error > 0)
        return fail(error);
    if (error < 0)
        bytes = bytes > 1 ? bytes / 2 : bytes;
    ssize_t n =
        here ? syscall(SYS_write, fd, data, bytes) : syscall(SYS_pwrite64, fd, data, bytes, at);
    if (n > 0 && recording(fd, NULL)) {
        int file = number_of(fd);
        tt_fs_op *op = append(TT_FS_OP_WRITE);
        op->file = file;
        op->at = at;
        op->bytes = (size_t)n;
        op->data = malloc((size_t)n);
        memcpy(op->data, data, (size_t)n);
    }
    int kept = errno;
    pthread_mutex_unlock(&lock);
    errno = kept;
    return n;
}

ssize_t pwrite(int fd, const void *data, size_t bytes, off_t at)
{
    if (off())
        return syscall(SYS_pwrite64, fd, data, bytes, at);
    return write_at(fd, data, bytes, at, false);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    if (off())
        return syscall(SYS_write, fd, data, bytes);
    return write_at(fd, data, bytes, plan.record ? lseek(fd, 0, SEEK_CUR) : 0, true);
}

ssize_t pread(int fd, void *data, size_t bytes, off_t at)
{
    if (!off() && (plan.kinds & TT_FS_READ) != 0) {
        pthread_mutex_lock(&lock);
        int error = event(TT_FS_READ, "read", fd, NULL);
        if (error > 0)
            return fail(error);
        pthread_mutex_unlock(&lock);
    }
    return syscall(SYS_pread64, fd, data, bytes, at);
}

static int sync_with(long call, int fd)
{
    if (off())
        return (int)syscall(call, fd);
    pthread_mutex_lock(&lock);
    int error = event(TT_FS_SYNC, "fsync", fd, NULL);
    if (error > 0)
        return fail(error);
    int result = plan.record ? 0 : (int)syscall(call, fd);
    if (result == 0 && recording(fd, NULL)) {
        int file = number_of(fd);
        append(TT_FS_OP_SYNC)->file = file;
    }
    return leave(result);
}

int fsync(int fd)
{
    return sync_with(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return sync_with(SYS_fdatasync, fd);
}

int ftruncate(int fd, off_t bytes)
{
    if (off())
        return (int)syscall(SYS_ftruncate, fd, bytes);
    pthread_mutex_lock(&lock);
    int error = event(TT_FS_SPACE, "ftruncate", fd, NULL);
    if (error > 0)
        return fail(error);
    int result = (int)syscall(SYS_ftruncate, fd, bytes);
    if (result == 0 && recording(fd, NULL)) {
        int file = number_of(fd);
        tt_fs_op *op = append(TT_FS_OP_SIZE);
        op->file = file;
        op->at = bytes;
    }
    return leave(result);
}

int fallocate(int fd, int mode, off_t at, off_t bytes)
{
    if (off())
        return (int)syscall(SYS_fallocate, fd, mode, at, bytes);
    pthread_mutex_lock(&lock);
    int error = event(TT_FS_SPACE, "fallocate", fd, NULL);
    if (error > 0)
        return fail(error);
    int result = (int)syscall(SYS_fallocate, fd, mode, at, bytes);
    if (result == 0 && recording(fd, NULL)) { /* it makes the file longer */
        struct stat st;
        int file = number_of(fd);
        tt_fs_op *op = append(TT_FS_OP_SIZE);
        op->file = file;
        op->at = fstat(fd, &st) == 0 ? st.st_size : 0;
    }
    return leave(result);
}

int renameat2(int from, const char *name, int to, const char *new_name, unsigned flags)
{
    if (off())
        return (int)syscall(SYS_renameat2, from, name, to, new_name, flags);
    pthread_mutex_lock(&lock);
    int error = event(TT_FS_NAME, "rename", from, name);
    if (error > 0)
        return fail(error);
    int result = (int)syscall(SYS_renameat2, from, name, to, new_name, flags);
    if (result == 0 && recording(from, name)) {
        const char *last, *new_last;
        int dir = parent_of(from, name, &last), to_dir = parent_of(to, new_name, &new_last);
        tt_fs_op *op = append(flags != 0 ? TT_FS_OP_EXCHANGE : TT_FS_OP_RENAME);
        op->dir = dir;
        op->to_dir = to_dir;
        op->name = strdup(last);
        op->to = strdup(new_last);
    }
    return leave(result);
}

int renameat(int from, const char *name, int to, const char *new_name)
{
    return renameat2(from, name, to, new_name, 0);
}

int rename(const char *name, const char *new_name)
{
    return renameat2(AT_FDCWD, name, AT_FDCWD, new_name, 0);
}

int unlinkat(int dir, const char *name, int flags)
{
    if (off())
        return (int)syscall(SYS_unlinkat, dir, name, flags);
    pthread_mutex_lock(&lock);
    int error = event(TT_FS_NAME, "unlink", dir, name);
    if (error > 0)
        return fail(error);
    int result = (int)syscall(SYS_unlinkat, dir, name, flags);
    if (result == 0 && recording(dir, name)) {
        const char *last;
        int parent = parent_of(dir, name, &last);
        tt_fs_op *op = append(TT_FS_OP_REMOVE);
        op->dir = parent;
        op->name = strdup(last);
    }
    return leave(result);
}

int unlink(const char *name)
{
    return unlinkat(AT_FDCWD, name, 0);
}

int mkdirat(int dir, const char *name, mode_t mode)
{
    if (off())
        return (int)syscall(SYS_mkdirat, dir, name, mode);
    pthread_mutex_lock(&lock);
    int error = event(TT_FS_NAME, "mkdir", dir, name);
    if (error > 0)
        return fail(error);
    int result = (int)syscall(SYS_mkdirat, dir, name, mode);
    if (result == 0 && recording(dir, name)) {
        const char *last;
        int fd = (int)syscall(SYS_openat, dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        int file = new_number(fd), parent = parent_of(dir, name, &last);
        close(fd);
        tt_fs_op *op = append(TT_FS_OP_MKDIR);
        op->file = file;
        op->dir = parent;
        op->name = strdup(last);
    }
    return leave(result);
}

int mkdir(const char *name, mode_t mode)
{
    return mkdirat(AT_FDCWD, name, mode);
}
