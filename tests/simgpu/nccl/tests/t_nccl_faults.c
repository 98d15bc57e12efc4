/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Seeded mistakes: each must be found, under its own name, and nothing else may be found that is
 * not listed. A mistake is a scenario run in a process of its own (this program with the scenario's
 * name), with findings written to a file that is read here. Scenarios with a call left out use
 * SIMGPU_SKIP: the program is right, and the call is taken away at load time.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "world.h"

enum { N = 256 };

typedef struct scenario {
    const char *name, *finding; /* what must be found; "" for a program without a mistake */
    world_body body;
    int ranks;
    bool bare;
    const char *skip; /* SIMGPU_SKIP */
    const char *also; /* other findings that follow from it */
} scenario;

static float *device_floats(world_rank *r, size_t n)
{
    float *p = NULL;
    if (cudaMalloc((void **)&p, n * sizeof(*p)) != cudaSuccess ||
        cudaMemsetAsync(p, 0, n * sizeof(*p), r->stream) != cudaSuccess)
        world_say(r, "no memory");
    return p;
}

static void right(world_rank *r)
{
    float *p = device_floats(r, N);
    NCCL_OK(r, ncclGroupStart());
    NCCL_OK(r, ncclAllReduce(p, p, N, ncclFloat, ncclSum, r->comm, r->stream));
    NCCL_OK(r, ncclGroupEnd());
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaFree(p));
}

/* ncclGroupEnd is taken away: what stands in the group is never made. */
static void left_open(world_rank *r)
{
    right(r);
    r->comm = NULL;
}

static void swapped(world_rank *r)
{
    ncclComm_t other;
    cudaStream_t second;
    float *p = device_floats(r, 2 * N), *q = p + N;
    NCCL_OK(r, ncclCommSplit(r->comm, 0, r->rank, &other, NULL));
    CUDA_OK(r, cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    if (r->rank == 1)
        NCCL_OK(r, ncclAllReduce(q, q, N, ncclFloat, ncclSum, other, second));
    NCCL_OK(r, ncclAllReduce(p, p, N, ncclFloat, ncclSum, r->comm, r->stream));
    if (r->rank != 1)
        NCCL_OK(r, ncclAllReduce(q, q, N, ncclFloat, ncclSum, other, second));
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaStreamSynchronize(second));
    NCCL_OK(r, ncclCommDestroy(other));
    CUDA_OK(r, cudaStreamDestroy(second));
    CUDA_OK(r, cudaFree(p));
}

/* The same on one stream: the streams wait for each other, and the wait is reported. */
static void deadlock(world_rank *r)
{
    ncclComm_t other;
    float *p = device_floats(r, 2 * N), *q = p + N;
    NCCL_OK(r, ncclCommSplit(r->comm, 0, r->rank, &other, NULL));
    ncclAllReduce(p, p, N, ncclFloat, ncclSum, r->rank == 1 ? other : r->comm, r->stream);
    ncclAllReduce(q, q, N, ncclFloat, ncclSum, r->rank == 1 ? r->comm : other, r->stream);
    cudaStreamSynchronize(r->stream);
    world_barrier();
    _Exit(0);
}

static void call_with(world_rank *r, size_t count, ncclDataType_t type, ncclRedOp_t op)
{
    float *p = device_floats(r, N);
    NCCL_OK(r, ncclAllReduce(p, p, count, type, op, r->comm, r->stream));
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaFree(p));
}

static void count(world_rank *r)
{
    call_with(r, r->rank == 1 ? N / 2 : N, ncclFloat, ncclSum);
}

static void type(world_rank *r)
{
    call_with(r, N, r->rank == 1 ? ncclInt32 : ncclFloat, ncclSum);
}

static void op(world_rank *r)
{
    call_with(r, N, ncclFloat, r->rank == 1 ? ncclMax : ncclSum);
}

static void root(world_rank *r)
{
    float *p = device_floats(r, N);
    NCCL_OK(r, ncclBroadcast(p, p, N, ncclFloat, r->rank == 1, r->comm, r->stream));
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaFree(p));
}

static void kind(world_rank *r)
{
    float *p = device_floats(r, N);
    if (r->rank == 1)
        NCCL_OK(r, ncclBroadcast(p, p, N, ncclFloat, 0, r->comm, r->stream));
    else
        NCCL_OK(r, ncclAllReduce(p, p, N, ncclFloat, ncclSum, r->comm, r->stream));
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaFree(p));
}

static void grouping(world_rank *r)
{
    float *p = device_floats(r, 2 * N);
    if (r->rank == 1)
        NCCL_OK(r, ncclGroupStart());
    NCCL_OK(r, ncclAllReduce(p, p, N, ncclFloat, ncclSum, r->comm, r->stream));
    NCCL_OK(r, ncclAllReduce(p + N, p + N, N, ncclFloat, ncclSum, r->comm, r->stream));
    if (r->rank == 1)
        NCCL_OK(r, ncclGroupEnd());
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaFree(p));
}

static void host_pointer(world_rank *r)
{
    float host[N] = {0};
    EXPECT(r, ncclAllReduce(host, host, N, ncclFloat, ncclSum, r->comm, r->stream) ==
                  ncclInvalidArgument);
}

static void wrong_device(world_rank *r)
{
    float *p = device_floats(r, N);
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaSetDevice(1 - r->rank));
    EXPECT(r, ncclAllReduce(p, p, N, ncclFloat, ncclSum, r->comm, r->stream) != ncclSuccess);
    CUDA_OK(r, cudaSetDevice(r->rank));
    CUDA_OK(r, cudaFree(p));
}

static void overlap(world_rank *r)
{
    float *p = device_floats(r, 2 * N);
    EXPECT(r, ncclAllReduce(p, p + 1, N, ncclFloat, ncclSum, r->comm, r->stream) != ncclSuccess);
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaFree(p));
}

static void group_race(world_rank *r)
{
    float *p = device_floats(r, 2 * N);
    NCCL_OK(r, ncclGroupStart());
    NCCL_OK(r, ncclAllReduce(p, p, N, ncclFloat, ncclSum, r->comm, r->stream));
    NCCL_OK(r, ncclBroadcast(p, p, N, ncclFloat, 0, r->comm, r->stream));
    NCCL_OK(r, ncclGroupEnd());
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaFree(p));
}

static void used_after(world_rank *r)
{
    float *p = device_floats(r, N);
    NCCL_OK(r, ncclCommDestroy(r->comm));
    EXPECT(r, ncclAllReduce(p, p, N, ncclFloat, ncclSum, r->comm, r->stream) != ncclSuccess);
    r->comm = NULL;
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaFree(p));
}

/* The reducer's mistake: the buffer is written again, by another stream, with no wait between. */
static void reused(world_rank *r)
{
    cudaStream_t second;
    float *p = device_floats(r, N);
    CUDA_OK(r, cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    NCCL_OK(r, ncclAllReduce(p, p, N, ncclFloat, ncclSum, r->comm, r->stream));
    CUDA_OK(r, cudaMemsetAsync(p, 0, N * sizeof(*p), second));
    CUDA_OK(r, cudaStreamSynchronize(second));
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaStreamDestroy(second));
    CUDA_OK(r, cudaFree(p));
}

/* Right as it stands; SIMGPU_SKIP takes the wait for the producer away. */
static void produced(world_rank *r)
{
    cudaStream_t producer;
    cudaEvent_t ready;
    float *p;
    CUDA_OK(r, cudaMalloc((void **)&p, N * sizeof(*p)));
    CUDA_OK(r, cudaStreamCreateWithFlags(&producer, cudaStreamNonBlocking));
    CUDA_OK(r, cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    CUDA_OK(r, cudaMemsetAsync(p, 0, N * sizeof(*p), producer));
    CUDA_OK(r, cudaEventRecord(ready, producer));
    CUDA_OK(r, cudaStreamWaitEvent(r->stream, ready, 0));
    NCCL_OK(r, ncclAllReduce(p, p, N, ncclFloat, ncclSum, r->comm, r->stream));
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaStreamSynchronize(producer));
    CUDA_OK(r, cudaEventDestroy(ready));
    CUDA_OK(r, cudaStreamDestroy(producer));
    CUDA_OK(r, cudaFree(p));
}

static void window(world_rank *r)
{
    ncclWindow_t win;
    void *p;
    NCCL_OK(r, ncclMemAlloc(&p, 1 << 20));
    EXPECT(r, ncclCommWindowRegister(r->comm, (char *)p + (r->rank == 1 ? 4096 : 0), 8192, &win,
                                     NCCL_WIN_COLL_SYMMETRIC) == ncclInvalidUsage);
    NCCL_OK(r, ncclMemFree(p));
}

static void dereg_in_use(world_rank *r)
{
    void *handle, *p;
    NCCL_OK(r, ncclMemAlloc(&p, N * sizeof(float)));
    CUDA_OK(r, cudaMemsetAsync(p, 0, N * sizeof(float), r->stream));
    NCCL_OK(r, ncclCommRegister(r->comm, p, N * sizeof(float), &handle));
    NCCL_OK(r, ncclAllReduce(p, p, N, ncclFloat, ncclSum, r->comm, r->stream));
    NCCL_OK(r, ncclCommDeregister(r->comm, handle));
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    NCCL_OK(r, ncclMemFree(p));
}

static void pending(world_rank *r)
{
    float *p = device_floats(r, N);
    NCCL_OK(r, ncclAllReduce(p, p, N, ncclFloat, ncclSum, r->comm, r->stream));
    world_barrier();
    NCCL_OK(r, ncclCommDestroy(r->comm));
    r->comm = NULL;
    CUDA_OK(r, cudaStreamSynchronize(r->stream));
    CUDA_OK(r, cudaFree(p));
}

static void bad_config(world_rank *r)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.magic = 0;
    EXPECT(r, ncclCommInitRankConfig(&r->comm, r->size, r->id, r->rank, &config) ==
                  ncclInvalidArgument);
}

static void in_progress(world_rank *r)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t state = ncclInProgress;
    int n;
    config.blocking = 0;
    EXPECT(r, ncclCommInitRankConfig(&r->comm, r->size, r->id, r->rank, &config) == ncclInProgress);
    EXPECT(r, ncclCommCount(r->comm, &n) != ncclSuccess);
    while (state == ncclInProgress)
        NCCL_OK(r, ncclCommGetAsyncError(r->comm, &state));
    NCCL_OK(r, state);
    NCCL_OK(r, ncclCommCount(r->comm, &n));
    NCCL_OK(r, ncclCommDestroy(r->comm));
}

static const scenario scenarios[] = {
    {"right", "", right, 2, false, NULL, NULL},
    {"group-left-open", "nccl-group-open", left_open, 2, false, "ncclGroupEnd:*", "nccl-comm-leak"},
    {"order-of-two-communicators", "nccl-order", swapped, 2, false, NULL, NULL},
    {"streams-that-wait-for-each-other", "deadlock", deadlock, 2, false, NULL, "nccl-order"},
    {"count", "nccl-count", count, 2, false, NULL, NULL},
    {"type", "nccl-type", type, 3, false, NULL, NULL},
    {"op", "nccl-op", op, 2, false, NULL, NULL},
    {"root", "nccl-root", root, 2, false, NULL, NULL},
    {"kind", "nccl-sequence", kind, 2, false, NULL, NULL},
    {"grouping", "nccl-group-parity", grouping, 2, false, NULL, NULL},
    {"host-pointer", "nccl-host-pointer", host_pointer, 2, false, NULL, NULL},
    {"wrong-device", "nccl-wrong-device", wrong_device, 2, false, NULL, NULL},
    {"overlap", "nccl-overlap", overlap, 2, false, NULL, NULL},
    {"group-race", "nccl-group-race", group_race, 2, false, NULL, NULL},
    {"used-after-destroy", "nccl-use-after-destroy", used_after, 2, false, NULL, NULL},
    {"communicator-left", "nccl-comm-leak", right, 2, false, "ncclCommDestroy:*", NULL},
    {"buffer-reused-early", "race", reused, 2, false, NULL, NULL},
    {"producer", "", produced, 2, false, NULL, NULL},
    {"no-wait-for-the-producer", "race", produced, 2, false, "cudaStreamWaitEvent:*", NULL},
    {"window-not-symmetric", "nccl-window", window, 2, false, NULL, NULL},
    {"deregistered-in-use", "nccl-dereg-in-use", dereg_in_use, 2, false, NULL, NULL},
    {"destroyed-with-work-pending", "nccl-destroy-pending", pending, 2, false, NULL, NULL},
    {"config-not-initialised", "nccl-config", bad_config, 2, true, NULL, NULL},
    {"call-while-in-progress", "nccl-in-progress", in_progress, 2, true, NULL, NULL},
};
enum { SCENARIOS = sizeof(scenarios) / sizeof(scenarios[0]) };

static const scenario *find(const char *name)
{
    for (size_t i = 0; i < SCENARIOS; i++)
        if (strcmp(scenarios[i].name, name) == 0)
            return &scenarios[i];
    return NULL;
}

static int play(const scenario *s)
{
    const char *failed = s->bare ? world_threads_bare(s->ranks, s->body, NULL)
                                 : world_threads(s->ranks, s->body, NULL);
    fputs(failed, stderr);
    return failed[0] != '\0';
}

static char report[4096];

/* Runs the scenario in a process of its own; its status, and `report` is what it found. */
static int run_apart(const char *self, const scenario *s)
{
    char path[] = "/tmp/simgpu-findings-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("SIMGPU_REPORT", path, 1);
        setenv("SIMGPU_SCHEDULE", "late", 1);
        if (s->skip != NULL)
            setenv("SIMGPU_SKIP", s->skip, 1);
        freopen("/dev/null", "w", stderr);
        execl(self, self, s->name, (char *)NULL);
        _exit(127);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    ssize_t n = read(fd, report, sizeof(report) - 1);
    report[n > 0 ? n : 0] = '\0';
    close(fd);
    unlink(path);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char *self_path;

static bool allowed(const scenario *s, const char *line)
{
    char id[64] = "";
    const char *end = strstr(line, "]: "); /* "simgpu[PID]: ID: sentence" */
    if (end != NULL)
        sscanf(end + 3, "%63[a-z-]", id);
    return strcmp(id, s->finding) == 0 || (s->also != NULL && strcmp(id, s->also) == 0);
}

static void test_scenario(void **state)
{
    const scenario *s = *state;
    int status = run_apart(self_path, s);
    print_message("%s", report);
    if (s->finding[0] == '\0') {
        assert_string_equal(report, "");
        assert_int_equal(status, 0);
        return;
    }
    assert_non_null(strstr(report, s->finding));
    for (char *line = strtok(report, "\n"); line != NULL; line = strtok(NULL, "\n"))
        if (!allowed(s, line))
            fail_msg("%s: another finding: %s", s->name, line);
    assert_int_not_equal(status, 0);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        const scenario *s = find(argv[1]);
        return s != NULL ? play(s) : 2;
    }
    self_path = argv[0];
    struct CMUnitTest tests[SCENARIOS];
    for (size_t i = 0; i < SCENARIOS; i++)
        tests[i] = (struct CMUnitTest){.name = scenarios[i].name,
                                       .test_func = test_scenario,
                                       .initial_state = (void *)(uintptr_t)&scenarios[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
