/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line. Everything that can be wrong with it is found here, before a process is
 * started, and told in one sentence: mpirun's own answer to most of these is a screenful, or a hang
 * on another machine. Options end at the first word that is not one, so that the program's own
 * options need no `--` in front.
 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tutti/version.h"

#include "say.h"

#define RANKS_MAX 65536
#define RESTARTS_MAX 1000000
#define GRACE_MAX_S 86400.0

static const char usage[] =
    "usage: tuttirun -n RANKS [options] [--] PROGRAM [arguments]\n"
    "Starts PROGRAM on RANKS ranks through Open MPI's mpirun.\n"
    "\n"
    "  -n, --ranks N      number of ranks\n"
    "      --hosts LIST   machines and the ranks each takes: a:2,b:2\n"
    "      --hostfile F   the same in a file, in mpirun's format\n"
    "      --restarts N   start again up to N times after a rank died (default 0). The command\n"
    "                     line stays the same: give PROGRAM its own --resume. It finds the number\n"
    "                     of the restart in TUTTIRUN_RESTART.\n"
    "      --grace S      seconds the ranks get to save after SIGTERM or SIGINT (default 110)\n"
    "      --notice-cmd C run C by sh every 5 s; once it ends with 0 the ranks save and stop, as\n"
    "                     after SIGTERM (a cloud's notice that the machine will be taken away)\n"
    "      --wait-lock S  seconds a save waits for a folder that another job saves into (default\n"
    "                     60); the same as TUTTI_CKPT_WAIT_LOCK=S\n"
    "      --no-bind      leave the ranks on all CPUs; otherwise each gets its share of them\n"
    "      --mpirun PATH  the mpirun to use (default: the first in PATH)\n"
    "      --dry-run      print the command that would be run, and do nothing\n"
    "      --help, --version\n"
    "\n"
    "TUTTI_*, NCCL_*, OMP_* and OPENBLAS_* variables reach every rank. SIGTERM, SIGINT, SIGHUP,\n"
    "SIGUSR1 and SIGUSR2 ask the ranks (by SIGUSR1) to save and stop; a second one, or the end of\n"
    "the grace, kills them. A job stopped so, or one that ends with status 143, is not restarted.\n"
    "The exit status is that of the first rank that failed, 128 + signal for one that was "
    "killed.\n";

static int wrong(const char *option, const char *value, const char *expected)
{
    say("%s needs %s, not '%s'", option, expected, value);
    return EXIT_USAGE;
}

static bool parse_long(const char *text, long low, long high, long *value_out)
{
    char *end;
    long value;

    errno = 0;
    value = strtol(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || value < low || value > high)
        return false;
    *value_out = value;
    return true;
}

static bool parse_seconds(const char *text, double *value_out)
{
    char *end;
    double value = strtod(text, &end);

    if (end == text || *end != '\0' || !isfinite(value) || value < 0 || value > GRACE_MAX_S)
        return false;
    *value_out = value;
    return true;
}

/* "a:2,b" is a list of names, each with an optional number of ranks. */
static bool parse_hosts(const char *text, bool *have_slots_out, long *slots_out)
{
    char *copy = strdup(text);
    char *rest = copy;
    bool good = copy != NULL, have_slots = false;
    long slots = 0;

    while (good && rest != NULL) {
        char *host = strsep(&rest, ",");
        char *colon = strchr(host, ':');
        long count = 1;

        if (colon != NULL) {
            have_slots = true;
            good = parse_long(colon + 1, 1, RANKS_MAX, &count);
            *colon = '\0';
        }
        good = good && *host != '\0' && *host != '-' && strpbrk(host, " \t/") == NULL;
        slots += count;
    }
    free(copy);
    if (good) {
        *have_slots_out = have_slots;
        *slots_out = slots;
    }
    return good;
}

static int check_places(options *opts)
{
    long slots = 0;

    if (opts->hosts != NULL && opts->hostfile != NULL) {
        say("--hosts and --hostfile exclude each other");
        return EXIT_USAGE;
    }
    if (opts->hosts != NULL) {
        if (!parse_hosts(opts->hosts, &opts->hosts_have_slots, &slots))
            return wrong("--hosts", opts->hosts, "a list like a:2,b:2");
        if (opts->hosts_have_slots && opts->ranks > slots) {
            say("-n %ld is more than the %ld ranks that --hosts has room for", opts->ranks, slots);
            return EXIT_USAGE;
        }
    }
    if (opts->hostfile != NULL && access(opts->hostfile, R_OK) != 0) {
        say("cannot read the host file '%s': %s", opts->hostfile, strerror(errno));
        return EXIT_USAGE;
    }
    return -1;
}

static int check_whole(options *opts, int argc, char **argv)
{
    if (opts->ranks == 0) {
        say("say how many ranks: tuttirun -n RANKS PROGRAM");
        return EXIT_USAGE;
    }
    if (optind >= argc) {
        say("say which program to run: tuttirun -n %ld PROGRAM", opts->ranks);
        return EXIT_USAGE;
    }
    opts->program = argv + optind;
    return check_places(opts);
}

static int unknown(int code, char **argv)
{
    char letter[3] = {'-', (char)optopt, '\0'};
    /* getopt tells a short option by its letter, a long one only by its place in argv */
    const char *name = optopt != 0 && code == '?' ? letter : argv[optind - 1];

    if (code == ':')
        say("%s needs a value", argv[optind - 1]);
    else
        say("there is no option '%s'; tuttirun --help lists them", name);
    return EXIT_USAGE;
}

enum {
    OPT_HOSTS = 256,
    OPT_HOSTFILE,
    OPT_RESTARTS,
    OPT_GRACE,
    OPT_NOTICE,
    OPT_WAIT_LOCK,
    OPT_MPIRUN,
    OPT_NO_BIND,
    OPT_DRY,
    OPT_HELP,
    OPT_VERSION
};

static const struct option long_options[] = {
    {"ranks", required_argument, NULL, 'n'},
    {"hosts", required_argument, NULL, OPT_HOSTS},
    {"hostfile", required_argument, NULL, OPT_HOSTFILE},
    {"restarts", required_argument, NULL, OPT_RESTARTS},
    {"grace", required_argument, NULL, OPT_GRACE},
    {"notice-cmd", required_argument, NULL, OPT_NOTICE},
    {"wait-lock", required_argument, NULL, OPT_WAIT_LOCK},
    {"mpirun", required_argument, NULL, OPT_MPIRUN},
    {"no-bind", no_argument, NULL, OPT_NO_BIND},
    {"dry-run", no_argument, NULL, OPT_DRY},
    {"help", no_argument, NULL, OPT_HELP},
    {"version", no_argument, NULL, OPT_VERSION},
    {NULL, 0, NULL, 0},
};

static int set_wait_lock(const char *text)
{
    double seconds;

    if (!parse_seconds(text, &seconds))
        return wrong("--wait-lock", text, "seconds from 0 to 86400");
    if (setenv("TUTTI_CKPT_WAIT_LOCK", text, 1) != 0)
        return wrong("--wait-lock", text, "memory");
    return -1;
}

/* The status of a text that was asked for: a full disk or a closed pipe is no success. */
static int told(int written)
{
    if (written >= 0 && fflush(stdout) == 0)
        return 0;
    perror("tuttirun: standard output");
    return 1;
}

static int set_number(int code, options *opts)
{
    switch (code) {
    case 'n':
        if (!parse_long(optarg, 1, RANKS_MAX, &opts->ranks))
            return wrong("-n", optarg, "a number of ranks from 1 to 65536");
        return -1;
    case OPT_RESTARTS:
        if (!parse_long(optarg, 0, RESTARTS_MAX, &opts->restarts))
            return wrong("--restarts", optarg, "a number from 0 to 1000000");
        return -1;
    default:
        if (!parse_seconds(optarg, &opts->grace_s))
            return wrong("--grace", optarg, "seconds from 0 to 86400");
        return -1;
    }
}

static int set_option(int code, char **argv, options *opts)
{
    switch (code) {
    case 'n':
    case OPT_RESTARTS:
    case OPT_GRACE:
        return set_number(code, opts);
    case OPT_NOTICE:
        if (optarg[strspn(optarg, " \t\n")] == '\0') /* sh takes it for success: a notice at once */
            return wrong("--notice-cmd", optarg, "a command");
        opts->notice = optarg;
        return -1;
    case OPT_WAIT_LOCK:
        return set_wait_lock(optarg);
    case OPT_HOSTS:
        opts->hosts = optarg;
        return -1;
    case OPT_HOSTFILE:
        opts->hostfile = optarg;
        return -1;
    case OPT_MPIRUN:
        opts->mpirun = optarg;
        return -1;
    case OPT_NO_BIND:
        opts->bind = false;
        return -1;
    case OPT_DRY:
        opts->dry_run = true;
        return -1;
    case OPT_HELP:
        return told(fputs(usage, stdout));
    case OPT_VERSION:
        return told(puts("tuttirun " TUTTI_VERSION_STRING));
    default:
        return unknown(code, argv);
    }
}

int options_parse(int argc, char **argv, options *opts)
{
    int code;

    *opts = (options){.grace_s = 110, .bind = true};
    opterr = 0;
    while ((code = getopt_long(argc, argv, "+:n:", long_options, NULL)) != -1) {
        int status = set_option(code, argv, opts);

        if (status >= 0)
            return status;
    }
    return check_whole(opts, argc, argv);
}

bool options_other_hosts(const options *opts)
{
    static const char *const allocations[] = {"PBS_NODEFILE", "LSB_DJOB_HOSTFILE", "PE_HOSTFILE"};
    const char *slurm_nodes = getenv("SLURM_JOB_NUM_NODES");
    size_t i;

    if (opts->hosts != NULL || opts->hostfile != NULL)
        return true;
    for (i = 0; i < sizeof(allocations) / sizeof(allocations[0]); i++)
        if (getenv(allocations[i]) != NULL)
            return true;
    return slurm_nodes != NULL && strcmp(slurm_nodes, "1") != 0;
}
