/* SPDX-License-Identifier: Apache-2.0 */
/* MPI, the driver, CUDA and NCCL as the dynamic linker finds them, and the topology's findings. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../topo/here.h"
#include "doctor.h"
#include "topo/findings.h"
#include "topo/read.h"

static void check_mpi(report *r, const tutti_ctx *ctx)
{
    char text[4096] = "";
    int length = 0;
    union {
        void *symbol;
        int (*call)(char *version, int *length);
    } version = {dlsym(RTLD_DEFAULT, "MPI_Get_library_version")};
    if (version.symbol != NULL)
        version.call(text, &length);
    text[strcspn(text, ",\n")] = '\0';
    const char *level = ctx->boot->thread_level != NULL ? ctx->boot->thread_level : "?";
    if (ctx->boot->any_thread)
        say(r, SAID_OK, "MPI", "", "%s, %s", text[0] != '\0' ? text : ctx->boot->ops->name, level);
    else
        say(r, SAID_WARNING, "MPI",
            "Ask for MPI_THREAD_MULTIPLE, or let tutti_init initialise MPI.",
            "%s gives %s: no progress thread, streams do not cross hosts",
            text[0] != '\0' ? text : ctx->boot->ops->name, level);
}

/* Versions that are known to be broken, as [from, below) of NCCL_VERSION_CODE. */
typedef struct bad_version {
    int from, below;
    bool arm_only;
    const char *what;
} bad_version;
static const bad_version bad_nccl[] = {
    {0, 21900, false, "older than 2.19, which tutti needs"},
    {0, 22903, true, "before 2.29.3 proxies leak slots on Grace and hang without an error"},
    {22803, 22809, false, "2.28.3 to 2.28.8 cannot be restarted inside a process"},
};

static void judge_nccl(report *r, int code)
{
    int major = code >= 10000 ? code / 10000 : code / 1000;
    int minor = code >= 10000 ? code % 10000 / 100 : code % 1000 / 100;
#if defined(__aarch64__)
    bool arm = true;
#else
    bool arm = false;
#endif
    for (size_t i = 0; i < sizeof bad_nccl / sizeof bad_nccl[0]; i++)
        if (code >= bad_nccl[i].from && code < bad_nccl[i].below &&
            (arm || !bad_nccl[i].arm_only)) {
            say(r, SAID_WARNING, "NCCL", "Use another version.", "%d.%d.%d: %s", major, minor,
                code % 100, bad_nccl[i].what);
            return;
        }
    say(r, SAID_OK, "NCCL", "", "%d.%d.%d", major, minor, code % 100);
}

static void check_nccl(report *r, bool gpus)
{
    union {
        void *symbol;
        int (*call)(int *version);
    } version;
    int code = 0;
    void *library = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL) {
        say(r, gpus ? SAID_WARNING : SAID_NOTE, "NCCL",
            gpus ? "Install NCCL, or put its folder on LD_LIBRARY_PATH." : "",
            "libnccl.so.2 is not found%s", gpus ? "" : "; the host backend needs none");
        return;
    }
    version.symbol = dlsym(library, "ncclGetVersion");
    if (version.symbol != NULL && version.call(&code) == 0)
        judge_nccl(r, code);
    dlclose(library);
}

static bool driver_version(char *text, unsigned cap)
{
    union {
        void *symbol;
        int (*init)(void);
        int (*get)(char *version, unsigned length);
    } init, get, end;
    bool got = false;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == NULL)
        return false;
    init.symbol = dlsym(library, "nvmlInit_v2");
    get.symbol = dlsym(library, "nvmlSystemGetDriverVersion");
    end.symbol = dlsym(library, "nvmlShutdown");
    if (init.symbol != NULL && get.symbol != NULL && init.init() == 0) {
        got = get.get(text, cap) == 0;
        if (end.symbol != NULL)
            end.init();
    }
    dlclose(library);
    return got;
}

static bool check_driver(report *r)
{
    char text[96];
    bool node = access("/dev/nvidiactl", F_OK) == 0;
    if (driver_version(text, sizeof text)) {
        say(r, SAID_OK, "GPU driver", "", "%s", text);
        return true;
    }
    if (node)
        say(r, SAID_FAILED, "GPU driver",
            "Reinstall the driver, or start the container with the NVIDIA runtime.",
            "/dev/nvidiactl is there, but NVML (libnvidia-ml.so.1) does not work");
    else
        say(r, SAID_NOTE, "GPU driver", "", "none: ranks use the host backend");
    return node;
}

void check_software(report *r, const tutti_ctx *ctx)
{
    if (ctx != NULL)
        check_mpi(r, ctx);
    check_nccl(r, check_driver(r));
}

void check_topology(report *r)
{
    tutti_topo *topo = NULL;
    tt_findings found = {0};
    if (read_here(&topo) != TUTTI_OK) {
        say(r, SAID_NOTE, "topology", "", "not known: %s", tutti_last_error());
        return;
    }
    int gpus = tutti_topo_gpu_count(topo);
    const tt_find_also also = what_else(topo);
    if (tt_findings_make(topo, &also, &found) == TUTTI_OK) {
        for (size_t i = 0; i < found.n; i++)
            if (found.list[i].severity != TT_SEVERITY_NOTE)
                say(r, found.list[i].severity == TT_SEVERITY_ERROR ? SAID_FAILED : SAID_WARNING,
                    "topology", found.list[i].action, "%s: %s", found.list[i].id,
                    found.list[i].text);
        say(r, SAID_OK, "topology", "", "%d GPUs, %d NICs, %zu findings (tutti topo shows them)",
            gpus, tutti_topo_nic_count(topo), found.n);
    }
    tt_findings_free(&found);
    tutti_topo_close(topo);
}
