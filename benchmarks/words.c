/* SPDX-License-Identifier: Apache-2.0 */
/* What the command lines of `tutti bench` share. */
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

bool bench_speaks(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                        "SLURM_PROCID"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *value = getenv(names[i]);

        if (value != NULL)
            return strcmp(value, "0") == 0;
    }
    return true;
}

int bench_wrong(const char *format, ...)
{
    va_list args;

    if (bench_speaks()) {
        fprintf(stderr, "tutti bench: ");
        va_start(args, format);
        vfprintf(stderr, format, args);
        va_end(args);
        fprintf(stderr, "\n(--help lists the options)\n");
    }
    return BENCH_EXIT_USAGE;
}

bool bench_number(const char *text, double min, double max, double *out)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !(value >= min && value <= max))
        return false;
    *out = value;
    return true;
}

bool bench_count(const char *text, int min, int max, int *out)
{
    double value;

    if (!bench_number(text, min, max, &value) || value != (int)value)
        return false;
    *out = (int)value;
    return true;
}

static const char *long_name(const struct option *longs, int opt)
{
    while (longs->name != NULL && longs->val != opt)
        longs++;
    return longs->name != NULL ? longs->name : "?";
}

int bench_take_options(int argc, char **argv, const bench_syntax *syntax, void *into)
{
    int opt;

    opterr = 0;
    optind = 1;
    while ((opt = getopt_long(argc, argv, syntax->shorts, syntax->longs, NULL)) != -1) {
        if (opt == syntax->help) {
            if (bench_speaks())
                fputs(syntax->usage, stdout);
            return -1;
        }
        if (opt == ':')
            return bench_wrong("%s needs a value", argv[optind - 1]);
        if (opt == '?')
            return bench_wrong("there is no option '%s'", argv[optind - 1]);
        if (!syntax->take(opt, optarg, into))
            return bench_wrong("no such value for --%s: '%s'", long_name(syntax->longs, opt),
                               optarg);
    }
    return 0;
}
