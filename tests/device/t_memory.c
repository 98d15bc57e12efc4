/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory between thread ranks: what peers see, what is refused, what is put back. */
#include "tt_test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "boot/context.h"
#include "comm/comm.h"
#include "host/memory.h"

static size_t page;
static const tutti_stream no_stream;

static unsigned char pattern(int rank, size_t i)
{
    return (unsigned char)(i * 37 + (i >> 12) + (size_t)rank * 101);
}

static bool has_pattern(const unsigned char *at, size_t bytes, int rank)
{
    for (size_t i = 0; i < bytes; i++)
        if (at[i] != pattern(rank, i))
            return false;
    return true;
}

static unsigned char *own_pages(size_t bytes, int rank)
{
    void *at = NULL;
    if (posix_memalign(&at, page, bytes) != 0)
        abort();
    for (size_t i = 0; i < bytes; i++)
        ((unsigned char *)at)[i] = pattern(rank, i);
    return at;
}

/* Every rank of the node writes into every other's memory, at an offset of its own. */
static void peers_meet(tt_rank *r, unsigned char *mine, size_t bytes)
{
    tt_upper *upper = r->ctx->upper;
    const tt_mem_reg *reg = tt_mem_find(upper, r->comm, mine + 8, 16);
    tt_mem_place place;

    TT_EXPECT(r, reg != NULL);
    place = tt_mem_describe(reg, mine + 8);
    TT_EXPECT(r, place.offset == 8 && place.id != 0);
    place.offset = (uint64_t)r->rank;
    for (int i = 0; i < r->size; i++) {
        unsigned char *there = tt_mem_resolve(upper, place, i, 1);
        bool near = r->ctx->place[i].node == r->ctx->place[r->rank].node;
        TT_EXPECT(r, (there != NULL) == near);
        if (near)
            *there = (unsigned char)(100 + r->rank);
    }
    TT_EXPECT_OK(r, tutti_barrier(r->comm));
    for (int i = 0; i < r->size; i++)
        if (r->ctx->place[i].node == r->ctx->place[r->rank].node)
            TT_EXPECT(r, mine[i] == 100 + i);
    place.offset = bytes;
    TT_EXPECT(r, tt_mem_resolve(upper, place, r->rank, 0) != NULL);
    TT_EXPECT(r, tt_mem_resolve(upper, place, r->rank, 1) == NULL);
    place.offset = UINT64_MAX;
    TT_EXPECT(r, tt_mem_resolve(upper, place, r->rank, 8) == NULL);
    place.offset = 0;
    TT_EXPECT(r, tt_mem_resolve(upper, place, -1, 1) == NULL);
    TT_EXPECT(r, tt_mem_resolve(upper, place, r->size, 1) == NULL);
    TT_EXPECT(r, tt_mem_resolve(upper, place, r->rank, SIZE_MAX) == NULL);
    place.id += 1000;
    TT_EXPECT(r, tt_mem_resolve(upper, place, r->rank, 1) == NULL);
    TT_EXPECT(r, tt_mem_find(upper, r->comm, mine, bytes) == reg);
    TT_EXPECT(r, tt_mem_find(upper, r->comm, mine, bytes + 1) == NULL);
    TT_EXPECT(r, tt_mem_find(upper, r->comm, mine - 1, 1) == NULL);
    TT_EXPECT(r, tt_mem_find(upper, r->comm, mine + bytes, 1) == NULL);
}

static void allocated(tt_rank *r)
{
    size_t bytes = 2 * page + 100;
    void *ptr = NULL, *more[8];

    TT_EXPECT_OK(r, tutti_alloc(r->comm, bytes, &ptr));
    TT_EXPECT(r, (uintptr_t)ptr % page == 0);
    for (size_t i = 0; i < bytes; i++)
        TT_EXPECT(r, ((unsigned char *)ptr)[i] == 0);
    TT_EXPECT_OK(r, tutti_barrier(r->comm));
    peers_meet(r, ptr, bytes);
    for (int i = 0; i < 8; i++)
        TT_EXPECT_OK(r, tutti_alloc(r->comm, (size_t)i + 1, &more[i]));
    for (int i = 0; i < 8; i++)
        TT_EXPECT_OK(r, tutti_free(r->comm, more[i * 5 % 8]));
    TT_EXPECT_OK(r, tutti_free(r->comm, ptr));
    TT_EXPECT(r, tt_mem_find(r->ctx->upper, r->comm, ptr, 1) == NULL);
    TT_EXPECT_OK(r, tutti_free(r->comm, NULL));
}

static void registered(tt_rank *r)
{
    size_t bytes = 3 * page - 7;
    unsigned char *own = own_pages(4 * page, r->rank);

    for (int round = 0; round < 2; round++) {
        TT_EXPECT_OK(r, tutti_register(r->comm, own + page, bytes));
        TT_EXPECT(r, has_pattern(own, 4 * page, r->rank));
        TT_EXPECT_OK(r, tutti_barrier(r->comm));
        peers_meet(r, own + page, bytes);
        for (int i = 0; i < r->size; i++)
            own[page + (size_t)i] = pattern(r->rank, page + (size_t)i);
        TT_EXPECT_OK(r, tutti_deregister(r->comm, own + page));
        TT_EXPECT(r, has_pattern(own, 4 * page, r->rank));
        TT_EXPECT(r, tt_mem_find(r->ctx->upper, r->comm, own + page, 1) == NULL);
    }
    free(own);
}

static void peers_see_allocated_memory(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(1, NULL, allocated, NULL);
    TT_ASSERT_RANKS(4, NULL, allocated, NULL);
    TT_ASSERT_RANKS(5, "2,3", allocated, NULL);
}

static void registering_keeps_content_and_address(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(1, NULL, registered, NULL);
    TT_ASSERT_RANKS(4, NULL, registered, NULL);
    TT_ASSERT_RANKS(5, "2,3", registered, NULL);
}

static void in_parts(tt_rank *r)
{
    tutti_comm *half = NULL, *quarter = NULL;
    void *ptr = NULL, *all = NULL;
    tt_upper *upper = r->ctx->upper;

    TT_EXPECT_OK(r, tutti_comm_split(r->comm, r->rank % 2, 0, NULL, &half));
    TT_EXPECT_OK(r, tutti_comm_split(half, r->rank / 4, 0, NULL, &quarter));
    TT_EXPECT_OK(r, tutti_alloc(half, page, &ptr));
    TT_EXPECT_OK(r, tutti_alloc(r->comm, page, &all));
    for (int again = 0; again < 2; again++) {
        TT_EXPECT(r, tt_mem_find(upper, half, ptr, page) != NULL);
        TT_EXPECT(r, tt_mem_find(upper, quarter, ptr, page) != NULL);
        TT_EXPECT(r, tt_mem_find(upper, r->comm, ptr, page) == NULL);
        TT_EXPECT(r, tt_mem_find(upper, quarter, all, page) != NULL);
    }
    TT_EXPECT(r, tutti_free(r->comm, ptr) == TUTTI_ERR_ARG); /* another communicator's */
    TT_EXPECT_OK(r, tutti_free(half, ptr));
    TT_EXPECT_OK(r, tutti_free(r->comm, all));
    tutti_comm_destroy(quarter);
    tutti_comm_destroy(half);
}

static void memory_belongs_to_parts_of_its_communicator(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(8, NULL, in_parts, NULL);
}

/* One rank brings something that cannot be registered; all are told, and go on. */
static void refused_on_all(tt_rank *r, void *bad, size_t bytes, const char *word)
{
    static int bad_rank = 2;
    unsigned char *own = own_pages(bytes, r->rank);
    void *ptr = r->rank == bad_rank ? bad : own;

    TT_EXPECT(r, tutti_register(r->comm, ptr, bytes) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "rank 2") != NULL);
    TT_EXPECT(r, strstr(tutti_last_error(), word) != NULL);
    TT_EXPECT(r, has_pattern(own, bytes, r->rank));
    free(own);
}

static void strange_memory(tt_rank *r)
{
    unsigned char *own = own_pages(4 * page, r->rank);
    int prot = PROT_READ | PROT_WRITE, zero = open("/dev/zero", O_RDWR);
    char path[] = "/tmp/tutti-memory-XXXXXX";
    int file = mkstemp(path);
    void *shared = mmap(NULL, page, prot, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    void *constant = mmap(NULL, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    TT_EXPECT(r, file >= 0 && zero >= 0 && unlink(path) == 0);
    TT_EXPECT(r, ftruncate(file, (off_t)page) == 0);
    void *filed = mmap(NULL, page, prot, MAP_PRIVATE, file, 0);
    TT_EXPECT(r, shared != MAP_FAILED && constant != MAP_FAILED && filed != MAP_FAILED);
    TT_EXPECT_OK(r, tutti_register(r->comm, own + page, 2 * page));
    refused_on_all(r, own + 8, page, "not page aligned");
    refused_on_all(r, own, 2 * page, "registered already");
    refused_on_all(r, own + 2 * page, 2 * page, "registered already");
    refused_on_all(r, own + page, page, "registered already");
    refused_on_all(r, own, 4 * page, "registered already");
    refused_on_all(r, shared, page, "not private");
    refused_on_all(r, constant, page, "not private");
    refused_on_all(r, filed, page, "not private");
    refused_on_all(r, NULL, page, "NULL");
    TT_EXPECT_OK(r, tutti_register(r->comm, own, page)); /* the page beside it */
    TT_EXPECT_OK(r, tutti_deregister(r->comm, own + page));
    TT_EXPECT_OK(r, tutti_deregister(r->comm, own));
    TT_EXPECT(r, has_pattern(own, 4 * page, r->rank));
    munmap(shared, page);
    munmap(constant, page);
    munmap(filed, page);
    close(file);
    close(zero);
    free(own);
}

static void memory_with_a_hole(tt_rank *r)
{
    char *anon = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    TT_EXPECT(r, anon != MAP_FAILED);
    TT_EXPECT_OK(r, tutti_register(r->comm, anon, 3 * page)); /* makes the table */
    TT_EXPECT_OK(r, tutti_deregister(r->comm, anon));
    TT_EXPECT(r, munmap(anon + page, page) == 0);
    TT_EXPECT(r, tutti_register(r->comm, anon, page + 1) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "nothing is mapped") != NULL);
    TT_EXPECT(r, tutti_register(r->comm, anon, 3 * page) == TUTTI_ERR_ARG);
    TT_EXPECT_OK(r, tutti_register(r->comm, anon, page));
    TT_EXPECT_OK(r, tutti_deregister(r->comm, anon));
    munmap(anon, page);
    munmap(anon + 2 * page, page);
}

static void memory_that_cannot_be_shared_is_refused(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, strange_memory, NULL);
    TT_ASSERT_RANKS(1, NULL, memory_with_a_hole, NULL); /* alone: nobody else maps into it */
}

static void wrong_releases(tt_rank *r)
{
    unsigned char *own = own_pages(page, r->rank);
    void *ptr = NULL;

    TT_EXPECT(r, tutti_free(r->comm, own) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_alloc(r->comm, 0, &ptr) == TUTTI_ERR_ARG && ptr == NULL);
    TT_EXPECT(r, tutti_alloc(r->comm, SIZE_MAX, &ptr) == TUTTI_ERR_ARG && ptr == NULL);
    TT_EXPECT_OK(r, tutti_alloc(r->comm, 2 * page, &ptr));
    TT_EXPECT_OK(r, tutti_register(r->comm, own, page));
    TT_EXPECT(r, tutti_free(r->comm, own) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "tutti_deregister") != NULL);
    TT_EXPECT(r, tutti_deregister(r->comm, ptr) == TUTTI_ERR_ARG);
    TT_EXPECT(r, strstr(tutti_last_error(), "tutti_free") != NULL);
    TT_EXPECT(r, tutti_free(r->comm, (char *)ptr + page) == TUTTI_ERR_ARG);
    /* one rank gives something else than the others */
    TT_EXPECT(r, tutti_free(r->comm, r->rank == 1 ? own : ptr) == TUTTI_ERR_ARG);
    TT_EXPECT(r, tutti_free(r->comm, r->rank == 1 ? NULL : ptr) == TUTTI_ERR_ARG);
    TT_EXPECT_OK(r, tutti_free(r->comm, ptr));
    TT_EXPECT(r, tutti_free(r->comm, ptr) == TUTTI_ERR_ARG);
    TT_EXPECT_OK(r, tutti_deregister(r->comm, own));
    TT_EXPECT(r, has_pattern(own, page, r->rank));
    free(own);
}

static void wrong_releases_change_nothing(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, wrong_releases, NULL);
}

static void expect_failed(tt_rank *r)
{
    TT_EXPECT(r, tutti_ctx_error(r->ctx, NULL, 0) == TUTTI_ERR_MISMATCH);
    r->ctx = NULL;
}

static void sizes_differ(tt_rank *r)
{
    void *ptr = NULL;
    TT_EXPECT(r, tutti_alloc(r->comm, r->rank == 2 ? 8192 : 4096, &ptr) == TUTTI_ERR_MISMATCH);
    TT_EXPECT(r, strstr(tutti_last_error(), "4096 on rank 0") != NULL);
    TT_EXPECT(r, strstr(tutti_last_error(), "8192 on rank 2") != NULL);
    expect_failed(r);
}

static void buffers_differ(tt_rank *r)
{
    void *a = NULL, *b = NULL;
    TT_EXPECT_OK(r, tutti_alloc(r->comm, page, &a));
    TT_EXPECT_OK(r, tutti_alloc(r->comm, page, &b));
    TT_EXPECT(r, tutti_free(r->comm, r->rank == 1 ? b : a) == TUTTI_ERR_MISMATCH);
    *(volatile char *)a = 1; /* still there */
    *(volatile char *)b = 1;
    expect_failed(r);
}

static void differences_are_named(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(3, NULL, sizes_differ, NULL);
    TT_ASSERT_RANKS(3, NULL, buffers_differ, NULL);
}

/* A rank fails while others hold registered memory: each can still let go of it. */
static void released_after_a_failure(tt_rank *r)
{
    tutti_ctx *ctx = r->ctx;
    unsigned char *own = own_pages(2 * page, r->rank);
    void *ptr = NULL, *left = NULL;

    TT_EXPECT_OK(r, tutti_alloc(r->comm, page, &ptr));
    TT_EXPECT_OK(r, tutti_alloc(r->comm, page, &left));
    TT_EXPECT_OK(r, tutti_register(r->comm, own, 2 * page));
    tutti_status met = tutti_barrier(r->comm); /* all have registered; one may have failed by now */
    TT_EXPECT(r, met == TUTTI_OK || tutti_ctx_error(ctx, NULL, 0) != TUTTI_OK);
    tt_ctx_fail(ctx, tt_fail(TUTTI_ERR_TIMEOUT, "on purpose"));
    r->ctx = NULL;
    TT_EXPECT_OK(r, tutti_deregister(r->comm, own));
    TT_EXPECT(r, has_pattern(own, 2 * page, r->rank));
    TT_EXPECT(r, tutti_deregister(r->comm, own) == TUTTI_ERR_ARG);
    TT_EXPECT_OK(r, tutti_free(r->comm, ptr));
    TT_EXPECT(r, tutti_alloc(r->comm, page, &ptr) != TUTTI_OK);
    free(own);
}

static void a_failed_context_lets_go(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(4, NULL, released_after_a_failure, NULL);
}

static void fill_later(void *arg)
{
    usleep(20000);
    memset(arg, 7, page);
}

/* Nothing is released: finalize does it, after the streams. */
static void left_to_finalize(tt_rank *r)
{
    tutti_stream stream = no_stream;
    void *ptr = NULL, *own = *(void **)r->arg;

    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "late", 0, &stream));
    TT_EXPECT_OK(r, tutti_alloc(r->comm, page, &ptr));
    TT_EXPECT_OK(r, tutti_register(r->comm, own, page));
    TT_EXPECT_OK(r, tutti_stream_call(r->ctx, stream, fill_later, ptr));
}

static void finalize_takes_what_is_left(void **state)
{
    void *heap = own_pages(page, 0);
    /* Not of the heap: pages that were never deregistered stay shared, and free() gives them on. */
    void *own = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)state;
    assert_ptr_not_equal(own, MAP_FAILED);
    memcpy(own, heap, page);
    free(heap);
    TT_ASSERT_RANKS(1, NULL, left_to_finalize, &own);
    assert_true(has_pattern(own, page, 0)); /* and the program's memory stays the program's */
    munmap(own, page);
}

/* Sums on memory of both kinds, on streams, released while they run. */
static void used(tt_rank *r)
{
    enum { N = 5000 };
    tutti_stream stream = no_stream;
    float *in = (float *)(void *)own_pages(8 * page, 0), *out;
    void *ptr = NULL;

    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "used", 0, &stream));
    TT_EXPECT_OK(r, tutti_alloc(r->comm, N * sizeof(float), &ptr));
    out = ptr;
    for (int i = 0; i < N; i++)
        in[i] = (float)(r->rank + i);
    TT_EXPECT_OK(r, tutti_register(r->comm, in, N * sizeof(float)));
    for (int i = 0; i < 3; i++)
        TT_EXPECT_OK(r, tutti_all_reduce(r->comm, in, out, N, TUTTI_FLOAT32, TUTTI_SUM, stream));
    TT_EXPECT_OK(r, tutti_deregister(r->comm, in)); /* after them */
    for (int i = 0; i < N; i++)
        TT_EXPECT(r, out[i] == (float)(r->size * i + r->size * (r->size - 1) / 2));
    for (int i = 0; i < N; i++)
        TT_EXPECT(r, in[i] == (float)(r->rank + i));
    TT_EXPECT_OK(r, tutti_free(r->comm, ptr));
    TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, stream));
    free(in);
}

static void release_waits_for_pending_work(void **state)
{
    (void)state;
    TT_ASSERT_RANKS(4, NULL, used, NULL);
    TT_ASSERT_RANKS(4, "2x2", used, NULL);
}

/* Four ranks want 30 % each of what is free: one cannot have it, so none may. */
static void one_does_not_fit(tt_rank *r)
{
    struct statvfs fs;
    void *ptr = NULL;

    TT_EXPECT(r, statvfs(r->arg, &fs) == 0);
    size_t bytes = fs.f_bavail * fs.f_bsize / 10 * 3 / page * page;
    unsigned char *own = own_pages(bytes, r->rank);
    TT_EXPECT_OK(r, tutti_barrier(r->comm));
    for (int round = 0; round < 2; round++) {
        TT_EXPECT(r, tutti_alloc(r->comm, bytes, &ptr) == TUTTI_ERR_NO_MEMORY && ptr == NULL);
        TT_EXPECT(r, strstr(tutti_last_error(), "MiB needed") != NULL);
        TT_EXPECT(r, strstr(tutti_last_error(), r->arg) != NULL);
        TT_EXPECT(r, tutti_register(r->comm, own, bytes) == TUTTI_ERR_NO_MEMORY);
        TT_EXPECT(r, has_pattern(own, bytes, r->rank));
    }
    TT_EXPECT_OK(r, tutti_alloc(r->comm, bytes / 2, &ptr)); /* nothing was left behind */
    TT_EXPECT_OK(r, tutti_free(r->comm, ptr));
    free(own);
}

static void too_little_on_one_rank_fails_on_all(void **state)
{
    char dir[] = "/tmp/tutti-memory-XXXXXX";
    const char *failure;

    (void)state;
    assert_non_null(mkdtemp(dir));
    if (mount("none", dir, "tmpfs", 0, "size=8m") != 0) {
        int err = errno;
        rmdir(dir);
        print_message("a small tmpfs cannot be mounted: %s\n", strerror(err));
        skip();
    }
    setenv("TUTTI_SHM_DIR", dir, 1);
    setenv("TUTTI_CHUNK_BYTES", "16K", 1); /* so that the world communicator fits */
    failure = tt_ranks_run(4, "4", one_does_not_fit, dir);
    unsetenv("TUTTI_SHM_DIR");
    unsetenv("TUTTI_CHUNK_BYTES");
    assert_int_equal(umount(dir), 0); /* no file is open, no page mapped */
    assert_int_equal(rmdir(dir), 0);
    assert_string_equal(failure, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_see_allocated_memory),
        cmocka_unit_test(registering_keeps_content_and_address),
        cmocka_unit_test(memory_belongs_to_parts_of_its_communicator),
        cmocka_unit_test(memory_that_cannot_be_shared_is_refused),
        cmocka_unit_test(wrong_releases_change_nothing),
        cmocka_unit_test(differences_are_named),
        cmocka_unit_test(a_failed_context_lets_go),
        cmocka_unit_test(finalize_takes_what_is_left),
        cmocka_unit_test(release_waits_for_pending_work),
        cmocka_unit_test(too_little_on_one_rank_fails_on_all),
    };
    page = (size_t)sysconf(_SC_PAGESIZE);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
