/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tutti doctor`: what to know before a job. Alone it looks at this process and host; under mpirun
 * every rank looks at its own, they look at each other, and rank 0 tells.
 *
 * What needs no other rank comes first, so that it is told even where the ranks cannot meet; then
 * that is the last line.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../commands.h"
#include "doctor.h"
#include "tutti/tutti.h"

typedef struct options {
    bool links, help;
    double seconds;
} options;

static void usage(FILE *out)
{
    fputs(
        "usage: tutti doctor [--links [--seconds S]]\n"
        "       mpirun -np N tutti doctor ...\n\n"
        "Checks what a job needs: shared memory, limits, processors, interfaces, MPI, driver and\n"
        "NCCL, topology; between ranks also environments, reachability and clocks.\n\n"
        "  --links       measures every pair of ranks\n"
        "  --seconds S   for about S seconds in all (5)\n\n"
        "Exit status: 0 nothing failed, 1 something did, 2 wrong usage.\n",
        out);
}

static int parse(int argc, char **argv, options *opts)
{
    for (int i = 1; i < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--links") == 0) {
            opts->links = true;
        } else if (strcmp(argv[i], "--help") == 0) {
            opts->help = true;
        } else if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            opts->seconds = strtod(argv[++i], &end);
            if (end == argv[i] || *end != '\0' || !(opts->seconds > 0 && opts->seconds <= 600)) {
                fprintf(stderr, "tutti doctor: --seconds takes 0 to 600, not '%s'\n", argv[i]);
                return EXIT_USAGE;
            }
        } else {
            fprintf(stderr, "tutti doctor: there is no option '%s'; see tutti doctor --help\n",
                    argv[i]);
            return EXIT_USAGE;
        }
    }
    return 0;
}

static tutti_status between(report *r, tutti_ctx *ctx, const char *environment, const options *opts)
{
    TT_TRY(check_environment(r, ctx, environment));
    TT_TRY(check_split(r, ctx));
    TT_TRY(check_reach(r, ctx));
    TT_TRY(check_clocks(r, ctx));
    return opts->links ? check_links(r, ctx, opts->seconds) : TUTTI_OK;
}

static bool first_of_job(void)
{
    static const char *const variable[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                           "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof variable / sizeof variable[0]; i++) {
        const char *rank = getenv(variable[i]);
        if (rank != NULL)
            return strcmp(rank, "0") == 0;
    }
    return true;
}

/* The ranks did not meet: this one tells what it knows. */
static int alone(report *r)
{
    said_level worst;
    char why[TT_ERROR_TEXT_MAX];
    snprintf(why, sizeof why, "%s", tutti_last_error());
    check_limits(r, 1);
    check_cpus(r, 1);
    check_interfaces(r, true);
    check_software(r, NULL);
    check_topology(r);
    say(r, SAID_FAILED, "start", "", "%.900s", why);
    if (first_of_job() && report_print(NULL, r, &worst) != TUTTI_OK)
        fprintf(stderr, "tutti doctor: %s\n", tutti_last_error());
    return 1;
}

static int together(report *r, tutti_ctx *ctx, const char *environment, const options *opts)
{
    said_level worst = SAID_FAILED;
    int local = tutti_local_rank(ctx), locals = tutti_local_size(ctx);
    check_limits(r, locals);
    check_cpus(r, locals);
    check_interfaces(r, tutti_node_count(ctx) > 1);
    check_software(r, ctx);
    if (local == 0)
        check_topology(r);
    tutti_status status = between(r, ctx, environment, opts);
    if (status == TUTTI_OK)
        status = report_print(ctx, r, &worst);
    if (status != TUTTI_OK)
        fprintf(stderr, "tutti doctor: %s\n", tutti_last_error());
    return status == TUTTI_OK && worst < SAID_FAILED ? 0 : 1;
}

int command_doctor(int argc, char **argv)
{
    options opts = {.seconds = 5};
    report r = {0};
    tutti_ctx *ctx = NULL;
    int rc = parse(argc, argv, &opts);
    if (rc != 0)
        return rc;
    if (opts.help) {
        usage(stdout);
        return 0;
    }
    char *environment = environment_text();
    if (environment == NULL) {
        fprintf(stderr, "tutti doctor: %s\n", tutti_last_error());
        return 1;
    }
    if (tutti_init(NULL, &ctx) != TUTTI_OK) {
        rc = alone(&r);
    } else {
        rc = together(&r, ctx, environment, &opts);
        if (tutti_finalize(ctx) != TUTTI_OK) {
            fprintf(stderr, "tutti doctor: %s\n", tutti_last_error());
            rc = 1;
        }
    }
    report_free(&r);
    free(environment);
    return rc;
}
