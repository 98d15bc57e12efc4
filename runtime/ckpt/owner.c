/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ownership of temporary directories, and removal of what dead owners left.
 *
 * The name of a temporary directory says host, boot id, process id, the process's start time and a
 * random number, so that ownership is known from the moment the directory exists. The file `owner`
 * in it appears already locked (made under another name, locked, renamed) and the kernel drops the
 * lock when the owner is gone, in whatever container it ran: on the same kernel the lock decides,
 * and the process id only where there is no owner file yet.
 * A directory from another boot of this host is dead. One from another host cannot be judged from
 * here: it is left alone and named. Age is never looked at: a slow disk is not a dead process.
 * But for copies: their machines go and do not come back, so what a machine that cannot be seen has
 * not touched for an hour is removed by whoever holds the folder's lock. Were it wrong, a copy
 * would fail, which is made again; never a save.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/identity.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/mem.h"

enum { SEE_TRIES = 11, IDLE_S = 3600 };

tutti_status tt_owner_lock(int dir, const char *token, int *fd_out)
{
    int fd;
    tutti_status status;
    TT_TRY(tt_file_create(dir, TT_OWNER_NEW_NAME, &fd));
    status = tt_file_write(fd, TT_OWNER_NAME, token, strlen(token), 0);
    if (status == TUTTI_OK && tt_try_lock(fd) < 0)
        tt_log_debug(TT_CKPT, "no file locks here: owners are told by their process alone");
    if (status == TUTTI_OK && renameat(dir, TT_OWNER_NEW_NAME, dir, TT_OWNER_NAME) != 0)
        status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make %s", TT_OWNER_NAME);
    if (status != TUTTI_OK) {
        close(fd);
        return status;
    }
    *fd_out = fd;
    return TUTTI_OK;
}

static tutti_status read_token(int dir, char *token, size_t cap)
{
    uint64_t bytes;
    int fd;
    TT_TRY(tt_file_open(dir, TT_OWNER_NAME, &fd, &bytes));
    size_t take = tt_min_size(cap - 1, bytes);
    tutti_status status = tt_file_read(fd, TT_OWNER_NAME, token, take, 0);
    token[status == TUTTI_OK ? take : 0] = '\0';
    close(fd);
    return status;
}

/* 1 free, 0 held, -1 unknown */
static int lock_state(int dir, const char *name)
{
    int state = -1;
    int sub = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (sub < 0)
        return -1;
    int fd = openat(sub, TT_OWNER_NAME, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        state = tt_try_lock(fd);
        close(fd);
    }
    close(sub);
    return state;
}

/* What this very process left, when it could not remove it, is dead too: whoever looks holds the
 * folder's lock and has no save of his own in progress. */
static tt_life judge(int dir, const char *name, const tt_identity *owner)
{
    tt_identity self;
    int lock = lock_state(dir, name);
    if (lock == 0)
        return TT_ALIVE;
    tt_identity_self(&self);
    bool same_boot = strcmp(owner->boot, self.boot) == 0;
    if (same_boot && (lock == 1 || (owner->pid == self.pid && owner->start == self.start)))
        return TT_DEAD;
    return tt_identity_life(owner);
}

typedef struct sweep {
    int dir;
    const char *path;
} sweep;

/* An old version that gave way to a new one of the same step, which then did not come: back. */
static tutti_status put_back(const sweep *s, const char *name, int64_t step)
{
    char step_name[TT_STEP_NAME_MAX];
    bool part;
    tt_step_name(step, step_name);
    if (faccessat(s->dir, step_name, F_OK, AT_SYMLINK_NOFOLLOW) == 0) {
        /* of a node-local checkpoint: whether the new version is whole, this folder cannot tell */
        TT_TRY(tt_dir_is_part(s->dir, name, &part));
        return part ? TUTTI_OK : tt_dir_remove(s->dir, name);
    }
    if (renameat(s->dir, name, s->dir, step_name) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot rename %s back to %s", name, step_name);
    tt_log_warn(TT_CKPT, "%s/%s is back: the save that was to replace it was cut off", s->path,
                step_name);
    return tt_dir_sync(s->dir, s->path);
}

static tutti_status sweep_temp(const sweep *s, const char *name, const tt_identity *owner)
{
    tt_life life = judge(s->dir, name, owner);
    if (life != TT_DEAD) {
        tt_log_warn(TT_CKPT, "%s/%s is left alone: process %lld on %s that writes it %s", s->path,
                    name, owner->pid, owner->host,
                    life == TT_ALIVE ? "is running" : "cannot be seen from here");
        return TUTTI_OK;
    }
    tt_log_info(TT_CKPT, "%s/%s is removed: process %lld on %s is gone", s->path, name, owner->pid,
                owner->host);
    return tt_dir_remove(s->dir, name);
}

static tutti_status sweep_one(void *arg, const char *name)
{
    sweep *s = arg;
    tt_identity owner;
    int64_t step;
    tutti_status status = TUTTI_OK;
    if (tt_identity_parse(name, TT_TEMP_HEAD, &owner, &step))
        status = sweep_temp(s, name, &owner);
    else if (tt_identity_parse(name, TT_OLD_HEAD, &owner, &step))
        status = put_back(s, name, step);
    else if (tt_identity_parse(name, TT_GONE_HEAD, &owner, &step))
        status = tt_dir_remove(s->dir, name);
    if (status != TUTTI_OK) /* not worth a save */
        tt_log_warn(TT_CKPT, "%s: %s", s->path, tutti_last_error());
    return TUTTI_OK;
}

tutti_status tt_leftovers_remove(int dir, const char *path)
{
    sweep s = {.dir = dir, .path = path};
    return tt_dir_each(dir, sweep_one, &s);
}

typedef struct idle_search {
    int dir;
    const char *path;
    int64_t now; /* by the file system's clock */
    int64_t newest; /* change in the directory that is looked at */
    int sub;
} idle_search;

static tutti_status note_change(void *arg, const char *name)
{
    idle_search *s = arg;
    struct stat st;
    if (fstatat(s->sub, name, &st, AT_SYMLINK_NOFOLLOW) == 0 && st.st_mtime > s->newest)
        s->newest = st.st_mtime;
    return TUTTI_OK;
}

static bool is_idle(idle_search *s, const char *name)
{
    if (tt_dir_open_at(s->dir, name, &s->sub) != TUTTI_OK)
        return false;
    s->newest = 0;
    tutti_status status = note_change(s, ".");
    if (status == TUTTI_OK)
        status = tt_dir_each(s->sub, note_change, s);
    close(s->sub);
    return status == TUTTI_OK && s->now - s->newest > IDLE_S;
}

static tutti_status sweep_idle(void *arg, const char *name)
{
    idle_search *s = arg;
    tt_identity owner;
    int64_t step;
    if (!tt_identity_parse(name, TT_TEMP_HEAD, &owner, &step) ||
        judge(s->dir, name, &owner) != TT_ELSEWHERE || !is_idle(s, name))
        return TUTTI_OK;
    tt_log_info(TT_CKPT, "%s/%s is removed: nothing of process %lld on %s for an hour", s->path,
                name, owner.pid, owner.host);
    if (tt_dir_remove(s->dir, name) != TUTTI_OK) /* not worth a copy */
        tt_log_warn(TT_CKPT, "%s: %s", s->path, tutti_last_error());
    return TUTTI_OK;
}

tutti_status tt_leftovers_remove_idle(int dir, const char *path, int temp)
{
    struct stat st;
    if (fstat(temp, &st) != 0)
        return TUTTI_OK;
    idle_search s = {.dir = dir, .path = path, .now = st.st_mtime, .sub = -1};
    return tt_dir_each(dir, sweep_idle, &s);
}

tutti_status tt_owner_make_temp(int dir, const char *path, int64_t step,
                                char temp_name[TT_TEMP_NAME_MAX], int *temp_out, int *owner_out)
{
    char name[TT_TEMP_NAME_MAX];
    TT_TRY(tt_leftovers_remove(dir, path));
    TT_TRY(tt_owner_temp_name(step, TT_TEMP_HEAD, name));
    if (mkdirat(dir, name, 0777) != 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make a directory in %s", path);
    memcpy(temp_name, name, sizeof name);
    TT_TRY(tt_dir_open_at(dir, name, temp_out));
    return tt_owner_lock(*temp_out, name, owner_out);
}

static bool sees_temp(const char *path, const char *temp_name, int *dir, int *temp)
{
    char token[TT_TEMP_NAME_MAX];
    if (*dir < 0 && tt_dir_open(path, dir) != TUTTI_OK)
        return false;
    if (*temp < 0 && tt_dir_open_at(*dir, temp_name, temp) != TUTTI_OK)
        return false;
    return read_token(*temp, token, sizeof token) == TUTTI_OK && strcmp(token, temp_name) == 0;
}

bool tt_owner_sees_temp(const char *path, const char *temp_name, int *dir, int *temp)
{
    for (int i = 0; i < SEE_TRIES; i++) {
        if (sees_temp(path, temp_name, dir, temp))
            return true;
        tt_sleep_ns((int64_t)1000000 << i);
    }
    return false;
}
