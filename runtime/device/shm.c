/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory segments without a name.
 *
 * The file is made with O_TMPFILE, so that nothing has to be removed and a killed job leaves
 * nothing; where the file system lacks it, with mkostemp and an unlink in the next line. Peers open
 * /proc/PID/fd/FD. memfd_create would do without a directory, but its memory is not limited by the
 * tmpfs that the user sized (and a container's memory limit answers with a kill instead of an
 * error). Passing descriptors over a socket would work between PID namespaces, at the price of a
 * name for the socket.
 *
 * Everything is reserved with posix_fallocate before it is mapped: a write to a full tmpfs is a
 * SIGBUS, an unreserved segment would die in the middle of a collective. Pages are entered into the
 * page table when the segment is mapped, so that no collective pays for it.
 *
 * Memory of the caller is shared by filling a segment with its content and moving the mapping over
 * it (mremap), which keeps the address and never shows a page without its content. If that fails
 * half way, the kernel may have removed the old pages: they are made anew from the copy.
 *
 * Threads of one process share the creator's mapping, which they find by its number in a list, and
 * not by its address: in a failed context the creator may have closed it.
 */
#include "device/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/env.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/mem.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static const size_t reserve_step = (size_t)64 << 20; /* a signal repeats at most this much */

struct tt_shm_mapping {
    tt_shm_mapping *next;
    uint64_t number;
    int users;
};

static struct {
    pthread_mutex_t lock;
    tt_shm_mapping *list;
    uint64_t numbers; /* given so far */
} mappings = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void mapping_list(tt_shm_mapping *mapping)
{
    pthread_mutex_lock(&mappings.lock);
    mapping->users = 1;
    mapping->number = ++mappings.numbers;
    mapping->next = mappings.list;
    mappings.list = mapping;
    pthread_mutex_unlock(&mappings.lock);
}

/* One more user of it; NULL if it is gone. */
static tt_shm_mapping *mapping_use(uint64_t number)
{
    pthread_mutex_lock(&mappings.lock);
    tt_shm_mapping *mapping = mappings.list;
    while (mapping != NULL && mapping->number != number)
        mapping = mapping->next;
    if (mapping != NULL)
        mapping->users++;
    pthread_mutex_unlock(&mappings.lock);
    return mapping;
}

/* True for the last user, who is to unmap and free it. */
static bool mapping_leave(tt_shm_mapping *mapping)
{
    pthread_mutex_lock(&mappings.lock);
    bool last = --mapping->users == 0;
    for (tt_shm_mapping **at = &mappings.list; last && *at != NULL; at = &(*at)->next)
        if (*at == mapping) {
            *at = mapping->next;
            break;
        }
    pthread_mutex_unlock(&mappings.lock);
    return last;
}

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* Identifies this process among all that a peer may see: process ids repeat over namespaces and
 * machines. Computed anew after a fork. */
static uint64_t process_id(void)
{
    char text[4096];
    uint64_t hash = (uint64_t)getpid();
    static const char *const files[] = {"/proc/sys/kernel/random/boot_id", "/proc/self/stat"};
    struct stat ns;

    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(files[i], "re");
        size_t n = f != NULL ? fread(text, 1, sizeof text - 1, f) : 0;
        char *part = text, *rest = NULL;
        text[n] = '\0';
        if (f != NULL)
            fclose(f);
        if (i == 1) { /* field 22, the start time, counted from behind the command in brackets */
            part = strrchr(text, ')');
            part = part != NULL ? part : text;
            for (int field = 2; field < 22 && part != NULL; field++)
                part = strchr(part + 1, ' ');
            rest = part != NULL ? strchr(part + 1, ' ') : NULL;
        }
        if (part != NULL)
            hash = tt_hash64(part, rest != NULL ? (size_t)(rest - part) : strlen(part), hash);
    }
    if (stat("/proc/self/ns/pid", &ns) == 0)
        hash = tt_hash64(&ns.st_ino, sizeof ns.st_ino, hash);
    return hash;
}

static tutti_status open_unnamed(const char *dir, int *fd_out)
{
    char path[4096];
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        snprintf(path, sizeof path, "%s/tutti-XXXXXX", dir);
        fd = mkostemp(path, O_CLOEXEC);
        if (fd >= 0)
            unlink(path);
    }
    if (fd < 0)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "shared memory: no file in %s (TUTTI_SHM_DIR)",
                             dir);
    *fd_out = fd;
    return TUTTI_OK;
}

static tutti_status too_small(const char *dir, int fd, size_t bytes, int err)
{
    const double mib = 1024 * 1024;
    struct statvfs fs;
    double size = 0, room = 0;

    if (ftruncate(fd, 0) == 0 && fstatvfs(fd, &fs) == 0) {
        size = (double)fs.f_blocks * (double)fs.f_frsize;
        room = (double)fs.f_bavail * (double)fs.f_frsize;
    }
    return tt_fail(TUTTI_ERR_NO_MEMORY,
                   "shared memory: %.1f MiB needed, %s has %.1f MiB free of %.1f MiB (%s); make it "
                   "larger (docker and podman: --shm-size; else mount -o remount,size=), or set "
                   "TUTTI_SHM_DIR to a larger tmpfs",
                   (double)bytes / mib, dir, room / mib, size / mib, strerror(err));
}

/* What the kernel could give without killing a process; SIZE_MAX if it does not say. */
static size_t available_memory(void)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    size_t kib, sum = 0;
    bool known = false;

    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "MemAvailable: %zu", &kib) == 1)
            known = true;
        else if (sscanf(line, "SwapFree: %zu", &kib) != 1)
            continue;
        sum += kib * 1024;
    }
    if (f != NULL)
        fclose(f);
    return known ? sum : SIZE_MAX;
}

/* Says no before the pages are taken: a tmpfs larger than the memory ends in a kill, not in an
 * error. */
static tutti_status check_room(const char *dir, int fd, size_t bytes)
{
    const double mib = 1024 * 1024;
    size_t available = available_memory();
    struct statvfs fs;

    if (fstatvfs(fd, &fs) == 0 && fs.f_blocks > 0 && /* 0: a tmpfs without a limit */
        bytes / fs.f_frsize > fs.f_bavail)
        return too_small(dir, fd, bytes, ENOSPC);
    if (bytes > available)
        return tt_fail(TUTTI_ERR_NO_MEMORY,
                       "shared memory: %.1f MiB needed, the machine has %.1f MiB available",
                       (double)bytes / mib, (double)available / mib);
    return TUTTI_OK;
}

static tutti_status reserve(const char *dir, int fd, size_t bytes)
{
    TT_TRY(check_room(dir, fd, bytes));
    for (size_t at = 0; at < bytes;) {
        size_t step = tt_min_size(bytes - at, reserve_step);
        int err = posix_fallocate(fd, (off_t)at, (off_t)step);
        if (err == EINTR)
            continue;
        if (err == ENOSPC || err == EDQUOT || err == EFBIG || err == ENOMEM)
            return too_small(dir, fd, bytes, err);
        if (err != 0)
            return tt_fail_errno(TUTTI_ERR_IO, err, "shared memory: reserving %zu bytes in %s",
                                 bytes, dir);
        at += step;
    }
    return TUTTI_OK;
}

static void touch(void *base, size_t bytes)
{
    volatile char *page = base;

    if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0)
        return;
    /* An older kernel. Reserved pages cannot fail; reading and writing back would race with peers
     * that already use the segment, so a page is only read. */
    for (size_t at = 0; at < bytes; at += page_size())
        (void)page[at];
}

static tutti_status map(int fd, size_t bytes, void **base_out)
{
    int flags = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);

    if (base == MAP_FAILED)
        return tt_fail_errno(TUTTI_ERR_NO_MEMORY, errno, "mapping %zu bytes of %s memory", bytes,
                             fd >= 0 ? "shared" : "private");
    touch(base, bytes);
    *base_out = base;
    return TUTTI_OK;
}

/* Moves the mapping `from`, which holds the content of `to`, over `to`. */
static tutti_status move_over(void *from, void *to, size_t bytes)
{
    int err;

    if (mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) == to)
        return TUTTI_OK;
    err = errno;
    if (madvise(to, bytes, MADV_NORMAL) != 0) { /* ENOMEM: pages are missing */
        if (mmap(to, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
                 0) != to)
            tt_assert_failed(__FILE__, __LINE__, "mmap",
                             "memory at %p is lost: the process may make no more mappings "
                             "(vm.max_map_count)",
                             to);
        memcpy(to, from, bytes);
    }
    munmap(from, bytes);
    return tt_fail_errno(TUTTI_ERR_NO_MEMORY, err, "replacing %zu bytes of mapped memory", bytes);
}

static void describe(const tt_shm *shm, const struct stat *st, tt_shm_handle *handle)
{
    handle->pid = (uint64_t)getpid();
    handle->fd = (uint64_t)shm->fd;
    handle->device = st->st_dev;
    handle->inode = st->st_ino;
    handle->bytes = shm->bytes;
    handle->base = (uint64_t)(uintptr_t)shm->base;
    handle->mapping = shm->mapping != NULL ? shm->mapping->number : 0;
    handle->process = process_id();
}

/* Maps the segment where it shall be. */
static tutti_status place(tt_shm *shm, void *at)
{
    TT_TRY(map(shm->fd, shm->bytes, &shm->base));
    if (at == NULL)
        return TUTTI_OK;
    memcpy(shm->base, at, shm->bytes);
    TT_TRY(move_over(shm->base, at, shm->bytes));
    shm->base = at;
    return TUTTI_OK;
}

tutti_status tt_shm_create(size_t bytes, void *at, tt_shm *shm_out, tt_shm_handle *handle_out)
{
    tt_shm shm = {.fd = -1, .bytes = tt_round_up(bytes, page_size())};
    const char *dir;
    struct stat st;
    tutti_status status;

    if (bytes == 0 || shm.bytes < bytes || shm.bytes > INT64_MAX)
        return tt_fail(TUTTI_ERR_ARG, "shared memory: %zu bytes cannot be had", bytes);
    TT_TRY(tt_env_get_string(TT_ENV_SHM_DIR, &dir));
    TT_TRY(open_unnamed(dir, &shm.fd));
    status = reserve(dir, shm.fd, shm.bytes);
    if (status == TUTTI_OK && fstat(shm.fd, &st) != 0)
        status = tt_fail_errno(TUTTI_ERR_IO, errno, "shared memory in %s", dir);
    if (status == TUTTI_OK && at == NULL)
        status = tt_calloc(1, sizeof *shm.mapping, &shm.mapping);
    if (status != TUTTI_OK)
        goto close_file;
    status = place(&shm, at);
    if (status != TUTTI_OK)
        goto close_file;
    if (shm.mapping != NULL)
        mapping_list(shm.mapping);
    describe(&shm, &st, handle_out);
    *shm_out = shm;
    return TUTTI_OK;

close_file:
    free(shm.mapping);
    close(shm.fd);
    return status;
}

static tutti_status attach_in_process(const tt_shm_handle *handle, tt_shm *shm_out)
{
    tt_shm shm = {.base = (void *)(uintptr_t)handle->base, .bytes = handle->bytes, .fd = -1};

    if (handle->mapping != 0) {
        shm.mapping = mapping_use(handle->mapping);
        if (shm.mapping == NULL)
            return tt_fail(TUTTI_ERR_STATE, "shared memory: its rank has closed it already");
    }
    *shm_out = shm;
    return TUTTI_OK;
}

static tutti_status open_peer(const tt_shm_handle *handle, int *fd_out)
{
    char path[64];
    struct stat st;
    int fd, err;

    snprintf(path, sizeof path, "/proc/%llu/fd/%llu", (unsigned long long)handle->pid,
             (unsigned long long)handle->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    err = errno;
    if (fd < 0 && (err == EACCES || err == EPERM))
        return tt_fail_errno(TUTTI_ERR_UNSUPPORTED, err,
                             "shared memory: no access to %s of a rank on this node (ranks must "
                             "run as one user, in one user namespace, and be dumpable)",
                             path);
    if (fd < 0 && (err == ENOENT || err == ESRCH))
        return tt_fail_errno(TUTTI_ERR_UNSUPPORTED, err,
                             "shared memory: %s of a rank on this node is not here (ranks in "
                             "containers of their own must share the PID namespace: --pid)",
                             path);
    if (fd < 0)
        return tt_fail_errno(TUTTI_ERR_IO, err, "shared memory: opening %s", path);
    if (fstat(fd, &st) != 0 || st.st_dev != handle->device || st.st_ino != handle->inode ||
        (uint64_t)st.st_size != handle->bytes) {
        close(fd);
        return tt_fail(TUTTI_ERR_UNSUPPORTED,
                       "shared memory: %s is another file (ranks of a node must share the PID "
                       "namespace: --pid)",
                       path);
    }
    *fd_out = fd;
    return TUTTI_OK;
}

tutti_status tt_shm_attach(const tt_shm_handle *handle, tt_shm *shm_out)
{
    tt_shm shm = {.fd = -1, .bytes = handle->bytes};
    tutti_status status;
    int fd = -1;

    if (handle->process == process_id())
        return attach_in_process(handle, shm_out);
    TT_TRY(open_peer(handle, &fd));
    status = tt_calloc(1, sizeof *shm.mapping, &shm.mapping);
    if (status == TUTTI_OK)
        status = map(fd, shm.bytes, &shm.base);
    close(fd);
    if (status != TUTTI_OK) {
        free(shm.mapping);
        return status;
    }
    mapping_list(shm.mapping);
    *shm_out = shm;
    return TUTTI_OK;
}

void tt_shm_seal(tt_shm *shm)
{
    if (shm->base != NULL && shm->fd >= 0)
        close(shm->fd);
    shm->fd = -1;
}

void tt_shm_close(tt_shm *shm)
{
    tt_shm_seal(shm);
    if (shm->mapping != NULL && mapping_leave(shm->mapping)) {
        munmap(shm->base, shm->bytes);
        free(shm->mapping);
    }
    *shm = (tt_shm){0};
}

tutti_status tt_shm_unshare(void *ptr, size_t bytes)
{
    void *copy;

    TT_TRY(map(-1, bytes, &copy));
    memcpy(copy, ptr, bytes);
    return move_over(copy, ptr, bytes);
}
