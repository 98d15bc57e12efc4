/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that initialised MPI with MPI_THREAD_FUNNELED: inline calls work, also between nodes;
 * what needs more is refused with a sentence that says what to ask for, and nothing is lost by it.
 * t_coll_funneled [nodes]
 */
#include <mpi.h>
#include <pthread.h>

#include "coll_random.h"
#include "tutti/interop_mpi.h"

static void refused(tt_rank *r, bool between_nodes)
{
    float buf[8] = {1};
    tutti_stream s;
    TT_EXPECT_OK(r, tutti_stream_create(r->ctx, "s", 0, &s));
    tutti_status status = tutti_all_reduce(r->comm, buf, buf, 8, TUTTI_FLOAT32, TUTTI_SUM, s);
    if (between_nodes) {
        TT_EXPECT(r, status == TUTTI_ERR_UNSUPPORTED);
        TT_EXPECT(r, strstr(tutti_last_error(), "MPI_THREAD_MULTIPLE") != NULL);
    } else {
        TT_EXPECT(r, status == TUTTI_OK);
        TT_EXPECT_OK(r, tutti_stream_sync(r->ctx, s));
    }
    status = tutti_send(r->comm, buf, 8, TUTTI_FLOAT32, (r->rank + 1) % r->size, s);
    TT_EXPECT(r, status == TUTTI_ERR_UNSUPPORTED);
    TT_EXPECT(r, strstr(tutti_last_error(), "MPI_THREAD_MULTIPLE") != NULL);
    TT_EXPECT_OK(r, tutti_ctx_error(r->ctx, NULL, 0));
    tutti_stream_destroy(r->ctx, s);
}

/* Calls of another thread: its messages would be sent past what this MPI allows. */
static void *other_thread(void *arg)
{
    tt_rank *r = arg;
    const tutti_stream inline_stream = {0};
    float buf[8] = {1};
    double value = 1;
    uint32_t todo;
    void *ptr;
    const tutti_status got[] = {
        tutti_barrier(r->comm),
        tutti_all_reduce_host(r->comm, &value, 1, TUTTI_SUM),
        tutti_alloc(r->comm, 4096, &ptr),
        tutti_step(r->ctx, 0, &todo),
        tutti_send(r->comm, buf, 8, TUTTI_FLOAT32, (r->rank + 1) % r->size, inline_stream),
        tutti_node_count(r->ctx) == 1
            ? TUTTI_ERR_UNSUPPORTED
            : tutti_all_reduce(r->comm, buf, buf, 8, TUTTI_FLOAT32, TUTTI_SUM, inline_stream),
    };
    for (size_t i = 0; i < sizeof got / sizeof got[0]; i++)
        if (got[i] != TUTTI_ERR_UNSUPPORTED)
            tt_say(r, "call %zu of another thread: %s", i, tutti_status_name(got[i]));
    if (strstr(tutti_last_error(), "only the thread that called tutti_init") == NULL)
        tt_say(r, "another thread: %s", tutti_last_error());
    return NULL;
}

static void refused_elsewhere(tt_rank *r)
{
    pthread_t thread;
    TT_EXPECT(r, pthread_create(&thread, NULL, other_thread, r) == 0);
    pthread_join(thread, NULL);
    TT_EXPECT_OK(r, tutti_ctx_error(r->ctx, NULL, 0));
}

int main(int argc, char **argv)
{
    const MPI_Comm world = MPI_COMM_WORLD;
    random_world w = {.chunk_bytes = 4096, .seed = 21, .batches = 50, .inline_only = true};
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tt_rank r = {0};
    int level;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
    if (argc > 1) {
        w.nodes = argv[1];
        random_play_node(w.nodes);
    }
    setenv("TUTTI_CHUNK_BYTES", "4K", 1);
    tutti_init_opts_mpi(&opts, &world);
    if (level != MPI_THREAD_FUNNELED)
        return 77; /* this MPI gives more than it was asked for */
    if (tutti_init(&opts, &r.ctx) != TUTTI_OK) {
        fprintf(stderr, "tutti_init: %s\n", tutti_last_error());
        return 1;
    }
    r.comm = tutti_world(r.ctx);
    r.rank = tutti_rank(r.comm);
    r.size = tutti_size(r.comm);
    refused(&r, w.nodes != NULL);
    if (!r.failed)
        refused_elsewhere(&r);
    if (!r.failed)
        random_calls(&r, &w);
    if (r.failed)
        tutti_abort(r.ctx, 1, r.message);
    if (tutti_finalize(r.ctx) != TUTTI_OK) {
        fprintf(stderr, "tutti_finalize: %s\n", tutti_last_error());
        return 1;
    }
    return MPI_Finalize();
}
