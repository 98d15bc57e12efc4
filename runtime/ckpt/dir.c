/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names, listing, safe opening, removal and plain I/O of checkpoint directories.
 *
 * A step's directory is found by parsing names and comparing numbers, never by a pointer file and
 * never by sorting strings. Everything inside is opened relative to a descriptor with O_NOFOLLOW
 * and must be a regular file, so that a crafted checkpoint cannot lead outside its directory.
 * Removal knows the names we make and touches no others: a directory in which someone keeps a file
 * of his own is not emptied around it.
 */
#include "ckpt/identity.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/mem.h"

static bool all_digits(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] < '0' || text[i] > '9')
            return false;
    return bytes > 0;
}

void tt_step_name(int64_t step, char name[TT_STEP_NAME_MAX])
{
    snprintf(name, TT_STEP_NAME_MAX, "step-%012lld", (long long)step);
}

bool tt_step_parse(const char *name, int64_t *step_out)
{
    char same[TT_STEP_NAME_MAX];
    if (strncmp(name, "step-", 5) != 0 || !all_digits(name + 5, strlen(name + 5)))
        return false;
    errno = 0;
    long long step = strtoll(name + 5, NULL, 10);
    if (errno != 0)
        return false;
    tt_step_name(step, same);
    if (strcmp(same, name) != 0)
        return false;
    *step_out = step;
    return true;
}

void tt_shard_name(int rank, char *name, size_t cap)
{
    snprintf(name, cap, "shard-%05d.h5", rank);
}

bool tt_ckpt_file_name_ok(const char *name)
{
    size_t bytes = strlen(name);
    if (strcmp(name, TT_INDEX_NAME) == 0)
        return true;
    return bytes >= 14 && bytes <= 19 && strncmp(name, "shard-", 6) == 0 &&
           strcmp(name + bytes - 3, ".h5") == 0 && all_digits(name + 6, bytes - 9);
}

void tt_part_name(uint32_t part, char name[TT_STEP_NAME_MAX])
{
    snprintf(name, TT_STEP_NAME_MAX, "part-%05u", part);
}

bool tt_part_parse(const char *name, uint32_t *part_out)
{
    char same[TT_STEP_NAME_MAX];
    if (strncmp(name, "part-", 5) != 0 || !all_digits(name + 5, strlen(name + 5)) ||
        strlen(name) > 12)
        return false;
    unsigned long part = strtoul(name + 5, NULL, 10);
    tt_part_name((uint32_t)part, same);
    if (strcmp(same, name) != 0 || part >= TT_PARTS_MAX)
        return false;
    *part_out = (uint32_t)part;
    return true;
}

static bool our_file(const char *name)
{
    uint32_t part;
    return tt_ckpt_file_name_ok(name) || tt_part_parse(name, &part) ||
           strcmp(name, TT_MANIFEST_NAME) == 0 || strcmp(name, TT_OWNER_NAME) == 0 ||
           strcmp(name, TT_OWNER_NEW_NAME) == 0 || strcmp(name, TT_SPOOL_NAME) == 0;
}

tutti_status tt_dir_sync(int dir, const char *what)
{
    if (fsync(dir) != 0 && errno != EINVAL) /* EINVAL: a file system that has no such thing */
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make the entries of %s durable", what);
    return TUTTI_OK;
}

static tutti_status sync_parent(char *path)
{
    char *slash = strrchr(path, '/'), kept;
    const char *parent = ".";
    tutti_status status = TUTTI_OK;
    int fd;
    if (slash != NULL) {
        char *cut = slash == path ? slash + 1 : slash;
        kept = *cut;
        *cut = '\0';
        parent = path;
        fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        *cut = kept;
    } else {
        fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    if (fd < 0)
        return TUTTI_OK; /* no right to list it: then nothing can be done about it either */
    status = tt_dir_sync(fd, path);
    close(fd);
    return status;
}

tutti_status tt_dir_make(const char *path)
{
    char *copy;
    tutti_status status = TUTTI_OK;
    TT_TRY(tt_strdup(path, &copy));
    for (char *at = copy; status == TUTTI_OK && *at != '\0';) {
        at += strspn(at, "/");
        at += strcspn(at, "/");
        char end = *at;
        *at = '\0';
        if (mkdir(copy, 0777) == 0)
            status = sync_parent(copy);
        else if (errno != EEXIST && !(errno == EROFS && access(copy, F_OK) == 0))
            status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make the directory %s", copy);
        *at = end;
    }
    free(copy);
    return status;
}

void tt_fd_close(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

tutti_status tt_dir_open(const char *path, int *fd_out)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return tt_fail_errno(errno == ENOENT ? TUTTI_ERR_NOT_FOUND : TUTTI_ERR_IO, errno,
                             "cannot open the directory %s", path);
    *fd_out = fd;
    return TUTTI_OK;
}

tutti_status tt_dir_open_at(int dir, const char *name, int *fd_out)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return tt_fail(TUTTI_ERR_CORRUPT, "%s is not a directory", name);
    if (fd < 0) /* EIO: the disk has lost it, which is damage like any other */
        return tt_fail_errno(errno == ENOENT ? TUTTI_ERR_NOT_FOUND
                             : errno == EIO  ? TUTTI_ERR_CORRUPT
                                             : TUTTI_ERR_IO,
                             errno, "cannot open %s", name);
    *fd_out = fd;
    return TUTTI_OK;
}

typedef struct name_list {
    char **name;
    size_t n, cap;
} name_list;

static void name_list_free(name_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free(list->name[i]);
    free(list->name);
}

static tutti_status name_list_read(int dir, name_list *list)
{
    tutti_status status = TUTTI_OK;
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (stream == NULL) {
        status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot list a checkpoint directory");
        if (fd >= 0)
            close(fd);
        return status;
    }
    for (;;) {
        errno = 0;
        struct dirent *entry = readdir(stream);
        if (entry == NULL)
            break;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        status = tt_grow(&list->name, &list->cap, list->n + 1, sizeof *list->name);
        if (status == TUTTI_OK)
            status = tt_strdup(entry->d_name, &list->name[list->n]);
        if (status != TUTTI_OK)
            break;
        list->n++;
    }
    if (status == TUTTI_OK && errno != 0)
        status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot list a checkpoint directory");
    closedir(stream);
    return status;
}

tutti_status tt_dir_each(int dir, tt_dir_visit visit, void *arg)
{
    name_list list = {0};
    tutti_status status = name_list_read(dir, &list);
    for (size_t i = 0; i < list.n && status == TUTTI_OK; i++)
        status = visit(arg, list.name[i]);
    name_list_free(&list);
    return status;
}

typedef struct step_list {
    int64_t *step;
    size_t n, cap;
} step_list;

static tutti_status take_step(void *arg, const char *name)
{
    step_list *list = arg;
    int64_t step;
    tt_identity owner;
    if (!tt_step_parse(name, &step) && !tt_identity_parse(name, TT_OLD_HEAD, &owner, &step))
        return TUTTI_OK;
    TT_TRY(tt_grow(&list->step, &list->cap, list->n + 1, sizeof *list->step));
    list->step[list->n++] = step;
    return TUTTI_OK;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

void tt_steps_sort(int64_t *steps, size_t n)
{
    if (n > 0)
        qsort(steps, n, sizeof *steps, newest_first);
}

tutti_status tt_dir_steps(int dir, int64_t **steps_out, size_t *n_out)
{
    step_list list = {0};
    tutti_status status = tt_dir_each(dir, take_step, &list);
    if (status != TUTTI_OK) {
        free(list.step);
        return status;
    }
    tt_steps_sort(list.step, list.n);
    size_t n = 0; /* a step and an old version of it count once */
    for (size_t i = 0; i < list.n; i++)
        if (n == 0 || list.step[n - 1] != list.step[i])
            list.step[n++] = list.step[i];
    *steps_out = list.step;
    *n_out = n;
    return TUTTI_OK;
}

typedef struct old_search {
    int64_t step;
    char *name;
} old_search;

static tutti_status note_old(void *arg, const char *name)
{
    old_search *find = arg;
    tt_identity owner;
    int64_t step;
    if (tt_identity_parse(name, TT_OLD_HEAD, &owner, &step) && step == find->step)
        snprintf(find->name, TT_TEMP_NAME_MAX, "%s", name);
    return TUTTI_OK;
}

tutti_status tt_step_find(int dir, int64_t step, char name[TT_TEMP_NAME_MAX])
{
    char own[TT_STEP_NAME_MAX];
    tt_step_name(step, own);
    snprintf(name, TT_TEMP_NAME_MAX, "%s", own);
    if (faccessat(dir, own, F_OK, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT)
        return TUTTI_OK;
    old_search find = {step, name};
    return tt_dir_each(dir, note_old, &find);
}

bool tt_dir_space(int dir, uint64_t *bytes_out)
{
    struct statvfs fs;
    if (fstatvfs(dir, &fs) != 0 || fs.f_blocks == 0)
        return false;
    *bytes_out = (uint64_t)fs.f_bavail * (uint64_t)fs.f_frsize;
    return true;
}

typedef struct removal {
    int dir;
    bool foreign;
} removal;

static tutti_status remove_ours(void *arg, const char *name)
{
    removal *r = arg;
    if (our_file(name) && unlinkat(r->dir, name, 0) != 0 && errno != ENOENT)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "cannot remove %s", name);
    return TUTTI_OK;
}

static tutti_status note_foreign(void *arg, const char *name)
{
    removal *r = arg;
    r->foreign = r->foreign || !our_file(name);
    return TUTTI_OK;
}

tutti_status tt_dir_remove(int dir, const char *name)
{
    removal r = {-1, false};
    tutti_status status = tt_dir_open_at(dir, name, &r.dir);
    if (status == TUTTI_ERR_NOT_FOUND)
        return TUTTI_OK;
    if (status != TUTTI_OK)
        return status;
    status = tt_dir_each(r.dir, remove_ours, &r);
    close(r.dir);
    if (status == TUTTI_OK && unlinkat(dir, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot remove the directory %s", name);
    return status;
}

tutti_status tt_dir_has_foreign(int dir, const char *name, bool *foreign_out)
{
    removal r = {-1, false};
    TT_TRY(tt_dir_open_at(dir, name, &r.dir));
    tutti_status status = tt_dir_each(r.dir, note_foreign, &r);
    close(r.dir);
    if (status == TUTTI_OK)
        *foreign_out = r.foreign;
    return status;
}

static tutti_status note_part(void *arg, const char *name)
{
    bool *part = arg;
    uint32_t number;
    *part = *part || tt_part_parse(name, &number);
    return TUTTI_OK;
}

tutti_status tt_dir_is_part(int dir, const char *name, bool *part_out)
{
    int sub = -1;
    *part_out = false;
    TT_TRY(tt_dir_open_at(dir, name, &sub));
    tutti_status status = tt_dir_each(sub, note_part, part_out);
    close(sub);
    return status;
}

tutti_status tt_tag_write(int dir, const char *name, int64_t step)
{
    char temp[64], step_name[TT_STEP_NAME_MAX], text[TT_STEP_NAME_MAX + 1];
    int fd;
    snprintf(temp, sizeof temp, ".%s.new", name);
    tt_step_name(step, step_name);
    snprintf(text, sizeof text, "%s\n", step_name);
    unlinkat(dir, temp, 0);
    TT_TRY(tt_file_create(dir, temp, &fd));
    tutti_status status = tt_file_write(fd, temp, text, strlen(text), 0);
    if (status == TUTTI_OK && fsync(fd) != 0)
        status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make %s durable", temp);
    if (close(fd) != 0 && status == TUTTI_OK)
        status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot close %s", temp);
    if (status == TUTTI_OK && renameat(dir, temp, dir, name) != 0)
        status = tt_fail_errno(TUTTI_ERR_IO, errno, "cannot make the tag %s", name);
    return status == TUTTI_OK ? tt_dir_sync(dir, name) : status;
}

tutti_status tt_tag_read(int dir, const char *name, int64_t *step_out)
{
    char text[TT_STEP_NAME_MAX + 2] = "";
    uint64_t bytes;
    int fd;
    if (faccessat(dir, name, F_OK, AT_SYMLINK_NOFOLLOW) != 0)
        return tt_fail(TUTTI_ERR_NOT_FOUND, "no checkpoint is tagged %s", name);
    TT_TRY(tt_file_open(dir, name, &fd, &bytes));
    tutti_status status = tt_file_read(fd, name, text, tt_min_size(bytes, sizeof text - 1), 0);
    close(fd);
    text[strcspn(text, "\n")] = '\0';
    if (status == TUTTI_OK && !tt_step_parse(text, step_out))
        status = tt_fail(TUTTI_ERR_CORRUPT, "the tag %s does not name a step", name);
    return status;
}
