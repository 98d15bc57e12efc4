/* SPDX-License-Identifier: Apache-2.0 */
/* The recorded machines beside the checkout; a test that wants them is skipped without them. */
#ifndef TT_TEST_CORPUS_H
#define TT_TEST_CORPUS_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The folder topo/ of the recordings: TUTTI_TEST_SHARED, else ../shared of the checkout. NULL:
 * there is none. */
static inline const char *corpus_root(void)
{
    static char root[4096];
    const char *shared = getenv("TUTTI_TEST_SHARED");

    (void)snprintf(root, sizeof root, "%s/topo",
                   shared != NULL ? shared : TT_SOURCE_DIR "/../shared");
    return access(root, R_OK) == 0 ? root : NULL;
}

/* Calls `what` with the path of each file of a folder whose name ends so, in order; the number. */
static inline int corpus_each(const char *folder, const char *ending,
                              void (*what)(const char *path, void *arg), void *arg)
{
    char dir[4200], path[4700];
    struct dirent **names;
    int n, used = 0;

    (void)snprintf(dir, sizeof dir, "%s/%s", corpus_root(), folder);
    n = scandir(dir, &names, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        size_t length = strlen(names[i]->d_name), tail = strlen(ending);

        if (names[i]->d_name[0] != '.' && length > tail &&
            strcmp(names[i]->d_name + length - tail, ending) == 0) {
            (void)snprintf(path, sizeof path, "%s/%s", dir, names[i]->d_name);
            what(path, arg);
            used++;
        }
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    return used;
}

#endif
