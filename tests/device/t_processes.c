/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory between processes: under mpirun, each rank reaches its peers' by /proc. */
#include "tt_test.h"

#include <dirent.h>
#include <unistd.h>

static tutti_ctx *ctx;
static tutti_comm *comm;

enum { N = 100000 };

static int make_context(void **state)
{
    (void)state;
    if (tutti_init(NULL, &ctx) != TUTTI_OK) {
        fprintf(stderr, "%s\n", tutti_last_error());
        return -1;
    }
    comm = tutti_world(ctx);
    return 0;
}

static int drop_context(void **state)
{
    (void)state;
    return tutti_finalize(ctx) == TUTTI_OK ? 0 : -1;
}

static int open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    int n = 0;
    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

static void expect_sum(const float *out)
{
    int size = tutti_size(comm);
    for (int i = 0; i < N; i++)
        assert_true(out[i] == (float)(size * (i % 1000) + size * (size - 1) / 2));
}

static void memory_of_both_kinds(void **state)
{
    size_t bytes = N * sizeof(float);
    tutti_stream at_once = {NULL, TUTTI_STREAM_INLINE};
    void *own = NULL, *ptr = NULL;
    float *in;
    int files = open_files();

    (void)state;
    assert_int_equal(posix_memalign(&own, (size_t)sysconf(_SC_PAGESIZE), 1 << 19), 0);
    in = own;
    for (int i = 0; i < N; i++)
        in[i] = (float)(tutti_rank(comm) + i % 1000);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(tutti_alloc(comm, bytes, &ptr), TUTTI_OK);
        assert_int_equal(tutti_register(comm, own, bytes), TUTTI_OK);
        assert_int_equal(open_files(), files); /* sealed */
        assert_int_equal(tutti_all_reduce(comm, in, ptr, N, TUTTI_FLOAT32, TUTTI_SUM, at_once),
                         TUTTI_OK);
        expect_sum(ptr);
        assert_int_equal(tutti_deregister(comm, own), TUTTI_OK);
        for (int i = 0; i < N; i++)
            assert_true(in[i] == (float)(tutti_rank(comm) + i % 1000));
        assert_int_equal(tutti_free(comm, ptr), TUTTI_OK);
    }
    free(own);
}

static void one_rank_refuses_for_all(void **state)
{
    void *own = NULL, *ptr = NULL;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *at;

    (void)state;
    assert_int_equal(posix_memalign(&own, page, 2 * page), 0);
    memset(own, 9, 2 * page);
    at = own;
    if (tutti_rank(comm) == tutti_size(comm) - 1)
        at++;
    assert_int_equal(tutti_register(comm, at, page), TUTTI_ERR_ARG);
    assert_non_null(strstr(tutti_last_error(), "not page aligned"));
    assert_int_equal(tutti_alloc(comm, (size_t)1 << 60, &ptr), TUTTI_ERR_NO_MEMORY);
    assert_non_null(strstr(tutti_last_error(), "MiB needed"));
    assert_null(ptr);
    for (size_t i = 0; i < 2 * page; i++)
        assert_int_equal(((char *)own)[i], 9);
    free(own);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_both_kinds),
        cmocka_unit_test(one_rank_refuses_for_all),
    };
    return cmocka_run_group_tests(tests, make_context, drop_context);
}
