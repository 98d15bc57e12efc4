/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What rank 0 prints: a table for people with the columns of nccl-tests, or one JSON object or CSV
 * line a row for programs (docs/bench.md). The table's in-place and out-of-place rows of a size
 * stand side by side; a line is printed when its second half is there.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/mem.h"

static const char *redop_name(const bench_case *c)
{
    static const char *const names[] = {"none", "sum", "avg", "max", "min", "prod"};

    return names[c->op->reduces ? c->redop : 0];
}

static double algbw(const bench_row *row)
{
    return (double)row->c.bytes / row->us.median * 1e-3;
}

static double busbw(const bench_row *row)
{
    return algbw(row) * row->c.op->bus(row->c.size);
}

static void table_head(const bench_job *job, const bench_options *o)
{
    unsigned halves =
        (o->places & BENCH_OUT_OF_PLACE ? 1 : 0) + (o->places & BENCH_IN_PLACE ? 1 : 0);

    printf("# tutti bench %s: %d rank%s on %d node%s, %s backend, %s buffers, %s%s\n", o->op->name,
           job->size, job->size == 1 ? "" : "s", tutti_node_count(job->ctx),
           tutti_node_count(job->ctx) == 1 ? "" : "s", job->ctx->dev_ops->name,
           o->cold ? "cold" : "hot", job->stream.kind == TUTTI_STREAM_INLINE ? "inline" : "stream",
           o->group > 1 ? ", grouped" : "");
    if (job->link_gbps > 0)
        printf("# between nodes: %.3f GB/s a node and way\n", job->link_gbps);
    printf(
        "# time in us (median of %d rounds, of the slowest rank), bandwidth in GB/s; %%bound: of "
        "the row's bound that was reached\n",
        o->rounds);
    printf("%12s %10s %5s %5s %4s %4s", "size", "count", "type", "redop", "root", "mem");
    for (unsigned i = 0; i < halves; i++) {
        printf(" | %3s %10s %9s %9s %8s %8s %6s %6s",
               i == 0 && o->places & BENCH_OUT_OF_PLACE ? "out" : "in", "time", "min", "p99",
               "algbw", "busbw", "%bound", "#wrong");
        for (unsigned p = 0; bench_peer_at(p) != NULL; p++)
            if (o->peers >> p & 1)
                printf(" %7s", bench_peer_at(p)->name);
        if (o->baseline != NULL)
            printf(" %7s", "before");
    }
    putchar('\n');
}

void bench_report_begin(const bench_job *job, const bench_options *o)
{
    if (o->format == BENCH_TABLE)
        table_head(job, o);
    else if (o->format == BENCH_CSV)
        printf(
            "op,dtype,redop,root,bytes,count,ranks,nodes,in_place,registered,cold,us,us_min,us_p99,"
            "algbw,busbw,bound_us,wrong,peer,peer_us,peer_ratio,baseline_ratio\n");
}

static void table_half(const bench_options *o, const bench_row *row)
{
    printf(" | %3s %10.2f %9.2f %9.2f %8.2f %8.2f", row->c.in_place ? "in" : "out", row->us.median,
           row->us.min, row->us.p99, algbw(row), busbw(row));
    if (row->bound_us > 0)
        printf(" %6.0f", 100 * row->bound_us / row->us.median);
    else
        printf(" %6s", "-");
    printf(" %6llu", (unsigned long long)row->wrong);
    for (size_t p = 0; p < row->peers; p++) {
        if (row->peer[p].us > 0)
            printf(" %6.2fx", row->peer[p].ratio);
        else
            printf(" %7s", "-");
    }
    if (o->baseline != NULL) {
        if (row->baseline_ratio > 0)
            printf(" %6.2fx", row->baseline_ratio);
        else
            printf(" %7s", "-");
    }
}

static void table_row(const bench_options *o, const bench_row *row)
{
    bool first = !row->c.in_place || !(o->places & BENCH_OUT_OF_PLACE);
    bool last = row->c.in_place || !(o->places & BENCH_IN_PLACE);

    if (first)
        printf("%12zu %10zu %5s %5s %4d %4s", row->c.bytes, row->c.n,
               tutti_dtype_name(row->c.dtype), redop_name(&row->c),
               row->c.op->has_root ? row->c.root : -1, row->registered ? "reg" : "plain");
    table_half(o, row);
    if (last)
        putchar('\n');
}

static void json_row(const bench_job *job, const bench_row *row)
{
    const bench_case *c = &row->c;

    printf(
        "{\"op\":\"%s\",\"dtype\":\"%s\",\"redop\":\"%s\",\"root\":%d,\"bytes\":%zu,\"count\":%zu,"
        "\"ranks\":%d,\"nodes\":%d,\"backend\":\"%s\",\"in_place\":%s,\"registered\":%s,\"cold\":%"
        "s",
        c->op->name, tutti_dtype_name(c->dtype), redop_name(c), c->op->has_root ? c->root : -1,
        c->bytes, c->n, c->size, tutti_node_count(job->ctx), job->ctx->dev_ops->name,
        c->in_place ? "true" : "false", row->registered ? "true" : "false",
        row->cold ? "true" : "false");
    printf(",\"us\":%.9g,\"us_min\":%.9g,\"us_p99\":%.9g,\"algbw\":%.9g,\"busbw\":%.9g",
           row->us.median, row->us.min, row->us.p99, algbw(row), busbw(row));
    if (row->bound_us > 0)
        printf(",\"bound_us\":%.9g", row->bound_us);
    else
        printf(",\"bound_us\":null");
    printf(",\"wrong\":%llu", (unsigned long long)row->wrong);
    if (row->peers > 0 && row->peer[0].us > 0)
        printf(",\"peer_us\":%.9g", row->peer[0].us);
    else
        printf(",\"peer_us\":null");
    printf(",\"peers\":{");
    for (size_t p = 0, written = 0; p < row->peers; p++)
        if (row->peer[p].us > 0)
            printf("%s\"%s\":{\"us\":%.9g,\"ratio\":%.9g,\"wrong\":%llu}", written++ > 0 ? "," : "",
                   row->peer[p].name, row->peer[p].us, row->peer[p].ratio,
                   (unsigned long long)row->peer[p].wrong);
    putchar('}');
    if (row->baseline_ratio > 0)
        printf(",\"baseline_ratio\":%.9g", row->baseline_ratio);
    printf("}\n");
}

static void csv_row(const bench_job *job, const bench_row *row)
{
    const bench_case *c = &row->c;
    bool peer = row->peers > 0 && row->peer[0].us > 0;

    printf("%s,%s,%s,%d,%zu,%zu,%d,%d,%d,%d,%d,%.9g,%.9g,%.9g,%.9g,%.9g,%.9g,%llu,", c->op->name,
           tutti_dtype_name(c->dtype), redop_name(c), c->op->has_root ? c->root : -1, c->bytes,
           c->n, c->size, tutti_node_count(job->ctx), c->in_place, row->registered, row->cold,
           row->us.median, row->us.min, row->us.p99, algbw(row), busbw(row), row->bound_us,
           (unsigned long long)row->wrong);
    if (peer)
        printf("%s,%.9g,%.9g,", row->peer[0].name, row->peer[0].us, row->peer[0].ratio);
    else
        printf(",,,");
    if (row->baseline_ratio > 0)
        printf("%.9g", row->baseline_ratio);
    putchar('\n');
}

void bench_report_row(const bench_job *job, const bench_options *o, const bench_row *row)
{
    if (o->format == BENCH_JSON)
        json_row(job, row);
    else if (o->format == BENCH_CSV)
        csv_row(job, row);
    else
        table_row(o, row);
    fflush(stdout);
}

enum { LINES_MAX = 4 * (1 + BENCH_PEERS_MAX), POINTS_MAX = 128 };

typedef struct line {
    char name[64];
    double x[POINTS_MAX], y[POINTS_MAX];
    size_t n;
} line;

static void add_point(line *lines, size_t *count, const char *name, double x, double y)
{
    size_t i = 0;

    while (i < *count && strcmp(lines[i].name, name) != 0)
        i++;
    if (i == LINES_MAX)
        return;
    if (i == *count) {
        snprintf(lines[i].name, sizeof lines[i].name, "%s", name);
        (*count)++;
    }
    if (lines[i].n == POINTS_MAX)
        return;
    lines[i].x[lines[i].n] = x;
    lines[i].y[lines[i].n++] = y;
}

static void add_row(line *lines, size_t *count, const bench_row *row)
{
    const char *place = row->c.in_place ? "in place" : "out of place";
    double bytes = (double)row->c.bytes, bus = bytes * 1e-3;
    char name[64];

    if (row->c.size > 1) /* alone, nothing crosses a link: algorithm bandwidth */
        bus *= row->c.op->bus(row->c.size);
    snprintf(name, sizeof name, "tutti, %s, %s", row->registered ? "registered" : "plain", place);
    add_point(lines, count, name, bytes, bus / row->us.median);
    for (size_t p = 0; p < row->peers; p++) {
        if (row->peer[p].us <= 0 || !row->registered)
            continue;
        snprintf(name, sizeof name, "%s, %s", row->peer[p].name, place);
        add_point(lines, count, name, bytes, bus / row->peer[p].us);
    }
}

static tutti_status draw(const bench_job *job, const bench_options *o, const bench_row *rows,
                         size_t n)
{
    bench_series series[LINES_MAX];
    size_t count = 0, i;
    char title[128];
    tutti_status status;
    line *lines;

    TT_TRY(tt_calloc(LINES_MAX, sizeof *lines, &lines));
    for (i = 0; i < n; i++)
        add_row(lines, &count, &rows[i]);
    for (i = 0; i < count; i++)
        series[i] = (bench_series){lines[i].name, lines[i].x, lines[i].y, lines[i].n};
    snprintf(title, sizeof title, "%s, %s, %d ranks on %d node%s", o->op->name,
             tutti_dtype_name(o->dtype), job->size, tutti_node_count(job->ctx),
             tutti_node_count(job->ctx) == 1 ? "" : "s");
    status = bench_chart_write(
        o->svg,
        &(bench_chart){title, "bytes", job->size > 1 ? "bus bandwidth, GB/s" : "bandwidth, GB/s",
                       true, true, series, count});
    free(lines);
    return status;
}

tutti_status bench_report_end(const bench_job *job, const bench_options *o, const bench_row *rows,
                              size_t n)
{
    uint64_t wrong = 0;
    double sum = 0;
    size_t i;

    if (o->format != BENCH_TABLE)
        return o->svg != NULL ? draw(job, o, rows, n) : TUTTI_OK;
    for (i = 0; i < n; i++) {
        wrong += rows[i].wrong;
        sum += busbw(&rows[i]);
    }
    printf("# wrong elements: %llu; average bus bandwidth: %.3f GB/s\n", (unsigned long long)wrong,
           sum / (double)n);
    return o->svg != NULL ? draw(job, o, rows, n) : TUTTI_OK;
}
