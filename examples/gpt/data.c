/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading text and cutting batches from it.
 *
 * Each distinct file gives its last tenth to the held-out text, so that this is as varied as what
 * is learnt. A file that is named twice, or is a link to another, counts once (device and inode),
 * or else held-out bytes of one name would be learnt under the other. Batches are random windows:
 * no epoch, no shuffled list, no state; any rank can cut any window of any step.
 */
#include "data.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "random.h"

static const size_t most_bytes = (size_t)4 << 30;

typedef struct file_id {
    dev_t device;
    ino_t inode;
} file_id;

typedef struct loader {
    corpus *t;
    file_id *seen; /* t->files of them */
    char problem[512];
} loader;

static char last_problem[512];

static bool fail(loader *l, const char *path, const char *why)
{
    snprintf(l->problem, sizeof l->problem, "text %.400s: %s", path, why);
    return false;
}

static bool append(uint8_t **to, size_t *bytes, const uint8_t *from, size_t count)
{
    uint8_t *grown = realloc(*to, *bytes + count + 1);

    if (grown == NULL)
        return false;
    memcpy(grown + *bytes, from, count);
    *to = grown;
    *bytes += count;
    return true;
}

static bool read_all(int fd, uint8_t *to, size_t bytes)
{
    size_t done = 0;

    while (done < bytes) {
        ssize_t got = read(fd, to + done, bytes - done);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            errno = got == 0 ? EIO : errno;
            return false;
        }
        done += (size_t)got;
    }
    return true;
}

/* True also when the file was there before. */
static bool note_file(loader *l, const struct stat *info, bool *known_out)
{
    file_id *grown;

    *known_out = false;
    for (int i = 0; l->seen != NULL && i < l->t->files; i++)
        if (l->seen[i].device == info->st_dev && l->seen[i].inode == info->st_ino)
            *known_out = true;
    if (*known_out)
        return true;
    grown = realloc(l->seen, ((size_t)l->t->files + 1) * sizeof *grown);
    if (grown == NULL)
        return false;
    l->seen = grown;
    l->seen[l->t->files++] = (file_id){info->st_dev, info->st_ino};
    return true;
}

static bool split_file(loader *l, const char *path, int fd, size_t bytes)
{
    size_t held_out = bytes / 10, train = bytes - held_out;
    uint8_t *content = malloc(bytes);
    bool ok = false;

    if (content == NULL)
        return fail(l, path, "out of memory");
    if (!read_all(fd, content, bytes))
        fail(l, path, strerror(errno));
    else if (!append(&l->t->train, &l->t->train_bytes, content, train) ||
             !append(&l->t->held_out, &l->t->held_out_bytes, content + train, held_out))
        fail(l, path, "out of memory");
    else
        ok = true;
    free(content);
    return ok;
}

static bool load_file(loader *l, const char *path)
{
    struct stat info;
    bool known, ok = false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a fifo must not hang us */

    if (fd < 0)
        return fail(l, path, strerror(errno));
    if (fstat(fd, &info) != 0)
        fail(l, path, strerror(errno));
    else if (!S_ISREG(info.st_mode))
        fail(l, path, "is not a regular file");
    else if (info.st_size == 0)
        fail(l, path, "is empty");
    else if ((size_t)info.st_size > most_bytes - l->t->train_bytes - l->t->held_out_bytes)
        fail(l, path, "more than 4 GiB of text");
    else if (!note_file(l, &info, &known))
        fail(l, path, "out of memory");
    else
        ok = known || split_file(l, path, fd, (size_t)info.st_size);
    close(fd);
    return ok;
}

/* Hidden files and folders inside a folder are passed over. */
static bool load_entry(loader *l, const char *folder, const char *name)
{
    char path[4096];
    struct stat info;

    if (name[0] == '.')
        return true;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
        return fail(l, folder, "path is too long");
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        return true;
    return load_file(l, path);
}

static bool load_path(loader *l, const char *path)
{
    struct dirent **entries;
    struct stat info;
    bool ok = true;
    int count;

    if (stat(path, &info) != 0)
        return fail(l, path, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return load_file(l, path);
    count = scandir(path, &entries, NULL, alphasort); /* the same order on every rank */
    if (count < 0)
        return fail(l, path, strerror(errno));
    for (int i = 0; i < count; i++) {
        ok = ok && load_entry(l, path, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return ok;
}

bool text_load(corpus *t, const char *const *paths, int count, int context,
               const char **problem_out)
{
    loader l = {t, NULL, ""};
    bool ok = true;

    memset(t, 0, sizeof *t);
    for (int i = 0; i < count && ok; i++)
        ok = load_path(&l, paths[i]);
    free(l.seen);
    if (ok && (t->train_bytes <= (size_t)context || t->held_out_bytes < 2)) {
        snprintf(l.problem, sizeof l.problem,
                 "text: %zu bytes to learn and %zu held out are too few for --context %d",
                 t->train_bytes, t->held_out_bytes, context);
        ok = false;
    }
    if (!ok) {
        memcpy(last_problem, l.problem, sizeof last_problem);
        *problem_out = last_problem;
        text_free(t);
    }
    return ok;
}

void text_free(corpus *t)
{
    free(t->train);
    free(t->held_out);
    memset(t, 0, sizeof *t);
}

double text_fingerprint(const corpus *t)
{
    uint64_t hash = random_mix(t->train_bytes) ^ t->held_out_bytes;

    for (size_t i = 0; i < t->train_bytes; i++)
        hash = (hash ^ t->train[i]) * 0x100000001b3u;
    for (size_t i = 0; i < t->held_out_bytes; i++)
        hash = (hash ^ t->held_out[i]) * 0x100000001b3u;
    return (double)(random_mix(hash) >> 11);
}

void text_batch(const corpus *t, const batch_request *request, uint8_t *inputs, uint8_t *targets)
{
    const size_t context = (size_t)request->context;

    for (int i = 0; i < request->count; i++) {
        uint64_t number = (uint64_t)(request->first + i);
        uint64_t bits =
            random_at(request->seed ^ 0x7465787462617463u, (uint64_t)request->step, number);
        size_t at = (size_t)(bits % (t->train_bytes - context));

        memcpy(inputs + (size_t)i * context, t->train + at, context);
        memcpy(targets + (size_t)i * context, t->train + at + 1, context);
    }
}
