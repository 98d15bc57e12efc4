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

/* False when the value in the environment is malformed. */
static bool print_variable(tt_env_id id)
{
    const tt_env_row *row = &tt_env_rows()[id];
    const char *set = getenv(row->name);
    const char *value = row->def;
    tutti_status status = tt_env_check_one(id);

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
    if (tt_env_check() != TUTTI_OK) { /* once more, apart from the list */
        fprintf(stderr, "tutti env: %s\n", tutti_last_error());
        good = false;
    }
    tt_env_warn_unknown();
    return good ? 0 : 1;
}
