/* SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "tutti/version.h"

#include "commands.h"

typedef struct subcommand {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *arguments;
    const char *help;
} subcommand;

static int command_help(int argc, char **argv);
static int command_version(int argc, char **argv);

static const subcommand subcommands[] = {
    {"bench", command_bench, "OP [options]",
     "what a collective costs here, beside MPI's; on every rank"},
    {"ckpt", command_ckpt, "COMMAND ...",
     "checkpoints: list, show, verify, compare, convert, prune"},
    {"doctor", command_doctor, "[--links]",
     "checks before a job; under mpirun also between the ranks"},
    {"env", command_env, "[--markdown]", "the TUTTI_* variables: value in force, origin, meaning"},
    {"help", command_help, "", "this list"},
    {"topo", command_topo, "[options]",
     "this machine or a described one: paths, findings, plan, drawing"},
    {"version", command_version, "", "version of the program and of the library"},
};

static void print_help(FILE *out)
{
    size_t i;

    fputs("usage: tutti COMMAND [arguments]\n\n", out);
    for (i = 0; i < sizeof(subcommands) / sizeof(subcommands[0]); i++)
        fprintf(out, "  %-8s %-13s %s\n", subcommands[i].name, subcommands[i].arguments,
                subcommands[i].help);
    fputs("\nTraining jobs are started with tuttirun; see tuttirun --help.\n", out);
}

static int no_arguments(int argc, char **argv)
{
    if (argc == 1)
        return 0;
    fprintf(stderr, "tutti %s takes no arguments, such as '%s'\n", argv[0], argv[1]);
    return EXIT_USAGE;
}

static int command_help(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    print_help(stdout);
    return 0;
}

static int command_version(int argc, char **argv)
{
    if (no_arguments(argc, argv) != 0)
        return EXIT_USAGE;
    printf("tutti %s (library %s)\n", TUTTI_VERSION_STRING, tutti_version());
    return 0;
}

static const subcommand *find(const char *name)
{
    size_t i;

    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    else if (strcmp(name, "--version") == 0)
        name = "version";
    for (i = 0; i < sizeof(subcommands) / sizeof(subcommands[0]); i++)
        if (strcmp(name, subcommands[i].name) == 0)
            return &subcommands[i];
    return NULL;
}

/* Commands with a page of their own print it themselves. */
static bool asks_for_line(const subcommand *sub, int argc, char **argv)
{
    return (sub->run == command_env || sub->run == command_version) && argc == 3 &&
           (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0);
}

static int print_line(const subcommand *sub)
{
    printf("usage: tutti %s%s%s\n\n%s\n", sub->name, *sub->arguments == '\0' ? "" : " ",
           sub->arguments, sub->help);
    return 0;
}

int main(int argc, char **argv)
{
    const subcommand *sub;
    int status;

    if (argc < 2) {
        print_help(stderr);
        return EXIT_USAGE;
    }
    sub = find(argv[1]);
    if (sub == NULL) {
        fprintf(stderr, "tutti: there is no command '%s'; tutti help lists them\n", argv[1]);
        return EXIT_USAGE;
    }
    status = asks_for_line(sub, argc, argv) ? print_line(sub) : sub->run(argc - 1, argv + 1);
    /* a full disk or a closed pipe must not look like success */
    if (fflush(stdout) != 0 || ferror(stdout) != 0) {
        perror("tutti: standard output");
        return 1;
    }
    return status;
}
