/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backends of this build, best first, and the choice among them.
 *
 * What was asked for by name is had or is an error. Otherwise the best one that works is taken, and
 * where that is the host although the machine may have GPUs, one line says why. A driver without a
 * usable GPU is an error instead: a job that was meant for GPUs would run a hundred times slower,
 * and nobody looks at a line in the log.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/env.h"
#include "device/device.h"

static const tt_device_ops *const backends[] = {
#if TUTTI_HAVE_CUDA
    &tt_device_cuda,
#endif
    &tt_device_host,
};

static const tt_device_ops *backend_of(tutti_backend kind)
{
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (backends[i]->kind == kind)
            return backends[i];
    return NULL;
}

static bool read_hex(const char *dir, const char *device, const char *file, unsigned long *out)
{
    char path[1024], text[32];
    FILE *f;
    bool read;

    snprintf(path, sizeof path, "%s/%s/%s", dir, device, file);
    f = fopen(path, "re");
    if (f == NULL)
        return false;
    read = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    if (read)
        *out = strtoul(text, NULL, 16);
    return read;
}

/* Finds an NVIDIA display controller or 3D controller on the PCI bus. */
static bool nvidia_on_bus(const char *root, char *device_out, size_t cap)
{
    char path[512];
    struct dirent *entry;
    unsigned long vendor, class;
    bool found = false;
    DIR *dir;

    snprintf(path, sizeof path, "%s/sys/bus/pci/devices", root);
    dir = opendir(path);
    if (dir == NULL)
        return false;
    while (!found && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.' || !read_hex(path, entry->d_name, "vendor", &vendor) ||
            !read_hex(path, entry->d_name, "class", &class))
            continue;
        found = vendor == 0x10de && class >> 16 == 0x03;
        if (found)
            snprintf(device_out, cap, "%s", entry->d_name);
    }
    closedir(dir);
    return found;
}

static bool works(const tt_device_ops *ops, char *why, size_t cap)
{
    if (ops->probe == NULL || ops->probe() == TUTTI_OK)
        return true;
    snprintf(why, cap, "%s", tutti_last_error());
    return false;
}

/* What to say when the host backend is taken although the machine may have GPUs. `why` the CUDA
 * backend does not work; "" if this build has none. */
static tutti_status note_gpus(const char *root, const char *why, char *note, size_t cap)
{
    char path[512], device[256];

    snprintf(path, sizeof path, "%s/dev/nvidiactl", root);
    if (access(path, F_OK) == 0) {
        if (why[0] != '\0')
            return tt_fail(TUTTI_ERR_UNSUPPORTED,
                           "an NVIDIA driver is here, but CUDA does not work: %s; "
                           "TUTTI_BACKEND=host does without it",
                           why);
        snprintf(note, cap,
                 "an NVIDIA driver is here, but this build of tutti has no CUDA: using the host "
                 "backend (TUTTI_BACKEND=host silences this line)");
    } else if (nvidia_on_bus(root, device, sizeof device)) {
        snprintf(note, cap,
                 "NVIDIA device %s is on the PCI bus, but there is no /dev/nvidiactl (container "
                 "started without its GPUs?): using the host backend",
                 device);
    } else if (why[0] != '\0') {
        snprintf(note, cap,
                 "no GPU is usable (%s): using the host backend (TUTTI_BACKEND=host silences this "
                 "line)",
                 why);
    }
    return TUTTI_OK;
}

/* The best backend that works. */
static tutti_status choose(const char *root, const tt_device_ops **ops_out, char *note, size_t cap)
{
    char why[TT_ERROR_TEXT_MAX] = "";

    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        if (!works(backends[i], why, sizeof why))
            continue;
        if (backends[i]->kind == TUTTI_BACKEND_HOST)
            TT_TRY(note_gpus(root, why, note, cap));
        *ops_out = backends[i];
        return TUTTI_OK;
    }
    return tt_fail_text(TUTTI_ERR_UNSUPPORTED, why);
}

static tutti_status wanted_by_env(tutti_backend *wanted_out)
{
    const char *text;

    TT_TRY(tt_env_get_string(TT_ENV_BACKEND, &text));
    *wanted_out = TUTTI_BACKEND_AUTO;
    if (strcmp(text, "host") == 0)
        *wanted_out = TUTTI_BACKEND_HOST;
    else if (strcmp(text, "cuda") == 0)
        *wanted_out = TUTTI_BACKEND_CUDA;
    return TUTTI_OK;
}

tutti_status tt_device_select_at(const char *root, tutti_backend wanted,
                                 const tt_device_ops **ops_out, char *note_out, size_t note_cap)
{
    bool by_env = wanted == TUTTI_BACKEND_AUTO;
    const tt_device_ops *ops = NULL;
    char note[512] = "", why[TT_ERROR_TEXT_MAX];

    if (by_env)
        TT_TRY(wanted_by_env(&wanted));
    if (wanted == TUTTI_BACKEND_AUTO)
        TT_TRY(choose(root, &ops, note, sizeof note));
    else
        ops = backend_of(wanted);
    if (ops == NULL && wanted == TUTTI_BACKEND_CUDA)
        return tt_fail(TUTTI_ERR_UNSUPPORTED,
                       "%s asks for the CUDA backend, but this build of tutti has none: choose "
                       "auto or host",
                       by_env ? "TUTTI_BACKEND=cuda" : "tutti_init_opts.backend");
    if (ops != NULL && wanted != TUTTI_BACKEND_AUTO && !works(ops, why, sizeof why))
        return tt_fail(TUTTI_ERR_UNSUPPORTED, "%s asks for the CUDA backend, but %s",
                       by_env ? "TUTTI_BACKEND=cuda" : "tutti_init_opts.backend", why);
    if (ops == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_init_opts.backend is %d: no such backend", wanted);
    snprintf(note_out, note_cap, "%s", note);
    *ops_out = ops;
    return TUTTI_OK;
}

tutti_status tt_device_select(tutti_backend wanted, const tt_device_ops **ops_out, char *note_out,
                              size_t note_cap)
{
    return tt_device_select_at("", wanted, ops_out, note_out, note_cap);
}

int tt_device_list(char (*pci_out)[TT_DEVICE_ID_MAX], int cap)
{
    const tt_device_ops *ops;
    char note[512];

    if (tt_device_select(TUTTI_BACKEND_AUTO, &ops, note, sizeof note) != TUTTI_OK ||
        ops->list == NULL)
        return 0;
    return ops->list(pci_out, cap);
}
