/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_test.h"

#include <dlfcn.h>
#include <pthread.h>

enum { MAX_RANKS = 64 };

/* Which of TUTTI_NODES' nodes the rank is on: "2x4", "3,1". */
static int node_of(const char *nodes, int rank)
{
    int count, each, node = 0;
    if (nodes == NULL)
        return 0;
    if (sscanf(nodes, "%dx%d", &count, &each) == 2)
        return rank / each;
    for (const char *at = nodes; *at != '\0'; node++) {
        char *end;
        rank -= (int)strtol(at, &end, 10);
        if (rank < 0 || end == at)
            break;
        at = *end == ',' ? end + 1 : end;
    }
    return node;
}

/* On simulated GPUs (tests/simgpu) each node has a machine of its own: SIMGPU_HOSTS of them. */
static void play_host(const char *nodes, int rank)
{
    void (*play)(int) = NULL;
    if (getenv("SIMGPU_HOSTS") != NULL)
        *(void **)&play = dlsym(RTLD_DEFAULT, "sg_thread_host");
    if (play != NULL)
        play(node_of(nodes, rank));
}

typedef struct tt_meeting {
    pthread_mutex_t lock;
    pthread_cond_t next_round;
    int size, here, gone, round;
} tt_meeting;

static void meeting_is_over(tt_meeting *m)
{
    m->here = 0;
    m->round++;
    pthread_cond_broadcast(&m->next_round);
}

void tt_all_here(tt_rank *r)
{
    tt_meeting *m = r->meeting;
    pthread_mutex_lock(&m->lock);
    int round = m->round;
    if (++m->here + m->gone == m->size)
        meeting_is_over(m);
    while (m->round == round)
        pthread_cond_wait(&m->next_round, &m->lock);
    pthread_mutex_unlock(&m->lock);
}

static void meeting_leave(tt_meeting *m)
{
    pthread_mutex_lock(&m->lock);
    m->gone++;
    if (m->here > 0 && m->here + m->gone == m->size)
        meeting_is_over(m);
    pthread_mutex_unlock(&m->lock);
}

typedef struct job {
    tt_body body;
    tt_wrap wrap;
    const char *nodes;
    tt_meeting meeting;
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
    play_host(s->job->nodes, s->rank->rank);
    if (s->job->wrap != NULL)
        s->job->wrap(s->rank, s->job->body);
    else
        s->job->body(s->rank);
    meeting_leave(&s->job->meeting);
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
    j->nodes = nodes;
    j->meeting = (tt_meeting){PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, .size = n};
    for (int i = 0; i < n; i++) {
        j->rank[i] =
            (tt_rank){.rank = i, .size = n, .threads = threads, .meeting = &j->meeting, .arg = arg};
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
