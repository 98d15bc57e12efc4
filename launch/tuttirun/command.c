/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What mpirun is told, and why.
 *
 * Its own binding is off: it binds to the cores it counts itself, blind to the mask that the caller
 * or a container set, and stacks two jobs of one machine onto the same cores. Each rank is
 * started through `tuttirun --rank-exec`, which binds it inside that mask (rank.c).
 *
 * Settings travel as OMPI_MCA_* variables rather than as --mca words, since mpirun hands these on
 * to its daemons and ranks, and a variable that the caller has set stays as it is. The session
 * directory and the directory of MPI's shared segments are the job's own, so that what a killed
 * mpirun leaves is found and removed.
 *
 * The ranks' standard output is a pseudo terminal even where that of mpirun is a file; TERM=dumb
 * tells programs not to draw on it.
 */
#include "command.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cpus.h"
#include "say.h"

static bool add(words *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static bool add(words *w, const char *fmt, ...)
{
    va_list args;
    int length;

    if (w->count + 2 > w->cap) {
        int cap = w->cap == 0 ? 32 : 2 * w->cap;
        char **at = realloc(w->at, (size_t)cap * sizeof(*at));

        if (at == NULL)
            return false;
        w->at = at;
        w->cap = cap;
    }
    va_start(args, fmt);
    length = vasprintf(&w->at[w->count], fmt, args);
    va_end(args);
    if (length < 0) {
        w->at[w->count] = NULL;
        return false;
    }
    w->at[++w->count] = NULL;
    return true;
}

/* Adds NAME=VALUE unless the caller's environment has NAME. */
static bool add_default(words *env, const char *name, const char *value)
{
    return getenv(name) != NULL || add(env, "%s=%s", name, value);
}

static bool add_environment(words *env, const scratch *s, long restart)
{
    bool good = add(env, JOB_VARIABLE "=%s", s->job) && add(env, RESTART_VARIABLE "=%ld", restart);

    if (s->session[0] != '\0')
        good = good && add(env, SESSION_VARIABLE "=%s", s->session);
    if (s->shm[0] != '\0')
        good = good && add_default(env, SHM_VARIABLE, s->shm) &&
               add_default(env, SHM_VARIABLE_2, s->shm);
    if (!isatty(STDOUT_FILENO))
        good = good && add(env, "TERM=dumb");
    return good;
}

/* -x for every variable that training programs are steered with. */
static bool add_exports(words *argv)
{
    static const char *const prefixes[] = {"TUTTI_", "NCCL_", "OMP_", "OPENBLAS_", "TERM="};
    bool good = add(argv, "-x") && add(argv, JOB_VARIABLE) && add(argv, "-x") &&
                add(argv, RESTART_VARIABLE);
    char **entry;
    size_t i;

    for (entry = environ; good && *entry != NULL; entry++) {
        int length = (int)strcspn(*entry, "=");

        for (i = 0; good && i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
            if (strncmp(*entry, prefixes[i], strlen(prefixes[i])) == 0)
                good = add(argv, "-x") && add(argv, "%.*s", length, *entry);
    }
    return good;
}

static bool add_places(words *argv, const options *opts)
{
    bool good = add(argv, "--bind-to") && add(argv, "none");

    if (geteuid() == 0)
        good = good && add(argv, "--allow-run-as-root");
    if (opts->hosts != NULL)
        good = good && add(argv, "--host") && add(argv, "%s", opts->hosts);
    if (opts->hostfile != NULL)
        good = good && add(argv, "--hostfile") && add(argv, "%s", opts->hostfile);
    return good;
}

/* Where nobody has said how many ranks a machine takes, mpirun's limit is one per core. */
static bool add_oversubscribe(words *argv, const options *opts)
{
    bool unlimited = opts->hosts != NULL ? !opts->hosts_have_slots
                                         : !options_other_hosts(opts) && opts->ranks > cpus_cores();

    return !unlimited || add(argv, "--oversubscribe");
}

/* This program, by a name that also holds on another machine with the same directories. */
static bool add_self(words *argv)
{
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);

    if (length < 0)
        return false;
    path[length] = '\0';
    return add(argv, "%s", path);
}

static bool finish(command *c, bool good)
{
    if (good)
        return true;
    command_free(c);
    say("cannot put the mpirun command together: %s", strerror(errno));
    return false;
}

bool command_job(const options *opts, const scratch *s, const char *mpirun, long restart,
                 command *out)
{
    char **word;
    bool good;

    *out = (command){0};
    good = add_environment(&out->env, s, restart) && add(&out->argv, "%s", mpirun) &&
           add(&out->argv, "-n") && add(&out->argv, "%ld", opts->ranks) &&
           add_places(&out->argv, opts) && add_oversubscribe(&out->argv, opts) &&
           add_exports(&out->argv) && add_self(&out->argv) &&
           add(&out->argv, "%s", opts->bind ? RANK_EXEC : RANK_EXEC_UNBOUND);
    for (word = opts->program; good && *word != NULL; word++)
        good = add(&out->argv, "%s", *word);
    return finish(out, good);
}

bool command_sweep(const options *opts, const scratch *s, const char *mpirun, command *out)
{
    bool good;

    *out = (command){0};
    good = add(&out->argv, "%s", mpirun) && add(&out->argv, "--pernode") &&
           add_places(&out->argv, opts) && add_self(&out->argv) && add(&out->argv, SWEEP_EXEC) &&
           add(&out->argv, "%s", s->job) && add(&out->argv, "%s", s->session) &&
           add(&out->argv, "%s", s->shm);
    return finish(out, good);
}

static void words_free(words *w)
{
    int i;

    for (i = 0; i < w->count; i++)
        free(w->at[i]);
    free(w->at);
    *w = (words){0};
}

void command_free(command *c)
{
    words_free(&c->argv);
    words_free(&c->env);
}

static void print_quoted(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "%+,-./:=@_";

    if (*word != '\0' && word[strspn(word, plain)] == '\0') {
        fputs(word, stdout);
        return;
    }
    putchar('\'');
    for (; *word != '\0'; word++) {
        if (*word == '\'')
            fputs("'\\''", stdout);
        else
            putchar(*word);
    }
    putchar('\'');
}

void command_print(const command *c)
{
    int i;

    for (i = 0; i < c->env.count; i++) {
        print_quoted(c->env.at[i]);
        putchar(' ');
    }
    for (i = 0; i < c->argv.count; i++) {
        print_quoted(c->argv.at[i]);
        putchar(i + 1 < c->argv.count ? ' ' : '\n');
    }
}

void command_exec(const command *c)
{
    int i;

    for (i = 0; i < c->env.count; i++)
        putenv(c->env.at[i]);
    execv(c->argv.at[0], c->argv.at);
    say("cannot run %s: %s", c->argv.at[0], strerror(errno));
}
