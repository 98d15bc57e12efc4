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

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct device {
    sg_gpu gpu;
    int error;
    bool lost;
    bool peer[SG_MAX_DEVICES];
} device;

static device devices[SG_MAX_DEVICES];
static int n_devices;
static __thread int current;

static void add(int physical, int instance)
{
    for (int i = 0; i < n_devices; i++) {
        if (devices[i].gpu.physical == physical && devices[i].gpu.mig == instance) {
            return;
        }
    }
    if (instance >= 0) {
        sg_machine_instance(physical, instance, &devices[n_devices++].gpu);
    } else {
        devices[n_devices++].gpu = *sg_machine_gpu(physical);
    }
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
        find_visible();
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
    for (int i = 0; i < sg_device_count(); i++) {
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
