/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads: every collective, messages and splits, with 1 to 8 ranks. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "body.h"

static const int sizes[] = {1, 2, 3, 5, 8};

static void on_each_size(world_body body)
{
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        assert_string_equal(world_threads(sizes[i], body, NULL), "");
}

static void test_collectives(void **state)
{
    (void)state;
    on_each_size(body_collectives);
}

static void test_messages(void **state)
{
    (void)state;
    on_each_size(body_messages);
}

static void test_split(void **state)
{
    (void)state;
    on_each_size(body_split);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
