/* SPDX-License-Identifier: Apache-2.0 */
/* The scenarios with processes as ranks. */
#include "scenario.h"

static void averages_are_exact(void **state)
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tt_rank r = {0};
    (void)state;

    opts.flags = TUTTI_INIT_NO_SIGNALS;
    assert_int_equal(tutti_init(&opts, &r.ctx), TUTTI_OK);
    r.comm = tutti_world(r.ctx);
    r.rank = tutti_rank(r.comm);
    r.size = tutti_size(r.comm);
    for (uint64_t seed = 200; seed < 208; seed++) {
        scenario s = {
            .seed = seed, .order_seed = seed, .feed = (feeding)(seed % FEED_COUNT), .steps = 3};
        r.arg = &s;
        scenario_run(&r);
        assert_string_equal(r.message, "");
    }
    assert_int_equal(tutti_finalize(r.ctx), TUTTI_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(averages_are_exact)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
