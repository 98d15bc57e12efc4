/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bootstrap over MPI: boot MODE, started by mpirun. Modes that end well exit 0 on every rank;
 * those whose job is meant to die are looked at by ends_with.sh.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "boot/context.h"
#include "core/clock.h"
#include "tutti/tutti.h"

#define CHECK(cond)                                                                                \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: %s (last error: %s)\n", __FILE__, __LINE__, #cond,             \
                    tutti_last_error());                                                           \
            MPI_Abort(MPI_COMM_WORLD, 9);                                                          \
        }                                                                                          \
    } while (0)
#define OK(call) CHECK((call) == TUTTI_OK)

static void leave(tutti_ctx *ctx)
{
    OK(tt_barrier(&ctx->world, "leaving"));
    tt_context_destroy(ctx);
}

static bool is_finalized(void)
{
    int finalized = 0;
    MPI_Finalized(&finalized);
    return finalized != 0;
}

static void begin_mpi(int level)
{
    int provided;
    MPI_Init_thread(NULL, NULL, level, &provided);
    CHECK(provided >= level);
}

static void exchange(tutti_ctx *ctx)
{
    static const size_t sizes[] = {0, 1, 700, 5000, 300000};
    int n = ctx->world.size, me = ctx->world.rank;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t bytes = sizes[i] == 0 ? 0 : sizes[i] + (size_t)me * 11;
        unsigned char *mine = malloc(bytes + 1);
        tt_blobs all;
        memset(mine, me + 1, bytes);
        OK(tt_all_gather_blobs(&ctx->world, "blobs", mine, bytes, &all));
        for (int k = 0; k < n; k++) {
            const unsigned char *data = tt_blob(&all, k);
            size_t want = sizes[i] == 0 ? 0 : sizes[i] + (size_t)k * 11;
            CHECK(tt_blob_bytes(&all, k) == want);
            for (size_t b = 0; b < want; b++)
                CHECK(data[b] == k + 1);
        }
        tt_blobs_free(&all);
        free(mine);
    }
    for (int bad = 0; bad < n; bad++) {
        tutti_status mine = me == bad ? tt_fail(TUTTI_ERR_IO, "disk of %d", bad) : TUTTI_OK;
        char want[32];
        snprintf(want, sizeof want, "disk of %d", bad);
        CHECK(tt_agree(&ctx->world, "one fails", mine) == TUTTI_ERR_IO);
        CHECK(strstr(tutti_last_error(), want) != NULL);
    }
}

static void steps(tutti_ctx *ctx)
{
    for (int64_t step = 0; step < 30; step++) {
        uint32_t todo = 77;
        if (ctx->world.rank == 0 && step % 10 == 0)
            tt_sleep_ns(3000000);
        if (ctx->world.rank == ctx->world.size - 1 && step == 15)
            raise(SIGUSR1);
        OK(tutti_step(ctx, step, &todo));
        CHECK(todo == (step > 15 ? (TUTTI_DO_SAVE | TUTTI_DO_STOP) : 0));
    }
}

/* The library begins and ends MPI; two contexts live at once. */
static void healthy(void)
{
    tutti_ctx *first = NULL, *second = NULL;
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    OK(tt_context_create(NULL, &first));
    opts.flags = TUTTI_INIT_NO_SIGNALS;
    OK(tt_context_create(&opts, &second));
    CHECK(tutti_node_count(first) == 1 && tutti_local_size(first) == first->world.size);
    exchange(first);
    exchange(second);
    steps(first);
    uint32_t todo;
    OK(tutti_step(second, 0, &todo));
    OK(tutti_step(second, 1, &todo));
    CHECK(todo == 0); /* wanted no signals */
    leave(first);
    CHECK(!is_finalized());
    exchange(second);
    leave(second);
    CHECK(is_finalized());
    CHECK(tt_context_create(NULL, &first) == TUTTI_ERR_STATE);
}

/* World rank i is rank i of the caller's communicator, and MPI remains the caller's. */
static void reversed(void)
{
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tutti_ctx *ctx = NULL;
    MPI_Comm comm;
    int rank, size, sum = 0, one = 1;
    begin_mpi(MPI_THREAD_MULTIPLE);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_split(MPI_COMM_WORLD, 0, size - rank, &comm);
    opts.mpi_comm = &comm;
    OK(tt_context_create(&opts, &ctx));
    MPI_Comm_free(&comm);
    CHECK(ctx->world.rank == size - 1 - rank && ctx->world.size == size);
    exchange(ctx);
    leave(ctx);
    comm = MPI_COMM_NULL;
    CHECK(tt_context_create(&opts, &ctx) == TUTTI_ERR_ARG);
    CHECK(!is_finalized());
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == size);
    MPI_Finalize();
}

static void funneled(void)
{
    tutti_ctx *ctx = NULL;
    begin_mpi(MPI_THREAD_FUNNELED);
    OK(tt_context_create(NULL, &ctx));
    CHECK(!ctx->boot->any_thread);
    exchange(ctx);
    steps(ctx);
    leave(ctx);
    MPI_Finalize();
}

static void wait_for_failure(tutti_ctx *ctx)
{
    int64_t until = tt_now_ns() + 60000000000;
    while (tutti_ctx_error(ctx, NULL, 0) == TUTTI_OK && tt_now_ns() < until) {
        tt_ctx_poll(ctx);
        tt_sleep_ns(1000000);
    }
}

/* One rank fails, all learn it, and a new context can be made after that. */
static void failure(int level)
{
    tutti_ctx *ctx = NULL;
    char text[TT_ERROR_TEXT_MAX];
    begin_mpi(level);
    OK(tt_context_create(NULL, &ctx));
    int bad = ctx->world.size - 1, me = ctx->world.rank;
    MPI_Barrier(MPI_COMM_WORLD); /* a failure must not reach a rank that is still in tutti_init */
    if (me == bad)
        tt_ctx_fail(ctx, tt_fail(TUTTI_ERR_DEVICE, "the fan has stopped"));
    wait_for_failure(ctx);
    CHECK(tutti_ctx_error(ctx, text, sizeof text) ==
          (me == bad ? TUTTI_ERR_DEVICE : TUTTI_ERR_REMOTE));
    CHECK(strstr(text, "the fan has stopped") != NULL);
    tt_context_destroy(ctx);
    OK(tt_context_create(NULL, &ctx));
    exchange(ctx);
    leave(ctx);
    MPI_Finalize();
}

/* Two machines: places, messages between them, and a failure that crosses. */
static void nodes(void)
{
    tutti_ctx *ctx = NULL;
    char text[TT_ERROR_TEXT_MAX];
    begin_mpi(MPI_THREAD_MULTIPLE);
    OK(tt_context_create(NULL, &ctx));
    int me = ctx->world.rank, half = ctx->world.size / 2;
    CHECK(tutti_node_count(ctx) == 2 && tutti_local_size(ctx) == half);
    CHECK(tutti_node(ctx) == me / half && tutti_local_rank(ctx) == me % half);
    CHECK(strcmp(ctx->place[0].host, ctx->place[half].host) != 0);
    exchange(ctx);
    steps(ctx);
    OK(tt_barrier(&ctx->world, "before the failure"));
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == half)
        tt_ctx_fail(ctx, tt_fail(TUTTI_ERR_DEVICE, "the fan has stopped"));
    wait_for_failure(ctx);
    CHECK(tutti_ctx_error(ctx, text, sizeof text) != TUTTI_OK);
    CHECK(strstr(text, "the fan has stopped") != NULL);
    CHECK(me == half || strstr(text, ctx->place[half].host) != NULL);
    tt_context_destroy(ctx);
    MPI_Finalize();
}

/* Rank 0's variables reach ranks that lack them; set ones stay; what must agree is checked. */
static void environment(void)
{
    tutti_ctx *ctx = NULL;
    int rank, size;
    begin_mpi(MPI_THREAD_MULTIPLE);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == 0) {
        setenv("TUTTI_CHUNK_BYTES", "64K", 1);
        setenv("NCCL_DEBUG", "INFO", 1);
        setenv("NCCL_HOSTID", "mine", 1);
        setenv("TUTTI_WARN_AFTER", "50", 1);
    } else {
        setenv("TUTTI_WARN_AFTER", "60", 1);
    }
    OK(tt_context_create(NULL, &ctx));
    CHECK(ctx->chunk_bytes == 65536);
    CHECK(strcmp(getenv("NCCL_DEBUG"), "INFO") == 0);
    CHECK((getenv("NCCL_HOSTID") != NULL) == (rank == 0));
    CHECK(ctx->warn_after_s == (rank == 0 ? 50 : 60));
    leave(ctx);
    if (size > 1) {
        setenv("TUTTI_BUCKET_BYTES", rank == 1 ? "1M" : "2M", 1);
        CHECK(tt_context_create(NULL, &ctx) == TUTTI_ERR_MISMATCH);
        CHECK(strstr(tutti_last_error(), "TUTTI_BUCKET_BYTES is \"2M\" on rank 0") != NULL);
        CHECK(strstr(tutti_last_error(), "\"1M\" on rank 1") != NULL);
        unsetenv("TUTTI_BUCKET_BYTES");
        setenv("TUTTI_HOST_ID", rank % 2 == 0 ? "even" : "odd", 1);
        OK(tt_context_create(NULL, &ctx));
        CHECK(tutti_node_count(ctx) == 2 && tutti_node(ctx) == rank % 2);
        CHECK(tutti_local_rank(ctx) == rank / 2);
        leave(ctx);
        setenv("TUTTI_TIMEOUT", rank == size - 1 ? "soon" : "", 1);
        CHECK(tt_context_create(NULL, &ctx) == TUTTI_ERR_ARG);
        CHECK(strstr(tutti_last_error(), "TUTTI_TIMEOUT: \"soon\"") != NULL);
    }
    MPI_Finalize();
}

/* The last rank never calls tutti_init: the others name it. */
static void absent(void)
{
    tutti_ctx *ctx = NULL;
    char want[32];
    int rank, size;
    setenv("TUTTI_INIT_TIMEOUT", "5", 1);
    begin_mpi(MPI_THREAD_MULTIPLE);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (rank == size - 1) {
        tt_sleep_ns(60000000000);
        MPI_Abort(MPI_COMM_WORLD, 9);
    }
    CHECK(tt_context_create(NULL, &ctx) == TUTTI_ERR_TIMEOUT);
    snprintf(want, sizeof want, "rank %d has not arrived", size - 1);
    CHECK(strstr(tutti_last_error(), want) != NULL);
    fprintf(stderr, "rank %d: %s\n", rank, tutti_last_error());
    tt_sleep_ns(2000000000); /* for the others to get there */
    MPI_Abort(MPI_COMM_WORLD, 42);
}

/* The last rank stops after init: a barrier names it. */
static void stuck(void)
{
    tutti_ctx *ctx = NULL;
    char want[32];
    setenv("TUTTI_TIMEOUT", "5", 1);
    OK(tt_context_create(NULL, &ctx));
    if (ctx->world.rank == ctx->world.size - 1)
        tt_sleep_ns(60000000000);
    CHECK(tt_barrier(&ctx->world, "meeting") == TUTTI_ERR_TIMEOUT);
    snprintf(want, sizeof want, "meeting: rank %d (", ctx->world.size - 1);
    CHECK(strstr(tutti_last_error(), want) != NULL); /* behind the name of who said it first */
    tt_sleep_ns(1000000000);
    tutti_abort(ctx, 42, "as expected");
}

/* Rank 0 leaves through exit(0) while the others wait. */
static void bare_exit(void)
{
    tutti_ctx *ctx = NULL;
    OK(tt_context_create(NULL, &ctx));
    if (fork() == 0)
        exit(0); /* a child is no rank */
    tt_sleep_ns(300000000);
    OK(tt_barrier(&ctx->world, "before the exit"));
    if (ctx->world.rank == 0)
        exit(0);
    (void)!tt_barrier(&ctx->world, "never");
    tt_sleep_ns(60000000000);
    _exit(9);
}

static void aborted(void)
{
    tutti_ctx *ctx = NULL;
    OK(tt_context_create(NULL, &ctx));
    if (ctx->world.rank == ctx->world.size - 1)
        tutti_abort(ctx, 7, "no more coffee");
    (void)!tt_barrier(&ctx->world, "never");
    tt_sleep_ns(60000000000);
    _exit(9);
}

/* Finalizing a failed context is local and quick; the program's own exit status ends the job. */
static void give_up(void)
{
    tutti_ctx *ctx = NULL;
    OK(tutti_init(NULL, &ctx));
    int me = ctx->world.rank;
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0)
        tt_ctx_fail(ctx, tt_fail(TUTTI_ERR_DEVICE, "the fan has stopped"));
    else if (me == 1)
        wait_for_failure(ctx);
    tutti_status status = tutti_finalize(ctx);
    CHECK(status == (me == 0 ? TUTTI_ERR_DEVICE : TUTTI_ERR_REMOTE));
    CHECK(strstr(tutti_last_error(), "the fan has stopped") != NULL);
    CHECK(!is_finalized());
    fprintf(stderr, "gave up\n");
    exit(5);
}

/* A job whose context failed goes on with a new one, and leaves MPI as if nothing had been. */
static void recover(void)
{
    tutti_ctx *ctx = NULL;
    OK(tutti_init(NULL, &ctx));
    MPI_Barrier(MPI_COMM_WORLD);
    if (ctx->world.rank == 0)
        tt_ctx_fail(ctx, tt_fail(TUTTI_ERR_DEVICE, "the fan has stopped"));
    wait_for_failure(ctx);
    CHECK(tutti_finalize(ctx) != TUTTI_OK && !is_finalized());
    OK(tutti_init(NULL, &ctx));
    exchange(ctx);
    OK(tutti_finalize(ctx));
    CHECK(is_finalized());
}

/* The whole library, twice in one process that keeps MPI. */
static void whole(void)
{
    tutti_ctx *ctx = NULL;
    begin_mpi(MPI_THREAD_MULTIPLE);
    for (int round = 0; round < 2; round++) {
        OK(tutti_init(NULL, &ctx));
        tutti_comm *world = tutti_world(ctx);
        float x = (float)(tutti_rank(world) + 1);
        uint32_t todo;
        OK(tutti_all_reduce(world, &x, &x, 1, TUTTI_FLOAT32, TUTTI_SUM, (tutti_stream){0}));
        int n = tutti_size(world);
        CHECK(x == (float)(n * (n + 1) / 2));
        OK(tutti_step(ctx, 0, &todo));
        OK(tutti_finalize(ctx));
    }
    CHECK(!is_finalized());
    MPI_Finalize();
}

/* The last rank does not even begin MPI. */
static void late(void)
{
    tutti_ctx *ctx = NULL;
    const char *rank = getenv("OMPI_COMM_WORLD_RANK"), *size = getenv("OMPI_COMM_WORLD_SIZE");
    setenv("TUTTI_INIT_TIMEOUT", "5", 1);
    if (rank == NULL || size == NULL || atoi(rank) == atoi(size) - 1)
        tt_sleep_ns(60000000000);
    CHECK(tutti_init(NULL, &ctx) != TUTTI_OK);
    _exit(9);
}

/* A message that no int can count. */
static void big(void)
{
    enum { TAG = 3 };
    tutti_ctx *ctx = NULL;
    size_t bytes = ((size_t)1 << 31) + 12345, got = 0;
    OK(tt_context_create(NULL, &ctx));
    tt_req req = {0};
    tt_boot *boot = ctx->boot;
    unsigned char *data = calloc(1, bytes);
    CHECK(data != NULL && boot->size == 2);
    if (boot->rank == 0) {
        data[0] = 1;
        data[bytes / 2] = 2;
        data[bytes - 1] = 3;
        OK(boot->ops->isend(boot, TT_CH_DATA, 1, TAG, data, bytes, &req));
    } else {
        OK(boot->ops->irecv(boot, TT_CH_DATA, 0, TAG, data, bytes, &req));
    }
    OK(tt_req_wait(ctx, &req, &ctx->worker_patience, "big message", &got));
    if (boot->rank == 1)
        CHECK(got == bytes && data[0] == 1 && data[bytes / 2] == 2 && data[bytes - 1] == 3);
    free(data);
    leave(ctx);
}

/* Started without mpirun, but with the variables of a launcher of four. */
static void lone(void)
{
    tutti_ctx *ctx = NULL;
    if (tt_context_create(NULL, &ctx) != TUTTI_ERR_UNSUPPORTED ||
        strstr(tutti_last_error(), "the launcher started 4 tasks (PMI_SIZE)") == NULL) {
        fprintf(stderr, "not refused: %s\n", tutti_last_error());
        exit(1);
    }
    MPI_Finalize();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    const struct {
        const char *name;
        void (*run)(void);
    } modes[] = {{"healthy", healthy},   {"reversed", reversed},
                 {"funneled", funneled}, {"environment", environment},
                 {"absent", absent},     {"stuck", stuck},
                 {"exit", bare_exit},    {"abort", aborted},
                 {"big", big},           {"lone", lone},
                 {"give_up", give_up},   {"whole", whole},
                 {"recover", recover},   {"nodes", nodes},
                 {"late", late}};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (strcmp(mode, modes[i].name) == 0) {
            modes[i].run();
            return 0;
        }
    if (strcmp(mode, "failure") == 0)
        failure(MPI_THREAD_MULTIPLE);
    else if (strcmp(mode, "failure_funneled") == 0)
        failure(MPI_THREAD_FUNNELED);
    else
        return 2;
    return 0;
}
