/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/mem.h"
#include "../commands.h"
#include "here.h"
#include "topo/read.h"
#include "view.h"

typedef struct options {
    const char *file, *machine, *plan, *svg, *nccl, *explain, *p2p;
    int hosts;
    bool json, help;
} options;

static void usage(FILE *out)
{
    fputs(
        "usage: tutti topo [options]\n\n"
        "Shows this machine, or one that is described, as NCCL sees it, what is wrong with it, "
        "and\n"
        "how tutti would place ranks on it.\n\n"
        "  --file F          a description: NCCL topology XML, hwloc XML, `nvidia-smi topo -m`\n"
        "  --p2p F           with --file of a matrix: `nvidia-smi topo -p2p r` of the same "
        "machine\n"
        "  --machine NAME    a machine of the catalogue (--machine list), or a line of the "
        "grammar\n"
        "  --hosts N         N of it\n"
        "  --plan MESH       the plan for a mesh such as dp=8,tp=4; the last axis lies innermost\n"
        "  --json            for programs (docs/topology.md)\n"
        "  --svg F           draws the machine into F\n"
        "  --export-nccl F   writes NCCL topology XML for NCCL_TOPO_FILE\n"
        "  --explain ID      what a finding means (--explain list)\n",
        out);
}

static int wrong(const char *text, const char *what)
{
    fprintf(stderr, "tutti topo: %s%s%s; see tutti topo --help\n", text, what[0] != '\0' ? " " : "",
            what);
    return EXIT_USAGE;
}

static int parse_hosts(const char *text, int *hosts)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno != 0 || end == text || *end != '\0' || value < 1 || value > TT_TOPO_MAX_HOSTS)
        return wrong("--hosts takes a number of hosts, not", text);
    *hosts = (int)value;
    return 0;
}

static bool same_file(const char *a, const char *b)
{
    struct stat one, other;
    if (a == NULL || b == NULL)
        return false;
    if (stat(a, &one) != 0 || stat(b, &other) != 0)
        return strcmp(a, b) == 0;
    return S_ISREG(one.st_mode) && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

static int parse(int argc, char **argv, options *opts)
{
    enum { FILE_, MACHINE, HOSTS, PLAN, JSON, SVG, NCCL, EXPLAIN, P2P, HELP };
    static const struct option long_options[] = {{"file", required_argument, NULL, FILE_},
                                                 {"machine", required_argument, NULL, MACHINE},
                                                 {"hosts", required_argument, NULL, HOSTS},
                                                 {"plan", required_argument, NULL, PLAN},
                                                 {"json", no_argument, NULL, JSON},
                                                 {"svg", required_argument, NULL, SVG},
                                                 {"export-nccl", required_argument, NULL, NCCL},
                                                 {"explain", required_argument, NULL, EXPLAIN},
                                                 {"p2p", required_argument, NULL, P2P},
                                                 {"help", no_argument, NULL, HELP},
                                                 {NULL, 0, NULL, 0}};
    const char **text[] = {
        [FILE_] = &opts->file, [MACHINE] = &opts->machine, [PLAN] = &opts->plan, [SVG] = &opts->svg,
        [NCCL] = &opts->nccl,  [EXPLAIN] = &opts->explain, [P2P] = &opts->p2p};
    opterr = 0;
    optind = 0;
    for (int at; (at = getopt_long(argc, argv, ":", long_options, NULL)) != -1;) {
        if (at == ':')
            return wrong("a value is missing after", argv[optind - 1]);
        if (at == '?')
            return wrong("there is no option", argv[optind - 1]);
        if (at == JSON)
            opts->json = true;
        else if (at == HELP)
            opts->help = true;
        else if (at == HOSTS && parse_hosts(optarg, &opts->hosts) != 0)
            return EXIT_USAGE;
        else if (at != HOSTS)
            *text[at] = optarg;
    }
    if (optind < argc)
        return wrong("there is no argument", argv[optind]);
    if (opts->file != NULL && opts->machine != NULL)
        return wrong("--file and --machine exclude each other", "");
    if (opts->machine != NULL && *opts->machine == '\0')
        return wrong("--machine needs a name (--machine list has them)", "");
    if (opts->p2p != NULL && opts->file == NULL)
        return wrong("--p2p goes with --file", "");
    const char *read_or_written[] = {opts->file, opts->p2p, opts->svg, opts->nccl};
    for (int i = 0; i < 4; i++)
        for (int j = i + 1 > 2 ? i + 1 : 2; j < 4; j++)
            if (same_file(read_or_written[i], read_or_written[j]))
                return wrong("the same file twice, one of them written:", read_or_written[j]);
    return 0;
}

static int list_machines(void)
{
    const tt_topo_catalogue *entry;
    for (int i = 0; (entry = tt_topo_catalogue_at(i)) != NULL; i++)
        printf("%-16s %s\n", entry->name, entry->about);
    return 0;
}

static int explain(const char *id)
{
    const tt_finding_kind *kind;
    if (strcmp(id, "list") == 0) {
        for (int i = 0; (kind = tt_finding_kind_at(i)) != NULL; i++)
            printf("%-8s %-20s %s\n", tt_severity_name(kind->severity), kind->id, kind->what);
        return 0;
    }
    kind = tt_finding_kind_of(id);
    if (kind == NULL) {
        fprintf(stderr, "tutti topo: there is no finding '%s'; --explain list names them\n", id);
        return EXIT_USAGE;
    }
    printf("%s (%s): %s\n\n%s\n\nWhat to do: %s\n", kind->id, tt_severity_name(kind->severity),
           kind->what, kind->why, kind->action);
    return 0;
}

static tutti_status read_p2p(tutti_topo *topo, const char *path)
{
    enum { MOST = 1 << 20 };
    char *text;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return tt_fail_errno(TUTTI_ERR_IO, errno, "%s", path);
    tutti_status status = tt_calloc(MOST, 1, &text);
    if (status == TUTTI_OK) {
        size_t bytes = fread(text, 1, MOST, file);
        status = tt_topo_add_p2p(topo, path, text, bytes);
        free(text);
    }
    fclose(file);
    return status;
}

static tutti_status read_one(const options *opts, tutti_topo **topo)
{
    if (opts->machine != NULL)
        return tt_topo_read_synthetic(opts->machine, topo);
    if (opts->file == NULL)
        return read_here(topo);
    TT_TRY(tt_topo_read_file(opts->file, topo));
    return opts->p2p != NULL ? read_p2p(*topo, opts->p2p) : TUTTI_OK;
}

/* The host of `one`, n times. */
static tutti_status repeat(tutti_topo **one, int n)
{
    int *part_of;
    tutti_topo *all;
    TT_TRY(tt_calloc((size_t)n, sizeof *part_of, &part_of));
    tutti_status status = tt_topo_join(one, 1, part_of, n, &all);
    free(part_of);
    TT_TRY(status);
    for (int h = 0; h < n; h++)
        snprintf(all->hosts[h].name, sizeof all->hosts[h].name, "host%d", h);
    free(all->origin);
    all->origin = (*one)->origin;
    (*one)->origin = NULL;
    tutti_topo_close(*one);
    *one = all;
    return TUTTI_OK;
}

static tutti_status show(const options *opts, const tutti_topo *topo)
{
    topo_view view;
    TT_TRY(view_make(topo, opts->plan, &view));
    tutti_status status = TUTTI_OK;
    if (opts->nccl != NULL)
        status = tutti_topo_write_nccl(topo, 0, opts->nccl);
    if (status == TUTTI_OK && opts->svg != NULL)
        status = svg_write(&view, opts->svg);
    if (status == TUTTI_OK && opts->json)
        status = json_print(&view, stdout);
    else if (status == TUTTI_OK && opts->nccl == NULL && opts->svg == NULL)
        page_print(&view, stdout);
    view_free(&view);
    return status;
}

int command_topo(int argc, char **argv)
{
    options opts = {.hosts = 0};
    tutti_topo *topo = NULL;
    int rc = parse(argc, argv, &opts);
    if (rc != 0)
        return rc;
    if (opts.help) {
        usage(stdout);
        return 0;
    }
    if (opts.explain != NULL)
        return explain(opts.explain);
    if (opts.machine != NULL && strcmp(opts.machine, "list") == 0)
        return list_machines();
    tutti_status status = read_one(&opts, &topo);
    if (status == TUTTI_OK && opts.hosts > 1)
        status = repeat(&topo, opts.hosts);
    if (status == TUTTI_OK)
        status = show(&opts, topo);
    tutti_topo_close(topo);
    if (status == TUTTI_OK)
        return 0;
    fprintf(stderr, "tutti topo: %s\n", tutti_last_error());
    return 1;
}
