/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device seam: what a backend (host, CUDA) gives for streams, events and copies. Streams come
 * by value; the inline stream ({0}) is accepted by the host backend in every call (work is done
 * before the call returns) and refused with ARG by CUDA.
 *
 * Backends are listed in backends.c, the only file here that knows what was compiled in.
 */
#ifndef TT_DEVICE_DEVICE_H
#define TT_DEVICE_DEVICE_H

#include "core/status.h"
#include "tutti/stream.h"

enum { TT_DEVICE_ID_MAX = 96 };

typedef struct tt_device tt_device;
typedef struct tt_event tt_event;

/*
 * Work on a stream. It always runs, exactly once and in stream order, so that it can free its arg;
 * work that must do nothing after a failure asks its context. The first status other than OK is
 * kept by the stream: stream_sync returns it, copies and fills behind it are skipped, streams that
 * wait for this one take it over, and `on_error` is told once.
 */
typedef tutti_status (*tt_work_fn)(void *arg);

/* What the owner of a device gives it. */
typedef struct tt_device_owner {
    void *arg;
    void (*on_error)(void *arg, tutti_status status,
                     const char *text); /* work on a stream failed; any thread */
    tutti_status (*check)(
        void *arg); /* OK, or the failure (recorded as last error) that must end a host wait */
    void (*on_thread)(void *arg); /* a worker thread has started (log identity) */
} tt_device_owner;

typedef struct tt_device_ops {
    size_t size;
    const char *name; /* "host", "cuda" */
    tutti_backend kind;
    /* Whether the backend works here; NULL: always. UNSUPPORTED with the reason in the error's
     * text. Opens no context. */
    tutti_status (*probe)(void);
    /* Chooses the device for this local rank. Fails locally: the caller agrees. */
    tutti_status (*open)(const tt_device_owner *owner, int local_rank, int local_size,
                         tt_device **dev_out);
    void (*close)(tt_device *dev); /* streams still there are drained and destroyed; takes NULL */
    int (*ordinal)(const tt_device *dev);
    /* A name that no other device of any machine has (a GPU's UUID); NULL: ranks may share one. */
    void (*identity)(const tt_device *dev, char id_out[TT_DEVICE_ID_MAX]);
    /* Its PCI bus id, as "0000:07:00.0"; NULL: it is no PCI device. */
    void (*pci)(const tt_device *dev, char pci_out[TT_DEVICE_ID_MAX]);
    /* The bus ids of the devices that this process sees, in the order of their ordinals, at most
     * cap; their number. Opens no context. NULL: they are no PCI devices. */
    int (*list)(char (*pci_out)[TT_DEVICE_ID_MAX], int cap);

    tutti_status (*stream_create)(tt_device *dev, const char *name, int priority,
                                  tutti_stream *out);
    void (*stream_destroy)(tt_device *dev, tutti_stream stream);
    tutti_status (*stream_check)(tt_device *dev,
                                 tutti_stream stream); /* ARG if it is no stream of this device */
    tutti_status (*stream_sync)(tt_device *dev, tutti_stream stream);
    /* Queues host work in stream order: never blocks on a real stream; inline runs it at once and
     * returns its status. With bytes > 0 the work gets a copy of as many at arg (inline: arg). */
    tutti_status (*stream_call)(tt_device *dev, tutti_stream stream, tt_work_fn fn, void *arg,
                                size_t bytes);

    /* Events remember a point of a stream; an event never recorded counts as passed. Recording
     * again moves it. */
    tutti_status (*event_create)(tt_device *dev, bool timing, tt_event **out);
    void (*event_destroy)(
        tt_device *dev,
        tt_event *event); /* takes NULL; must have passed or never be waited for again */
    tutti_status (*event_record)(tt_device *dev, tt_event *event, tutti_stream stream);
    tutti_status (*event_wait)(tt_device *dev, tt_event *event,
                               tutti_stream stream); /* stream waits; inline: the caller */
    tutti_status (*event_query)(tt_device *dev, tt_event *event, bool *passed_out);
    tutti_status (*event_elapsed)(tt_device *dev, tt_event *from, tt_event *to,
                                  double *seconds_out); /* STATE if not passed */

    tutti_status (*copy)(tt_device *dev, void *dst, const void *src, size_t bytes,
                         tutti_stream stream); /* host or device memory, either way */
    tutti_status (*zero)(tt_device *dev, void *dst, size_t bytes, tutti_stream stream);
    /* n elements of a floating-point dtype become NaN. */
    tutti_status (*fill_nan)(tt_device *dev, void *dst, size_t n, tutti_dtype dtype,
                             tutti_stream stream);
    /* Whether work on streams can use the memory at ptr. NULL: all of it. Cheap when asked again.
     */
    bool (*usable)(tt_device *dev, const void *ptr);
    /* Memory of the device, at least 256 bytes aligned, with any content. NO_MEMORY says how much
     * is free. free takes NULL and waits for nothing. */
    tutti_status (*mem_alloc)(tt_device *dev, size_t bytes, void **ptr_out);
    void (*mem_free)(tt_device *dev, void *ptr);
    /* Host memory that copies reach without staging (CUDA: page-locked), page aligned. */
    tutti_status (*host_alloc)(tt_device *dev, size_t bytes, void **ptr_out);
    void (*host_free)(tt_device *dev, void *ptr);
    bool host_memory; /* the device's memory is the host's: code may read and write it */
    /* The number of the capture (into a graph) that the stream takes part in, 0: none. NULL: there
     * are no captures. */
    tutti_status (*capture)(tt_device *dev, tutti_stream stream, uint64_t *id_out);
    /* The library's own stream for work off the hot path; inline on the host. */
    tutti_stream (*service)(tt_device *dev);
    /* Waits for the work on all streams, bounded as stream_sync is. False: some has not ended. */
    bool (*drain)(tt_device *dev);
} tt_device_ops;

/* Every backend's struct begins with this. */
struct tt_device {
    const tt_device_ops *ops;
    tt_device_owner owner;
};

/*
 * Picks the backend: `wanted`, else TUTTI_BACKEND, else CUDA where it works, else host (design in
 * docs/architecture.md). UNSUPPORTED names why a backend asked for cannot be had; so it does when
 * nothing was asked for and a driver is there but CUDA fails. *note_out gets one line to print
 * about the choice, or "".
 */
tutti_status tt_device_select(tutti_backend wanted, const tt_device_ops **ops_out, char *note_out,
                              size_t note_cap);
/* The same for the machine whose /dev and /sys lie below `root` ("" for this one). */
tutti_status tt_device_select_at(const char *root, tutti_backend wanted,
                                 const tt_device_ops **ops_out, char *note_out, size_t note_cap);

/* The list of the backend that TUTTI_BACKEND or its absence chooses here. Starts CUDA's driver, so
 * nothing is forked afterwards that uses CUDA. */
int tt_device_list(char (*pci_out)[TT_DEVICE_ID_MAX], int cap);

extern const tt_device_ops tt_device_host;
extern const tt_device_ops tt_device_cuda; /* only in a build with CUDA */

static inline bool tt_device_host_memory(const tt_device *dev)
{
    return dev->ops->host_memory;
}

/* 0 where the stream is not being captured, or the backend knows no captures. */
static inline tutti_status tt_device_capture(tt_device *dev, tutti_stream stream, uint64_t *id_out)
{
    *id_out = 0;
    return dev->ops->capture == NULL ? TUTTI_OK : dev->ops->capture(dev, stream, id_out);
}

/* Copies between host and device memory, either way, and waits for it. Not on the hot path. */
tutti_status tt_device_copy_now(tt_device *dev, void *dst, const void *src, size_t bytes);

#endif
