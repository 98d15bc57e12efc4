/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/env.h"
#include "tutti/status.h"

#include "commands.h"

#define HELP_WIDTH 88

/* The help text under its variable, indented and broken at blanks. */
static void print_wrapped(const char *text)
{
    while (*text != '\0') {
        size_t length = strlen(text);

        if (length > HELP_WIDTH) {
            length = HELP_WIDTH;
            while (length > 1 && text[length] != ' ')
                length--;
        }
        printf("    %.*s\n", (int)length, text);
        text += length;
        text += strspn(text, " ");
    }
}

static tutti_status check_value(tt_env_id id, tt_env_type type)
{
    long long whole;
    double seconds;
    size_t bytes;
    bool flag;

    switch (type) {
    case TT_ENV_BOOL:
        return tt_env_get_bool(id, &flag);
    case TT_ENV_INT:
        return tt_env_get_int(id, &whole);
    case TT_ENV_SECONDS:
        return tt_env_get_seconds(id, &seconds);
    case TT_ENV_BYTES:
        return tt_env_get_bytes(id, &bytes);
    default:
        return TUTTI_OK;
    }
}

/* False when the value in the environment is malformed. */
static bool print_variable(tt_env_id id)
{
    const tt_env_row *row = &tt_env_rows()[id];
    const char *set = getenv(row->name);
    const char *value = row->def;
    tutti_status status = check_value(id, row->type);

    if (set != NULL && *set != '\0') /* an empty value counts as not set */
        value = set;
    printf("%s=%s  (%s%s)\n", row->name, value,
           value == row->def ? "default" : "from the environment",
           row->must_agree ? ", equal on all ranks" : "");
    if (status != TUTTI_OK)
        printf("    WRONG: %s\n", tutti_last_error());
    print_wrapped(row->help);
    return status == TUTTI_OK;
}

int command_env(int argc, char **argv)
{
    bool good = true;
    int id;

    if (argc == 2 && strcmp(argv[1], "--markdown") == 0) {
        tt_env_markdown(stdout);
        return 0;
    }
    if (argc != 1) {
        fprintf(stderr, "tutti env: there is no option '%s'; the only one is --markdown\n",
                argv[argc - 1]);
        return EXIT_USAGE;
    }
    for (id = 0; id < TT_ENV_COUNT; id++)
        good = print_variable((tt_env_id)id) && good;
    if (good && tt_env_check() != TUTTI_OK) { /* what is wrong beyond its form: a backend's name */
        fprintf(stderr, "tutti env: %s\n", tutti_last_error());
        good = false;
    }
    tt_env_warn_unknown();
    return good ? 0 : 1;
}
