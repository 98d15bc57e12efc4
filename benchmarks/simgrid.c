/* SPDX-License-Identifier: Apache-2.0 */
/*
 * simgrid [BYTES [mpi|tutti [all_reduce|broadcast|all_gather]]]: one collective of fp32 in place
 * under SimGrid's smpirun, BYTES are those of its result; rank 0 prints the simulated time of the
 * slowest rank. Built and started by simgrid.sh.
 *
 * The data is folded: the buffers of all ranks are the same memory, so the sums are wrong and only
 * the messages count. A barrier that is part of no figure comes first.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "tutti/interop_mpi.h"
#include "tutti/tutti.h"

/* What SimGrid lacks (3.32). The request is that of a barrier: its MPI_Test leaves the flag of a
 * null request unset where the status is ignored. */
int MPI_Comm_idup(MPI_Comm comm, MPI_Comm *out, MPI_Request *request)
{
    int rc = MPI_Comm_dup(comm, out);
    return rc == MPI_SUCCESS ? MPI_Ibarrier(*out, request) : rc;
}

int MPI_Get_elements_x(MPI_Status *status, MPI_Datatype type, MPI_Count *count)
{
    int n;
    int rc = MPI_Get_count(status, type, &n);
    *count = n;
    return rc;
}

/* SimGrid says so of rank 0 only. */
int MPI_Is_thread_main(int *flag)
{
    *flag = 1;
    return MPI_SUCCESS;
}

/* Seen by libtutti in place of the C library's: a host of the simulation, and its clock. */
int gethostname(char *name, size_t cap)
{
    char host[MPI_MAX_PROCESSOR_NAME];
    int n;
    MPI_Get_processor_name(host, &n);
    snprintf(name, cap, "%s", host);
    return 0;
}

/* SimGrid's own asks for the running rank, and there is none when libtutti is unloaded. */
int smpi_getpid(void)
{
    return (int)syscall(SYS_getpid);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    (void)clock, (void)flags;
    return nanosleep(time, left);
}

/* In the call that is measured a wait is for one request after the other, and whether a test of it
 * is repeated or waits makes no difference, save to the simulation: a test costs it an event and
 * time. Linked in place of MPI_Test (--wrap). */
static int measuring;
int __real_MPI_Test(MPI_Request *request, int *flag, MPI_Status *status);
int __wrap_MPI_Test(MPI_Request *request, int *flag, MPI_Status *status);
int __wrap_MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
    if (!measuring)
        return __real_MPI_Test(request, flag, status);
    *flag = 1;
    return MPI_Wait(request, status);
}

/* Memory for messages is folded too: 1,024 ranks would need 40 GiB. */
enum { FOLDED = 1 << 18 };
static void *folded;
tutti_status __real_tt_grow(void *array, size_t *cap, size_t need, size_t size);
tutti_status __wrap_tt_grow(void *array, size_t *cap, size_t need, size_t size);
tutti_status __wrap_tt_grow(void *array, size_t *cap, size_t need, size_t size)
{
    if (folded != NULL || size != 1 || *cap > 0 || need < FOLDED)
        return __real_tt_grow(array, cap, need, size);
    folded = SMPI_SHARED_MALLOC(need);
    memcpy(array, &folded, sizeof folded);
    *cap = need;
    return TUTTI_OK;
}

void __real_free(void *ptr);
void __wrap_free(void *ptr);
void __wrap_free(void *ptr)
{
    if (ptr != NULL && ptr == folded)
        SMPI_SHARED_FREE(ptr);
    else
        __real_free(ptr);
}

typedef enum op { ALL_REDUCE, BROADCAST, ALL_GATHER, OPS } op;
static const char *const op_names[OPS] = {"all_reduce", "broadcast", "all_gather"};

/* n: elements of the result. */
static tutti_status by_tutti(tutti_comm *world, op what, float *data, size_t n)
{
    const tutti_stream at_once = {0};
    const size_t part = n / (size_t)tutti_size(world);
    tutti_status status;
    measuring = 1;
    if (what == BROADCAST)
        status = tutti_broadcast(world, data, data, n, TUTTI_FLOAT32, 0, at_once);
    else if (what == ALL_GATHER)
        status = tutti_all_gather(world, data + part * (size_t)tutti_rank(world), data, part,
                                  TUTTI_FLOAT32, at_once);
    else
        status = tutti_all_reduce(world, data, data, n, TUTTI_FLOAT32, TUTTI_SUM, at_once);
    measuring = 0;
    return status;
}

static tutti_status by_mpi(op what, float *data, size_t n)
{
    const MPI_Comm world = MPI_COMM_WORLD;
    int size, rc;
    MPI_Comm_size(world, &size);
    if (what == BROADCAST)
        rc = MPI_Bcast(data, (int)n, MPI_FLOAT, 0, world);
    else if (what == ALL_GATHER)
        rc = MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, data, (int)n / size, MPI_FLOAT,
                           world);
    else
        rc = MPI_Allreduce(MPI_IN_PLACE, data, (int)n, MPI_FLOAT, MPI_SUM, world);
    return rc == MPI_SUCCESS ? TUTTI_OK : TUTTI_ERR_MPI;
}

/* What is mapped many times counts once. */
static double resident_mib(void)
{
    char line[128];
    double kib = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, "Pss:", 4) == 0)
            kib = strtod(line + 4, NULL);
    if (file != NULL)
        fclose(file);
    return kib / 1024;
}

static double slowest(double seconds)
{
    double most = 0;
    MPI_Reduce(&seconds, &most, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    return most;
}

static tutti_status run(tutti_comm *world, op what, float *data, size_t n, double *seconds_out)
{
    tutti_status status;
    double begin;
    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    status = world != NULL ? by_tutti(world, what, data, n) : by_mpi(what, data, n);
    *seconds_out = slowest(MPI_Wtime() - begin);
    return status;
}

/* Every rank gets the same status of tutti_init. */
static tutti_status open(tutti_ctx **ctx, tutti_comm **world)
{
    const MPI_Comm all = MPI_COMM_WORLD;
    tutti_init_opts opts = TUTTI_INIT_OPTS_INIT;
    tutti_init_opts_mpi(&opts, &all);
    opts.flags = TUTTI_INIT_NO_SIGNALS;
    opts.backend = TUTTI_BACKEND_HOST;
    tutti_status status = tutti_init(&opts, ctx);
    if (status == TUTTI_OK)
        *world = tutti_world(*ctx);
    return status;
}

int main(int argc, char **argv)
{
    const size_t bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 25000000;
    const char *who = argc > 2 ? argv[2] : "tutti";
    tutti_status status = TUTTI_OK;
    op what = ALL_REDUCE;
    tutti_ctx *ctx = NULL;
    tutti_comm *world = NULL;
    double seconds = 0;
    int rank, size;

    while (argc > 3 && what < OPS && strcmp(argv[3], op_names[what]) != 0)
        what++;
    if (what == OPS) {
        fprintf(stderr, "simgrid: %s is none of its collectives\n", argv[3]);
        return 2;
    }
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    float *data = SMPI_SHARED_MALLOC(bytes);
    if (strcmp(who, "tutti") == 0)
        status = open(&ctx, &world);
    if (status == TUTTI_OK)
        status = run(world, what, data, bytes / sizeof *data, &seconds);
    if (rank == 0 && status == TUTTI_OK)
        printf("%s ranks %d bytes %zu MiB %.0f us %.1f\n", who, size, bytes, resident_mib(),
               seconds * 1e6);
    if (status != TUTTI_OK)
        fprintf(stderr, "rank %d: %s\n", rank, tutti_last_error());
    if (ctx != NULL && tutti_finalize(ctx) != TUTTI_OK && status == TUTTI_OK)
        status = TUTTI_ERR_STATE;
    SMPI_SHARED_FREE(data);
    MPI_Finalize();
    return status == TUTTI_OK ? 0 : 1;
}
