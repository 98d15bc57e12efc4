/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of the simulated GPUs: what the stand-ins for libcudart, libnccl, libnvidia-ml and
 * libcublas share. It is one library (libsimgpu.so) that each stand-in links with RPATH $ORIGIN, so
 * a process has one engine however many stand-ins it loads. Each process has its own: what crosses
 * processes (NCCL) is the business of the stand-in that crosses.
 *
 * The model. A stream is a queue of operations. An operation has a function, the byte ranges it
 * reads and writes, and a label by which findings name it. Nothing runs on a thread of its own: an
 * operation runs on the host thread that needs it (a wait, a query), or that enqueued it (schedule
 * `eager`), or that happens to be in a call (`random`), or, after 20 ms in which nobody called, on
 * the ticker thread, so that a program that waits for a host function's effect goes on too.
 *
 * Order. Every stream is one component of the vector clocks. The clock of an operation is joined
 * from its stream's, from the marks it waits for and from what the host had seen when it was
 * enqueued. Host threads share one clock: what one thread has seen complete (a sync, a query that
 * says yes, a host function), every thread has seen, because the engine does not see the locks and
 * barriers by which threads tell each other. Two operations that touch the same bytes, one of them
 * writing, without an order between their clocks are a finding, whatever order they ran in.
 *
 * Locking. One recursive lock. Every function here takes it itself; a stand-in may hold it
 * (sg_lock) over several calls and use it for its own state too. Callbacks run with it held, save
 * operations flagged SG_OP_UNLOCKED. sg_wait_* must be called without it.
 *
 * Errors are numbers of cudaError_t (the names below; the cudart stand-in checks that they agree).
 */
#ifndef SIMGPU_ENGINE_H
#define SIMGPU_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SG_API __attribute__((visibility("default")))
#define SG_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

#ifdef __cplusplus
extern "C" {
#endif

enum {
    SG_OK = 0,
    SG_ERR_INVALID_VALUE = 1,
    SG_ERR_MEMORY = 2,
    SG_ERR_INVALID_DEVICE = 101,
    SG_ERR_NO_DEVICE = 100,
    SG_ERR_INVALID_HANDLE = 400,
    SG_ERR_NOT_READY = 600,
    SG_ERR_ILLEGAL_ADDRESS = 700,
    SG_ERR_LAUNCH_FAILURE = 719,
    SG_ERR_NOT_PERMITTED = 800,
    SG_ERR_CAPTURE_UNSUPPORTED = 900,
    SG_ERR_CAPTURE_INVALIDATED = 901,
    SG_ERR_CAPTURE_MERGE = 902,
    SG_ERR_CAPTURE_UNMATCHED = 903,
    SG_ERR_CAPTURE_UNJOINED = 904,
    SG_ERR_CAPTURE_ISOLATION = 905,
    SG_ERR_CAPTURE_IMPLICIT = 906,
    SG_ERR_CAPTURED_EVENT = 907,
    SG_ERR_CAPTURE_WRONG_THREAD = 908,
    SG_ERR_UNKNOWN = 999
};

typedef struct sg_stream sg_stream; /* the value of cudaStream_t, save 0, 1 and 2 */

SG_API void sg_lock(void);
SG_API void sg_unlock(void);

/* ---- the start of every call ---- */

/* What a call must do: go on, or return at once. */
typedef enum sg_verdict {
    SG_GO,
    SG_SKIP, /* do nothing and say success (SIMGPU_SKIP) */
    SG_FAIL /* do nothing and return *error_out */
} sg_verdict;

/*
 * Every call of a stand-in begins with this. It counts the call, writes it into the log
 * (SIMGPU_LOG), looks into SIMGPU_SKIP and SIMGPU_FAULT, hangs if the table says so, and lets the
 * schedule `random` run something. `fmt` and what follows describe the arguments for the log; the
 * log names pointers into device memory by allocation and offset where `%p` is used with
 * sg_name_pointer.
 *
 *     int error;
 *     switch (sg_call(&error, "ncclAllReduce", "count=%zu type=%d", count, type)) { ... }
 *
 * *error_out for SG_FAIL is the number given in SIMGPU_FAULT (`error=N`), else -1: choose your own.
 */
SG_API sg_verdict sg_call(int *error_out, const char *name, const char *fmt, ...) SG_PRINTF(3, 4);
/* Adds a line to the log only (the result of a call, what an operation did). */
SG_API void sg_log(const char *fmt, ...) SG_PRINTF(1, 2);
SG_API bool sg_logging(void);
/* "dev0:0x7f..+4096 (cudaMalloc #3, offset 128)" */
SG_API const char *sg_name_pointer(const void *ptr, char *buf, size_t cap);
/* A stream by its name, the same in every run; "" while nothing is logged. */
SG_API const char *sg_name_stream(const void *handle);
/* Those who wait by SIMGPU_FAULT=...=wait on the device go on: a communicator of it is aborted. */
SG_API void sg_fault_release(int device);

/* SIMGPU_NOOP=1: calls on the hot path do nothing. Cheap; test it before sg_call. */
SG_API extern bool sg_noop;

/* ---- findings ---- */

/*
 * Reports a finding: a short id ("race", "use-after-free", "nccl-count"), then a sentence that
 * names both sides. It goes to stderr and to the file SIMGPU_REPORT (appended, one line, begun by
 * pid). A finding already made with the same id and text is only counted. A process with findings
 * that would end with status 0 ends with 96. SIMGPU_ON_FINDING=abort ends it at the finding.
 */
SG_API void sg_finding(const char *id, const char *fmt, ...) SG_PRINTF(2, 3);
/* The same, then the process ends with status 97. */
SG_API void sg_fatal(const char *id, const char *fmt, ...) SG_PRINTF(2, 3)
    __attribute__((noreturn));
/* An unknown call: reports `unknown-call` and ends the process with status 97. */
SG_API void sg_refuse(const char *name) __attribute__((noreturn));
SG_API size_t sg_findings(void); /* how many so far */

/* Called when the process ends with status 0, in order of registration reversed: leak checks. */
SG_API void sg_at_exit(void (*fn)(void));
/* `suspects` says whether it knows why nothing moves, and with `tell` reports it. A wait is then
 * held for a deadlock after a quarter of SIMGPU_PATIENCE. One stand-in may give one. */
SG_API void sg_at_deadlock(bool (*suspects)(bool tell));

/* ---- settings ---- */

/* A seeded stream of numbers (SIMGPU_SCHEDULE's seed, else 1); `salt` tells users apart. */
SG_API uint64_t sg_random(const char *salt);
/* Milliseconds that a wait may last without anything happening before it is reported as a
 * deadlock although some thread is outside the engine or a peer is in another process
 * (SIMGPU_PATIENCE, default 20000). */
SG_API long sg_patience_ms(void);

/* ---- devices ---- */

/*
 * The machine comes from SIMGPU_MACHINE: a name of tutti's catalogue, "dgx-h100" or "hgx-4", a file
 * (machines.c), or a number of GPUs; `name:N` takes the first N GPUs; default "dgx-a100".
 * SIMGPU_HOST=K (default 0) is
 * the host's index: it enters the UUIDs, so that two hosts have different GPUs. SIMGPU_MIG=D:N cuts
 * GPU D into N instances. `physical` indexes the machine (what NVML shows); ordinals, used in every
 * other call here, are those left by CUDA_VISIBLE_DEVICES.
 */
typedef struct sg_gpu {
    char name[64];
    char uuid[64]; /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx", or "MIG-..." */
    unsigned char uuid_bytes[16];
    char pci[16]; /* "0000:07:00.0", domain of four digits */
    unsigned pci_domain, pci_bus, pci_device;
    int numa; /* node, or -1 */
    int cc_major, cc_minor;
    int sm_count;
    size_t memory; /* bytes */
    int physical; /* index in the machine; of the parent for MIG */
    int mig; /* instance index, or -1 */
    int nvlinks; /* links up */
    int nvlink_version;
    bool nvswitch; /* the links go to switches; else the k-th link goes to GPU link_peer[k] */
    int link_peer[18];
    int pcie_switch; /* GPUs with the same number share a PCIe switch */
    unsigned c2c_links, c2c_mbps; /* to the processor; MB/s of one */
    unsigned cluster, clique; /* the NVLink domain beyond the host; 0: none */
} sg_gpu;

SG_API int sg_machine_count(void); /* all GPUs of the machine (MIG parents, no instances) */
SG_API const sg_gpu *sg_machine_gpu(int physical);
SG_API const char *sg_machine_name(void);
SG_API int sg_host_index(void);
SG_API int sg_machine_mig(int physical); /* how many instances the GPU is cut into; 0: none */
SG_API void sg_machine_instance(int physical, int instance, sg_gpu *out);

/*
 * Ranks as threads of one process may play several hosts: SIMGPU_HOSTS=H gives every host the same
 * machine, and a rank's thread says where it is before its first call (sg_thread_host, by dlsym);
 * threads it makes are there too, if libsimgpu.so is preloaded (LD_PRELOAD). Ordinals in the engine
 * number the devices of all hosts; what a program sees and says is translated at its calls:
 * engine ordinal = sg_device_base() + the program's; sg_device_visible is the way back.
 */
SG_API void sg_thread_host(int host); /* 0 .. H-1 */
SG_API int sg_visible_count(void); /* devices of this thread's host */
SG_API int sg_device_base(void); /* the first of them */
SG_API int sg_device_visible(int ordinal);

SG_API int sg_device_count(void); /* of all hosts of this process */
SG_API const sg_gpu *sg_device(int ordinal); /* NULL: no such ordinal */
SG_API int sg_current_device(void); /* of this thread */
SG_API int sg_set_device(int ordinal); /* SG_OK or SG_ERR_INVALID_DEVICE */
/* The error that every call on this device returns from now on (an illegal address, a lost GPU), or
 * SG_OK. */
SG_API int sg_device_error(int ordinal);
SG_API void sg_device_set_error(int ordinal, int error, const char *why);
/* The GPU falls off the bus: its queues are dropped, every call on it fails with SG_ERR_UNKNOWN.
 * SIMGPU_FAULT does this by `lost`. */
SG_API void sg_device_lose(int ordinal);
SG_API bool sg_device_lost(int physical);
SG_API size_t sg_device_used(int ordinal); /* bytes allocated by this process */
SG_API bool sg_peer_enabled(int from, int to);
SG_API int sg_peer_enable(int from, int to, bool on); /* SG_OK, 704 already, 705 not enabled */

/* ---- memory ---- */

typedef enum sg_memory_kind {
    SG_MEM_PAGEABLE, /* nothing the engine knows */
    SG_MEM_DEVICE,
    SG_MEM_PINNED, /* sg_alloc_pinned */
    SG_MEM_REGISTERED /* the program's own memory, by sg_register */
} sg_memory_kind;

typedef struct sg_memory {
    sg_memory_kind kind;
    int device; /* ordinal; of pinned memory: current when allocated */
    void *base;
    size_t bytes;
    uint64_t id; /* never reused */
    const char *origin; /* "cudaMalloc #3" */
    bool freed; /* the memory was freed: any use is a finding */
    bool windowed; /* made by an allocator with sg_alloc_device's `windowable` (ncclMemAlloc) */
} sg_memory;

/* What `ptr` points into. False: memory the engine does not know (out->kind is SG_MEM_PAGEABLE). */
SG_API bool sg_memory_find(const void *ptr, sg_memory *out);
/*
 * Device memory: address unreadable for the host, full of 0xff at first (floats are NaN), guard
 * pages around it, a poisoned gap behind it, the address never given out again. `call` names the
 * caller's call for findings. NULL: out of memory.
 */
SG_API void *sg_alloc_device(int ordinal, size_t bytes, const char *call, bool windowable);
SG_API void *sg_alloc_pinned(size_t bytes, const char *call);
/* Frees either. Work pending on it is a finding (`free-pending`), so are a damaged gap, an unknown
 * pointer's and a second free (the call then returns SG_ERR_INVALID_VALUE). */
SG_API int sg_free(void *ptr, const char *call);
/* Frees in stream order: from here on only what that stream does before, or is ordered before this
 * call, may touch it. */
SG_API int sg_free_async(sg_stream *stream, void *ptr, const char *call);
/* The program's own memory, page-locked from here on. 712 if it already is, 713 if it is not. */
SG_API int sg_register(void *ptr, size_t bytes, const char *call);
SG_API int sg_unregister(void *ptr, const char *call);
/*
 * Where the engine itself reads or writes device memory (memcpy, NCCL, GEMM): another mapping of
 * the same pages. Host pointers come back unchanged. Valid only inside an operation's function;
 * touch only ranges that the operation has stated.
 */
SG_API void *sg_view(const void *ptr);
/* True if all bytes lie in one live allocation. What they are said in a finding (`bounds`,
 * `use-after-free`, `not-device`) with `who` otherwise. */
SG_API bool sg_check_device_range(const void *ptr, size_t bytes, int ordinal, const char *who);

/* ---- operations ---- */

typedef struct sg_op sg_op;
typedef struct sg_mark sg_mark; /* a point of a stream: an event's record */

typedef struct sg_range {
    const void *ptr;
    size_t bytes;
    bool write; /* an update states its range once, as a write */
} sg_range;

typedef enum sg_step {
    SG_DONE, /* completed */
    SG_BLOCKED, /* waits for a peer: asked again when anything has changed */
    SG_FAILED /* the device's error was set (sg_device_set_error); the queue goes on */
} sg_step;

enum {
    SG_OP_UNLOCKED = 1, /* run without the lock (host functions); SG_BLOCKED not allowed */
    SG_OP_REMOTE = 2, /* may block on a peer in another process: polled every millisecond, and
                         reported as a deadlock only after sg_patience_ms */
    SG_OP_KERNEL = 4 /* run opens its ranges at their published addresses: the function uses
                        the program's own pointers instead of sg_view */
};

typedef struct sg_op_desc {
    const char *label; /* copied: "ncclAllReduce #12 comm 3 rank 1" */
    const void *site; /* the caller's return address, or NULL */
    const sg_range *ranges; /* copied */
    size_t n_ranges;
    /* Called when everything before it has completed, again after SG_BLOCKED. Ranges are checked
     * against other operations' once, before the first call. */
    sg_step (*run)(void *arg, sg_op *op);
    void *arg;
    /* Called once when the operation has completed or was dropped. May be NULL. */
    void (*release)(void *arg);
    /* The argument for one run of a captured operation; called at each launch of the graph, with
     * the captured `arg`; `release` is called for each of them and for the captured one. NULL: the
     * operation cannot be captured (SG_ERR_CAPTURE_UNSUPPORTED). */
    void *(*again)(void *arg);
    /* Says what a blocked operation waits for ("rank 2 has not called ncclAllReduce #12"). */
    void (*explain)(void *arg, char *buf, size_t cap);
    unsigned flags;
} sg_op_desc;

/*
 * Appends an operation to a stream (or to the graph that the stream is captured into). The
 * stream's device must be the current one where `need_current` is asked by the call's own rule:
 * see sg_stream_check. Returns SG_OK or an error; then `release` is not called.
 */
SG_API void sg_host_function(bool inside); /* this thread runs one: it may call nothing */
SG_API int sg_enqueue(sg_stream *stream, const sg_op_desc *desc);
SG_API sg_stream *sg_op_stream(const sg_op *op);
SG_API const char *sg_op_label(const sg_op *op);
/* Everything before `earlier` happened before what follows `later`: for operations that meet. Call
 * it from `run` when data flows from one to the other. Keeps no reference. */
SG_API void sg_op_join(sg_op *later, const sg_op *earlier);

/*
 * A meeting of n operations of this process: the engine's help for collectives. `fire` is called
 * once, on the arrival of the last, with the operations by index; it moves the data. With join_all
 * every participant is then ordered after all others (all-reduce, all-gather, all-to-all,
 * barriers); without, fire joins what it must (broadcast: each after the root).
 * In each operation: run = return sg_meet_arrive(meet, index, op).
 */
typedef struct sg_meet sg_meet;
SG_API sg_meet *sg_meet_create(int n, void (*fire)(void *arg, sg_op *const *ops), void *arg,
                               bool join_all);
SG_API sg_step sg_meet_arrive(sg_meet *meet, int index, sg_op *op);
SG_API int sg_meet_missing(const sg_meet *meet, int index_of_missing[], int cap); /* how many */
SG_API void sg_meet_abandon(sg_meet *meet); /* abort: all arrived and arriving complete, no fire */
SG_API void sg_meet_destroy(sg_meet *meet); /* when every operation was released */

/* ---- streams, marks, waits ---- */

enum { SG_STREAM_NONBLOCKING = 1 };
SG_API int sg_stream_create(int ordinal, unsigned flags, int priority, sg_stream **out);
SG_API int sg_stream_destroy(sg_stream *stream);
/* A cudaStream_t to a stream: 0 and 1 are the current device's legacy stream, 2 the thread's own.
 * NULL and a finding (`dead-stream`) if there is no such stream. */
SG_API sg_stream *sg_stream_get(void *handle, const char *call);
SG_API int sg_stream_device(const sg_stream *stream);
SG_API int sg_stream_priority(const sg_stream *stream);
SG_API unsigned sg_stream_flags(const sg_stream *stream);
SG_API uint64_t sg_stream_id(const sg_stream *stream);
/* A name for findings: "stream 3 (dev1)". */
SG_API const char *sg_stream_name(const sg_stream *stream);
/* SG_OK if the stream is of the current device, else the finding `wrong-device` and
 * SG_ERR_INVALID_HANDLE. Launches and NCCL calls ask. */
SG_API int sg_stream_check(sg_stream *stream, const char *call);

/*
 * On a stream that is being captured, a mark belongs to the capture: waiting for it draws the other
 * stream into the capture (a fork), and host waits and queries of it are refused.
 */
SG_API sg_mark *sg_mark_record(sg_stream *stream, const char *label); /* owned by the caller */
SG_API sg_mark *sg_mark_retain(sg_mark *mark);
SG_API void sg_mark_release(sg_mark *mark); /* takes NULL */
SG_API bool sg_mark_done(const sg_mark *mark); /* looks only: runs nothing, orders nothing */
/* A queued operation waits for it still. */
SG_API bool sg_mark_awaited(const sg_mark *mark);
SG_API double sg_mark_seconds(const sg_mark *mark); /* when it passed, monotonic */
SG_API int sg_stream_wait_mark(sg_stream *stream, sg_mark *mark, const char *label);

/* Host waits. All run work as the schedule says, order what follows after what they waited for,
 * report a deadlock, and return the device's error if it has one. */
SG_API int sg_wait_stream(sg_stream *stream, const char *call);
SG_API int sg_wait_mark(sg_mark *mark, const char *call);
SG_API int sg_wait_device(int ordinal, const char *call);
/* Waits until `done(arg)`; it is asked with the lock held whenever something has changed, and every
 * millisecond if `remote`. `explain` says what it waits for; deadline in ms, 0: none. False: late.
 */
typedef struct sg_wait {
    bool (*done)(void *arg);
    void (*explain)(void *arg, char *buf, size_t cap);
    void *arg;
    const char *call;
    bool remote;
    long deadline_ms;
} sg_wait;
SG_API bool sg_wait_until(const sg_wait *wait);
/* Queries: SG_OK, SG_ERR_NOT_READY or an error. "Not ready" is said 0-3 times (seeded) although
 * nothing is in the way, then work is forced; so polling loops end. */
SG_API int sg_query_stream(sg_stream *stream, const char *call);
SG_API int sg_query_mark(sg_mark *mark, const char *call);
/* A poll of something else that may bring work on (ncclCommGetAsyncError): lets work run like a
 * query. True: something has changed since this thread's last poll. */
SG_API bool sg_poll(const char *call);
/* Tells waiting threads that a stand-in's own state has changed. */
SG_API void sg_changed(void);

/* ---- stream capture and graphs ---- */

typedef struct sg_graph sg_graph; /* cudaGraph_t */
typedef struct sg_graph_exec sg_graph_exec; /* cudaGraphExec_t */

enum { SG_CAPTURE_GLOBAL = 0, SG_CAPTURE_THREAD = 1, SG_CAPTURE_RELAXED = 2 };
/* Errors of all of these are those of the runtime; breaking a rule makes the finding `capture` and
 * invalidates the capture. */
SG_API int sg_capture_begin(sg_stream *stream, int mode);
SG_API int sg_capture_end(sg_stream *stream, sg_graph **out);
/* The capture that a stream takes part in: 0 none, else its id; status 1 active, 2 invalidated. */
SG_API uint64_t sg_capture_id(const sg_stream *stream, int *status_out);
SG_API sg_graph *sg_capture_graph(const sg_stream *stream);
/* A call that is not allowed while capturing (a sync, an allocation): SG_OK, or the error.
 * `stream`: what the call is about, or NULL: then captures in mode global, and this thread's in
 * mode thread, forbid it. */
SG_API int sg_capture_forbids(const sg_stream *stream, const char *call);
SG_API bool sg_mark_captured(const sg_mark *mark);
SG_API int sg_capture_exchange_mode(int mode); /* this thread's, returns the old one */
/* Calls `launch(arg, stream)` at this point of each launch of the graph being captured. */
SG_API int sg_capture_call(sg_stream *stream, void (*launch)(void *arg, sg_stream *stream),
                           void *arg, const char *label);

SG_API void sg_graph_destroy(sg_graph *graph);
SG_API size_t sg_graph_nodes(const sg_graph *graph);
SG_API int sg_graph_instantiate(sg_graph *graph, sg_graph_exec **out);
SG_API int sg_graph_launch(sg_graph_exec *exec, sg_stream *stream);
SG_API int sg_graph_update(sg_graph_exec *exec, sg_graph *graph); /* 910: another shape */
SG_API int sg_graph_exec_destroy(sg_graph_exec *exec);
SG_API bool sg_graph_known(const void *graph);
SG_API bool sg_graph_exec_known(const void *exec);

/* ---- kernels ---- */

/*
 * Kernels run their own bodies, compiled for the host against device_code.h, from a table that
 * plug-ins fill: shared objects named in SIMGPU_KERNELS (colons between) or lying beside
 * libsimgpu.so as libsimgpu-kernels-*.so, loaded before the first launch, whose constructors call
 * sg_kernel_register. A kernel is found by the mangled name, else by the plain function name
 * without namespaces and parameters (so one entry serves `extern "C"` and C++).
 */
typedef struct sg_launch {
    unsigned grid[3], block[3];
    size_t shared_bytes;
} sg_launch;
typedef struct sg_ranges sg_ranges; /* collects a launch's ranges */
SG_API void sg_reads(sg_ranges *ranges, const void *ptr, size_t bytes);
SG_API void sg_writes(sg_ranges *ranges, const void *ptr, size_t bytes);

enum { SG_KERNEL_SYNCS = 1 /* threads meet (__syncthreads, shuffles): they run as fibers */ };

typedef struct sg_kernel {
    const char *name;
    int n_args; /* the sizes of the arguments, in order: they are copied at launch */
    const size_t *arg_sizes;
    void (*body)(void *const *args); /* one thread; device_code.h gives its indices */
    /* States what the launch reads and writes, from its arguments. */
    void (*ranges)(void *const *args, const sg_launch *launch, sg_ranges *out);
    unsigned flags;
} sg_kernel;
SG_API void sg_kernel_register(const sg_kernel *kernel); /* keeps the pointer */
SG_API const sg_kernel *sg_kernel_find(const char *name); /* NULL: unknown */
/* Queues a launch: the cudart stand-in calls this. */
SG_API int sg_kernel_launch(sg_stream *stream, const sg_kernel *kernel, const sg_launch *launch,
                            void *const *args, const void *site);

#ifdef __cplusplus
}
#endif

#endif
