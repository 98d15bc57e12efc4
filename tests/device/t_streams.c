/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events of the host backend, below any context. */
#include "tt_test.h"

#include <pthread.h>
#include <stdatomic.h>

#include "core/clock.h"
#include "core/status.h"
#include "device/device.h"

/* Stands for the context. */
typedef struct owner {
    _Atomic int failed, errors, threads;
    char text[256];
} owner;

static const tt_device_ops *const ops = &tt_device_host;
static const tutti_stream no_stream; /* the inline one */

static void on_error(void *arg, tutti_status status, const char *text)
{
    owner *o = arg;
    snprintf(o->text, sizeof o->text, "%s", text);
    atomic_store(&o->failed, status);
    atomic_fetch_add(&o->errors, 1);
}

static tutti_status check(void *arg)
{
    owner *o = arg;
    int status = atomic_load(&o->failed);
    return status == TUTTI_OK ? TUTTI_OK : tt_fail((tutti_status)status, "the owner has failed");
}

static void on_thread(void *arg)
{
    owner *o = arg;
    atomic_fetch_add(&o->threads, 1);
}

static tt_device *open_device(owner *o)
{
    tt_device_owner given = {o, on_error, check, on_thread};
    tt_device *dev = NULL;
    *o = (owner){0};
    assert_int_equal(ops->open(&given, 0, 1, &dev), TUTTI_OK);
    return dev;
}

static tutti_stream new_stream(tt_device *dev)
{
    tutti_stream s = no_stream;
    assert_int_equal(ops->stream_create(dev, "test", 0, &s), TUTTI_OK);
    return s;
}

static tt_event *new_event(tt_device *dev, bool timing)
{
    tt_event *event = NULL;
    assert_int_equal(ops->event_create(dev, timing, &event), TUTTI_OK);
    return event;
}

/* Work that waits until it is let go. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    bool open;
} gate;
#define GATE_INIT                                                                                  \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false                                 \
    }

static tutti_status pass_gate(void *arg)
{
    gate *g = arg;
    pthread_mutex_lock(&g->lock);
    while (!g->open)
        pthread_cond_wait(&g->moved, &g->lock);
    pthread_mutex_unlock(&g->lock);
    return TUTTI_OK;
}

static void open_gate(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->moved);
    pthread_mutex_unlock(&g->lock);
}

/* A log of numbers, not atomic: the streams' order is what keeps it whole. */
typedef struct entry {
    int *log, *n, value;
} entry;

static tutti_status append(void *arg)
{
    entry *e = arg;
    e->log[(*e->n)++] = e->value;
    return TUTTI_OK;
}

static char letter_a[] = "A", letter_b[] = "B";

static tutti_status fail_work(void *arg)
{
    return tt_fail(TUTTI_ERR_IO, "work %s broke", (const char *)arg);
}

static tutti_status count_up(void *arg)
{
    ++*(int *)arg;
    return TUTTI_OK;
}

static void work_keeps_its_order_while_the_ring_grows(void **state)
{
    enum { N = 5000 };
    static int log[N];
    static entry entries[N];
    owner o;
    tt_device *dev = open_device(&o);
    tutti_stream s = new_stream(dev);
    gate g = GATE_INIT;
    int n = 0;

    (void)state;
    for (int round = 0; round < 3; round++) { /* once with the ring's wrap at another place */
        n = 0;
        g.open = false;
        assert_int_equal(ops->stream_call(dev, s, pass_gate, &g, 0), TUTTI_OK);
        for (int i = 0; i < N - round * 37; i++) {
            entry *e = round == 0 ? &entries[i] : &entries[0]; /* the others are copied */
            *e = (entry){log, &n, i};
            assert_int_equal(ops->stream_call(dev, s, append, e, round == 0 ? 0 : sizeof *e),
                             TUTTI_OK);
        }
        open_gate(&g);
        assert_int_equal(ops->stream_sync(dev, s), TUTTI_OK);
        assert_int_equal(n, N - round * 37);
        for (int i = 0; i < n; i++)
            assert_int_equal(log[i], i);
    }
    assert_int_equal(o.threads, 1);
    ops->close(dev);
}

static void a_stream_waits_for_a_point_of_another(void **state)
{
    int log[4], n = 0;
    owner o;
    tt_device *dev = open_device(&o);
    tutti_stream a = new_stream(dev), b = new_stream(dev);
    tt_event *event = new_event(dev, false);
    gate g = GATE_INIT, later = GATE_INIT;
    entry first = {log, &n, 1}, second = {log, &n, 2};
    bool there = false;

    (void)state;
    ops->event_query(dev, event, &there);
    assert_true(there); /* never recorded */
    assert_int_equal(ops->event_wait(dev, event, b), TUTTI_OK);
    assert_int_equal(ops->stream_call(dev, a, pass_gate, &g, 0), TUTTI_OK);
    assert_int_equal(ops->stream_call(dev, a, append, &first, 0), TUTTI_OK);
    assert_int_equal(ops->event_record(dev, event, a), TUTTI_OK);
    assert_int_equal(ops->stream_call(dev, a, pass_gate, &later, 0), TUTTI_OK);
    assert_int_equal(ops->event_wait(dev, event, b), TUTTI_OK);
    assert_int_equal(ops->event_wait(dev, event, a), TUTTI_OK); /* its own past */
    assert_int_equal(ops->stream_call(dev, b, append, &second, 0), TUTTI_OK);
    ops->event_query(dev, event, &there);
    assert_false(there);
    open_gate(&g);
    assert_int_equal(ops->stream_sync(dev, b), TUTTI_OK); /* does not wait for `later` */
    assert_int_equal(n, 2);
    assert_int_equal(log[0], 1);
    assert_int_equal(log[1], 2);
    ops->event_query(dev, event, &there);
    assert_true(there);
    assert_int_equal(ops->event_wait(dev, event, no_stream), TUTTI_OK);
    open_gate(&later);
    ops->event_destroy(dev, event);
    ops->close(dev);
}

static void recording_again_moves_an_event_but_not_its_waiters(void **state)
{
    int log[4], n = 0;
    owner o;
    tt_device *dev = open_device(&o);
    tutti_stream slow = new_stream(dev), fast = new_stream(dev), waits = new_stream(dev);
    tt_event *event = new_event(dev, true);
    gate g = GATE_INIT;
    entry first = {log, &n, 1}, second = {log, &n, 2};

    (void)state;
    assert_int_equal(ops->stream_call(dev, slow, pass_gate, &g, 0), TUTTI_OK);
    assert_int_equal(ops->stream_call(dev, slow, append, &first, 0), TUTTI_OK);
    assert_int_equal(ops->event_record(dev, event, slow), TUTTI_OK);
    assert_int_equal(ops->event_wait(dev, event, waits), TUTTI_OK);
    assert_int_equal(ops->event_record(dev, event, fast), TUTTI_OK);
    assert_int_equal(ops->event_wait(dev, event, no_stream), TUTTI_OK);
    assert_int_equal(ops->stream_call(dev, waits, append, &second, 0), TUTTI_OK);
    ops->event_destroy(dev, event); /* before its first recording has passed */
    open_gate(&g);
    assert_int_equal(ops->stream_sync(dev, waits), TUTTI_OK);
    assert_int_equal(log[0], 1);
    assert_int_equal(log[1], 2);
    ops->close(dev);
}

static void events_tell_the_time(void **state)
{
    owner o;
    tt_device *dev = open_device(&o);
    tutti_stream s = new_stream(dev);
    tt_event *from = new_event(dev, true), *to = new_event(dev, true);
    tt_event *plain = new_event(dev, false);
    gate g = GATE_INIT;
    double seconds = -1;

    (void)state;
    assert_int_equal(ops->event_elapsed(dev, from, to, &seconds), TUTTI_ERR_STATE);
    assert_int_equal(ops->event_record(dev, from, s), TUTTI_OK);
    assert_int_equal(ops->stream_sync(dev, s), TUTTI_OK);
    assert_int_equal(ops->stream_call(dev, s, pass_gate, &g, 0), TUTTI_OK);
    assert_int_equal(ops->event_record(dev, to, s), TUTTI_OK);
    assert_int_equal(ops->event_elapsed(dev, from, to, &seconds), TUTTI_ERR_STATE);
    assert_true(seconds == -1);
    tt_sleep_ns(20 * 1000 * 1000);
    open_gate(&g);
    assert_int_equal(ops->event_wait(dev, to, no_stream), TUTTI_OK);
    assert_int_equal(ops->event_elapsed(dev, from, to, &seconds), TUTTI_OK);
    assert_true(seconds >= 0.02);
    assert_int_equal(ops->event_record(dev, plain, s), TUTTI_OK);
    assert_int_equal(ops->event_elapsed(dev, plain, to, &seconds), TUTTI_ERR_ARG);
    assert_int_equal(ops->event_record(dev, from, no_stream), TUTTI_OK);
    assert_int_equal(ops->event_elapsed(dev, to, from, &seconds), TUTTI_OK);
    assert_true(seconds >= 0);
    ops->event_destroy(dev, from);
    ops->event_destroy(dev, to);
    ops->event_destroy(dev, plain);
    ops->event_destroy(dev, NULL);
    ops->close(dev);
}

static void a_failure_sticks_and_reaches_streams_that_wait(void **state)
{
    owner o;
    tt_device *dev = open_device(&o);
    tutti_stream s = new_stream(dev), other = new_stream(dev), apart = new_stream(dev);
    tt_event *event = new_event(dev, false);
    int ran = 0, data = 7;

    (void)state;
    assert_int_equal(ops->stream_call(dev, s, fail_work, letter_a, 0), TUTTI_OK);
    assert_int_equal(ops->stream_call(dev, s, fail_work, letter_b, 0), TUTTI_OK);
    assert_int_equal(ops->stream_call(dev, s, count_up, &ran, 0), TUTTI_OK);
    assert_int_equal(ops->zero(dev, &data, sizeof data, s), TUTTI_OK);
    assert_int_equal(ops->event_record(dev, event, s), TUTTI_OK);
    assert_int_equal(ops->event_wait(dev, event, other), TUTTI_OK);
    assert_int_equal(ops->zero(dev, &data, sizeof data, other), TUTTI_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ops->stream_sync(dev, s), TUTTI_ERR_IO);
        assert_string_equal(tutti_last_error(), "work A broke");
        assert_int_equal(ops->stream_sync(dev, other), TUTTI_ERR_IO);
        assert_string_equal(tutti_last_error(), "work A broke");
    }
    assert_int_equal(ran, 1); /* work runs, so that it can free its argument */
    assert_int_equal(data, 7); /* data stays */
    assert_int_equal(o.errors, 1);
    assert_string_equal(o.text, "work A broke");
    assert_int_equal(ops->stream_sync(dev, apart), TUTTI_OK);
    ops->event_destroy(dev, event);
    ops->close(dev);
}

static void sync_ends_when_the_owner_fails(void **state)
{
    owner o;
    tt_device *dev = open_device(&o);
    tutti_stream s = new_stream(dev);
    tt_event *event = new_event(dev, false);
    gate g = GATE_INIT;

    (void)state;
    assert_int_equal(ops->stream_call(dev, s, pass_gate, &g, 0), TUTTI_OK);
    assert_int_equal(ops->event_record(dev, event, s), TUTTI_OK);
    atomic_store(&o.failed, TUTTI_ERR_REMOTE);
    assert_int_equal(ops->stream_sync(dev, s), TUTTI_ERR_REMOTE);
    assert_string_equal(tutti_last_error(), "the owner has failed");
    assert_int_equal(ops->event_wait(dev, event, no_stream), TUTTI_ERR_REMOTE);
    open_gate(&g);
    ops->event_destroy(dev, event);
    ops->close(dev);
}

typedef struct own {
    tt_device *dev;
    tutti_stream stream;
    tutti_status sync, wait, call;
    int ran;
} own;

static tutti_status use_own_stream(void *arg)
{
    own *w = arg;
    tt_event *event;
    w->sync = ops->stream_sync(w->dev, w->stream);
    w->call = ops->stream_call(w->dev, w->stream, count_up, &w->ran, 0);
    ops->stream_destroy(w->dev, w->stream); /* logged, nothing happens */
    TT_TRY(ops->event_create(w->dev, false, &event));
    TT_TRY(ops->event_record(w->dev, event, w->stream));
    w->wait = ops->event_wait(w->dev, event, no_stream);
    ops->event_destroy(w->dev, event);
    return TUTTI_OK;
}

static void a_worker_cannot_wait_for_its_own_stream(void **state)
{
    owner o;
    tt_device *dev = open_device(&o);
    own w = {.dev = dev, .stream = new_stream(dev)};

    (void)state;
    assert_int_equal(ops->stream_call(dev, w.stream, use_own_stream, &w, 0), TUTTI_OK);
    assert_int_equal(ops->stream_sync(dev, w.stream), TUTTI_OK);
    assert_int_equal(ops->stream_sync(dev, w.stream), TUTTI_OK); /* what the work queued */
    assert_int_equal(w.sync, TUTTI_ERR_STATE);
    assert_int_equal(w.wait, TUTTI_ERR_STATE);
    assert_int_equal(w.call, TUTTI_OK);
    assert_int_equal(w.ran, 1);
    ops->close(dev);
}

static void strange_streams_are_refused(void **state)
{
    owner o, o2;
    tt_device *dev = open_device(&o), *foreign = open_device(&o2);
    tutti_stream gone = new_stream(dev), live = new_stream(dev), theirs = new_stream(foreign);
    tutti_stream cuda = {&o, TUTTI_STREAM_CUDA}, odd = {NULL, 17}, null = {NULL, TUTTI_STREAM_HOST};
    tutti_stream shifted = {NULL, TUTTI_STREAM_INLINE};
    tutti_stream strange[6];
    int ran = 0;

    (void)state;
    ops->stream_destroy(dev, gone);
    ops->stream_destroy(dev, gone);
    ops->stream_destroy(dev, no_stream);
    shifted.handle = live.handle;
    memcpy(strange, (tutti_stream[]){gone, theirs, cuda, odd, null, shifted}, sizeof strange);
    for (int again = 0; again < 2; again++) {
        for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
            assert_int_equal(ops->stream_check(dev, strange[i]), TUTTI_ERR_ARG);
            assert_int_equal(ops->stream_sync(dev, strange[i]), TUTTI_ERR_ARG);
            assert_int_equal(ops->stream_call(dev, strange[i], count_up, &ran, 0), TUTTI_ERR_ARG);
        }
        new_stream(dev); /* takes the slot of the one that is gone */
    }
    assert_int_equal(ops->stream_check(dev, cuda), TUTTI_ERR_ARG);
    assert_non_null(strstr(tutti_last_error(), "CUDA"));
    assert_int_equal(ops->stream_check(dev, live), TUTTI_OK);
    assert_int_equal(ops->stream_check(dev, no_stream), TUTTI_OK);
    assert_int_equal(ran, 0);
    ops->close(dev);
    ops->close(foreign);
    ops->close(NULL);
}

static void inline_work_is_done_in_the_call(void **state)
{
    owner o;
    tt_device *dev = open_device(&o);
    tt_event *event = new_event(dev, false);
    int ran = 0;
    char from[5] = "abcd", to[5] = "";
    bool there = false;

    (void)state;
    assert_int_equal(ops->stream_call(dev, no_stream, count_up, &ran, 0), TUTTI_OK);
    assert_int_equal(ran, 1);
    assert_int_equal(ops->stream_call(dev, no_stream, fail_work, letter_a, 0), TUTTI_ERR_IO);
    assert_int_equal(ops->stream_sync(dev, no_stream), TUTTI_OK);
    assert_int_equal(ops->copy(dev, to, from, sizeof from, no_stream), TUTTI_OK);
    assert_string_equal(to, "abcd");
    assert_int_equal(ops->zero(dev, to, sizeof to, no_stream), TUTTI_OK);
    assert_int_equal(to[0], 0);
    assert_int_equal(ops->copy(dev, NULL, NULL, 0, no_stream), TUTTI_OK);
    assert_int_equal(ops->event_record(dev, event, no_stream), TUTTI_OK);
    ops->event_query(dev, event, &there);
    assert_true(there);
    assert_int_equal(ops->ordinal(dev), -1);
    assert_int_equal(o.threads, 0);
    ops->event_destroy(dev, event);
    ops->close(dev);
}

static void nan_of_every_width(void **state)
{
    owner o;
    tt_device *dev = open_device(&o);
    tutti_stream s = new_stream(dev);
    double f64[3] = {0};
    float f32[3] = {0};
    uint16_t half[6] = {0};
    int32_t whole = 5;

    (void)state;
    assert_int_equal(ops->fill_nan(dev, f64, 2, TUTTI_FLOAT64, s), TUTTI_OK);
    assert_int_equal(ops->fill_nan(dev, f32, 2, TUTTI_FLOAT32, s), TUTTI_OK);
    assert_int_equal(ops->fill_nan(dev, half, 2, TUTTI_BFLOAT16, s), TUTTI_OK);
    assert_int_equal(ops->fill_nan(dev, half + 3, 2, TUTTI_FLOAT16, s), TUTTI_OK);
    assert_int_equal(ops->fill_nan(dev, &whole, 1, TUTTI_INT32, s), TUTTI_ERR_ARG);
    assert_int_equal(ops->stream_sync(dev, s), TUTTI_OK);
    assert_true(f64[1] != f64[1] && f64[2] == 0);
    assert_true(f32[1] != f32[1] && f32[2] == 0);
    assert_true((half[1] & 0x7f80) == 0x7f80 && (half[1] & 0x7f) != 0 && half[2] == 0);
    assert_true((half[4] & 0x7c00) == 0x7c00 && (half[4] & 0x3ff) != 0 && half[5] == 0);
    assert_int_equal(whole, 5);
    ops->close(dev);
}

static void destroy_finishes_the_work(void **state)
{
    owner o;
    tt_device *dev = open_device(&o);
    tutti_stream s = new_stream(dev), after = new_stream(dev);
    tt_event *event = new_event(dev, false);
    int ran = 0;

    (void)state;
    for (int i = 0; i < 100; i++)
        assert_int_equal(ops->stream_call(dev, s, count_up, &ran, 0), TUTTI_OK);
    assert_int_equal(ops->event_record(dev, event, s), TUTTI_OK);
    ops->stream_destroy(dev, s);
    assert_int_equal(ran, 100);
    assert_int_equal(ops->event_wait(dev, event, after), TUTTI_OK); /* outlives its stream */
    for (int i = 0; i < 100; i++)
        assert_int_equal(ops->stream_call(dev, after, count_up, &ran, 0), TUTTI_OK);
    ops->event_destroy(dev, event);
    ops->close(dev);
    assert_int_equal(ran, 200);
}

/* A random graph: threads give work to streams that wait for each other; a counter per chain, not
 * atomic, is kept whole by the order alone. */
enum { THREADS = 64, ROUNDS = 40 };

typedef struct chain {
    tt_device *dev;
    int seed, steps;
    bool failed;
} chain;

static void *run_chain(void *arg)
{
    chain *c = arg;
    tt_rng rng = {(uint64_t)c->seed};
    tutti_stream s[2] = {{0}};
    tt_event *event = NULL;
    int at = 0;

    c->failed = ops->stream_create(c->dev, NULL, 0, &s[0]) != TUTTI_OK ||
                ops->stream_create(c->dev, NULL, 0, &s[1]) != TUTTI_OK ||
                ops->event_create(c->dev, true, &event) != TUTTI_OK;
    for (int i = 0; i < ROUNDS && !c->failed; i++) {
        int to = (int)tt_rand_below(&rng, 2);
        c->failed = ops->event_record(c->dev, event, s[at]) != TUTTI_OK ||
                    ops->event_wait(c->dev, event, s[to]) != TUTTI_OK ||
                    ops->stream_call(c->dev, s[to], count_up, &c->steps, 0) != TUTTI_OK;
        at = to;
    }
    c->failed = c->failed || ops->stream_sync(c->dev, s[at]) != TUTTI_OK || c->steps != ROUNDS;
    ops->event_destroy(c->dev, event);
    ops->stream_destroy(c->dev, s[0]);
    if (c->seed % 2 == 0)
        ops->stream_destroy(c->dev, s[1]); /* the rest is left to close */
    return NULL;
}

static void many_threads_and_streams(void **state)
{
    static chain chains[THREADS];
    pthread_t thread[THREADS];
    owner o;
    tt_device *dev = open_device(&o);

    (void)state;
    for (int i = 0; i < THREADS; i++) {
        chains[i] = (chain){.dev = dev, .seed = i};
        assert_int_equal(pthread_create(&thread[i], NULL, run_chain, &chains[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++)
        assert_false(chains[i].failed);
    ops->close(dev);
    assert_int_equal(o.threads, 2 * THREADS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_keeps_its_order_while_the_ring_grows),
        cmocka_unit_test(a_stream_waits_for_a_point_of_another),
        cmocka_unit_test(recording_again_moves_an_event_but_not_its_waiters),
        cmocka_unit_test(events_tell_the_time),
        cmocka_unit_test(a_failure_sticks_and_reaches_streams_that_wait),
        cmocka_unit_test(sync_ends_when_the_owner_fails),
        cmocka_unit_test(a_worker_cannot_wait_for_its_own_stream),
        cmocka_unit_test(strange_streams_are_refused),
        cmocka_unit_test(inline_work_is_done_in_the_call),
        cmocka_unit_test(nan_of_every_width),
        cmocka_unit_test(destroy_finishes_the_work),
        cmocka_unit_test(many_threads_and_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
