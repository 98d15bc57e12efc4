/* SPDX-License-Identifier: Apache-2.0 */
#include "scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "say.h"

#define SHM_ROOT "/dev/shm"

void scratch_name(scratch *s)
{
    const char *tmp = getenv("TMPDIR");
    struct timespec now;

    if (tmp == NULL || *tmp != '/')
        tmp = "/tmp";
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(s->job, sizeof(s->job), "%d.%llx", (int)getpid(),
             (unsigned long long)now.tv_sec * 1000000000ull + (unsigned long long)now.tv_nsec);
    snprintf(s->session, sizeof(s->session), "%.3000s/tuttirun.%s", tmp, s->job);
    s->shm[0] = '\0';
    if (access(SHM_ROOT, W_OK | X_OK) == 0)
        snprintf(s->shm, sizeof(s->shm), SHM_ROOT "/tuttirun.%s", s->job);
}

bool scratch_make(scratch *s)
{
    if (mkdir(s->session, 0700) != 0) {
        say("cannot make mpirun's session directory %s: %s", s->session, strerror(errno));
        return false;
    }
    if (s->shm[0] != '\0' && mkdir(s->shm, 0700) != 0)
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

void scratch_remove(const scratch *s)
{
    scratch_remove_tree(s->session);
    scratch_remove_tree(s->shm);
}

void scratch_rank_started(const char *rank)
{
    const char *session = getenv(SESSION_VARIABLE);
    char path[PATH_MAX + 32];
    int fd;

    if (session == NULL || rank == NULL)
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
