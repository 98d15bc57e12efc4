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
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "core/log.h"
#include "core/mem.h"

typedef struct identity {
    char host[65], boot[13];
    long long pid;
    unsigned long long start;
} identity;

static void read_line(const char *path, char *buf, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, buf, cap - 1);
    buf[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

/* In clock ticks since boot; 0: no such process. */
static unsigned long long process_start(long long pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", pid);
    read_line(path, text, sizeof text);
    char *at = strrchr(text, ')'); /* the command's name may hold anything */
    for (int field = 2; at != NULL && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    return at == NULL ? 0 : strtoull(at, NULL, 10);
}

static void identity_self(identity *id)
{
    char boot[64];
    size_t n = 0;
    if (gethostname(id->host, sizeof id->host) != 0)
        snprintf(id->host, sizeof id->host, "unknown");
    id->host[sizeof id->host - 1] = '\0';
    for (char *c = id->host; *c != '\0'; c++)
        if (strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-", *c) == NULL)
            *c = '_';
    read_line("/proc/sys/kernel/random/boot_id", boot, sizeof boot);
    for (const char *c = boot; *c != '\0' && n < sizeof id->boot - 1; c++)
        if (strchr("0123456789abcdef", *c) != NULL)
            id->boot[n++] = *c;
    while (n < sizeof id->boot - 1)
        id->boot[n++] = '0';
    id->boot[n] = '\0';
    id->pid = getpid();
    id->start = process_start(id->pid);
}

tutti_status tt_owner_temp_name(int64_t step, const char *head, char name[TT_TEMP_NAME_MAX])
{
    identity id;
    uint64_t random;
    char step_name[TT_STEP_NAME_MAX];
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "no random number to be had");
    identity_self(&id);
    tt_step_name(step, step_name);
    snprintf(name, TT_TEMP_NAME_MAX, "%s%s-%s-%s-%lld-%llu-%016llx", head, step_name, id.host,
             id.boot, id.pid, id.start, (unsigned long long)random);
    return TUTTI_OK;
}

/* Takes "-digits" (or hex) off the end of text; NULL where there is none. */
static char *cut_tail(char *text)
{
    char *dash = strrchr(text, '-');
    if (dash == NULL || dash[1] == '\0' || strspn(dash + 1, "0123456789abcdef") != strlen(dash + 1))
        return NULL;
    *dash = '\0';
    return dash + 1;
}

/* head, then step-N-HOST-BOOT-PID-START-RANDOM */
static bool temp_parse(const char *name, const char *head, identity *id)
{
    char text[TT_TEMP_NAME_MAX], step_name[TT_STEP_NAME_MAX];
    int64_t step;
    if (strncmp(name, head, strlen(head)) != 0 || strlen(name) >= sizeof text)
        return false;
    snprintf(text, sizeof text, "%s", name + strlen(head));
    const char *random = cut_tail(text);
    const char *start = random == NULL ? NULL : cut_tail(text);
    const char *pid = start == NULL ? NULL : cut_tail(text);
    const char *boot = pid == NULL ? NULL : cut_tail(text);
    char *dash = boot == NULL || strncmp(text, "step-", 5) != 0 ? NULL : strchr(text + 5, '-');
    if (dash == NULL || strlen(random) != 16 || strlen(boot) != 12)
        return false;
    *dash = '\0';
    snprintf(step_name, sizeof step_name, "%.31s", text);
    if (!tt_step_parse(step_name, &step) || strlen(dash + 1) >= sizeof id->host)
        return false;
    snprintf(id->host, sizeof id->host, "%.64s", dash + 1);
    snprintf(id->boot, sizeof id->boot, "%.12s", boot);
    id->pid = strtoll(pid, NULL, 10);
    id->start = strtoull(start, NULL, 10);
    return true;
}

/* 1 locked, 0 another holds it, -1 the file system has no locks. */
static int try_lock(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return 1;
    return errno == EAGAIN || errno == EACCES ? 0 : -1;
}

tutti_status tt_owner_lock(int dir, const char *token, int *fd_out)
{
    int fd;
    tutti_status status;
    TT_TRY(tt_file_create(dir, TT_OWNER_NEW_NAME, &fd));
    status = tt_file_write(fd, TT_OWNER_NAME, token, strlen(token), 0);
    if (status == TUTTI_OK && try_lock(fd) < 0)
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

tutti_status tt_owner_token_read(int dir, char *token, size_t cap)
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

typedef enum owner_state { OWNER_DEAD, OWNER_ALIVE, OWNER_ELSEWHERE } owner_state;

/* 1 free, 0 held, -1 unknown */
static int lock_state(int dir, const char *name)
{
    int state = -1;
    int sub = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (sub < 0)
        return -1;
    int fd = openat(sub, TT_OWNER_NAME, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0) {
        state = try_lock(fd);
        close(fd);
    }
    close(sub);
    return state;
}

static owner_state judge(int dir, const char *name, const identity *owner, const identity *self)
{
    int lock = lock_state(dir, name);
    bool same_boot = strcmp(owner->boot, self->boot) == 0;
    if (lock == 0)
        return OWNER_ALIVE;
    if (same_boot && lock == 1)
        return OWNER_DEAD;
    if (same_boot)
        return process_start(owner->pid) == owner->start ? OWNER_ALIVE : OWNER_DEAD;
    return strcmp(owner->host, self->host) == 0 ? OWNER_DEAD : OWNER_ELSEWHERE;
}

typedef struct sweep {
    int dir;
    const char *path;
    identity self;
} sweep;

static tutti_status sweep_one(void *arg, const char *name)
{
    sweep *s = arg;
    identity owner;
    tutti_status status;
    if (temp_parse(name, TT_TEMP_HEAD, &owner)) {
        owner_state state = judge(s->dir, name, &owner, &s->self);
        if (state != OWNER_DEAD) {
            tt_log_warn(TT_CKPT, "%s/%s is left alone: process %lld on %s that writes it %s",
                        s->path, name, owner.pid, owner.host,
                        state == OWNER_ALIVE ? "is running" : "cannot be seen from here");
            return TUTTI_OK;
        }
        tt_log_info(TT_CKPT, "%s/%s is removed: process %lld on %s is gone", s->path, name,
                    owner.pid, owner.host);
    } else if (!temp_parse(name, TT_GONE_HEAD, &owner)) {
        return TUTTI_OK;
    }
    status = tt_dir_remove(s->dir, name);
    if (status != TUTTI_OK) /* not worth a save */
        tt_log_warn(TT_CKPT, "%s: %s", s->path, tutti_last_error());
    return TUTTI_OK;
}

tutti_status tt_leftovers_remove(int dir, const char *path)
{
    sweep s = {.dir = dir, .path = path};
    identity_self(&s.self);
    return tt_dir_each(dir, sweep_one, &s);
}
