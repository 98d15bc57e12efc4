/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `tutti bench scaling`: the made-up step on 1, 2, 4 ... ranks of the job, weak (each rank has the
 * whole work) or strong (the work is shared out); or, after "--", a program that is started with
 * mpirun on 1, 2, 4 ... ranks and prints its throughput.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "synthetic.h"

static const char usage[] =
    "usage: mpirun -np N tutti bench scaling [options]\n"
    "       tutti bench scaling --ranks N [options] -- PROGRAM [ARGUMENT...]\n"
    "\n"
    "A made-up training step, or PROGRAM started with mpirun, on 1, 2, 4 ... N ranks. In "
    "PROGRAM's\n"
    "arguments {n} stands for the number of ranks and {8n} for 8 times it, so that it scales "
    "weakly\n"
    "(a global batch of {8n}) or strongly (the same for all).\n"
    "\n"
    "  --strong        the work of a step is shared out to the ranks (the made-up step)\n"
    "  --match WORD    PROGRAM's throughput is the last number before this word, tokens/s\n"
    "  --model, --layers, --bytes, --ms, --forward, --scale, --bucket, --wire, --zero, --steps,\n"
    "  --compute       as for tutti bench step\n"
    "  --svg FILE      draw speed-up by ranks     --json       a line a row\n"
    "\n"
    "throughput: samples a second, one sample being one rank's work (strong: a step's); of "
    "PROGRAM\n"
    "what it prints. speed-up: throughput / throughput on 1 rank. efficiency: speed-up / ranks.\n"
    "exposed: what the end of a step waited for gradients. overlap: 1 - exposed / communication.\n";

enum { ROWS_MAX = 24, WORDS_MAX = 256 };

typedef struct scale_row {
    int ranks;
    double throughput, exposed, overlap; /* exposed and overlap: below 0 where unknown */
} scale_row;

typedef struct table {
    scale_row row[ROWS_MAX];
    size_t n;
    bool weak;
    char what[128];
} table;

static double speed_up(const table *t, size_t i)
{
    return t->row[i].throughput / t->row[0].throughput;
}

static void print_row(const table *t, size_t i, const synth_options *o)
{
    const scale_row *r = &t->row[i];
    double efficiency = speed_up(t, i) * t->row[0].ranks / r->ranks;

    if (o->json) {
        printf("{\"bench\":\"scaling\",\"what\":\"%s\",\"scaling\":\"%s\",\"ranks\":%d,"
               "\"throughput\":%.6g,"
               "\"speedup\":%.4f,\"efficiency\":%.4f",
               t->what, t->weak ? "weak" : "strong", r->ranks, r->throughput, speed_up(t, i),
               efficiency);
        if (r->exposed >= 0)
            printf(",\"exposed_ms\":%.4f,\"overlap\":%.4f", r->exposed * 1e3, r->overlap);
        printf("}\n");
        return;
    }
    if (i == 0)
        printf("# %s\n%6s %14s %9s %10s %11s %8s\n", t->what, "ranks", "throughput", "speed-up",
               "efficiency", "exposed ms", "overlap");
    printf("%6d %14.6g %9.2f %9.0f%%", r->ranks, r->throughput, speed_up(t, i), 100 * efficiency);
    if (r->exposed >= 0)
        printf(" %11.2f %7.0f%%\n", r->exposed * 1e3, 100 * r->overlap);
    else
        printf(" %11s %8s\n", "-", "-");
    fflush(stdout);
}

static tutti_status draw(const table *t, const synth_options *o)
{
    double x[ROWS_MAX], got[ROWS_MAX], ideal[ROWS_MAX];
    bench_series series[2] = {{"measured", x, got, t->n}, {"ideal", x, ideal, t->n}};
    bench_chart chart = {t->what, "ranks", "speed-up", false, false, series, 2};

    if (o->svg == NULL)
        return TUTTI_OK;
    for (size_t i = 0; i < t->n; i++) {
        x[i] = t->row[i].ranks;
        got[i] = speed_up(t, i);
        ideal[i] = x[i] / t->row[0].ranks;
    }
    return bench_chart_write(o->svg, &chart);
}

/* 1, 2, 4 ... and the number itself; 0 after the last. */
static int next_ranks(int n, int most)
{
    if (n == most)
        return 0;
    return n == 0 ? 1 : 2 * n < most ? 2 * n : most;
}

static tutti_status step_row(bench_job *job, const synth_options *o, const synth_engine *engine,
                             int n, scale_row *row)
{
    double share = o->strong ? 1.0 / n : 1, values[3] = {0};
    tutti_comm *comm = NULL;
    synth_times t;

    TT_TRY(
        tutti_comm_split(job->world, job->rank < n ? 0 : TUTTI_COLOR_NONE, job->rank, NULL, &comm));
    if (comm != NULL) {
        unsigned kinds = 1u << SYNTH_COMM | 1u << SYNTH_OVERLAP;
        tutti_status status = synth_run(job->ctx, comm, o, engine, kinds, share, &t);

        tutti_comm_destroy(comm);
        TT_TRY(status);
        values[0] = t.step[SYNTH_OVERLAP];
        values[1] = t.exposed;
        values[2] = t.comm;
    }
    /* The others wait here, and do not compute. */
    TT_TRY(tutti_all_reduce_host(job->world, values, 3, TUTTI_MAX));
    *row = (scale_row){n, (o->strong ? 1 : n) / values[0], values[1],
                       values[2] > 0 ? fmax(0, 1 - values[1] / values[2]) : 1};
    return TUTTI_OK;
}

static tutti_status scale_step(bench_job *job, const synth_options *o, table *t)
{
    synth_engine engine;
    double seconds = o->ms * 1e-3 * (1 + o->forward) * 4 * o->steps;

    TT_TRY(bench_job_open(job, o->ranks));
    if (job->ctx->dev_ops->kind != TUTTI_BACKEND_HOST)
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "tutti bench scaling: its arithmetic is for the host "
                                              "backend (TUTTI_BACKEND=host)");
    TT_TRY(synth_engine_make(job->world, o, &engine));
    snprintf(t->what, sizeof t->what, "%s scaling of the made-up step of %s, %g ms",
             o->strong ? "strong" : "weak", o->model, o->ms);
    t->weak = !o->strong;
    for (int n = next_ranks(0, job->size); n > 0; n = next_ranks(n, job->size)) {
        tutti_expect_quiet(job->ctx, seconds);
        TT_TRY(step_row(job, o, &engine, n, &t->row[t->n]));
        if (job->rank == 0)
            print_row(t, t->n, o);
        t->n++;
    }
    return job->rank == 0 ? draw(t, o) : TUTTI_OK;
}

/* An argument with {n} and {8n} replaced; to be freed. */
static char *fill_in(const char *word, int n)
{
    size_t cap = strlen(word) + 32, used = 0;
    char *out = malloc(cap);

    while (out != NULL && *word != '\0') {
        int factor = 1, length = 0;

        if (used + 16 > cap) {
            char *more = realloc(out, cap *= 2);

            if (more == NULL)
                free(out);
            out = more;
            continue;
        }
        if (strncmp(word, "{n}", 3) == 0)
            length = 3;
        else if (sscanf(word, "{%5dn}%n", &factor, &length) < 1 || length == 0)
            length = 0;
        if (length == 0) {
            out[used++] = *word++;
            continue;
        }
        used += (size_t)snprintf(out + used, 16, "%lld", (long long)factor * n);
        word += length;
    }
    if (out != NULL)
        out[used] = '\0';
    return out;
}

/* The last number before `match` in a line; NaN if there is none. */
static double number_before(const char *line, const char *match)
{
    const char *end = strstr(line, match), *at = end;
    char *after;
    double value;

    if (end == NULL)
        return NAN;
    while (at > line && at[-1] == ' ')
        at--;
    while (at > line && strchr("0123456789.eE+-", at[-1]) != NULL)
        at--;
    value = strtod(at, &after);
    return after == at ? NAN : value;
}

static tutti_status start(int n, char **words, int *out_fd, pid_t *pid_out)
{
    static char root[] = "--allow-run-as-root", over[] = "--oversubscribe", np[] = "-np",
                name[] = "mpirun";
    char count[16], *argv[WORDS_MAX + 8];
    int fds[2], used = 0;

    snprintf(count, sizeof count, "%d", n);
    argv[used++] = name;
    argv[used++] = over;
    if (getuid() == 0)
        argv[used++] = root;
    argv[used++] = np;
    argv[used++] = count;
    for (int i = 0; words[i] != NULL; i++)
        argv[used++] = words[i];
    argv[used] = NULL;
    if (pipe(fds) != 0)
        return tt_fail(TUTTI_ERR_IO, "tutti bench scaling: no pipe");
    *pid_out = fork();
    if (*pid_out == 0) {
        dup2(fds[1], STDOUT_FILENO);
        close(fds[0]);
        close(fds[1]);
        execvp(argv[0], argv);
        _exit(127);
    }
    close(fds[1]);
    *out_fd = fds[0];
    return *pid_out > 0 ? TUTTI_OK : tt_fail(TUTTI_ERR_IO, "tutti bench scaling: no process");
}

static tutti_status run_program(int n, char **words, const char *match, double *throughput_out)
{
    char line[4096];
    double value = NAN;
    int fd = -1, status = 0;
    pid_t pid = -1;
    FILE *f;

    TT_TRY(start(n, words, &fd, &pid));
    f = fdopen(fd, "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        double found = number_before(line, match);

        value = isnan(found) ? value : found;
    }
    if (f != NULL)
        fclose(f);
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return tt_fail(TUTTI_ERR_STATE,
                       "tutti bench scaling: %s failed on %d ranks (mpirun ended "
                       "with status %d)",
                       words[0], n,
                       WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    if (!(value > 0))
        return tt_fail(
            TUTTI_ERR_STATE,
            "tutti bench scaling: %s on %d ranks printed no number before '%s' (--match)", words[0],
            n, match);
    *throughput_out = value;
    return TUTTI_OK;
}

static tutti_status scale_program(int argc, char **argv, const synth_options *o, table *t)
{
    int most = o->ranks > 0 ? o->ranks : (int)sysconf(_SC_NPROCESSORS_ONLN);

    if (argc >= WORDS_MAX)
        return tt_fail(TUTTI_ERR_ARG, "tutti bench scaling: more than %d arguments", WORDS_MAX);
    snprintf(t->what, sizeof t->what, "%s", argv[0]);
    t->weak = !o->strong;
    for (int n = next_ranks(0, most); n > 0 && t->n < ROWS_MAX; n = next_ranks(n, most)) {
        char *words[WORDS_MAX + 1] = {NULL};
        tutti_status status = TUTTI_OK;
        int i;

        for (i = 0; i < argc && status == TUTTI_OK; i++) {
            words[i] = fill_in(argv[i], n);
            if (words[i] == NULL)
                status = tt_fail(TUTTI_ERR_NO_MEMORY, "tutti bench scaling: out of memory");
        }
        t->row[t->n] = (scale_row){n, 0, -1, -1};
        if (status == TUTTI_OK)
            status = run_program(n, words, o->match, &t->row[t->n].throughput);
        while (i-- > 0)
            free(words[i]);
        TT_TRY(status);
        print_row(t, t->n++, o);
    }
    return draw(t, o);
}

int bench_scaling(int argc, char **argv)
{
    bench_job job = {0};
    table t = {0};
    synth_options o;
    int end, rc = synth_parse(argc, argv, usage, &o, &end);

    if (rc != 0)
        return rc < 0 ? 0 : rc;
    if (end == argc)
        return bench_job_close(&job, scale_step(&job, &o, &t), 0);
    if (scale_program(argc - end, argv + end, &o, &t) == TUTTI_OK)
        return 0;
    fprintf(stderr, "%s\n", tutti_last_error());
    return BENCH_EXIT_FAILED;
}
