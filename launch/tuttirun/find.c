/* SPDX-License-Identifier: Apache-2.0 */
#include "find.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "say.h"

static int runnable(const char *path)
{
    struct stat st;

    if (stat(path, &st) != 0)
        return errno == EACCES ? EXIT_CANNOT_RUN : EXIT_NOT_FOUND;
    if (!S_ISREG(st.st_mode) || access(path, X_OK) != 0)
        return EXIT_CANNOT_RUN;
    return 0;
}

int find_program(const char *name, char path_out[PATH_MAX])
{
    const char *dirs = getenv("PATH");
    int verdict = EXIT_NOT_FOUND;

    if (strchr(name, '/') != NULL) {
        snprintf(path_out, PATH_MAX, "%s", name);
        return runnable(name);
    }
    if (*name == '\0')
        return EXIT_NOT_FOUND;
    if (dirs == NULL)
        dirs = "/usr/local/bin:/usr/bin:/bin";
    while (*dirs != '\0') {
        int length = (int)strcspn(dirs, ":");
        int status;

        snprintf(path_out, PATH_MAX, "%.*s/%s", length > 0 ? length : 1, length > 0 ? dirs : ".",
                 name);
        status = runnable(path_out);
        if (status == 0)
            return 0;
        if (status == EXIT_CANNOT_RUN)
            verdict = status;
        dirs += length + (dirs[length] == ':');
    }
    return verdict;
}

/* The first bytes of what `path --version` prints; "" when it cannot be run. */
static void version_text(char *path, char *text, size_t cap)
{
    char *argv[] = {path, (char[]){"--version"}, NULL};
    posix_spawn_file_actions_t actions;
    size_t size = 0;
    ssize_t got;
    int fds[2];
    pid_t pid;

    text[0] = '\0';
    if (pipe2(fds, O_CLOEXEC) != 0)
        return;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
    posix_spawn_file_actions_adddup2(&actions, fds[1], 2);
    if (posix_spawn(&pid, path, &actions, NULL, argv, environ) == 0) {
        close(fds[1]);
        while (size < cap - 1 && (got = read(fds[0], text + size, cap - 1 - size)) > 0)
            size += (size_t)got;
        waitpid(pid, NULL, 0);
    } else {
        close(fds[1]);
    }
    text[size] = '\0';
    close(fds[0]);
    posix_spawn_file_actions_destroy(&actions);
}

int find_mpirun(const char *given, char path_out[PATH_MAX])
{
    const char *name = given != NULL ? given : "mpirun";
    int status = find_program(name, path_out);
    char version[256];

    if (status != 0 && given != NULL) {
        say("--mpirun: %s is not a program that can be run", given);
        return status;
    }
    if (status != 0) {
        say("there is no mpirun in PATH: install Open MPI (Debian: apt-get install openmpi-bin) "
            "or give --mpirun PATH");
        return status;
    }
    version_text(path_out, version, sizeof(version));
    if (strstr(version, "Open MPI") == NULL && strstr(version, "OpenRTE") == NULL) {
        say("%s is not Open MPI's mpirun; give --mpirun PATH", path_out);
        return EXIT_CANNOT_RUN;
    }
    return 0;
}
