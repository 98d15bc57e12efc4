/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_test.h"

#include <errno.h>

#include "core/env.h"
#include "core/log.h"

static void parses_good_values(void **state)
{
    size_t bytes;
    long long whole;
    double seconds;
    bool flag;
    (void)state;
    assert_int_equal(tt_parse_bytes("0", &bytes), TUTTI_OK);
    assert_int_equal(bytes, 0);
    assert_int_equal(tt_parse_bytes("4096", &bytes), TUTTI_OK);
    assert_int_equal(bytes, 4096);
    assert_int_equal(tt_parse_bytes("64k", &bytes), TUTTI_OK);
    assert_int_equal(bytes, 65536);
    assert_int_equal(tt_parse_bytes("25M", &bytes), TUTTI_OK);
    assert_int_equal(bytes, 25u << 20);
    assert_int_equal(tt_parse_bytes("18446744073709551615", &bytes), TUTTI_OK);
    assert_true(bytes == SIZE_MAX);
    assert_int_equal(tt_parse_int("-1", &whole), TUTTI_OK);
    assert_int_equal(whole, -1);
    assert_int_equal(tt_parse_seconds("0.5", &seconds), TUTTI_OK);
    assert_true(seconds == 0.5);
    assert_int_equal(tt_parse_bool("Yes", &flag), TUTTI_OK);
    assert_true(flag);
    assert_int_equal(tt_parse_bool("off", &flag), TUTTI_OK);
    assert_false(flag);
}

static void refuses_bad_values(void **state)
{
    static const char *const bytes_bad[] = {"",    "K",   "-1",   "1.5M",
                                            "12X", "1 K", "4KB",  "18446744073709551616",
                                            "1e6", "+5",  "0x10", "99999999999T"};
    static const char *const ints_bad[] = {"", "x", "1x", "1.0", "99999999999999999999"};
    static const char *const seconds_bad[] = {"", "-1", "nan", "inf", "10s", "1e999", "fast"};
    static const char *const bools_bad[] = {"", "2", "y", "truely", "-1"};
    size_t bytes = 7;
    long long whole = 7;
    double seconds = 7;
    bool flag = true;
    (void)state;
#define ALL_BAD(list, parse, value)                                                                \
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {                                    \
        assert_int_equal(parse(list[i], &value), TUTTI_ERR_ARG);                                   \
        assert_non_null(strstr(tutti_last_error(), list[i]));                                      \
    }
    ALL_BAD(bytes_bad, tt_parse_bytes, bytes)
    ALL_BAD(ints_bad, tt_parse_int, whole)
    ALL_BAD(seconds_bad, tt_parse_seconds, seconds)
    ALL_BAD(bools_bad, tt_parse_bool, flag)
#undef ALL_BAD
    assert_int_equal(bytes, 7);
    assert_int_equal(whole, 7);
    assert_true(seconds == 7 && flag);
}

static const char *bad_value_of(tt_env_id id)
{
    switch (tt_env_rows()[id].type) {
    case TT_ENV_BOOL:
    case TT_ENV_INT:
    case TT_ENV_SECONDS:
    case TT_ENV_BYTES:
    case TT_ENV_WORD:
        return "bogus";
    case TT_ENV_STRING:
        break;
    }
    return id == TT_ENV_LOG ? "bogus" : NULL;
}

static void check_names_the_bad_variable(void **state)
{
    (void)state;
    assert_int_equal(tt_env_check(), TUTTI_OK);
    for (int i = 0; i < TT_ENV_COUNT; i++) {
        const char *name = tt_env_rows()[i].name, *bad = bad_value_of((tt_env_id)i);
        if (bad == NULL)
            continue;
        setenv(name, bad, 1);
        assert_int_equal(tt_env_check(), TUTTI_ERR_ARG);
        assert_non_null(strstr(tutti_last_error(), name));
        assert_non_null(strstr(tutti_last_error(), bad));
        setenv(name, "", 1); /* empty counts as unset */
        assert_int_equal(tt_env_check(), TUTTI_OK);
        unsetenv(name);
    }
}

static void unknown_names_find_the_nearest(void **state)
{
    (void)state;
    assert_string_equal(tt_env_nearest("TUTTI_TIMOUT"), "TUTTI_TIMEOUT");
    assert_string_equal(tt_env_nearest("TUTTI_TIEMOUT"), "TUTTI_TIMEOUT");
    assert_string_equal(tt_env_nearest("TUTTI_LOGFILE"), "TUTTI_LOG_FILE");
    assert_string_equal(tt_env_nearest("TUTTI_SHMDIR"), "TUTTI_SHM_DIR");
    assert_null(tt_env_nearest("TUTTI_ENTIRELY_ELSEWHERE"));
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = calloc(1, 1 << 16);
    assert_non_null(file);
    assert_non_null(text);
    size_t n = fread(text, 1, (1 << 16) - 1, file);
    assert_true(n < 1 << 16);
    fclose(file);
    return text;
}

static void log_goes_to_the_file_by_level(void **state)
{
    char path[] = "/tmp/tutti-log-XXXXXX", pattern[64], mine[64];
    (void)state;
    assert_non_null(mkdtemp(path));
    snprintf(pattern, sizeof pattern, "%s/%%r.log", path);
    snprintf(mine, sizeof mine, "%s/3.log", path);
    setenv("TUTTI_LOG_FILE", pattern, 1);
    setenv("TUTTI_LOG", "error,coll:debug", 1);
    setenv("TUTTI_TIMEOOT", "3", 1);
    tt_log_reload();
    tt_log_identity(3, 8);
    errno = 99;
    tt_log_warn(TT_BOOT, "not seen");
    tt_log_debug(TT_COLL, "ring step %d of %d", 2, 7);
    tt_log_trace(TT_COLL, "not seen either");
    assert_int_equal(errno, 99);
    setenv("TUTTI_LOG", "warn", 1);
    tt_log_reload();
    tt_env_warn_unknown();
    tt_env_warn_unknown();
    char *text = read_file(mine);
    assert_non_null(strstr(text, " r3/8 +"));
    assert_non_null(strstr(text, "coll: ring step 2 of 7\n"));
    assert_null(strstr(text, "not seen"));
    char *hint = strstr(text, "TUTTI_TIMEOOT; did you mean TUTTI_TIMEOUT?");
    assert_non_null(hint);
    assert_null(strstr(hint + 1, "TUTTI_TIMEOOT")); /* said once */
    free(text);
    unsetenv("TUTTI_LOG_FILE");
    unsetenv("TUTTI_LOG");
    unsetenv("TUTTI_TIMEOOT");
    tt_log_reload();
    tt_log_identity(-1, 0);
    remove(mine);
    remove(path);
}

static void log_levels_parse(void **state)
{
    static const char *const bad[] = {"",          "loud",  "warn,",       ",warn",
                                      "coll",      "coll:", ":warn",       "nope:warn",
                                      "warn:coll", "warn ", "coll:trace:x"};
    int levels[TT_SUBSYS_COUNT];
    (void)state;
    assert_int_equal(tt_log_parse("coll:trace", levels), TUTTI_OK);
    assert_int_equal(levels[TT_COLL], TT_LOG_TRACE);
    assert_int_equal(levels[TT_BOOT], TT_LOG_WARN);
    assert_int_equal(tt_log_parse("info,ckpt:error,ckpt:debug", levels), TUTTI_OK);
    assert_int_equal(levels[TT_CKPT], TT_LOG_DEBUG);
    assert_int_equal(levels[TT_RED], TT_LOG_INFO);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(tt_log_parse(bad[i], levels), TUTTI_ERR_ARG);
    assert_int_equal(levels[TT_CKPT], TT_LOG_DEBUG); /* untouched by failures */
}

static void markdown_has_every_row(void **state)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    (void)state;
    assert_non_null(out);
    tt_env_markdown(out);
    fclose(out);
    for (int i = 0; i < TT_ENV_COUNT; i++)
        assert_non_null(strstr(text, tt_env_rows()[i].name));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parses_good_values),
        cmocka_unit_test(refuses_bad_values),
        cmocka_unit_test(check_names_the_bad_variable),
        cmocka_unit_test(unknown_names_find_the_nearest),
        cmocka_unit_test(log_levels_parse),
        cmocka_unit_test(log_goes_to_the_file_by_level),
        cmocka_unit_test(markdown_has_every_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
