/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line: one table gives each option's name, type, range, default and help, so that
 * parsing, range checks and --help cannot disagree. Every rank parses the same argv and comes to
 * the same result; the caller lets rank 0 print it. Rejected: getopt_long, which prints by itself,
 * on every rank, and knows no ranges.
 */
#include "args.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef enum option_kind { OPTION_INT, OPTION_REAL, OPTION_STRING, OPTION_FLAG } option_kind;

typedef struct option {
    const char *name;
    option_kind kind;
    size_t offset; /* in args */
    double least, most, standard;
    const char *help;
} option;

static const char *const default_text = "/usr/share/common-licenses";

static const option options[] = {
    {"--steps", OPTION_INT, offsetof(args, steps), 0, 1e9, 1000, "optimizer steps"},
    {"--batch", OPTION_INT, offsetof(args, batch), 1, 1e6, 32,
     "sequences per step, over all ranks and micro-steps"},
    {"--accum", OPTION_INT, offsetof(args, accum), 1, 1e6, 1,
     "micro-steps per step: their gradients are added up"},
    {"--layers", OPTION_INT, offsetof(args, layers), 1, 256, 4, "transformer blocks"},
    {"--width", OPTION_INT, offsetof(args, width), 4, 16384, 128, "numbers per token"},
    {"--heads", OPTION_INT, offsetof(args, heads), 1, 1024, 4, "attention heads; divides width"},
    {"--context", OPTION_INT, offsetof(args, context), 4, 8192, 64, "bytes per sequence"},
    {"--lr", OPTION_REAL, offsetof(args, lr), 0, 10, 2e-3,
     "peak learning rate (warm-up, then cosine to a tenth)"},
    {"--mesh", OPTION_STRING, offsetof(args, mesh), 0, 0, 0,
     "how ranks share the work, such as pp=2,dp=2,tp=2: pipeline stages, copies, shares of "
     "matrices"},
    {"--seed", OPTION_INT, offsetof(args, seed), 0, 9e15, 1, "of weights, batches and sample"},
    {"--eval-every", OPTION_INT, offsetof(args, eval_every), 0, 1e9, 0,
     "steps between held-out losses; 0: only before and after"},
    {"--sample", OPTION_INT, offsetof(args, sample), 0, 1e6, 300, "bytes of text at the end"},
    {"--ckpt", OPTION_STRING, offsetof(args, ckpt), 0, 0, 0, "folder of checkpoints"},
    {"--every", OPTION_INT, offsetof(args, every), 1, 1e9, 100, "steps between checkpoints"},
    {"--keep", OPTION_INT, offsetof(args, keep), 0, 1e6, 3, "newest checkpoints kept; 0: all"},
    {"--ckpt-node-local", OPTION_FLAG, offsetof(args, node_local), 0, 0, 0,
     "--ckpt is a folder of each node's own, which gets its part"},
    {"--ckpt-copy", OPTION_STRING, offsetof(args, copy), 0, 0, 0,
     "folder that all nodes see, into which finished checkpoints are copied"},
    {"--resume", OPTION_FLAG, offsetof(args, resume), 0, 0, 0,
     "go on from the newest checkpoint in --ckpt or --ckpt-copy, afresh if there is none"},
    {"--zero", OPTION_INT, offsetof(args, zero), 0, 1, 0,
     "1: each rank keeps and updates its part of AdamW's state (ZeRO-1)"},
    {"--device", OPTION_STRING, offsetof(args, device), 0, 0, 0,
     "auto, host or cuda: where the model computes (auto)"},
    {"--precision", OPTION_STRING, offsetof(args, precision), 0, 0, 0,
     "f32, bf16 or f16: factors of matrix products, on a GPU; weights stay fp32 (f32)"},
    {"--wire", OPTION_STRING, offsetof(args, wire), 0, 0, 0,
     "f32, bf16 or f16: how gradients travel (as --precision)"},
    {"--reproducible", OPTION_FLAG, offsetof(args, reproducible), 0, 0, 0,
     "equal bits on 1, 2, 4 ... ranks with equally many sequences in a micro-step"},
    {"--help", OPTION_FLAG, offsetof(args, help), 0, 0, 0, "this text"},
};
enum { OPTION_COUNT = sizeof options / sizeof options[0] };

static char problem[512];

static void *field(args *a, const option *o)
{
    return (char *)a + o->offset;
}

static const char *parse_int(args *a, const option *o, const char *text)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end != '\0') {
        snprintf(problem, sizeof problem, "%s: '%s' is not a whole number", o->name, text);
        return problem;
    }
    if (errno == ERANGE || (double)value < o->least || (double)value > o->most) {
        snprintf(problem, sizeof problem, "%s: %s is out of range (%.0f to %.0f)", o->name, text,
                 o->least, o->most);
        return problem;
    }
    *(int64_t *)field(a, o) = value;
    return NULL;
}

static const char *parse_real(args *a, const option *o, const char *text)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(value)) {
        snprintf(problem, sizeof problem, "%s: '%s' is not a number", o->name, text);
        return problem;
    }
    if (value < o->least || value > o->most) {
        snprintf(problem, sizeof problem, "%s: %s is out of range (%g to %g)", o->name, text,
                 o->least, o->most);
        return problem;
    }
    *(double *)field(a, o) = value;
    return NULL;
}

static const char *parse_value(args *a, const option *o, const char *text)
{
    if (o->kind == OPTION_INT)
        return parse_int(a, o, text);
    if (o->kind == OPTION_REAL)
        return parse_real(a, o, text);
    if (*text == '\0') {
        snprintf(problem, sizeof problem, "%s: needs a value", o->name);
        return problem;
    }
    *(const char **)field(a, o) = text;
    return NULL;
}

/* The option that `word` names, alone or before a '='. */
static const option *find_option(const char *word)
{
    size_t length = strcspn(word, "=");

    for (int i = 0; i < OPTION_COUNT; i++)
        if (strlen(options[i].name) == length && strncmp(options[i].name, word, length) == 0)
            return &options[i];
    return NULL;
}

/* --text takes all words up to the next option. Returns how many; 0 is an error. */
static int parse_text(args *a, int left, char **words)
{
    int n = 0;

    while (n < left && strncmp(words[n], "--", 2) != 0)
        a->text[a->text_count++] = words[n++];
    return n;
}

/* One option at words[0]; *used_out words belong to it. */
static const char *parse_option(args *a, int left, char **words, int *used_out)
{
    const option *o = find_option(words[0]);
    const char *equals = strchr(words[0], '=');

    *used_out = 1;
    if (o == NULL) {
        snprintf(problem, sizeof problem, "unknown option '%s'; --help lists them", words[0]);
        return problem;
    }
    if (o->kind == OPTION_FLAG) {
        if (equals != NULL) {
            snprintf(problem, sizeof problem, "%s takes no value", o->name);
            return problem;
        }
        *(bool *)field(a, o) = true;
        return NULL;
    }
    if (equals != NULL)
        return parse_value(a, o, equals + 1);
    if (left < 2) {
        snprintf(problem, sizeof problem, "%s: needs a value", o->name);
        return problem;
    }
    *used_out = 2;
    return parse_value(a, o, words[1]);
}

static void set_defaults(args *a)
{
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (options[i].kind == OPTION_INT)
            *(int64_t *)field(a, &options[i]) = (int64_t)options[i].standard;
        else if (options[i].kind == OPTION_REAL)
            *(double *)field(a, &options[i]) = options[i].standard;
    }
}

static bool is_type(const char *text)
{
    return strcmp(text, "f32") == 0 || strcmp(text, "bf16") == 0 || strcmp(text, "f16") == 0;
}

static const char *check(const args *a)
{
    if (a->width % a->heads != 0) {
        snprintf(problem, sizeof problem, "--width %d is not a multiple of --heads %d",
                 (int)a->width, (int)a->heads);
        return problem;
    }
    if (a->resume && a->ckpt == NULL)
        return "--resume needs --ckpt DIR";
    if (a->node_local && a->ckpt == NULL)
        return "--ckpt-node-local needs --ckpt DIR";
    if (a->copy != NULL && a->ckpt == NULL)
        return "--ckpt-copy needs --ckpt DIR";
    if (!is_type(a->precision) || !is_type(a->wire)) {
        const bool wire = is_type(a->precision);

        snprintf(problem, sizeof problem, "%s: '%s' is not f32, bf16 or f16",
                 wire ? "--wire" : "--precision", wire ? a->wire : a->precision);
        return problem;
    }
    if (strcmp(a->device, "auto") != 0 && strcmp(a->device, "host") != 0 &&
        strcmp(a->device, "cuda") != 0) {
        snprintf(problem, sizeof problem, "--device: '%s' is not auto, host or cuda", a->device);
        return problem;
    }
    if (a->reproducible && strcmp(a->wire, "f32") != 0)
        return "--reproducible needs --wire f32";
    if (a->reproducible && (a->accum & (a->accum - 1)) != 0)
        return "--reproducible needs a power of two for --accum";
    return NULL;
}

const char *args_parse(args *a, int argc, char **argv)
{
    const char *wrong = NULL;
    int used;

    memset(a, 0, sizeof *a);
    set_defaults(a);
    a->device = "auto";
    a->precision = "f32";
    a->text = calloc((size_t)argc + 1, sizeof *a->text);
    if (a->text == NULL)
        return "out of memory";
    for (int i = 1; i < argc && wrong == NULL; i += used) {
        if (strcmp(argv[i], "--text") == 0) {
            used = 1 + parse_text(a, argc - i - 1, argv + i + 1);
            if (used == 1)
                wrong = "--text: needs at least one file or folder";
        } else {
            wrong = parse_option(a, argc - i, argv + i, &used);
        }
    }
    if (a->text_count == 0)
        a->text[a->text_count++] = default_text;
    if (a->wire == NULL)
        a->wire = a->precision;
    if (a->help)
        return NULL;
    return wrong != NULL ? wrong : check(a);
}

void args_free(args *a)
{
    free(a->text);
    a->text = NULL;
}

void args_help(const char *program)
{
    printf("usage: %s [options]        or: mpirun -np 2 %s [options]\n\n"
           "Trains a byte-level GPT on text with data parallelism: each rank works on its part of\n"
           "every batch, gradients are averaged while the backward pass runs.\n\n"
           "  --text FILE...     text to learn; folders stand for the files in them\n"
           "                     (%s)\n",
           program, program, default_text);
    for (int i = 0; i < OPTION_COUNT; i++) {
        const option *o = &options[i];
        static const char *const value[] = {"N", "X", "", ""};
        char name[32];

        snprintf(name, sizeof name, "%s %s", o->name,
                 o->kind != OPTION_STRING                 ? value[o->kind]
                 : o->offset == offsetof(args, wire)      ? "TYPE"
                 : o->offset == offsetof(args, mesh)      ? "AXES"
                 : o->offset == offsetof(args, device)    ? "NAME"
                 : o->offset == offsetof(args, precision) ? "TYPE"
                                                          : "DIR");
        printf("  %-18s %s", name, o->help);
        if (o->kind == OPTION_INT || o->kind == OPTION_REAL)
            printf(" (%g)", o->standard);
        printf("\n");
    }
    printf("\nStatus: 0 trained; 1 failed; 2 wrong option; 143 stopped by SIGTERM, SIGUSR1 or\n"
           "SIGUSR2 after all ranks saved at one step (with --ckpt).\n");
}

model_shape args_shape(const args *a)
{
    return (model_shape){(int)a->layers, (int)a->width, (int)a->heads, (int)a->context};
}
