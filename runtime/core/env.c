/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment: typed reading of the variables in TT_ENV_TABLE, and all that is made from the
 * table (checks, suggestions, the documentation page).
 *
 * Values are parsed at each call; nothing is cached, so a test may set a variable between two
 * contexts. An empty variable counts as unset, because `TUTTI_X= prog` is how shells clear one.
 * A value that does not parse is an error and never silently the default: a typo in a time limit
 * should not cost a night.
 */
#include "core/env.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "core/log.h"

extern char **environ;

#define PREFIX "TUTTI_"

static const tt_env_row rows[TT_ENV_COUNT] = {
#define ROW(id, type, def, agree, help) {PREFIX #id, type, def, agree, help},
    TT_ENV_TABLE(ROW)
#undef ROW
};

const tt_env_row *tt_env_rows(void)
{
    return rows;
}

const tt_env_row *tt_env_find(const char *name)
{
    for (int id = 0; id < TT_ENV_COUNT; id++)
        if (strcmp(rows[id].name, name) == 0)
            return &rows[id];
    return NULL;
}

static tutti_status malformed(const char *text, const char *expected)
{
    return tt_fail(TUTTI_ERR_ARG, "\"%.200s\" is not %s", text, expected);
}

tutti_status tt_parse_int(const char *text, long long *value_out)
{
    char *end;
    int saved = errno;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    bool bad = errno != 0 || end == text || *end != '\0';
    errno = saved;
    if (bad)
        return malformed(text, "a whole number");
    *value_out = value;
    return TUTTI_OK;
}

tutti_status tt_parse_seconds(const char *text, double *value_out)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(value) || value < 0)
        return malformed(text, "a number of seconds (30, 0.5; 0: no limit)");
    *value_out = value;
    return TUTTI_OK;
}

tutti_status tt_parse_bool(const char *text, bool *value_out)
{
    static const char *const words[] = {"0", "1", "no", "yes", "off", "on", "false", "true"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        if (strcasecmp(text, words[i]) == 0) {
            *value_out = i % 2 == 1;
            return TUTTI_OK;
        }
    return malformed(text, "0 or 1");
}

tutti_status tt_parse_bytes(const char *text, size_t *value_out)
{
    static const char suffixes[] = "KMGT";
    size_t value = 0, unit = 1;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(value, (size_t)10, &value) ||
            __builtin_add_overflow(value, (size_t)(*at - '0'), &value))
            return malformed(text, "a size that fits into memory");
    bool digits = at > text;
    const char *suffix = *at == '\0' ? NULL : strchr(suffixes, *at & ~0x20);
    if (suffix != NULL) {
        unit <<= 10 * (suffix - suffixes + 1);
        at++;
    }
    if (!digits || *at != '\0')
        return malformed(text, "a size in bytes (4096, 64K, 25M, 1G)");
    if (__builtin_mul_overflow(value, unit, &value))
        return malformed(text, "a size that fits into memory");
    *value_out = value;
    return TUTTI_OK;
}

static const char *value_of(tt_env_id id)
{
    const char *value = getenv(rows[id].name);
    return value != NULL && value[0] != '\0' ? value : rows[id].def;
}

static tutti_status named(tt_env_id id, tutti_status status)
{
    return status == TUTTI_OK ? status : tt_fail_more(status, "%s", rows[id].name);
}

enum { WORDS_MOST = 6 };

static const char *const words[TT_ENV_COUNT][WORDS_MOST + 1] = {
#define WORDS_OF(id, ...) [TT_ENV_##id] = {__VA_ARGS__},
    TT_ENV_WORDS(WORDS_OF)
#undef WORDS_OF
};

static tutti_status check_word(tt_env_id id, const char *value)
{
    const char *const *word = words[id];
    char list[96] = "";
    size_t at = 0;
    for (size_t i = 0; word[i] != NULL; i++) {
        if (strcmp(value, word[i]) == 0)
            return TUTTI_OK;
        const char *before = i == 0 ? "" : word[i + 1] == NULL ? " or " : ", ";
        at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", before, word[i]);
    }
    return malformed(value, list);
}

tutti_status tt_env_get_string(tt_env_id id, const char **value_out)
{
    const char *value = value_of(id);
    if (rows[id].type == TT_ENV_WORD)
        TT_TRY(named(id, check_word(id, value)));
    *value_out = value;
    return TUTTI_OK;
}

tutti_status tt_env_get_bool(tt_env_id id, bool *value_out)
{
    return named(id, tt_parse_bool(value_of(id), value_out));
}

tutti_status tt_env_get_int(tt_env_id id, long long *value_out)
{
    return named(id, tt_parse_int(value_of(id), value_out));
}

tutti_status tt_env_get_seconds(tt_env_id id, double *value_out)
{
    return named(id, tt_parse_seconds(value_of(id), value_out));
}

tutti_status tt_env_get_bytes(tt_env_id id, size_t *value_out)
{
    return named(id, tt_parse_bytes(value_of(id), value_out));
}

tutti_status tt_env_check_one(tt_env_id id)
{
    union {
        bool flag;
        long long whole;
        double seconds;
        size_t bytes;
        const char *text;
    } value;
    int levels[TT_SUBSYS_COUNT];
    if (id == TT_ENV_LOG) /* a string with a form of its own */
        return named(id, tt_log_parse(value_of(id), levels));
    switch (rows[id].type) {
    case TT_ENV_BOOL:
        return tt_env_get_bool(id, &value.flag);
    case TT_ENV_INT:
        return tt_env_get_int(id, &value.whole);
    case TT_ENV_SECONDS:
        return tt_env_get_seconds(id, &value.seconds);
    case TT_ENV_BYTES:
        return tt_env_get_bytes(id, &value.bytes);
    case TT_ENV_WORD:
    case TT_ENV_STRING:
        return tt_env_get_string(id, &value.text);
    }
    return TUTTI_OK;
}

tutti_status tt_env_check(void)
{
    for (int id = 0; id < TT_ENV_COUNT; id++)
        TT_TRY(tt_env_check_one((tt_env_id)id));
    return TUTTI_OK;
}

/* Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours. */
static size_t distance(const char *a, const char *b)
{
    enum { CAP = 48 };
    size_t row[3][CAP + 1], na = strnlen(a, CAP), nb = strnlen(b, CAP);
    for (size_t j = 0; j <= nb; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *now = row[i % 3], *up = row[(i - 1) % 3], *up2 = row[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = up[j - 1] + (a[i - 1] != b[j - 1]);
            if (up[j] + 1 < best)
                best = up[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                up2[j - 2] + 1 < best)
                best = up2[j - 2] + 1;
            now[j] = best;
        }
    }
    return row[na % 3][nb];
}

const char *tt_env_nearest(const char *name)
{
    const char *nearest = NULL;
    size_t best = 4; /* further away is another word */
    for (int id = 0; id < TT_ENV_COUNT; id++) {
        size_t d = distance(name, rows[id].name);
        if (d < best) {
            best = d;
            nearest = rows[id].name;
        }
    }
    return nearest;
}

void tt_env_warn_unknown(void)
{
    static _Atomic bool warned;
    if (atomic_exchange(&warned, true))
        return;
    for (char **var = environ; var != NULL && *var != NULL; var++) {
        char name[128];
        size_t bytes = strcspn(*var, "=");
        if (strncmp(*var, PREFIX, sizeof PREFIX - 1) != 0 || bytes >= sizeof name)
            continue;
        snprintf(name, sizeof name, "%.*s", (int)bytes, *var);
        if (tt_env_find(name) != NULL)
            continue;
        const char *nearest = tt_env_nearest(name);
        if (nearest != NULL)
            tt_log_warn(TT_CORE, "unknown variable %s; did you mean %s?", name, nearest);
        else
            tt_log_warn(TT_CORE, "unknown variable %s (`tutti env` lists them)", name);
    }
}

void tt_env_markdown(FILE *out)
{
    static const char *const types[] = {
        [TT_ENV_STRING] = "text",     [TT_ENV_WORD] = "a word",
        [TT_ENV_BOOL] = "0 or 1",     [TT_ENV_INT] = "whole number",
        [TT_ENV_SECONDS] = "seconds", [TT_ENV_BYTES] = "bytes (64K, 25M, 1G)",
    };
    fputs("# Environment variables\n\n"
          "Generated by `tutti env --markdown` from the one table, `runtime/core/env.h`. Rank 0's\n"
          "variables are given to ranks that lack them, so plain `mpirun` without `-x` works. A\n"
          "variable marked *agree* must be equal on all ranks. An empty value counts as not set;\n"
          "a malformed one is an error on every rank.\n\n"
          "| Variable | Type | Default | Ranks | Meaning |\n| --- | --- | --- | --- | --- |\n",
          out);
    for (int id = 0; id < TT_ENV_COUNT; id++) {
        const tt_env_row *row = &rows[id];
        fprintf(out, "| `%s` | %s | %s%s%s | %s | %s |\n", row->name, types[row->type],
                row->def[0] != '\0' ? "`" : "", row->def, row->def[0] != '\0' ? "`" : "",
                row->must_agree ? "agree" : "", row->help);
    }
}
