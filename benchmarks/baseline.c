/* SPDX-License-Identifier: Apache-2.0 */
/* An earlier run's --json, one object a line, to compare this run's rows with. */
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/mem.h"

enum { LINE_MAX_BYTES = 1 << 16 };

struct bench_baseline {
    json_t **rows;
    size_t n, cap;
};

static tutti_status read_rows(bench_baseline *b, FILE *f, const char *path, char *line)
{
    size_t number = 0;

    while (fgets(line, LINE_MAX_BYTES, f) != NULL) {
        json_error_t error;
        json_t *row;

        number++;
        if (line[strspn(line, " \t\r\n")] == '\0')
            continue;
        row = json_loads(line, 0, &error);
        if (!json_is_object(row) || !json_is_number(json_object_get(row, "us"))) {
            json_decref(row);
            return tt_fail(TUTTI_ERR_ARG, "--baseline %s: line %zu is no row of tutti bench --json",
                           path, number);
        }
        if (tt_grow(&b->rows, &b->cap, b->n + 1, sizeof(json_t *)) != TUTTI_OK) {
            json_decref(row);
            return TUTTI_ERR_NO_MEMORY;
        }
        b->rows[b->n++] = row;
    }
    if (ferror(f))
        return tt_fail_errno(TUTTI_ERR_IO, errno, "--baseline %s", path);
    return b->n > 0 ? TUTTI_OK : tt_fail(TUTTI_ERR_ARG, "--baseline %s: it has no row", path);
}

tutti_status bench_baseline_open(const char *path, bench_baseline **out)
{
    FILE *f = fopen(path, "re");
    bench_baseline *b = NULL;
    char *line = NULL;
    tutti_status status;

    if (f == NULL)
        return tt_fail_errno(TUTTI_ERR_ARG, errno, "--baseline %s", path);
    status = tt_calloc(1, sizeof *b, &b);
    if (status == TUTTI_OK)
        status = tt_calloc(1, LINE_MAX_BYTES, &line);
    if (status == TUTTI_OK)
        status = read_rows(b, f, path, line);
    free(line);
    fclose(f);
    if (status != TUTTI_OK) {
        bench_baseline_close(b);
        return status;
    }
    *out = b;
    return TUTTI_OK;
}

void bench_baseline_close(bench_baseline *b)
{
    if (b == NULL)
        return;
    for (size_t i = 0; i < b->n; i++)
        json_decref(b->rows[i]);
    free(b->rows);
    free(b);
}

static bool text_is(const json_t *row, const char *key, const char *want)
{
    const char *text = json_string_value(json_object_get(row, key));

    return text != NULL && strcmp(text, want) == 0;
}

static bool number_is(const json_t *row, const char *key, double want)
{
    const json_t *value = json_object_get(row, key);

    return json_is_number(value) && json_number_value(value) == want;
}

static bool flag_is(const json_t *row, const char *key, bool want)
{
    const json_t *value = json_object_get(row, key);

    return json_is_boolean(value) && json_is_true(value) == want;
}

double bench_baseline_us(const bench_baseline *b, const bench_row *row, int ranks)
{
    static const char *const redops[] = {"none", "sum", "avg", "max", "min", "prod"};
    const bench_case *c = &row->c;

    for (size_t i = 0; i < b->n; i++) {
        const json_t *r = b->rows[i];

        if (text_is(r, "op", c->op->name) && text_is(r, "dtype", tutti_dtype_name(c->dtype)) &&
            text_is(r, "redop", redops[c->op->reduces ? c->redop : 0]) &&
            number_is(r, "bytes", (double)c->bytes) && number_is(r, "ranks", ranks) &&
            flag_is(r, "in_place", c->in_place) && flag_is(r, "registered", row->registered) &&
            flag_is(r, "cold", row->cold))
            return json_number_value(json_object_get(r, "us"));
    }
    return 0;
}
