/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices that this process sees: the machine's GPUs through CUDA_VISIBLE_DEVICES, the current
 * one of each thread, peer access, and the error a device is left with.
 *
 * CUDA_VISIBLE_DEVICES is read as CUDA does: indices, UUIDs or their beginnings, MIG UUIDs; the
 * first entry that names nothing hides itself and all behind it. A GPU cut into instances is seen
 * as its first instance.
 */
#include "internal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct device {
    sg_gpu gpu;
    int error;
    bool lost;
    bool peer[SG_MAX_DEVICES];
} device;

static device devices[SG_MAX_DEVICES]; /* those of the first host, of the second ... */
static int n_devices, per_host, adding_host;
static __thread int current, host_of_thread;

static void add(int physical, int instance)
{
    for (int i = adding_host * per_host; i < n_devices; i++) {
        if (devices[i].gpu.physical == physical && devices[i].gpu.mig == instance) {
            return;
        }
    }
    if (n_devices == SG_MAX_DEVICES) {
        sg_fatal("limit", "more than %d devices", SG_MAX_DEVICES);
    }
    sg_gpu *gpu = &devices[n_devices++].gpu;
    if (instance >= 0) {
        sg_machine_instance(physical, instance, gpu);
    } else {
        *gpu = *sg_machine_gpu(physical);
    }
    sg_machine_on_host(gpu, sg_set.host + adding_host);
}

static bool add_uuid(const char *text, size_t length)
{
    for (int i = 0; i < sg_machine_count(); i++) {
        int instances = sg_machine_mig(i);
        if (instances == 0 && strncmp(sg_machine_gpu(i)->uuid, text, length) == 0) {
            add(i, -1);
            return true;
        }
        for (int k = 0; k < instances; k++) {
            sg_gpu gpu;
            sg_machine_instance(i, k, &gpu);
            if (strncmp(gpu.uuid, text, length) == 0) {
                add(i, k);
                return true;
            }
        }
    }
    return false;
}

static bool add_entry(const char *text, size_t length)
{
    if (length >= 4 && (strncmp(text, "GPU-", 4) == 0 || strncmp(text, "MIG-", 4) == 0)) {
        return add_uuid(text, length);
    }
    char *end;
    long n = strtol(text, &end, 10);
    if (end != text + length || length == 0 || n < 0 || n >= sg_machine_count()) {
        return false;
    }
    add((int)n, sg_machine_mig((int)n) > 0 ? 0 : -1);
    return true;
}

static void find_visible(void)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible == NULL) {
        for (int i = 0; i < sg_machine_count(); i++) {
            add(i, sg_machine_mig(i) > 0 ? 0 : -1);
        }
        return;
    }
    while (*visible != '\0') {
        visible += strspn(visible, " ");
        size_t length = strcspn(visible, ",");
        size_t used = length;
        while (used > 0 && visible[used - 1] == ' ') {
            used--;
        }
        if (!add_entry(visible, used)) {
            return;
        }
        visible += length + (visible[length] == ',');
    }
}

static device *get(int ordinal)
{
    static bool found;
    sg_lock();
    if (!found) {
        found = true;
        for (; adding_host < sg_set.hosts; adding_host++) {
            find_visible();
            per_host = adding_host == 0 ? n_devices : per_host;
        }
    }
    sg_unlock();
    return ordinal >= 0 && ordinal < n_devices ? &devices[ordinal] : NULL;
}

int sg_device_count(void)
{
    get(0);
    return n_devices;
}

const sg_gpu *sg_device(int ordinal)
{
    device *d = get(ordinal);
    return d != NULL ? &d->gpu : NULL;
}

int sg_visible_count(void)
{
    get(0);
    return per_host;
}

int sg_device_base(void)
{
    get(0);
    return host_of_thread * per_host;
}

int sg_device_visible(int ordinal)
{
    get(0);
    return per_host > 0 ? ordinal % per_host : 0;
}

int sg_host_index(void)
{
    return sg_set.host + host_of_thread;
}

void sg_thread_host(int host)
{
    if (host < 0 || host >= sg_set.hosts) {
        sg_fatal("setting", "a thread moves to host %d, but SIMGPU_HOSTS=%d", host, sg_set.hosts);
    }
    host_of_thread = host;
    current = sg_device_base();
}

typedef struct start {
    void *(*fn)(void *arg);
    void *arg;
    int host;
} start;

static void *begin(void *arg)
{
    start s = *(start *)arg;
    free(arg);
    sg_thread_host(s.host);
    return s.fn(s.arg);
}

/* A thread begins on the host of the thread that makes it. This is what others call only where the
 * library is preloaded, as SIMGPU_HOSTS asks. */
SG_API int pthread_create(pthread_t *id, const pthread_attr_t *attr, void *(*fn)(void *arg),
                          void *arg)
{
    typedef int create_fn(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    create_fn *create = (create_fn *)(uintptr_t)dlsym(RTLD_NEXT, "pthread_create");
    if (host_of_thread == 0) {
        return create(id, attr, fn, arg);
    }
    start *s = sg_must(malloc(sizeof(*s)));
    *s = (start){fn, arg, host_of_thread};
    int error = create(id, attr, begin, s);
    if (error != 0) {
        free(s);
    }
    return error;
}

int sg_current_device(void)
{
    return current;
}

int sg_set_device(int ordinal)
{
    if (get(ordinal) == NULL) {
        return SG_ERR_INVALID_DEVICE;
    }
    current = ordinal;
    return SG_OK;
}

int sg_device_error(int ordinal)
{
    device *d = get(ordinal);
    if (d == NULL) {
        return SG_ERR_NO_DEVICE;
    }
    return d->lost ? SG_ERR_UNKNOWN : d->error;
}

static void drop_queues(int ordinal)
{
    for (sg_stream *s = sg_streams; s != NULL; s = s->next) {
        if (s->device == ordinal) {
            sg_stream_drop_queue(s);
        }
    }
    sg_pinned_refresh();
    sg_changed();
}

void sg_device_set_error(int ordinal, int error, const char *why)
{
    device *d = get(ordinal);
    if (d == NULL || d->error != SG_OK) {
        return;
    }
    sg_lock();
    d->error = error;
    sg_log("device %d has error %d: %s", ordinal, error, why);
    sg_changed();
    sg_unlock();
}

void sg_device_lose(int ordinal)
{
    device *d = get(ordinal);
    if (d == NULL) {
        return;
    }
    sg_lock();
    d->lost = true;
    sg_log("device %d has fallen off the bus", ordinal);
    drop_queues(ordinal);
    sg_unlock();
}

bool sg_device_lost(int physical)
{
    for (int i = sg_device_base(); i < sg_device_base() + per_host; i++) {
        if (devices[i].gpu.physical == physical && devices[i].lost) {
            return true;
        }
    }
    return false;
}

bool sg_peer_enabled(int from, int to)
{
    device *d = get(from);
    return from == to || (d != NULL && to >= 0 && to < n_devices && d->peer[to]);
}

int sg_peer_enable(int from, int to, bool on)
{
    device *d = get(from);
    if (d == NULL || get(to) == NULL || from == to) {
        return SG_ERR_INVALID_DEVICE;
    }
    if (d->peer[to] == on) {
        return on ? 704 : 705;
    }
    d->peer[to] = on;
    return SG_OK;
}
