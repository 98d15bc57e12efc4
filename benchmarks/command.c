/* SPDX-License-Identifier: Apache-2.0 */
/* `tutti bench WHAT`: a collective, or one of the benchmarks with a name of their own. */
#include <string.h>

#include "ckpt.h"
#include "synthetic.h"

typedef struct part {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help;
} part;

static const part parts[] = {
    {"ckpt", bench_ckpt,
     "checkpoints beside the raw disk: durable saves, loads, what a save stops"},
    {"overlap", bench_overlap,
     "how much of an all-reduce a computation beside it hides; MPI's too"},
    {"scaling", bench_scaling, "a made-up step, or a program, on 1, 2, 4 ... ranks"},
    {"step", bench_step, "a made-up training step: compute, communication, both, and the floor"},
    {NULL, NULL, NULL},
};

static void print_help(FILE *out)
{
    size_t i;

    fputs("usage: tutti bench OP [options]    (tutti bench all_reduce --help)\n\nOP:", out);
    for (i = 0; bench_op_at(i) != NULL; i++)
        fprintf(out, " %s", bench_op_at(i)->name);
    fputs("\n", out);
    for (i = 0; parts[i].name != NULL; i++)
        fprintf(out, "  %-12s %s\n", parts[i].name, parts[i].help);
}

int command_bench(int argc, char **argv)
{
    size_t i;

    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        if (bench_speaks())
            print_help(argc < 2 ? stderr : stdout);
        return argc < 2 ? BENCH_EXIT_USAGE : 0;
    }
    for (i = 0; parts[i].name != NULL; i++)
        if (strcmp(parts[i].name, argv[1]) == 0)
            return parts[i].run(argc - 1, argv + 1);
    return bench_collective(argc - 1, argv + 1);
}
