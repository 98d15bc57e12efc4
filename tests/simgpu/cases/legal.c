/* SPDX-License-Identifier: Apache-2.0 */
/* Right programs: none may have a finding, and each must compute what it says. */
#include "cases.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

static void roundtrip(void)
{
    pair p = pair_make();
    for (int i = 0; i < N; i++) {
        p.host[i] = (float)i;
    }
    OK(cudaMemcpyAsync(p.x, p.host, BYTES, cudaMemcpyHostToDevice, p.a));
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaStreamWaitEvent(p.b, p.event, 0));
    OK(cudaMemcpyAsync(p.y, p.x, BYTES, cudaMemcpyDeviceToDevice, p.b));
    OK(cudaStreamSynchronize(p.b));
    memset(p.host, 0, BYTES);
    OK(cudaMemcpyAsync(p.host, p.y, BYTES, cudaMemcpyDeviceToHost, p.b));
    OK(cudaStreamSynchronize(p.b));
    CHECK(p.host[N - 1] == N - 1 && p.host[7] == 7);
    pair_free(&p);
}

static void pageable(void)
{
    pair p = pair_make();
    float in[N], out[N] = {0};
    for (int i = 0; i < N; i++) {
        in[i] = (float)i;
    }
    OK(cudaMemcpyAsync(p.x, in, BYTES, cudaMemcpyHostToDevice, p.a));
    in[5] = -1; /* it was staged */
    OK(cudaMemcpyAsync(out, p.x, BYTES, cudaMemcpyDeviceToHost, p.a));
    CHECK(out[5] == 5);
    OK(cudaMemcpy(out, p.x, BYTES, cudaMemcpyDeviceToHost));
    CHECK(out[6] == 6);
    pair_free(&p);
}

static void query(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaEventRecord(p.event, p.a));
    int polls = 0;
    cudaError_t error;
    while ((error = cudaEventQuery(p.event)) == cudaErrorNotReady) {
        polls++;
    }
    OK(error);
    CHECK(polls <= 4);
    OK(cudaMemsetAsync(p.x, 1, BYTES, p.b)); /* seen by the host: ordered */
    while ((error = cudaStreamQuery(p.b)) == cudaErrorNotReady) {
    }
    OK(error);
    (void)cudaGetLastError();
    pair_free(&p);
}

typedef struct flag {
    pthread_mutex_t lock;
    pthread_cond_t set;
    bool is_set;
} flag;

static void raise_flag(void *arg)
{
    flag *f = arg;
    pthread_mutex_lock(&f->lock);
    f->is_set = true;
    pthread_cond_signal(&f->set);
    pthread_mutex_unlock(&f->lock);
}

/* Waits for a host function without asking CUDA: the work must run all the same. */
static void host_function(void)
{
    flag f = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaMemcpyAsync(p.host, p.x, BYTES, cudaMemcpyDeviceToHost, p.a));
    OK(cudaLaunchHostFunc(p.a, raise_flag, &f));
    pthread_mutex_lock(&f.lock);
    while (!f.is_set) {
        pthread_cond_wait(&f.set, &f.lock);
    }
    pthread_mutex_unlock(&f.lock);
    CHECK(p.host[3] == 0);
    OK(cudaMemsetAsync(p.x, 1, BYTES, p.b)); /* the host has seen the first */
    pair_free(&p);
}

static void add_one(void *arg)
{
    unsigned char *bytes = arg;
    for (size_t i = 0; i < BYTES; i++) {
        bytes[i]++;
    }
}

/* Through page-locked memory: the copy back waits already when the function writes. */
static void host_between_copies(void)
{
    pair p = pair_make();
    OK(cudaMemsetAsync(p.x, 7, BYTES, p.a));
    for (int i = 0; i < 3; i++) {
        OK(cudaMemcpyAsync(p.host, p.x, BYTES, cudaMemcpyDeviceToHost, p.a));
        OK(cudaLaunchHostFunc(p.a, add_one, p.host));
        OK(cudaMemcpyAsync(p.x, p.host, BYTES, cudaMemcpyHostToDevice, p.a));
    }
    OK(cudaStreamSynchronize(p.a));
    CHECK(((unsigned char *)p.host)[3] == 10);
    pair_free(&p);
}

static void legacy_stream(void)
{
    pair p = pair_make();
    cudaStream_t blocking;
    OK(cudaStreamCreate(&blocking));
    OK(cudaMemsetAsync(p.x, 0, BYTES, blocking));
    OK(cudaMemsetAsync(p.x, 1, BYTES, NULL));
    OK(cudaMemsetAsync(p.x, 2, BYTES, blocking));
    OK(cudaStreamSynchronize(blocking));
    OK(cudaStreamDestroy(blocking));
    pair_free(&p);
}

static void stream_ordered(void)
{
    pair p = pair_make();
    float *z;
    OK(cudaMallocAsync((void **)&z, BYTES, p.a));
    OK(cudaMemsetAsync(z, 0, BYTES, p.a));
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaStreamWaitEvent(p.b, p.event, 0));
    OK(cudaMemcpyAsync(p.x, z, BYTES, cudaMemcpyDeviceToDevice, p.b));
    OK(cudaFreeAsync(z, p.b));
    pair_free(&p);
}

static void *one_device(void *arg)
{
    int device = (int)(size_t)arg;
    OK(cudaSetDevice(device));
    pair p = pair_make();
    for (int i = 0; i < 20; i++) {
        OK(cudaMemsetAsync(p.x, i, BYTES, p.a));
        OK(cudaEventRecord(p.event, p.a));
        OK(cudaStreamWaitEvent(p.b, p.event, 0));
        OK(cudaMemcpyAsync(p.host, p.x, BYTES, cudaMemcpyDeviceToHost, p.b));
        OK(cudaStreamSynchronize(p.b));
        CHECK(((char *)p.host)[9] == i);
    }
    pair_free(&p);
    return NULL;
}

static void threads(void)
{
    pthread_t other;
    CHECK(pthread_create(&other, NULL, one_device, (void *)1) == 0);
    one_device((void *)0);
    pthread_join(other, NULL);
}

static void peers(void)
{
    int can;
    float *there;
    pair p = pair_make();
    OK(cudaDeviceCanAccessPeer(&can, 0, 1));
    CHECK(can);
    OK(cudaDeviceEnablePeerAccess(1, 0));
    FAILS(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
    OK(cudaSetDevice(1));
    OK(cudaMalloc((void **)&there, BYTES));
    OK(cudaSetDevice(0));
    OK(cudaMemsetAsync(p.x, 3, BYTES, p.a));
    OK(cudaMemcpyPeerAsync(there, 1, p.x, 0, BYTES, p.a));
    OK(cudaMemcpyAsync(p.host, there, BYTES, cudaMemcpyDeviceToHost, p.a));
    OK(cudaStreamSynchronize(p.a));
    CHECK(((char *)p.host)[BYTES - 1] == 3);
    OK(cudaFree(there));
    pair_free(&p);
}

/* Two branches, replayed; the second replay follows changed input. */
static void graph(void)
{
    pair p = pair_make();
    cudaEvent_t back;
    cudaGraph_t g;
    cudaGraphExec_t exec;
    enum cudaStreamCaptureStatus status;
    OK(cudaEventCreateWithFlags(&back, cudaEventDisableTiming));
    OK(cudaStreamBeginCapture(p.a, cudaStreamCaptureModeThreadLocal));
    OK(cudaStreamIsCapturing(p.a, &status));
    CHECK(status == cudaStreamCaptureStatusActive);
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaStreamWaitEvent(p.b, p.event, 0));
    OK(cudaMemsetAsync(p.x, 5, BYTES, p.a));
    OK(cudaMemsetAsync(p.y, 6, BYTES, p.b));
    OK(cudaEventRecord(back, p.b));
    OK(cudaStreamWaitEvent(p.a, back, 0));
    OK(cudaMemcpyAsync(p.x, p.y, BYTES / 2, cudaMemcpyDeviceToDevice, p.a));
    OK(cudaStreamEndCapture(p.a, &g));
    OK(cudaGraphInstantiate(&exec, g, 0));
    OK(cudaGraphDestroy(g));
    for (int i = 0; i < 3; i++) {
        OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
        OK(cudaGraphLaunch(exec, p.a));
        OK(cudaMemcpyAsync(p.host, p.x, BYTES, cudaMemcpyDeviceToHost, p.a));
        OK(cudaStreamSynchronize(p.a));
        CHECK(((char *)p.host)[0] == 6 && ((char *)p.host)[BYTES - 1] == 5);
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaEventDestroy(back));
    pair_free(&p);
}

static void timing(void)
{
    pair p = pair_make();
    cudaEvent_t from, to;
    float ms = -1;
    OK(cudaEventCreate(&from));
    OK(cudaEventCreate(&to));
    OK(cudaEventRecord(from, p.a));
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.a));
    OK(cudaEventRecord(to, p.a));
    OK(cudaEventSynchronize(to));
    OK(cudaEventElapsedTime(&ms, from, to));
    CHECK(ms >= 0 && ms < 60000);
    FAILS(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, from, p.event));
    OK(cudaEventDestroy(from));
    OK(cudaEventDestroy(to));
    pair_free(&p);
}

static void devices(void)
{
    int count, device, value;
    struct cudaDeviceProp prop;
    char bus[32];
    OK(cudaGetDeviceCount(&count));
    CHECK(count == 2);
    FAILS(cudaErrorInvalidDevice, cudaSetDevice(2));
    CHECK(cudaGetLastError() == cudaErrorInvalidDevice && cudaGetLastError() == cudaSuccess);
    OK(cudaGetDeviceProperties(&prop, 1));
    CHECK(prop.major == 8 && strstr(prop.name, "A100") != NULL);
    OK(cudaDeviceGetPCIBusId(bus, sizeof(bus), 1));
    CHECK(strcmp(bus, "0000:03:00.0") == 0);
    OK(cudaDeviceGetByPCIBusId(&device, bus));
    CHECK(device == 1);
    OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0));
    CHECK(value == 108);
}

static void visible(void)
{
    int count;
    struct cudaDeviceProp prop;
    OK(cudaGetDeviceCount(&count));
    CHECK(count == 1); /* "1,9,0": what follows the invalid entry is hidden */
    OK(cudaGetDeviceProperties(&prop, 0));
    CHECK(prop.pciBusID == 3);
}

static void by_uuid(void)
{
    int count;
    struct cudaDeviceProp prop;
    OK(cudaGetDeviceCount(&count));
    CHECK(count == 1);
    OK(cudaGetDeviceProperties(&prop, 0));
    CHECK(strstr(prop.name, "MIG") != NULL && prop.multiProcessorCount == 54);
}

static void pairs(void)
{
    int near, far;
    OK(cudaDeviceCanAccessPeer(&near, 0, 1));
    OK(cudaDeviceCanAccessPeer(&far, 0, 2));
    CHECK(near && !far); /* bridged in pairs: NVLink to one neighbour only */
}

static char seen[2][2][16]; /* UUIDs by host and ordinal */

static void *on_host(void *arg)
{
    int host = (int)(size_t)arg, count;
    struct cudaDeviceProp prop;
    void (*move)(int host) = (void (*)(int))(uintptr_t)dlsym(RTLD_DEFAULT, "sg_thread_host");
    move(host);
    OK(cudaGetDeviceCount(&count));
    CHECK(count == 2);
    for (int d = 0; d < 2; d++) {
        OK(cudaGetDeviceProperties(&prop, d));
        memcpy(seen[host][d], prop.uuid.bytes, 16);
    }
    FAILS(cudaErrorInvalidDevice, cudaSetDevice(2));
    pthread_t child;
    CHECK(pthread_create(&child, NULL, one_device, (void *)1) == 0);
    pthread_join(child, NULL);
    return NULL;
}

static void hosts(void)
{
    pthread_t other;
    CHECK(pthread_create(&other, NULL, on_host, (void *)1) == 0);
    on_host((void *)0);
    pthread_join(other, NULL);
    CHECK(memcmp(seen[0][0], seen[1][0], 16) != 0 && memcmp(seen[0][0], seen[0][1], 16) != 0);
}

static void pointers(void)
{
    pair p = pair_make();
    struct cudaPointerAttributes attr;
    int local;
    OK(cudaPointerGetAttributes(&attr, p.x + 5));
    CHECK(attr.type == cudaMemoryTypeDevice && attr.device == 0 && attr.devicePointer == p.x + 5);
    OK(cudaPointerGetAttributes(&attr, p.host));
    CHECK(attr.type == cudaMemoryTypeHost && attr.hostPointer == p.host);
    OK(cudaPointerGetAttributes(&attr, &local));
    CHECK(attr.type == cudaMemoryTypeUnregistered);
    pair_free(&p);
}

static void logged(void)
{
    static const char *const wanted[] = {
        "cudaMemcpyAsync(cudaMalloc #1+0 <- cudaHostAlloc #3+0, 4096 kind=1 stream 1 (dev0))",
        "cudaEventRecordWithFlags(event 1 stream 1 (dev0) flags=0)",
        "cudaStreamWaitEvent(stream 2 (dev0) event 1 flags=0)",
        "run cudaMemsetAsync of 4096 bytes on stream 2 (dev0)"};
    char text[16384];
    pair p = pair_make();
    OK(cudaMemcpyAsync(p.x, p.host, BYTES, cudaMemcpyHostToDevice, p.a));
    OK(cudaEventRecord(p.event, p.a));
    OK(cudaStreamWaitEvent(p.b, p.event, 0));
    OK(cudaMemsetAsync(p.x, 0, BYTES, p.b));
    pair_free(&p);
    FILE *f = fopen(getenv("SIMGPU_LOG"), "r");
    CHECK(f != NULL);
    text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
    fclose(f);
    CHECK(remove(getenv("SIMGPU_LOG")) == 0);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        CHECK(strstr(text, wanted[i]) != NULL);
    }
}

static void no_devices(void)
{
    int count = -1;
    FAILS(cudaErrorNoDevice, cudaGetDeviceCount(&count));
    CHECK(count == 0);
}

static const case_entry cases[] = {
    {"roundtrip", roundtrip, NULL, NULL, NULL, false},
    {"pageable", pageable, NULL, NULL, NULL, false},
    {"query", query, NULL, NULL, NULL, false},
    {"host_function", host_function, NULL, NULL, NULL, false},
    {"host_between_copies", host_between_copies, NULL, NULL, NULL, false},
    {"legacy_stream", legacy_stream, NULL, NULL, NULL, false},
    {"stream_ordered", stream_ordered, NULL, NULL, NULL, false},
    {"threads", threads, NULL, NULL, NULL, false},
    {"peers", peers, NULL, NULL, NULL, false},
    {"graph", graph, NULL, NULL, NULL, false},
    {"timing", timing, NULL, NULL, NULL, false},
    {"devices", devices, NULL, NULL, NULL, false},
    {"visible", visible, NULL, NULL, "CUDA_VISIBLE_DEVICES=1,9,0", false},
    {"by_uuid", by_uuid, NULL, NULL, "SIMGPU_MIG=1:2 CUDA_VISIBLE_DEVICES=MIG-", false},
    {"pairs", pairs, NULL, NULL, "SIMGPU_MACHINE=a100-pcie-pairs", false},
    {"hosts", hosts, NULL, NULL, "SIMGPU_HOSTS=2", false},
    {"pointers", pointers, NULL, NULL, NULL, false},
    {"logged", logged, NULL, NULL, "SIMGPU_LOG=simgpu-case.log", false},
    {"no_devices", no_devices, NULL, NULL, "SIMGPU_MACHINE=0", false},
};
const case_list legal_cases = {"legal", cases, sizeof(cases) / sizeof(cases[0])};
