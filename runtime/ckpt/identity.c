/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The name of a process that no other process ever has: host, boot id, process id, the process's
 * start time. It is part of the names of temporary directories and of leases, so that the owner is
 * known from the moment that such a name exists.
 *
 * A process of another boot of this host is dead. One on another host cannot be judged from here.
 * Containers of one machine share the boot id but perhaps not the process ids: whoever has a lock
 * to look at looks at that first.
 */
#include "ckpt/identity.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

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

void tt_identity_self(tt_identity *id)
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
    tt_identity id;
    uint64_t random;
    char step_name[TT_STEP_NAME_MAX];
    if (getrandom(&random, sizeof random, 0) != (ssize_t)sizeof random)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "no random number to be had");
    tt_identity_self(&id);
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
bool tt_identity_parse(const char *name, const char *head, tt_identity *id, int64_t *step_out)
{
    char text[TT_TEMP_NAME_MAX], step_name[TT_STEP_NAME_MAX];
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
    if (!tt_step_parse(step_name, step_out) || strlen(dash + 1) >= sizeof id->host)
        return false;
    snprintf(id->host, sizeof id->host, "%.64s", dash + 1);
    snprintf(id->boot, sizeof id->boot, "%.12s", boot);
    id->pid = strtoll(pid, NULL, 10);
    id->start = strtoull(start, NULL, 10);
    return true;
}

int tt_try_lock(int fd)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fcntl(fd, F_OFD_SETLK, &lock) == 0)
        return 1;
    return errno == EAGAIN || errno == EACCES ? 0 : -1;
}

tt_life tt_identity_life(const tt_identity *id)
{
    tt_identity self;
    tt_identity_self(&self);
    if (strcmp(id->boot, self.boot) == 0)
        return process_start(id->pid) == id->start ? TT_ALIVE : TT_DEAD;
    return strcmp(id->host, self.host) == 0 ? TT_DEAD : TT_ELSEWHERE;
}
