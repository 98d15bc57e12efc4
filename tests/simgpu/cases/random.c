/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random programs against a model. Each draws operations on a few streams and slices of memory,
 * with some of the waits that order them and now and then a host sync. The model knows from the
 * program alone whether two operations that conflict are left without an order; the engine must
 * report a race exactly then, in every schedule.
 */
#include "../engine.h"
#include "cases.h"

#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STREAMS = 3, SLICES = 6, OPS = 14, SLICE = 512, SEEDS = 80 };

typedef struct op {
    int stream, reads, writes; /* slices; reads -1: a fill */
    bool after[OPS]; /* operations that are ordered before it */
} op;

typedef struct program {
    cudaStream_t streams[STREAMS];
    cudaEvent_t events[OPS]; /* recorded behind each operation */
    char *memory;
    op ops[OPS];
    bool waited[STREAMS][OPS]; /* the stream's next operation comes after these */
    bool host[OPS]; /* and everything after these */
    uint64_t state;
} program;

static unsigned draw(program *p, unsigned below)
{
    p->state = p->state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(p->state >> 33) % below;
}

static bool conflict(const op *a, const op *b)
{
    return a->writes == b->writes || a->reads == b->writes || a->writes == b->reads;
}

static void include(bool *set, const op *ops, int i)
{
    set[i] = true;
    for (int k = 0; k < OPS; k++) {
        set[k] = set[k] || ops[i].after[k];
    }
}

static void wait_for(program *p, int stream, int i)
{
    OK(cudaStreamWaitEvent(p->streams[stream], p->events[i], 0));
    include(p->waited[stream], p->ops, i);
}

static void host_sync(program *p, int done)
{
    int stream = (int)draw(p, STREAMS);
    OK(cudaStreamSynchronize(p->streams[stream]));
    for (int k = 0; k < done; k++) {
        p->host[k] = p->host[k] || p->waited[stream][k];
    }
}

static void submit(program *p, const op *o)
{
    char *dst = p->memory + (size_t)o->writes * SLICE;
    if (o->reads < 0) {
        OK(cudaMemsetAsync(dst, 1, SLICE, p->streams[o->stream]));
    } else {
        OK(cudaMemcpyAsync(dst, p->memory + (size_t)o->reads * SLICE, SLICE,
                           cudaMemcpyDeviceToDevice, p->streams[o->stream]));
    }
}

/* Orders most operations after what they conflict with, and forgets one now and then. */
static bool step(program *p, int i)
{
    op *o = &p->ops[i];
    bool racy = false;
    o->stream = (int)draw(p, STREAMS);
    o->writes = (int)draw(p, SLICES);
    o->reads = draw(p, 3) == 0 ? -1 : (int)((unsigned)o->writes + 1 + draw(p, SLICES - 1)) % SLICES;
    if (i > 0 && draw(p, 8) == 0) {
        host_sync(p, i);
    }
    bool *before = p->waited[o->stream];
    for (int k = 0; k < i; k++) {
        before[k] = before[k] || p->host[k];
    }
    for (int k = i - 1; k >= 0; k--) {
        if (conflict(o, &p->ops[k]) && !before[k]) {
            if (draw(p, 24) == 0) {
                continue; /* left out; another wait may order it all the same */
            }
            wait_for(p, o->stream, k);
        }
    }
    for (int k = 0; k < i; k++) {
        racy = racy || (conflict(o, &p->ops[k]) && !before[k]);
    }
    memcpy(o->after, before, sizeof(o->after));
    submit(p, o);
    OK(cudaEventRecord(p->events[i], p->streams[o->stream]));
    include(before, p->ops, i);
    return racy;
}

/* Status 0: engine and model agree that there is no race, 1: that there is one; 3: they differ. */
static int run_seed(uint64_t seed)
{
    program p = {.state = seed * 77 + 1};
    bool racy = false;
    for (int s = 0; s < STREAMS; s++) {
        OK(cudaStreamCreateWithFlags(&p.streams[s], cudaStreamNonBlocking));
    }
    for (int e = 0; e < OPS; e++) {
        OK(cudaEventCreateWithFlags(&p.events[e], cudaEventDisableTiming));
    }
    OK(cudaMalloc((void **)&p.memory, (size_t)SLICES * SLICE));
    for (int i = 0; i < OPS; i++) {
        racy = step(&p, i) || racy;
    }
    OK(cudaDeviceSynchronize());
    if ((sg_findings() > 0) != racy) {
        printf("seed %d: the model says %s\n", (int)seed, racy ? "race" : "no race");
        fflush(stdout);
        return 3;
    }
    return racy ? 1 : 0;
}

static void model(void)
{
    int counts[2] = {0, 0};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        int status;
        fflush(NULL);
        pid_t pid = fork();
        if (pid == 0) {
            _exit(run_seed(seed));
        }
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) < 2);
        counts[WEXITSTATUS(status)]++;
    }
    CHECK(counts[0] > SEEDS / 5 && counts[1] > SEEDS / 5); /* both kinds were met */
}

static const case_entry cases[] = {
    {"model", model, NULL, NULL, "SIMGPU_REPORT=/dev/null", false},
};
const case_list random_cases = {"random", cases, sizeof(cases) / sizeof(cases[0])};
