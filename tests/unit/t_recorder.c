/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "trace/recorder.h"

static void tells_the_latest(void **state)
{
    tt_recorder *rec = NULL;
    char text[160];
    (void)state;
    assert_int_equal(tt_recorder_create(&rec), TUTTI_OK);
    tt_recorder_last(rec, text, sizeof text);
    assert_string_equal(text, "in no collective yet");
    uint64_t first = tt_recorder_begin(rec, "all_reduce", "dp", 0, 10);
    uint64_t second = tt_recorder_begin(rec, "broadcast", "tp", 5, 20);
    tt_recorder_end(rec, second);
    tt_recorder_last(rec, text, sizeof text); /* the one still under way */
    assert_non_null(strstr(text, "in all_reduce 0 (10 elements) on comm dp for "));
    tt_recorder_end(rec, first);
    tt_recorder_last(rec, text, sizeof text);
    assert_non_null(strstr(text, "last in broadcast 5 (20 elements) on comm tp, which ended "));
    for (uint64_t i = 0; i < 1000; i++)
        tt_recorder_end(
            rec, tt_recorder_begin(rec, "gather", "a name longer than the slot has room", i, 1));
    tt_recorder_last(rec, text, sizeof text);
    assert_non_null(
        strstr(text, "gather 999 (1 elements) on comm a name longer than the slot has,"));
    tt_recorder_end(rec, first); /* its slot has been reused: no effect */
    tt_recorder_destroy(rec);
    tt_recorder_end(NULL, tt_recorder_begin(NULL, "x", "y", 0, 0));
    tt_recorder_last(NULL, text, sizeof text);
    tt_recorder_destroy(NULL);
}

typedef struct shared {
    tt_recorder *rec;
    _Atomic int running, seen;
} shared;

/* Every field of an operation is the same number, so a torn entry shows. At least until the reader
 * has had its turn on a processor. */
static void *write_many(void *arg)
{
    shared *s = arg;
    char name[32];
    for (uint64_t i = 0; i < 20000 || (i < 20000000 && atomic_load(&s->seen) == 0); i++) {
        snprintf(name, sizeof name, "%llu.%llu", (unsigned long long)i, (unsigned long long)i);
        tt_recorder_end(s->rec, tt_recorder_begin(s->rec, "op", name, i, i));
    }
    atomic_fetch_sub(&s->running, 1);
    return NULL;
}

static void readers_see_no_torn_entry(void **state)
{
    enum { WRITERS = 3 };
    shared s = {.running = WRITERS};
    pthread_t thread[WRITERS];
    unsigned long long seq, count, a, b;
    (void)state;
    assert_int_equal(tt_recorder_create(&s.rec), TUTTI_OK);
    for (int i = 0; i < WRITERS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, write_many, &s), 0);
    while (atomic_load(&s.running) > 0) {
        char text[160];
        tt_recorder_last(s.rec, text, sizeof text);
        if (strncmp(text, "in no", 5) == 0)
            continue;
        const char *from = strstr(text, "op ");
        assert_non_null(from);
        assert_int_equal(
            sscanf(from, "op %llu (%llu elements) on comm %llu.%llu", &seq, &count, &a, &b), 4);
        assert_true(seq == count && seq == a && seq == b);
        atomic_fetch_add(&s.seen, 1);
    }
    for (int i = 0; i < WRITERS; i++)
        pthread_join(thread[i], NULL);
    assert_true(s.seen > 0);
    tt_recorder_destroy(s.rec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tells_the_latest),
        cmocka_unit_test(readers_see_no_torn_entry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
