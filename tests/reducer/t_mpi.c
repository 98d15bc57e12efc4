/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scenarios with processes as ranks. With the argument `funneled` the program initialises MPI
 * itself and asks for too little: between nodes nothing overlaps then, but all is right.
 */
#include <mpi.h>

#include "scenario.h"

#include "tutti/interop_mpi.h"

static bool funneled;

static void averages_are_exact(void **state)
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    MPI_Comm comm = MPI_COMM_WORLD;
    tt_rank r = {0};
    int got;
    (void)state;

    opts.flags = TUTTI_INIT_NO_SIGNALS;
    if (funneled) {
        assert_int_equal(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &got), MPI_SUCCESS);
        tutti_init_opts_mpi(&opts, &comm);
    }
    assert_int_equal(tutti_init(&opts, &r.ctx), TUTTI_OK);
    r.comm = tutti_world(r.ctx);
    r.rank = tutti_rank(r.comm);
    r.size = tutti_size(r.comm);
    for (uint64_t seed = 200; seed < 208; seed++) {
        scenario s = {
            .seed = seed, .order_seed = seed, .feed = (feeding)(seed % FEED_COUNT), .steps = 3};
        if (funneled && s.feed == FEED_THREADS)
            continue; /* they would call MPI */
        r.arg = &s;
        scenario_run(&r);
        assert_string_equal(r.message, "");
    }
    assert_int_equal(tutti_finalize(r.ctx), TUTTI_OK);
    if (funneled)
        assert_int_equal(MPI_Finalize(), MPI_SUCCESS);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(averages_are_exact)};
    funneled = argc > 1 && strcmp(argv[1], "funneled") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
