/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_test.h"

#include <pthread.h>

enum { MAX_RANKS = 64 };

typedef struct job {
    tt_body body;
    tt_wrap wrap;
    tt_rank rank[MAX_RANKS];
} job;

typedef struct start {
    job *job;
    tt_rank *rank;
} start;

static char report[1200];

void tt_say(tt_rank *r, const char *fmt, ...)
{
    va_list args;
    if (r->failed)
        return;
    r->failed = true;
    va_start(args, fmt);
    vsnprintf(r->message, sizeof r->message, fmt, args);
    va_end(args);
}

static void *rank_main(void *arg)
{
    start *s = arg;
    if (s->job->wrap != NULL)
        s->job->wrap(s->rank, s->job->body);
    else
        s->job->body(s->rank);
    return NULL;
}

const char *tt_threads_wrapped(int n, const char *nodes, tt_body body, void *arg, tt_wrap wrap)
{
    job *j = calloc(1, sizeof *j);
    start starts[MAX_RANKS];
    pthread_t thread[MAX_RANKS];
    tutti_threads *threads;

    if (nodes != NULL)
        setenv("TUTTI_NODES", nodes, 1);
    else
        unsetenv("TUTTI_NODES");
    if (j == NULL || n > MAX_RANKS || tutti_threads_create(n, &threads) != TUTTI_OK) {
        snprintf(report, sizeof report, "cannot make %d thread ranks: %s", n, tutti_last_error());
        free(j);
        return report;
    }
    j->body = body;
    j->wrap = wrap;
    for (int i = 0; i < n; i++) {
        j->rank[i] = (tt_rank){.rank = i, .size = n, .threads = threads, .arg = arg};
        starts[i] = (start){j, &j->rank[i]};
        if (pthread_create(&thread[i], NULL, rank_main, &starts[i]) != 0)
            abort();
    }
    report[0] = '\0';
    for (int i = 0; i < n; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < n && report[0] == '\0'; i++)
        if (j->rank[i].failed)
            snprintf(report, sizeof report, "rank %d of %d: %s", i, n, j->rank[i].message);
    tutti_threads_destroy(threads);
    free(j);
    return report;
}

const char *tt_threads_run(int n, const char *nodes, tt_body body, void *arg)
{
    return tt_threads_wrapped(n, nodes, body, arg, NULL);
}
