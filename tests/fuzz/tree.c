/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A recorded machine from bytes: each line is a file below the root, "PATH<tab>CONTENT"; further
 * lines of one path go on in it, and "PATH<tab>-> TARGET" is a symbolic link. Whatever the bytes
 * are, nothing outside the root is made or linked to: components are plain names, no step leads
 * over a link, and a target goes up no further than the root.
 */
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fuzz.h"

enum { DEPTH_MAX = 16, LINES_MAX = 2000, NAME_MAX_ = 200 };

static char root[64];

static int drop(const char *path, const struct stat *info, int kind, struct FTW *at)
{
    (void)info, (void)kind, (void)at;
    return remove(path);
}

static void clear(void)
{
    (void)nftw(root, drop, 16, FTW_DEPTH | FTW_PHYS);
}

static bool plain(const char *name)
{
    return *name != 0 && strlen(name) < NAME_MAX_ && strcmp(name, ".") != 0 &&
           strcmp(name, "..") != 0;
}

/* Opens the folder of a path below the root, making what is missing; *depth_out is how deep it
 * lies, *name_out the last component. -1: not to be had. */
static int open_folder(char *path, int *depth_out, char **name_out)
{
    int at = open(root, O_PATH | O_DIRECTORY | O_CLOEXEC);

    *depth_out = 0;
    for (char *slash; at >= 0 && (slash = strchr(path, '/')) != NULL; path = slash + 1) {
        int next = -1;

        *slash = 0;
        if (plain(path) && ++*depth_out < DEPTH_MAX) {
            (void)mkdirat(at, path, 0700);
            next = openat(at, path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        }
        (void)close(at);
        at = next;
    }
    if (at >= 0 && !plain(path)) {
        (void)close(at);
        return -1;
    }
    *name_out = path;
    return at;
}

static bool stays_below(const char *target, int depth)
{
    for (; strncmp(target, "../", 3) == 0; target += 3)
        if (--depth < 0)
            return false;
    return *target != '/' && *target != 0 && strstr(target, "..") == NULL;
}

static void put(char *path, const char *content)
{
    char *name;
    int depth, folder = open_folder(path, &depth, &name), file;

    if (folder < 0)
        return;
    if (strncmp(content, "-> ", 3) == 0) {
        if (stays_below(content + 3, depth))
            (void)!symlinkat(content + 3, folder, name);
    } else {
        file = openat(folder, name, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (file >= 0) {
            (void)!write(file, content, strlen(content));
            (void)!write(file, "\n", 1);
            (void)close(file);
        }
    }
    (void)close(folder);
}

const char *tt_fuzz_tree(const char *text, size_t bytes)
{
    char line[4096], *tab;

    if (root[0] == 0) {
        (void)snprintf(root, sizeof root, "%s/tt-fuzz-XXXXXX",
                       access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
        if (mkdtemp(root) == NULL)
            abort();
        (void)atexit(clear);
    } else {
        clear();
        (void)mkdir(root, 0700);
    }
    for (int lines = 0; bytes > 0 && lines < LINES_MAX; lines++) {
        const char *end = memchr(text, '\n', bytes);
        size_t whole = end == NULL ? bytes : (size_t)(end - text) + 1;
        size_t used = end == NULL ? bytes : whole - 1;

        used = used < sizeof line ? used : sizeof line - 1;
        memcpy(line, text, used);
        line[used] = 0;
        tab = strchr(line, '\t');
        if (tab != NULL) {
            *tab = 0;
            put(line, tab + 1);
        }
        text += whole;
        bytes -= whole;
    }
    return root;
}
