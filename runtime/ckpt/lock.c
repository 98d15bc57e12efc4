/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lock of a checkpoint folder.
 *
 * First choice is an OFD lock on `.lock`: the kernel drops it with the process, however that ends,
 * and nothing has to be judged. The file stays; it only says who had it last. File systems without
 * locks, or with locks that end at the node's edge, get a lease: a file made with O_EXCL that says
 * who holds it, rewritten every 10 s by a thread. Its age is measured by the file system's own
 * clock (a file made now against the lease's time), so that clocks need not agree. A lease is dead
 * when its process is, as far as that can be seen from here, or after 60 s without a renewal.
 *
 * Whoever takes over a dead lease renames it away first and looks at what it got: of two that do so
 * at once one finds the other's lease in its hands and puts it back. That is not airtight, nothing
 * built of renames is; therefore the holder looks again right before each commit.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/identity.h"
#include "core/clock.h"
#include "core/env.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"

enum { RENEW_S = 10, EXPIRED_S = 60, POLL_NS = 200000000 };
#define SECOND_NS INT64_C(1000000000)

struct tt_folder_lock {
    int dir; /* a descriptor of our own */
    int fd; /* of the lock or the lease */
    bool lease;
    char token[TT_TEMP_NAME_MAX]; /* what the lease says */
    pthread_t thread; /* that renews the lease */
    bool renewing;
    _Atomic uint32_t stop; /* futex word */
    _Atomic int64_t renewed_ns;
};

static void read_token(int dir, const char *name, char token[TT_TEMP_NAME_MAX])
{
    int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : pread(fd, token, TT_TEMP_NAME_MAX - 1, 0);
    token[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

static tutti_status refuse(int dir, const char *path, const char *name)
{
    char token[TT_TEMP_NAME_MAX];
    tt_identity id;
    int64_t step;
    read_token(dir, name, token);
    if (!tt_identity_parse(token, TT_TEMP_HEAD, &id, &step))
        return tt_fail(TUTTI_ERR_STATE, "%s is in use by another job that saves into it", path);
    return tt_fail(TUTTI_ERR_STATE,
                   "%s is in use: process %lld on %s saves into it (%s/%s); wait longer with "
                   "TUTTI_CKPT_WAIT_LOCK, or save elsewhere",
                   path, id.pid, id.host, path, name);
}

/* *had_out false: there are no locks here. */
static tutti_status take_lock(tt_folder_lock *l, const char *path, bool *had_out)
{
    l->fd =
        openat(l->dir, TT_LOCK_NAME, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (l->fd < 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make %s/%s", path, TT_LOCK_NAME);
    int state = tt_try_lock(l->fd);
    *had_out = state >= 0;
    if (state == 1 && (ftruncate(l->fd, 0) != 0 ||
                       pwrite(l->fd, l->token, strlen(l->token), 0) != (ssize_t)strlen(l->token)))
        tt_log_debug(TT_CKPT, "%s: the lock is held, but does not say by whom", path);
    if (state == 1)
        return TUTTI_OK;
    close(l->fd);
    l->fd = -1;
    return state == 0 ? refuse(l->dir, path, TT_LOCK_NAME) : TUTTI_OK;
}

/* Seconds since the lease was renewed, by the file system's clock; 0: no lease, or unknown. */
static int64_t lease_age(int dir)
{
    char name[64];
    uint64_t random = 0;
    struct stat now, lease;
    int64_t age = 0;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return 0;
    snprintf(name, sizeof name, "%s-%016llx", TT_LEASE_NAME, (unsigned long long)random);
    int fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return 0;
    if (pwrite(fd, name, 1, 0) == 1 && fsync(fd) == 0 && fstat(fd, &now) == 0 &&
        fstatat(dir, TT_LEASE_NAME, &lease, AT_SYMLINK_NOFOLLOW) == 0)
        age = (int64_t)now.st_mtim.tv_sec - (int64_t)lease.st_mtim.tv_sec;
    close(fd);
    unlinkat(dir, name, 0);
    return age;
}

static bool lease_dead(int dir, const char *token)
{
    tt_identity id;
    int64_t step;
    return (tt_identity_parse(token, TT_TEMP_HEAD, &id, &step) &&
            tt_identity_life(&id) == TT_DEAD) ||
           lease_age(dir) > EXPIRED_S;
}

/* Takes the lease that says `token` out of the way. */
static void break_lease(int dir, const char *path, const char *token)
{
    char away[TT_TEMP_NAME_MAX], have[TT_TEMP_NAME_MAX];
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return;
    snprintf(away, sizeof away, "%s-%016llx", TT_LEASE_NAME, (unsigned long long)random);
    if (renameat(dir, TT_LEASE_NAME, dir, away) != 0)
        return;
    read_token(dir, away, have);
    if (strcmp(have, token) != 0 && linkat(dir, away, dir, TT_LEASE_NAME, 0) != 0)
        tt_log_warn(TT_CKPT, "%s: a lease was lost to two jobs that wanted it at once", path);
    unlinkat(dir, away, 0);
}

static tutti_status try_lease(tt_folder_lock *l, const char *path)
{
    char token[TT_TEMP_NAME_MAX];
    int fd =
        openat(l->dir, TT_LEASE_NAME, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd >= 0) {
        tutti_status status = tt_file_write(fd, TT_LEASE_NAME, l->token, strlen(l->token), 0);
        if (status == TUTTI_OK && fsync(fd) != 0)
            status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot write %s/%s", path, TT_LEASE_NAME);
        if (status != TUTTI_OK) {
            close(fd);
            unlinkat(l->dir, TT_LEASE_NAME, 0);
            return status;
        }
        l->fd = fd;
        return TUTTI_OK;
    }
    if (errno != EEXIST)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make %s/%s", path, TT_LEASE_NAME);
    read_token(l->dir, TT_LEASE_NAME, token);
    if (lease_dead(l->dir, token)) {
        tt_log_info(TT_CKPT, "%s: the lease of a dead job is taken over", path);
        break_lease(l->dir, path, token);
    }
    return refuse(l->dir, path, TT_LEASE_NAME);
}

static void *renew(void *arg)
{
    tt_folder_lock *l = arg;
    while (atomic_load(&l->stop) == 0) {
        tt_futex_wait(&l->stop, 0, RENEW_S * SECOND_NS);
        if (atomic_load(&l->stop) == 0 &&
            pwrite(l->fd, l->token, strlen(l->token), 0) == (ssize_t)strlen(l->token) &&
            fsync(l->fd) == 0)
            atomic_store(&l->renewed_ns, tt_now_ns());
    }
    return NULL;
}

static tutti_status take_once(tt_folder_lock *l, const char *path, bool only_lease)
{
    bool had = false;
    if (!only_lease) {
        TT_TRY(take_lock(l, path, &had));
        if (had)
            return TUTTI_OK;
    }
    TT_TRY(try_lease(l, path));
    l->lease = true;
    atomic_store(&l->renewed_ns, tt_now_ns());
    tutti_status status = tt_thread_start(&l->thread, "tt-lease", renew, l);
    l->renewing = status == TUTTI_OK;
    return status;
}

static tutti_status read_mode(bool *lease_out, bool *off_out)
{
    const char *mode;
    TT_TRY(tt_env_get_string(TT_ENV_CKPT_LOCK, &mode));
    *lease_out = strcmp(mode, "lease") == 0;
    *off_out = strcmp(mode, "off") == 0;
    return TUTTI_OK;
}

tutti_status tt_folder_lock_take(int dir, const char *path, double wait_s,
                                 tt_folder_lock **lock_out)
{
    tt_folder_lock *l;
    bool lease, off, said = false;
    TT_TRY(read_mode(&lease, &off));
    TT_TRY(tt_calloc(1, sizeof *l, &l));
    l->fd = -1;
    l->dir = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    tutti_status status = tt_owner_temp_name(0, TT_TEMP_HEAD, l->token);
    if (l->dir < 0 && status == TUTTI_OK)
        status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot keep %s open", path);
    const int64_t end = tt_end_of(wait_s);
    while (status == TUTTI_OK && !off) {
        status = take_once(l, path, lease);
        if (status != TUTTI_ERR_STATE || tt_now_ns() >= end)
            break;
        if (!said)
            tt_log_warn(TT_CKPT, "%s; waiting up to %.0f s for it", tutti_last_error(), wait_s);
        said = true;
        tt_sleep_ns(POLL_NS);
        status = TUTTI_OK;
    }
    if (status != TUTTI_OK) {
        tt_folder_lock_release(l);
        return status;
    }
    *lock_out = l;
    return TUTTI_OK;
}

bool tt_folder_lock_is_of(const tt_folder_lock *l, int dir)
{
    struct stat a, b;
    return l != NULL && fstat(l->dir, &a) == 0 && fstat(dir, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

static bool lock_lost(tt_folder_lock *l)
{
    struct stat mine, there;
    return tt_try_lock(l->fd) != 1 || fstat(l->fd, &mine) != 0 ||
           fstatat(l->dir, TT_LOCK_NAME, &there, AT_SYMLINK_NOFOLLOW) != 0 ||
           mine.st_dev != there.st_dev || mine.st_ino != there.st_ino;
}

static bool lease_lost(tt_folder_lock *l)
{
    char token[TT_TEMP_NAME_MAX];
    read_token(l->dir, TT_LEASE_NAME, token);
    return strcmp(token, l->token) != 0 ||
           tt_now_ns() - atomic_load(&l->renewed_ns) > EXPIRED_S * SECOND_NS;
}

tutti_status tt_folder_lock_check(tt_folder_lock *l)
{
    if (l->fd < 0 || !(l->lease ? lease_lost(l) : lock_lost(l)))
        return TUTTI_OK;
    return tt_fail(TUTTI_ERR_STATE,
                   "the lock of the folder (%s) was lost: another job may save into it",
                   l->lease ? TT_LEASE_NAME : TT_LOCK_NAME);
}

void tt_folder_lock_release(tt_folder_lock *l)
{
    if (l == NULL)
        return;
    if (l->renewing) {
        atomic_store(&l->stop, 1);
        tt_futex_wake_all(&l->stop);
        pthread_join(l->thread, NULL);
    }
    if (l->lease && l->fd >= 0 && !lease_lost(l))
        unlinkat(l->dir, TT_LEASE_NAME, 0);
    if (l->fd >= 0)
        close(l->fd);
    if (l->dir >= 0)
        close(l->dir);
    free(l);
}
