/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_test.h"

#include <errno.h>
#include <pthread.h>

#include "core/clock.h"
#include "core/hash.h"
#include "core/mem.h"
#include "core/status.h"
#include "core/thread.h"

static void errors_keep_text_and_errno(void **state)
{
    (void)state;
    errno = 42;
    assert_int_equal(tt_fail(TUTTI_ERR_STATE, "rank %d is late", 3), TUTTI_ERR_STATE);
    assert_string_equal(tutti_last_error(), "rank 3 is late");
    assert_int_equal(tt_fail_more(TUTTI_ERR_STATE, "saving %s", "x"), TUTTI_ERR_STATE);
    assert_string_equal(tutti_last_error(), "saving x: rank 3 is late");
    tt_fail(TUTTI_ERR_STATE, "[%s]", tutti_last_error());
    assert_string_equal(tutti_last_error(), "[saving x: rank 3 is late]");
    assert_int_equal(tt_fail_text(TUTTI_ERR_REMOTE, tutti_last_error()), TUTTI_ERR_REMOTE);
    assert_string_equal(tutti_last_error(), "[saving x: rank 3 is late]");
    assert_int_equal(errno, 42);
}

static void errno_becomes_text_and_status(void **state)
{
    (void)state;
    assert_int_equal(tt_fail_errno(TUTTI_ERR_IO, EACCES, "open %s", "/x"), TUTTI_ERR_IO);
    assert_string_equal(tutti_last_error(), "open /x: Permission denied");
    assert_int_equal(tt_fail_errno(TUTTI_ERR_IO, ENOSPC, "write"), TUTTI_ERR_NO_SPACE);
    assert_int_equal(tt_fail_errno(TUTTI_ERR_IO, EDQUOT, "write"), TUTTI_ERR_NO_SPACE);
    assert_int_equal(tt_fail_errno(TUTTI_ERR_IO, ENOMEM, "map"), TUTTI_ERR_NO_MEMORY);
    tt_fail_errno(TUTTI_ERR_IO, 99999, "odd");
    assert_string_equal(tutti_last_error(), "odd: unknown error");
}

static void long_texts_are_cut(void **state)
{
    char big[2 * TT_ERROR_TEXT_MAX];
    (void)state;
    memset(big, 'a', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    tt_fail(TUTTI_ERR_ARG, "%s", big);
    assert_int_equal(strlen(tutti_last_error()), TT_ERROR_TEXT_MAX - 1);
    tt_fail_more(TUTTI_ERR_ARG, "%s", big);
    tt_fail_errno(TUTTI_ERR_ARG, EIO, "%s", big);
    assert_int_equal(strlen(tutti_last_error()), TT_ERROR_TEXT_MAX - 1);
}

static void names_of_what_is_none(void **state)
{
    (void)state;
    assert_string_equal(tutti_status_name(TUTTI_ERR_MISMATCH), "TUTTI_ERR_MISMATCH");
    assert_string_equal(tutti_status_name((tutti_status)-99), "unknown status");
    assert_string_equal(tutti_dtype_name(TUTTI_BFLOAT16), "bf16");
    assert_int_equal(tutti_dtype_size(TUTTI_UINT64), 8);
    for (int bad = -1; bad <= 99; bad += 1 + 12 * (bad >= 0)) {
        assert_int_equal(tutti_dtype_size((tutti_dtype)bad), 0);
        assert_string_equal(tutti_dtype_name((tutti_dtype)bad), "?");
    }
    assert_int_equal(tt_dtype_check((tutti_dtype)99, "send", "world"), TUTTI_ERR_ARG);
    assert_string_equal(tutti_last_error(), "send on comm world: 99 is no dtype");
    assert_int_equal(tt_dtype_check(TUTTI_FLOAT8_E4M3, "send", NULL), TUTTI_ERR_ARG);
    assert_string_equal(tutti_last_error(),
                        "send: f8_e4m3 is for checkpoints only; send its bytes as TUTTI_UINT8, "
                        "reduce values as TUTTI_BFLOAT16 or TUTTI_FLOAT32");
    assert_int_equal(tt_dtype_check(TUTTI_UINT64, "send", NULL), TUTTI_OK);
}

static void allocation_refuses_overflow(void **state)
{
    void *ptr = NULL;
    size_t cap = 0;
    int *array = NULL;
    (void)state;
    assert_int_equal(tt_calloc(SIZE_MAX / 2, 3, &ptr), TUTTI_ERR_NO_MEMORY);
    assert_null(ptr);
    assert_int_equal(tt_calloc(0, 8, &ptr), TUTTI_OK);
    assert_non_null(ptr);
    free(ptr);
    for (size_t need = 1; need < 1000; need += 7) {
        assert_int_equal(tt_grow(&array, &cap, need, sizeof *array), TUTTI_OK);
        array[need - 1] = (int)need;
    }
    assert_int_equal(array[0], 1);
    assert_int_equal(tt_grow(&array, &cap, SIZE_MAX / 2, sizeof *array), TUTTI_ERR_NO_MEMORY);
    assert_int_equal(array[0], 1);
    free(array);
}

static void put_all(tt_buf *buf)
{
    tt_buf_put_u32(buf, 7);
    tt_buf_put_str(buf, "node-b");
    tt_buf_put_u64(buf, UINT64_MAX - 1);
    tt_buf_put(buf, "xyz", 3);
    tt_buf_put_str(buf, "");
}

static bool get_all(tt_buf *buf)
{
    char xyz[3];
    bool same = tt_buf_get_u32(buf) == 7;
    same &= strcmp(tt_buf_get_str(buf), "node-b") == 0;
    same &= tt_buf_get_u64(buf) == UINT64_MAX - 1;
    tt_buf_get(buf, xyz, 3);
    same &= memcmp(xyz, "xyz", 3) == 0;
    same &= strcmp(tt_buf_get_str(buf), "") == 0;
    return same && !buf->failed;
}

static void buffers_survive_truncation(void **state)
{
    tt_buf buf = {0};
    (void)state;
    put_all(&buf);
    assert_false(buf.failed);
    tt_buf whole = tt_buf_view(buf.data, buf.size);
    assert_true(get_all(&whole));
    for (size_t bytes = 0; bytes < buf.size; bytes++) {
        unsigned char *part = malloc(bytes + 1); /* a sanitizer sees a read past the end */
        memcpy(part, buf.data, bytes);
        part = realloc(part, bytes > 0 ? bytes : 1);
        tt_buf view = tt_buf_view(part, bytes);
        assert_false(get_all(&view));
        assert_true(view.failed);
        free(part);
    }
    tt_buf_free(&buf);
}

static void buffers_survive_random_bytes(void **state)
{
    tt_rng rng = {12};
    (void)state;
    for (int round = 0; round < 2000; round++) {
        unsigned char noise[64];
        size_t bytes = tt_rand_below(&rng, sizeof noise);
        for (size_t i = 0; i < bytes; i++)
            noise[i] = tt_rand_below(&rng, 4) == 0 ? (unsigned char)tt_rand(&rng) : 0;
        tt_buf view = tt_buf_view(noise, bytes);
        while (!view.failed && view.at < view.size) {
            const char *text = tt_buf_get_str(&view);
            assert_true(strlen(text) <= bytes);
        }
    }
}

static void hashes_are_xxh3(void **state)
{
    (void)state;
    /* The published values of the empty input. */
    assert_true(tt_hash64("", 0, 0) == 0x2d06800538d394c2u);
    tt_hash128 none = tt_hash128_of("", 0);
    assert_true(none.high == 0x99aa06d3014798d8u && none.low == 0x6001c324468d497fu);
    assert_true(tt_hash64("a", 1, 0) != tt_hash64("a", 1, 1));
}

static void hashes_of_pieces_are_those_of_the_whole(void **state)
{
    static unsigned char data[5000];
    tt_rng rng = {1};
    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)tt_rand(&rng);
    for (int turn = 0; turn < 200; turn++) {
        size_t bytes = tt_rand_below(&rng, sizeof data), at = 0;
        tt_hash128 want = tt_hash128_of(data, bytes), have;
        tt_hasher hasher;
        tt_hasher_begin(&hasher);
        while (at < bytes) {
            size_t take = 1 + tt_rand_below(&rng, bytes - at);
            tt_hasher_add(&hasher, data + at, take);
            at += take;
        }
        have = tt_hasher_end(&hasher);
        assert_true(have.low == want.low && have.high == want.high);
    }
}

typedef struct flag_wait {
    _Atomic uint32_t word;
    tt_patience patience;
    pthread_t thread;
} flag_wait;

static void *wait_for_flag(void *arg)
{
    flag_wait *f = arg;
    tt_wait wait;
    tt_wait_begin(&wait, &f->patience);
    while (atomic_load(&f->word) == 0)
        tt_wait_once(&wait, &f->word, 0);
    return NULL;
}

static void waits_end_in_every_phase(void **state)
{
    static const tt_patience kinds[] = {
        {0, 50000, 500000}, {1000000000, 50000, 500000}, {20000, 1000, 10000000000}};
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        flag_wait f = {.patience = kinds[i]};
        assert_int_equal(tt_thread_start(&f.thread, "a name beyond the limit", wait_for_flag, &f),
                         TUTTI_OK);
        tt_sleep_ns(5000000);
        atomic_store(&f.word, 1);
        tt_futex_wake_all(&f.word);
        pthread_join(f.thread, NULL);
    }
}

static void time_moves_on(void **state)
{
    int64_t before = tt_now_ns();
    (void)state;
    tt_sleep_ns(1000000);
    assert_true(tt_now_ns() - before >= 1000000);
    assert_true(tt_deadline(0) == TT_NEVER && tt_deadline(-1) == TT_NEVER);
    assert_true(tt_deadline(1e30) == TT_NEVER);
    assert_true(tt_deadline(1000) > before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(errors_keep_text_and_errno),
        cmocka_unit_test(errno_becomes_text_and_status),
        cmocka_unit_test(long_texts_are_cut),
        cmocka_unit_test(names_of_what_is_none),
        cmocka_unit_test(allocation_refuses_overflow),
        cmocka_unit_test(buffers_survive_truncation),
        cmocka_unit_test(buffers_survive_random_bytes),
        cmocka_unit_test(hashes_are_xxh3),
        cmocka_unit_test(hashes_of_pieces_are_those_of_the_whole),
        cmocka_unit_test(waits_end_in_every_phase),
        cmocka_unit_test(time_moves_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
