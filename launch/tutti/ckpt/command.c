/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tutti ckpt COMMAND`: one process, no MPI. Options may stand anywhere behind the command. What a
 * script needs goes to standard output (one JSON value with --json), everything else to standard
 * error; the exit status tells damage (3) from trouble (1) from a wrong call (2) from nothing there
 * (4).
 */
#include "ckpt.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "core/env.h"
#include "core/log.h"

#include "../commands.h"

typedef struct command {
    const char *name;
    int (*run)(const ckpt_args *a);
    int min_words, max_words;
    const char *usage, *help;
} command;

static const command commands[] = {
    {"ls", ckpt_ls, 1, 1, "DIR", "steps, sizes, ages, whole or not"},
    {"show", ckpt_show, 1, 1 << 20, "CKPT [PATTERN...] [--brief] [--all]",
     "tensors: type, shape, least, greatest, NaNs"},
    {"verify", ckpt_verify, 1, 1, "CKPT [--all]",
     "every checksum, and the files as HDF5 sees them; --all: of every step"},
    {"diff", ckpt_diff, 2, 1 << 20, "CKPT CKPT [PATTERN...] [--all]", "which tensors differ"},
    {"merge", ckpt_merge, 2, 1 << 20, "CKPT FILE.h5 [PATTERN...] [--all]",
     "one plain HDF5 file of whole tensors"},
    {"export", ckpt_export, 2, 1 << 20, "CKPT FILE [PATTERN...] [--format F]",
     "to safetensors or llmc (llm.c's model file)"},
    {"import", ckpt_import, 2, 2, "FILE DIR [--step N] [--format F]", "from safetensors or llmc"},
    {"prune", ckpt_prune, 1, 1 << 20, "DIR [STEP...] --keep-last K [--keep-every M] [--dry-run]",
     "removes old checkpoints; STEP: those of which all parts are there (one node's part)"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_usage(FILE *out)
{
    fputs("usage: tutti ckpt COMMAND ... [--json] [--step N]\n\n", out);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-7s %s\n          %s\n", commands[i].name, commands[i].usage,
                commands[i].help);
    fputs(
        "\nCKPT is a run's folder (its newest whole checkpoint, or --step N) or a step's folder.\n"
        "PATTERN selects tensors by name, as in a shell; --all: also values of bytes and what was\n"
        "kept per rank. Exit status: 0, 1 it could not be done, 2 a wrong call, 3 damaged or\n"
        "different, 4 there is no such checkpoint.\n",
        out);
}

int ckpt_complain(const ckpt_args *a, const char *fmt, ...)
{
    va_list args;
    fprintf(stderr, "tutti ckpt %s: ", a->name);
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    return EXIT_USAGE;
}

int ckpt_fail(const ckpt_args *a, tutti_status status)
{
    ckpt_complain(a, "%s", tutti_last_error());
    return status == TUTTI_ERR_CORRUPT     ? EXIT_DAMAGED
           : status == TUTTI_ERR_NOT_FOUND ? EXIT_NOTHING
                                           : EXIT_FAILED;
}

static bool take_flag(ckpt_args *a, const char *word)
{
    const struct {
        const char *name;
        bool *at;
    } flags[] = {{"--json", &a->json},
                 {"--brief", &a->brief},
                 {"--dry-run", &a->dry_run},
                 {"--all", &a->all}};
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (strcmp(word, flags[i].name) == 0)
            return *flags[i].at = true;
    return false;
}

/* 1 taken, 0 no such option, -1 a value that is none. */
static int take_value(ckpt_args *a, const char *word, const char *value)
{
    const struct {
        const char *name;
        int64_t *at;
    } numbers[] = {
        {"--step", &a->step}, {"--keep-last", &a->keep_last}, {"--keep-every", &a->keep_every}};
    long long number;
    if (strcmp(word, "--format") == 0) {
        a->format = value;
        return value == NULL ? -1 : 1;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (strcmp(word, numbers[i].name) != 0)
            continue;
        if (value == NULL || tt_parse_int(value, &number) != TUTTI_OK || number < 0)
            return -1;
        *numbers[i].at = number;
        return 1;
    }
    return 0;
}

static int parse(ckpt_args *a, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0) {
            a->word[a->words++] = argv[i];
            continue;
        }
        if (take_flag(a, argv[i]))
            continue;
        int taken = take_value(a, argv[i], i + 1 < argc ? argv[i + 1] : NULL);
        if (taken < 0)
            return ckpt_complain(a, "%s needs a value: a number of 0 or more, or a format",
                                 argv[i]);
        if (taken == 0)
            return ckpt_complain(a, "there is no option '%s'; tutti ckpt help lists them", argv[i]);
        i++;
    }
    return 0;
}

static int run(const command *c, int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        printf("usage: tutti ckpt %s %s\n\n%s\n", c->name, c->usage, c->help);
        return 0;
    }
    ckpt_args a = {.name = c->name, .step = -1, .keep_last = -1, .keep_every = -1};
    a.word = calloc((size_t)argc, sizeof *a.word);
    if (a.word == NULL)
        return ckpt_complain(&a, "no memory") != 0 ? EXIT_FAILED : 0;
    int status = parse(&a, argc, argv);
    if (status == 0 && (a.words < c->min_words || a.words > c->max_words))
        status = ckpt_complain(&a, "usage: tutti ckpt %s %s", c->name, c->usage);
    if (status == 0)
        status = c->run(&a);
    free(a.word);
    return status;
}

int command_ckpt(int argc, char **argv)
{
    tt_log_reload();
    signal(SIGXFSZ, SIG_IGN); /* a limit on the size of files is an error of a write, not the end */
    if (argc >= 2 && (strcmp(argv[1], "help") == 0 || strcmp(argv[1], "--help") == 0)) {
        print_usage(stdout);
        return 0;
    }
    for (int i = 0; argc >= 2 && i < COMMANDS; i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return run(&commands[i], argc - 1, argv + 1);
    if (argc >= 2)
        fprintf(stderr, "tutti ckpt: there is no command '%s'\n", argv[1]);
    print_usage(stderr);
    return EXIT_USAGE;
}
