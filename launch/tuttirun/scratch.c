/* SPDX-License-Identifier: Apache-2.0 */
#include "scratch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "say.h"

#define SHM_ROOT "/dev/shm"
#define NAME_HEAD "tuttirun."
#define HOLD_TRIES 1000

void scratch_name(scratch *s)
{
    const char *tmp = getenv("TMPDIR");
    struct timespec now;

    if (tmp == NULL || *tmp != '/')
        tmp = "/tmp";
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(s->job, sizeof(s->job), "%d.%llx", (int)getpid(),
             (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec);
    snprintf(s->session, sizeof(s->session), "%.3000s/" NAME_HEAD "%s", tmp, s->job);
    s->held[0] = s->held[1] = -1;
    s->shm[0] = '\0';
    if (access(SHM_ROOT, W_OK | X_OK) == 0)
        snprintf(s->shm, sizeof(s->shm), SHM_ROOT "/" NAME_HEAD "%s", s->job);
}

enum { NO_LOCK = -1, BEING_REMOVED = -2 };

/* The lock on the directory that has this name now. */
static int lock_dir(const char *path, bool cloexec)
{
    int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | (cloexec ? O_CLOEXEC : 0);
    int fd = open(path, flags), error;
    struct stat mine, there;

    if (fd < 0)
        return errno == ENOENT ? BEING_REMOVED : NO_LOCK;
    if (flock(fd, LOCK_SH | LOCK_NB) == 0) {
        if (fstat(fd, &mine) == 0 && stat(path, &there) == 0 && mine.st_ino == there.st_ino)
            return fd;
        errno = EWOULDBLOCK;
    }
    error = errno;
    close(fd);
    return error == EWOULDBLOCK ? BEING_REMOVED : NO_LOCK;
}

bool scratch_hold(const char *path, bool cloexec, int *lock_out)
{
    const struct timespec pause = {0, 1000000};
    int i, lock = BEING_REMOVED;

    for (i = 0; i < HOLD_TRIES && lock == BEING_REMOVED; i++) {
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return false;
        lock = lock_dir(path, cloexec);
        if (lock == BEING_REMOVED)
            nanosleep(&pause, NULL);
    }
    *lock_out = lock >= 0 ? lock : -1;
    return true;
}

bool scratch_make(scratch *s)
{
    if (!scratch_hold(s->session, true, &s->held[0])) {
        say("cannot make mpirun's session directory %s: %s", s->session, strerror(errno));
        return false;
    }
    if (s->shm[0] != '\0' && !scratch_hold(s->shm, true, &s->held[1]))
        s->shm[0] = '\0'; /* a full /dev/shm: MPI has its own way round that */
    return true;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    remove(path);
    return 0;
}

void scratch_remove_tree(const char *path)
{
    if (path[0] != '\0')
        nftw(path, remove_entry, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

void scratch_remove(scratch *s)
{
    int i;

    scratch_remove_tree(s->session);
    scratch_remove_tree(s->shm);
    for (i = 0; i < 2; i++) {
        if (s->held[i] >= 0)
            close(s->held[i]);
        s->held[i] = -1;
    }
}

/*
 * Whether the tuttirun that a directory is named after may still run. The lock alone decides where
 * it runs on another machine or in another container; where it can be seen here, it is also safe
 * between making its directory and locking it. A process of our own number is not that one.
 */
static bool may_run(const char *name)
{
    char *end;
    long pid = strtol(name, &end, 10);

    if (*end != '.' || pid <= 0 || pid > INT_MAX || end[1] == '\0' ||
        end[1 + strspn(end + 1, "0123456789abcdef")] != '\0')
        return true; /* no name of ours */
    return pid != getpid() && (kill((pid_t)pid, 0) == 0 || errno == EPERM);
}

static void remove_unheld(int root, const char *name, const char *path)
{
    int fd = openat(root, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat st;

    if (fd < 0)
        return;
    if (fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0)
        scratch_remove_tree(path);
    close(fd);
}

void scratch_remove_old(const char *dir)
{
    const size_t head = sizeof(NAME_HEAD) - 1;
    char root[PATH_MAX], path[PATH_MAX + 256];
    const char *slash = strrchr(dir, '/');
    struct dirent *entry;
    DIR *list;

    if (slash == NULL)
        return;
    snprintf(root, sizeof(root), "%.*s", (int)(slash - dir), dir);
    list = opendir(root);
    while (list != NULL && (entry = readdir(list)) != NULL) {
        if (strncmp(entry->d_name, NAME_HEAD, head) != 0 || strcmp(entry->d_name, slash + 1) == 0 ||
            may_run(entry->d_name + head))
            continue;
        snprintf(path, sizeof(path), "%s/%s", root, entry->d_name);
        remove_unheld(dirfd(list), entry->d_name, path);
    }
    if (list != NULL)
        closedir(list);
}

bool scratch_is_of_a_job(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash != NULL && strncmp(slash + 1, NAME_HEAD, sizeof(NAME_HEAD) - 1) == 0;
}

void scratch_rank_started(const char *rank)
{
    const char *session = getenv(SESSION_VARIABLE);
    char path[PATH_MAX + 32];
    int fd;

    if (session == NULL || rank == NULL || !scratch_is_of_a_job(session))
        return;
    snprintf(path, sizeof(path), "%s/started.%s", session, rank);
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        close(fd);
}

long scratch_started(const scratch *s, long ranks)
{
    char path[PATH_MAX + 32];
    long rank, started = 0;

    for (rank = 0; rank < ranks; rank++) {
        snprintf(path, sizeof(path), "%s/started.%ld", s->session, rank);
        started += access(path, F_OK) == 0;
    }
    return started;
}
