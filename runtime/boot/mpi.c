/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The MPI bootstrap: point-to-point messages on communicators of our own, one for each channel,
 * dup'ed from the caller's (or from MPI_COMM_WORLD). Nothing else of MPI is used, and no call here
 * blocks except while joining and leaving.
 *
 * Joining: the first dup is the only call on the caller's communicator that other ranks must join,
 * so it is the non-blocking one with a time limit. A rank that gives up calls its name to the
 * others on that communicator, with the highest tag there is, so that the missing ones are named;
 * this happens only in a job that is about to end.
 *
 * Small messages are copied, so their sends can be given up at any time. MPI cannot take back a
 * large send that was met, nor be relied on to cancel one: such a request goes to the graveyard,
 * which keeps the request and never waits for it. Sizes above INT_MAX travel as one element of a
 * derived type.
 *
 * MPI is finalized with the last context, if the first one began it and the last one has not
 * failed: MPI_Finalize waits for all ranks, and after a failure some may be gone. Every message of
 * ours that MPI reports as wrong comes back as a status (MPI_ERRORS_RETURN) with the call's text.
 */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "boot/internal.h"
#include "core/clock.h"
#include "core/env.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"

enum { COPY_BYTES = 4096, BIG_BLOCK = 1 << 24, NAMES_MAX = 8 };
#define CALL_AFTER_NS 1000000000 /* ranks that join later than this listen for calls */
#define GRACE_NS 2000000000
#define GIVE_UP_NS 200000000 /* how long a cancel may take */
#define LEAVE_S 30.0

typedef struct op {
    struct op *next;
    MPI_Request request;
    unsigned char copy[];
} op;

typedef struct mpi_boot {
    tt_boot base;
    MPI_Comm comm[TT_CH_COUNT];
    bool joining; /* MPI may still write comm[0] */
    struct mpi_boot *next; /* in `abandoned` */
} mpi_boot;

/* Of the process: MPI is a global thing. */
static struct {
    pthread_mutex_t lock;
    bool began; /* by us */
    int live; /* contexts */
    mpi_boot *abandoned; /* joins that were given up */
} process = {.lock = PTHREAD_MUTEX_INITIALIZER};

static pthread_mutex_t graveyard_lock = PTHREAD_MUTEX_INITIALIZER;
static op *graveyard;

static tutti_status mpi_status(int rc, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int n, class = MPI_ERR_UNKNOWN;
    if (__builtin_expect(rc == MPI_SUCCESS, 1))
        return TUTTI_OK;
    MPI_Error_class(rc, &class);
    MPI_Error_string(rc, text, &n);
    return tt_fail(class == MPI_ERR_TRUNCATE ? TUTTI_ERR_MISMATCH : TUTTI_ERR_MPI, "%s: %s", call,
                   text);
}
#define TT_MPI(call) mpi_status((call), #call)

static tutti_status tt_mpi_count(size_t n, int *count_out)
{
    if (n > INT_MAX)
        return tt_fail(TUTTI_ERR_INTERNAL, "%zu elements do not fit into an MPI count", n);
    *count_out = (int)n;
    return TUTTI_OK;
}

/* `bytes` as a count of MPI_BYTE, or above INT_MAX as one element of a type to be freed. */
static tutti_status describe(size_t bytes, MPI_Datatype *type_out, int *count_out)
{
    if (bytes <= INT_MAX) {
        *type_out = MPI_BYTE;
        return tt_mpi_count(bytes, count_out);
    }
    MPI_Datatype block, parts[2], type;
    int blocks = 0, lengths[2];
    MPI_Aint at[2] = {0, (MPI_Aint)(bytes / BIG_BLOCK * BIG_BLOCK)};
    TT_TRY(tt_mpi_count(bytes / BIG_BLOCK, &blocks));
    TT_TRY(TT_MPI(MPI_Type_contiguous(BIG_BLOCK, MPI_BYTE, &block)));
    parts[0] = block;
    parts[1] = MPI_BYTE;
    lengths[0] = blocks;
    lengths[1] = (int)(bytes % BIG_BLOCK);
    tutti_status status = TT_MPI(MPI_Type_create_struct(2, lengths, at, parts, &type));
    MPI_Type_free(&block);
    TT_TRY(status);
    status = TT_MPI(MPI_Type_commit(&type));
    if (status != TUTTI_OK) {
        MPI_Type_free(&type);
        return status;
    }
    *type_out = type;
    *count_out = 1;
    return TUTTI_OK;
}

static void free_type(MPI_Datatype *type)
{
    if (*type != MPI_BYTE)
        MPI_Type_free(type);
}

static tutti_status mpi_isend(tt_boot *boot, tt_channel ch, int peer, uint32_t tag, const void *buf,
                              size_t bytes, tt_req *req)
{
    static const char nothing;
    MPI_Comm comm = ((mpi_boot *)boot)->comm[ch];
    MPI_Datatype type;
    op *o = NULL;
    int count;
    size_t copied = bytes <= COPY_BYTES ? bytes : 0;
    *req = (tt_req){0};
    TT_TRY(tt_calloc(1, sizeof *o + copied, &o));
    if (copied > 0)
        buf = memcpy(o->copy, buf, copied);
    if (bytes == 0)
        buf = &nothing;
    tutti_status status = describe(bytes, &type, &count);
    if (status != TUTTI_OK)
        goto free_op;
    status = TT_MPI(MPI_Isend(buf, count, type, peer, (int)tag, comm, &o->request));
    free_type(&type);
    if (status != TUTTI_OK)
        goto free_op;
    req->ptr = o;
    return TUTTI_OK;
free_op:
    free(o);
    return status;
}

static tutti_status mpi_irecv(tt_boot *boot, tt_channel ch, int peer, uint32_t tag, void *buf,
                              size_t cap, tt_req *req)
{
    MPI_Comm comm = ((mpi_boot *)boot)->comm[ch];
    MPI_Datatype type;
    op *o = NULL;
    int count, source = peer == TT_ANY ? MPI_ANY_SOURCE : peer;
    *req = (tt_req){0};
    TT_TRY(tt_calloc(1, sizeof *o, &o));
    tutti_status status = describe(cap, &type, &count);
    if (status != TUTTI_OK)
        goto free_op;
    status = TT_MPI(MPI_Irecv(buf, count, type, source, (int)tag, comm, &o->request));
    free_type(&type);
    if (status != TUTTI_OK)
        goto free_op;
    req->ptr = o;
    return TUTTI_OK;
free_op:
    free(o);
    return status;
}

static tutti_status mpi_test(tt_boot *boot, tt_req *req, bool *done_out, size_t *bytes_out,
                             int *source_out)
{
    op *o = req->ptr;
    int done = 0;
    MPI_Status st;
    MPI_Count bytes = 0;
    (void)boot;
    if (o == NULL) {
        *done_out = true;
        return TUTTI_OK;
    }
    tutti_status status = TT_MPI(MPI_Test(&o->request, &done, &st));
    if (status == TUTTI_OK && !done) {
        *done_out = false;
        return TUTTI_OK;
    }
    if (status == TUTTI_OK && bytes_out != NULL)
        status = TT_MPI(MPI_Get_elements_x(&st, MPI_BYTE, &bytes));
    free(o);
    req->ptr = NULL;
    TT_TRY(status);
    *done_out = true;
    if (bytes_out != NULL)
        *bytes_out = (size_t)bytes;
    if (source_out != NULL)
        *source_out = st.MPI_SOURCE;
    return TUTTI_OK;
}

static void mpi_cancel(tt_boot *boot, tt_req *req)
{
    op *o = req->ptr;
    int done = 0;
    int64_t until = tt_now_ns() + GIVE_UP_NS;
    (void)boot;
    if (o == NULL)
        return;
    req->ptr = NULL;
    if (MPI_Test(&o->request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done)
        MPI_Cancel(&o->request);
    while (!done && tt_now_ns() < until) {
        if (MPI_Test(&o->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            break;
        if (!done)
            tt_sleep_ns(50000);
    }
    if (done) {
        free(o);
        return;
    }
    pthread_mutex_lock(&graveyard_lock);
    o->next = graveyard;
    graveyard = o;
    pthread_mutex_unlock(&graveyard_lock);
}

static void mpi_abort(tt_boot *boot, int exit_code)
{
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (!finalized)
        MPI_Abort(((mpi_boot *)boot)->comm[0], exit_code);
}

static void mpi_destroy(tt_boot *boot, bool failed)
{
    mpi_boot *b = (mpi_boot *)boot;
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (finalized)
        tt_log_warn(TT_BOOT, "MPI was finalized before the context; call tutti_finalize first");
    pthread_mutex_lock(&process.lock);
    for (int ch = 0; ch < TT_CH_COUNT && !failed && !finalized; ch++)
        MPI_Comm_free(&b->comm[ch]);
    if (--process.live == 0 && process.began && !failed && !finalized) {
        tt_guard *guard = tt_guard_begin(LEAVE_S, 1,
                                         "MPI_Finalize has not returned: some rank has "
                                         "not left the job");
        MPI_Finalize();
        tt_guard_end(guard);
    }
    pthread_mutex_unlock(&process.lock);
    free(b);
}

static const tt_boot_ops mpi_ops = {
    .size = sizeof(tt_boot_ops),
    .name = "mpi",
    .isend = mpi_isend,
    .irecv = mpi_irecv,
    .test = mpi_test,
    .cancel = mpi_cancel,
    .abort = mpi_abort,
    .destroy = mpi_destroy,
};

static double init_timeout(void)
{
    double seconds;
    return tt_env_get_seconds(TT_ENV_INIT_TIMEOUT, &seconds) == TUTTI_OK ? seconds : 300;
}

static tutti_status begin_mpi(void)
{
    int initialized = 0, finalized = 0, provided;
    MPI_Finalized(&finalized);
    if (finalized)
        return tt_fail(TUTTI_ERR_STATE, "tutti_init: MPI was finalized before; a process can "
                                        "initialise it only once");
    MPI_Initialized(&initialized);
    if (initialized)
        return TUTTI_OK;
    tt_guard *guard = tt_guard_begin(init_timeout(), 1,
                                     "MPI_Init has not returned: some rank of the "
                                     "job has not called it (TUTTI_INIT_TIMEOUT)");
    tutti_status status = TT_MPI(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided));
    tt_guard_end(guard);
    process.began = status == TUTTI_OK;
    return status;
}

/* The job's size by the launcher's word; the innermost launcher counts. */
static int launched_tasks(const char **name_out)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        long long tasks;
        if (text != NULL && tt_parse_int(text, &tasks) == TUTTI_OK && tasks > 0 &&
            tasks < INT_MAX) {
            *name_out = names[i];
            return (int)tasks;
        }
    }
    return 1;
}

static tutti_status refuse_lone_tasks(void)
{
    const char *name = "";
    int size, tasks = launched_tasks(&name);
    TT_TRY(TT_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size)));
    if (size > 1 || tasks == 1)
        return TUTTI_OK;
    return tt_fail(TUTTI_ERR_UNSUPPORTED,
                   "tutti_init: the launcher started %d tasks (%s), but MPI sees one: each would "
                   "train alone. Start them with the mpirun of the MPI that this program is linked "
                   "with, or srun --mpi=pmix",
                   tasks, name);
}

static tutti_status check_thread_level(tt_boot *base)
{
    static const struct {
        int level;
        const char *name;
    } levels[] = {{MPI_THREAD_SINGLE, "MPI_THREAD_SINGLE"},
                  {MPI_THREAD_FUNNELED, "MPI_THREAD_FUNNELED"},
                  {MPI_THREAD_SERIALIZED, "MPI_THREAD_SERIALIZED"},
                  {MPI_THREAD_MULTIPLE, "MPI_THREAD_MULTIPLE"}};
    int level, is_main = 1;
    TT_TRY(TT_MPI(MPI_Query_thread(&level)));
    TT_TRY(TT_MPI(MPI_Is_thread_main(&is_main)));
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (levels[i].level == level)
            base->thread_level = levels[i].name;
    base->any_thread = level == MPI_THREAD_MULTIPLE;
    if (level < MPI_THREAD_SERIALIZED && !is_main)
        return tt_fail(TUTTI_ERR_UNSUPPORTED,
                       "tutti_init: MPI was initialised with %s, so only the thread that did so "
                       "may call it; ask for MPI_THREAD_MULTIPLE",
                       base->thread_level);
    return TUTTI_OK;
}

/* Names who has not called, for the text of a time-out. */
static void missing_text(const bool *heard, int rank, int size, char *buf, size_t cap)
{
    int missing = 0;
    size_t used = 0;
    for (int i = 0; i < size && used < cap; i++) {
        if (i == rank || heard[i])
            continue;
        if (missing++ < NAMES_MAX)
            used +=
                (size_t)snprintf(buf + used, cap - used, "%srank %d", missing > 1 ? ", " : "", i);
    }
    if (missing > NAMES_MAX && used < cap)
        used += (size_t)snprintf(buf + used, cap - used, " and %d more", missing - NAMES_MAX);
    if (missing == 0)
        used = (size_t)snprintf(buf, cap, "every rank");
    if (used < cap)
        snprintf(buf + used, cap - used,
                 missing == 0   ? " has arrived, but too late"
                 : missing == 1 ? " has not arrived"
                                : " have not arrived");
}

typedef struct roll {
    MPI_Comm comm; /* the caller's */
    int tag, rank, size;
    bool *heard, called, told;
    int64_t called_ns;
} roll;

static tutti_status roll_begin(roll *r, MPI_Comm comm, const tt_boot *base)
{
    int *tag = NULL, found = 0;
    *r = (roll){.comm = comm, .tag = 32767, .rank = base->rank, .size = base->size};
    TT_TRY(TT_MPI(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag, &found)));
    if (found)
        r->tag = *tag;
    return tt_calloc((size_t)r->size, sizeof *r->heard, &r->heard);
}

static tutti_status roll_call(roll *r)
{
    r->called = true;
    r->called_ns = tt_now_ns();
    for (int i = 0; i < r->size; i++) {
        MPI_Request request;
        if (i == r->rank)
            continue;
        TT_TRY(TT_MPI(MPI_Isend(NULL, 0, MPI_BYTE, i, r->tag, r->comm, &request)));
        MPI_Request_free(&request);
    }
    return TUTTI_OK;
}

static tutti_status roll_listen(roll *r)
{
    for (;;) {
        int there = 0;
        MPI_Status st;
        TT_TRY(TT_MPI(MPI_Iprobe(MPI_ANY_SOURCE, r->tag, r->comm, &there, &st)));
        if (!there)
            return TUTTI_OK;
        TT_TRY(TT_MPI(MPI_Recv(NULL, 0, MPI_BYTE, st.MPI_SOURCE, r->tag, r->comm, &st)));
        r->heard[st.MPI_SOURCE] = true;
        r->told = true;
    }
}

/* One look at the clock while the dup is under way. */
static tutti_status roll_look(roll *r, int64_t begun_ns, double timeout_s)
{
    int64_t now = tt_now_ns();
    double waited_s = (double)(now - begun_ns) / 1e9;
    if (now - begun_ns < CALL_AFTER_NS)
        return TUTTI_OK;
    TT_TRY(roll_listen(r));
    if (!r->called && ((timeout_s > 0 && waited_s >= timeout_s) || r->told))
        TT_TRY(roll_call(r));
    if (r->called && now - r->called_ns >= GRACE_NS) {
        char text[512];
        missing_text(r->heard, r->rank, r->size, text, sizeof text);
        waited_s -= (double)(now - r->called_ns) / 1e9;
        return tt_fail(TUTTI_ERR_TIMEOUT, "tutti_init: %s after %.1f s (TUTTI_INIT_TIMEOUT)", text,
                       waited_s);
    }
    return TUTTI_OK;
}

static tutti_status join_all(mpi_boot *b, MPI_Comm comm)
{
    static const tt_patience patience = {0, 50000, 500000};
    MPI_Request request;
    roll r;
    int done = 0;
    double timeout_s = init_timeout();
    int64_t begun_ns = tt_now_ns();
    tt_wait wait;
    TT_TRY(roll_begin(&r, comm, &b->base));
    tutti_status status = TT_MPI(MPI_Comm_idup(comm, &b->comm[0], &request));
    b->joining = status == TUTTI_OK;
    tt_wait_begin(&wait, &patience);
    while (status == TUTTI_OK) {
        if (!r.called)
            status = TT_MPI(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
        if (status != TUTTI_OK || done)
            break;
        status = roll_look(&r, begun_ns, timeout_s);
        tt_wait_once(&wait, NULL, 0);
    }
    b->joining = b->joining && !done;
    free(r.heard);
    return status;
}

static tutti_status make_channels(mpi_boot *b, MPI_Comm comm)
{
    int *tag_limit = NULL, found = 0;
    TT_TRY(join_all(b, comm));
    TT_TRY(TT_MPI(MPI_Comm_set_errhandler(b->comm[0], MPI_ERRORS_RETURN)));
    for (int ch = 1; ch < TT_CH_COUNT; ch++)
        TT_TRY(TT_MPI(MPI_Comm_dup(b->comm[0], &b->comm[ch]))); /* with its error handler */
    TT_TRY(TT_MPI(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_limit, &found)));
    b->base.tag_limit = found ? (uint32_t)*tag_limit : 32767;
    return TUTTI_OK;
}

static tutti_status check_comm(MPI_Comm comm)
{
    int inter = 0;
    if (comm == MPI_COMM_NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_init: the communicator is MPI_COMM_NULL");
    TT_TRY(TT_MPI(MPI_Comm_test_inter(comm, &inter)));
    if (inter)
        return tt_fail(TUTTI_ERR_ARG, "tutti_init: the communicator is an intercommunicator");
    return TUTTI_OK;
}

static tutti_status join_locked(mpi_boot *b, const void *mpi_comm)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    TT_TRY(begin_mpi());
    if (mpi_comm != NULL)
        memcpy(&comm, mpi_comm, sizeof comm);
    TT_TRY(check_comm(comm));
    TT_TRY(refuse_lone_tasks());
    TT_TRY(check_thread_level(&b->base));
    TT_TRY(TT_MPI(MPI_Comm_rank(comm, &b->base.rank)));
    TT_TRY(TT_MPI(MPI_Comm_size(comm, &b->base.size)));
    TT_TRY(make_channels(b, comm));
    process.live++;
    return TUTTI_OK;
}

tutti_status tt_boot_mpi_create(const void *mpi_comm, tt_boot **boot_out)
{
    mpi_boot *b = NULL;
    TT_TRY(tt_calloc(1, sizeof *b, &b));
    b->base.ops = &mpi_ops;
    b->base.fake_node = -1;
    pthread_mutex_lock(&process.lock);
    tutti_status status = join_locked(b, mpi_comm);
    if (b->joining) { /* not ours to free any more */
        b->next = process.abandoned;
        process.abandoned = b;
        b = NULL;
    }
    pthread_mutex_unlock(&process.lock);
    if (status != TUTTI_OK)
        goto free_b;
    *boot_out = &b->base;
    return TUTTI_OK;
free_b:
    free(b);
    return status;
}
