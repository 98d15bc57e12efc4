/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "core/clock.h"
#include "trace/recorder.h"

static void tells_the_latest(void **state)
{
    tt_recorder *rec = NULL;
    tt_lane *dp = NULL, *tp = NULL, *wordy = NULL;
    char text[160];
    (void)state;
    assert_int_equal(tt_recorder_create(&rec), TUTTI_OK);
    tt_recorder_last(rec, text, sizeof text);
    assert_string_equal(text, "in no collective yet");
    assert_int_equal(tt_lane_open(rec, "dp", &dp), TUTTI_OK);
    assert_int_equal(tt_lane_open(rec, "tp", &tp), TUTTI_OK);
    assert_int_equal(tt_lane_open(rec, "a name longer than the lane has room", &wordy), TUTTI_OK);
    tt_recorder_last(rec, text, sizeof text);
    assert_string_equal(text, "in no collective yet");
    tt_lane_begin(dp, "all_reduce", 0, 10);
    tt_lane_begin(tp, "broadcast", 5, 20);
    tt_lane_end(tp);
    tt_recorder_last(rec, text, sizeof text); /* the one still under way */
    assert_non_null(strstr(text, "in all_reduce 0 (10 elements) on comm dp for 0.0 s"));
    tt_lane_end(dp);
    tt_recorder_last(rec, text, sizeof text);
    assert_non_null(strstr(text, "last in broadcast 5 (20 elements) on comm tp, which ended 0.0"));
    tt_lane_begin(wordy, "gather", 999, 1);
    tt_recorder_last(rec, text, sizeof text);
    assert_non_null(
        strstr(text, "gather 999 (1 elements) on comm a name longer than the lane has for"));
    tt_lane_close(wordy);
    tt_recorder_last(rec, text, sizeof text);
    assert_non_null(strstr(text, "last in broadcast 5"));
    tt_lane_close(dp);
    tt_lane_close(tp);
    tt_recorder_destroy(rec);
    tt_lane_begin(NULL, "x", 0, 0);
    tt_lane_end(NULL);
    tt_lane_close(NULL);
    tt_recorder_last(NULL, text, sizeof text);
    tt_recorder_destroy(NULL);
}

static void tells_for_how_long(void **state)
{
    tt_recorder *rec = NULL;
    tt_lane *lane = NULL;
    char text[160];
    double seconds = 0;
    (void)state;
    assert_int_equal(tt_recorder_create(&rec), TUTTI_OK);
    assert_int_equal(tt_lane_open(rec, "dp", &lane), TUTTI_OK);
    tt_lane_begin(lane, "gather", 1, 1);
    tt_sleep_ns(150000000);
    tt_recorder_last(rec, text, sizeof text);
    assert_int_equal(sscanf(text, "in gather 1 (1 elements) on comm dp for %lf s", &seconds), 1);
    assert_true(seconds >= 0.1);
    tt_lane_close(lane);
    tt_recorder_destroy(rec);
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
    tt_lane *lane = NULL;
    if (tt_lane_open(s->rec, "lane", &lane) != TUTTI_OK)
        return NULL;
    for (uint64_t i = 0; i < 20000 || (i < 20000000 && atomic_load(&s->seen) == 0); i++) {
        tt_lane_begin(lane, "op", i, i);
        tt_lane_end(lane);
    }
    tt_lane_close(lane);
    atomic_fetch_sub(&s->running, 1);
    return NULL;
}

static void readers_see_no_torn_entry(void **state)
{
    enum { WRITERS = 3 };
    shared s = {.running = WRITERS};
    pthread_t thread[WRITERS];
    unsigned long long seq, count;
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
        assert_int_equal(sscanf(from, "op %llu (%llu elements) on comm lane", &seq, &count), 2);
        assert_true(seq == count);
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
        cmocka_unit_test(tells_for_how_long),
        cmocka_unit_test(readers_see_no_torn_entry),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
