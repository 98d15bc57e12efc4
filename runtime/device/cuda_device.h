/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the CUDA device: cuda.c (device, streams), cuda_event.c, cuda_memory.c,
 * cuda_choose.c. */
#ifndef TT_DEVICE_CUDA_DEVICE_H
#define TT_DEVICE_CUDA_DEVICE_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#include "device/device.h"

enum { TT_CUDA_PCI_MAX = 32, TT_CUDA_SEEN = 256 };

typedef struct tt_cuda {
    tt_device base;
    int ordinal;
    char pci[TT_CUDA_PCI_MAX]; /* "0000:07:00.0" */
    char id[TT_DEVICE_ID_MAX]; /* "GPU-..." or, of an instance, "MIG-..." */
    int priority_least, priority_most;
    pthread_mutex_t lock; /* of the list of streams, and of idle events */
    tt_event *idle[2]; /* events given back, without and with timing */
    cudaStream_t *streams; /* made here */
    size_t nstreams, cap;
    cudaStream_t service; /* work of the library's own, off the hot path */
    _Atomic uintptr_t seen[TT_CUDA_SEEN]; /* addresses known to be device memory */
} tt_cuda;

static inline tt_cuda *tt_cuda_of(tt_device *dev)
{
    return (tt_cuda *)dev;
}

/* OK, or DEVICE (NO_MEMORY) with the call's name and CUDA's text. */
#define TT_CUDA(call) tt_cuda_status((call), #call)
tutti_status tt_cuda_status(cudaError_t error, const char *call);
/* The same for the result of work that was given earlier: tells the device's owner. */
tutti_status tt_cuda_async_status(tt_cuda *dev, cudaError_t error, const char *call);

/*
 * Between enter and leave this thread's current device is `dev`, and what it does is no concern of
 * a stream capture in another thread (a query would spoil one in global mode).
 */
typedef struct tt_cuda_visit {
    int device;
    enum cudaStreamCaptureMode mode;
} tt_cuda_visit;
tutti_status tt_cuda_enter(const tt_cuda *dev, tt_cuda_visit *visit);
void tt_cuda_leave(const tt_cuda *dev, const tt_cuda_visit *visit);

/* ARG unless it is a CUDA stream. */
tutti_status tt_cuda_stream(tutti_stream stream, cudaStream_t *s_out);
/* Waits until `query` says yes; ends when the owner has failed. */
tutti_status tt_cuda_await_stream(tt_cuda *dev, cudaStream_t s);

/* cuda_choose.c: the ordinal for a local rank, before any context exists. */
tutti_status tt_cuda_choose(int local_rank, int local_size, int *ordinal_out);
tutti_status tt_cuda_probe(void);
int tt_cuda_list(char (*pci_out)[TT_DEVICE_ID_MAX], int cap);
tutti_status tt_cuda_describe(int ordinal, char pci_out[TT_CUDA_PCI_MAX],
                              char id_out[TT_DEVICE_ID_MAX]);

/* The slots of tt_device_ops in cuda_event.c and cuda_memory.c. */
tutti_status tt_cuda_event_create(tt_device *dev, bool timing, tt_event **out);
void tt_cuda_event_destroy(tt_device *dev, tt_event *event);
void tt_cuda_events_free(tt_cuda *dev); /* the idle ones, when all streams are drained */
tutti_status tt_cuda_event_record(tt_device *dev, tt_event *event, tutti_stream stream);
tutti_status tt_cuda_event_wait(tt_device *dev, tt_event *event, tutti_stream stream);
tutti_status tt_cuda_event_query(tt_device *dev, tt_event *event, bool *passed_out);
tutti_status tt_cuda_event_elapsed(tt_device *dev, tt_event *from, tt_event *to,
                                   double *seconds_out);
tutti_status tt_cuda_copy(tt_device *dev, void *dst, const void *src, size_t bytes,
                          tutti_stream stream);
tutti_status tt_cuda_zero(tt_device *dev, void *dst, size_t bytes, tutti_stream stream);
tutti_status tt_cuda_fill_nan(tt_device *dev, void *dst, size_t n, tutti_dtype dtype,
                              tutti_stream stream);
tutti_status tt_cuda_mem_alloc(tt_device *dev, size_t bytes, void **ptr_out);
void tt_cuda_mem_free(tt_device *dev, void *ptr);
tutti_status tt_cuda_host_alloc(tt_device *dev, size_t bytes, void **ptr_out);
void tt_cuda_host_free(tt_device *dev, void *ptr);
bool tt_cuda_usable(tt_device *dev, const void *ptr);

#endif
