/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of NVML's interface that the model needs, declared here: nvml.h comes with CUDA, which
 * need not be there. Layouts and numbers are those of NVML's ABI, which does not change; structs
 * that carry a version are asked for by it.
 *
 * Every function may be missing (an older driver) and every call may fail (a virtual GPU, MIG, a
 * container): then the fact stays unknown. The library is opened for the time of one discovery.
 */
#include "topo/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/mem.h"

enum {
    LINKS_MAX = 18,
    CAP_P2P = 0,
    FIELD_LINK_STATE = 165,
    FIELD_C2C_COUNT = 170,
    FIELD_C2C_STATUS = 171,
    FIELD_C2C_MBPS = 172,
    P2P_READ = 0,
    P2P_WRITE = 1,
    FABRIC_COMPLETED = 3,
    CPU_WORDS = 64
};

typedef void *device;
typedef struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char busid[32];
} pci_info;
typedef struct memory_info {
    unsigned long long total, free, used;
} memory_info;
typedef struct field_value {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    int status;
    union {
        double d;
        unsigned u;
        unsigned long long ull;
    } value;
} field_value;
typedef struct fabric_info {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
} fabric_info;
#define FABRIC_VERSION ((unsigned)sizeof(fabric_info) | 2u << 24)

/* X(name without nvml, arguments): all return an int, 0 for success. */
#define CALLS(X)                                                                                   \
    X(Init_v2, (void))                                                                             \
    X(Shutdown, (void))                                                                            \
    X(SystemGetDriverVersion, (char *, unsigned))                                                  \
    X(DeviceGetCount_v2, (unsigned *))                                                             \
    X(DeviceGetHandleByIndex_v2, (unsigned, device *))                                             \
    X(DeviceGetPciInfo_v3, (device, pci_info *))                                                   \
    X(DeviceGetUUID, (device, char *, unsigned))                                                   \
    X(DeviceGetName, (device, char *, unsigned))                                                   \
    X(DeviceGetMemoryInfo, (device, memory_info *))                                                \
    X(DeviceGetCudaComputeCapability, (device, int *, int *))                                      \
    X(DeviceGetMigMode, (device, unsigned *, unsigned *))                                          \
    X(DeviceGetMaxMigDeviceCount, (device, unsigned *))                                            \
    X(DeviceGetMigDeviceHandleByIndex, (device, unsigned, device *))                               \
    X(DeviceGetNvLinkState, (device, unsigned, unsigned *))                                        \
    X(DeviceGetNvLinkCapability, (device, unsigned, int, unsigned *))                              \
    X(DeviceGetNvLinkRemotePciInfo_v2, (device, unsigned, pci_info *))                             \
    X(DeviceGetNvLinkRemoteDeviceType, (device, unsigned, int *))                                  \
    X(DeviceGetFieldValues, (device, int, field_value *))                                          \
    X(DeviceGetP2PStatus, (device, device, int, int *))                                            \
    X(DeviceGetGpuFabricInfoV, (device, fabric_info *))                                            \
    X(DeviceGetCpuAffinity, (device, unsigned, unsigned long *))                                   \
    X(DeviceGetCurrentClocksThrottleReasons, (device, unsigned long long *))                       \
    X(DeviceGetRemappedRows, (device, unsigned *, unsigned *, unsigned *, unsigned *))             \
    X(DeviceGetVirtualizationMode, (device, int *))                                                \
    X(DeviceGetComputeRunningProcesses_v3, (device, unsigned *, void *))

struct tt_nvml {
    void *library;
#define MEMBER(name, arguments) int(*name) arguments;
    CALLS(MEMBER)
#undef MEMBER
    int count;
    device *devices;
    tt_busid *busids;
};

#define CALL(nvml, name, ...) ((nvml)->name != NULL && (nvml)->name(__VA_ARGS__) == 0)

static void load(tt_nvml *n)
{
    void *symbol;

#define LOAD(name, arguments)                                                                      \
    symbol = dlsym(n->library, "nvml" #name);                                                      \
    memcpy(&n->name, &symbol, sizeof symbol);
    CALLS(LOAD)
#undef LOAD
}

static void list_devices(tt_nvml *n)
{
    for (int i = 0; i < n->count; i++) {
        pci_info pci = {.busid = ""};

        n->busids[i] = TT_BUSID_NONE;
        if (!CALL(n, DeviceGetHandleByIndex_v2, (unsigned)i, &n->devices[i])) {
            n->devices[i] = NULL;
            continue;
        }
        if (CALL(n, DeviceGetPciInfo_v3, n->devices[i], &pci)) {
            pci.busid[sizeof pci.busid - 1] = 0;
            if (tt_busid_parse(pci.busid, &n->busids[i]) != TUTTI_OK)
                n->busids[i] = TT_BUSID_NONE;
        }
    }
}

void tt_nvml_close(tt_nvml *n)
{
    if (n == NULL)
        return;
    if (n->Shutdown != NULL)
        (void)n->Shutdown();
    (void)dlclose(n->library);
    free(n->devices);
    free(n->busids);
    free(n);
}

tt_nvml *tt_nvml_open(void)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    tt_nvml *n = NULL;
    unsigned count = 0;

    if (library == NULL) {
        tt_log_debug(TT_TOPO, "no NVML: %s", dlerror());
        return NULL;
    }
    if (tt_calloc(1, sizeof *n, &n) != TUTTI_OK)
        goto close_library;
    n->library = library;
    load(n);
    if (n->Init_v2 == NULL || n->Init_v2() != 0) {
        tt_log_debug(TT_TOPO, "NVML is there, but does not start: no driver?");
        goto free_nvml;
    }
    if (!CALL(n, DeviceGetCount_v2, &count) || count > TT_TOPO_MAX_GPUS)
        count = 0;
    if (tt_calloc(count, sizeof *n->devices, &n->devices) == TUTTI_OK &&
        tt_calloc(count, sizeof *n->busids, &n->busids) == TUTTI_OK)
        n->count = (int)count;
    list_devices(n);
    return n;

free_nvml:
    free(n);
close_library:
    (void)dlclose(library);
    return NULL;
}

int tt_nvml_count(const tt_nvml *n)
{
    return n == NULL ? 0 : n->count;
}

tt_busid tt_nvml_busid(const tt_nvml *n, int dev)
{
    return n->busids[dev];
}

static void fill_identity(const tt_nvml *n, device d, tt_gpu *gpu)
{
    memory_info memory;
    int major, minor;
    char text[96] = "";

    if (CALL(n, DeviceGetName, d, text, sizeof text))
        (void)snprintf(gpu->name, sizeof gpu->name, "%s", text);
    if (CALL(n, DeviceGetUUID, d, text, sizeof text))
        (void)snprintf(gpu->uuid, sizeof gpu->uuid, "%s", text);
    if (CALL(n, DeviceGetMemoryInfo, d, &memory))
        gpu->memory = memory.total;
    if (CALL(n, DeviceGetCudaComputeCapability, d, &major, &minor)) {
        gpu->sm = 10 * major + minor;
        gpu->sm_from = TT_FROM_NVML;
    }
}

static void fill_mig(const tt_nvml *n, device d, tt_gpu *gpu)
{
    unsigned now, pending, most = 0;
    device slice;

    if (!CALL(n, DeviceGetMigMode, d, &now, &pending)) {
        gpu->mig = TT_NO; /* a GPU without it refuses the call */
        gpu->mig_from = n->DeviceGetMigMode != NULL ? TT_FROM_NVML : TT_UNKNOWN;
        return;
    }
    gpu->mig = now != 0 ? TT_YES : TT_NO;
    gpu->mig_from = TT_FROM_NVML;
    if (now == 0 || !CALL(n, DeviceGetMaxMigDeviceCount, d, &most))
        return;
    for (unsigned i = 0; i < most && i < 16; i++)
        gpu->mig_slices += CALL(n, DeviceGetMigDeviceHandleByIndex, d, i, &slice);
}

static void fill_health(const tt_nvml *n, device d, tt_gpu *gpu)
{
    tt_gpu_health *health = &gpu->health;
    unsigned correctable, uncorrectable, pending, failed, processes = 0;
    unsigned long long reasons;
    int mode;

    health->from = TT_FROM_NVML;
    if (CALL(n, DeviceGetCurrentClocksThrottleReasons, d, &reasons))
        health->throttle = reasons;
    if (CALL(n, DeviceGetRemappedRows, d, &correctable, &uncorrectable, &pending, &failed)) {
        health->remapped_rows = (int32_t)(correctable + uncorrectable);
        health->remap_pending = pending ? TT_YES : TT_NO;
        health->remap_failed = failed ? TT_YES : TT_NO;
    }
    if (CALL(n, DeviceGetVirtualizationMode, d, &mode))
        health->vgpu = mode == 2 ? TT_YES : TT_NO; /* a virtual GPU, seen from within */
    /* With room for none it answers 7, too little room, and the number; 0 says that there is none.
     */
    if (n->DeviceGetComputeRunningProcesses_v3 != NULL) {
        int status = n->DeviceGetComputeRunningProcesses_v3(d, &processes, NULL);

        if (status == 0 || status == 7)
            health->processes = (int32_t)processes;
    }
}

static bool link_active(const tt_nvml *n, device d, int sm, unsigned link)
{
    field_value field = {.id = FIELD_LINK_STATE, .scope = link};
    unsigned state = 0;

    if (sm >= 90)
        return CALL(n, DeviceGetFieldValues, d, 1, &field) && field.status == 0 &&
               field.value.u != 0;
    return CALL(n, DeviceGetNvLinkState, d, link, &state) && state != 0;
}

/* The bus id at the other end, and by its type a class: of a switch that is not shown, none. */
static void far_end(const tt_nvml *n, device d, unsigned link, tt_busid *busid_out,
                    uint32_t *class_out)
{
    static const uint32_t classes[] = {0x030200, 0x068001, 0x068000};
    pci_info pci = {.busid = ""};
    int type = -1;

    *busid_out = TT_BUSID_HIDDEN;
    *class_out = 0;
    if (CALL(n, DeviceGetNvLinkRemotePciInfo_v2, d, link, &pci)) {
        pci.busid[sizeof pci.busid - 1] = 0;
        if (tt_busid_parse(pci.busid, busid_out) != TUTTI_OK)
            *busid_out = TT_BUSID_HIDDEN;
    }
    if (CALL(n, DeviceGetNvLinkRemoteDeviceType, d, link, &type) && type >= 0 && type < 3)
        *class_out = classes[type];
}

static tutti_status add_link(tt_machine *m, int gpu, tt_busid target, uint32_t class_code)
{
    int at;

    for (int i = 0; i < m->n_nvlinks; i++)
        if (m->nvlinks[i].gpu == gpu && m->nvlinks[i].target == target) {
            m->nvlinks[i].count++;
            return TUTTI_OK;
        }
    TT_TRY(tt_machine_add_nvlink(m, &at));
    m->nvlinks[at].gpu = gpu;
    m->nvlinks[at].target = target;
    m->nvlinks[at].tclass = class_code;
    m->nvlinks[at].count = 1;
    return TUTTI_OK;
}

static tutti_status fill_links(const tt_nvml *n, device d, tt_machine *m, int gpu)
{
    tt_gpu *g = &m->gpus[gpu];

    for (unsigned link = 0; link < LINKS_MAX && (int)link < tt_nvlink_max(g->sm); link++) {
        unsigned p2p = 0;
        uint32_t class_code;
        tt_busid target;

        if (!CALL(n, DeviceGetNvLinkCapability, d, link, CAP_P2P, &p2p))
            continue;
        g->nvlink_from = TT_FROM_NVML;
        if (p2p == 0 || !link_active(n, d, g->sm, link)) {
            g->links_down++;
            continue;
        }
        far_end(n, d, link, &target, &class_code);
        TT_TRY(add_link(m, gpu, target, class_code));
    }
    return TUTTI_OK;
}

static void fill_c2c(const tt_nvml *n, device d, tt_gpu *gpu)
{
    field_value count = {.id = FIELD_C2C_COUNT};

    if (gpu->sm < 90 || !CALL(n, DeviceGetFieldValues, d, 1, &count) || count.status != 0)
        return;
    gpu->c2c_from = TT_FROM_NVML;
    for (unsigned link = 0; link < count.value.u && link < 64; link++) {
        field_value state[2] = {{.id = FIELD_C2C_STATUS, .scope = link},
                                {.id = FIELD_C2C_MBPS, .scope = link}};

        if (!CALL(n, DeviceGetFieldValues, d, 2, state) || state[0].status != 0 ||
            state[0].value.u != 1 || state[1].status != 0)
            continue;
        gpu->c2c_links++;
        gpu->c2c_mbps = state[1].value.u;
    }
}

static void fill_fabric(const tt_nvml *n, device d, tt_gpu *gpu)
{
    fabric_info info = {.version = FABRIC_VERSION};

    if (!CALL(n, DeviceGetGpuFabricInfoV, d, &info))
        return;
    gpu->fabric = info.state == 0                 ? TT_FABRIC_NONE
                  : info.state == 1               ? TT_FABRIC_NOT_STARTED
                  : info.state < FABRIC_COMPLETED ? TT_FABRIC_IN_PROGRESS
                  : info.status == 0              ? TT_FABRIC_READY
                                                  : TT_FABRIC_FAILED;
}

bool tt_nvml_cpus(const tt_nvml *n, int dev, tt_cpuset *cpus_out)
{
    unsigned long words[CPU_WORDS] = {0};
    tt_cpuset cpus = {NULL, 0};

    if (n->devices[dev] == NULL ||
        !CALL(n, DeviceGetCpuAffinity, n->devices[dev], CPU_WORDS, words))
        return false;
    for (int cpu = 0; cpu < CPU_WORDS * 64; cpu++)
        if ((words[cpu / 64] >> (cpu % 64) & 1) != 0 && tt_cpuset_add(&cpus, cpu) != TUTTI_OK) {
            tt_cpuset_free(&cpus);
            return false;
        }
    tt_cpuset_free(cpus_out);
    *cpus_out = cpus;
    return true;
}

tutti_status tt_nvml_fill(const tt_nvml *n, tt_machine *m, int gpu)
{
    tt_gpu *g = &m->gpus[gpu];
    device d = n->devices[g->dev];

    if (d == NULL)
        return TUTTI_OK;
    fill_identity(n, d, g);
    fill_mig(n, d, g);
    fill_health(n, d, g);
    fill_c2c(n, d, g);
    fill_fabric(n, d, g);
    if (tt_nvml_cpus(n, g->dev, &g->cpus))
        g->cpus_from = TT_FROM_NVML;
    return fill_links(n, d, m, gpu);
}

static tt_p2p p2p_of(const tt_nvml *n, device one, device two)
{
    int worst = 0;

    for (int way = P2P_READ; way <= P2P_WRITE; way++) {
        int status = 6;

        if (!CALL(n, DeviceGetP2PStatus, one, two, way, &status) || status < 0 || status > 5)
            return TT_P2P_UNKNOWN;
        worst = status > worst ? status : worst;
    }
    return (tt_p2p)(TT_P2P_OK + worst);
}

tutti_status tt_nvml_fill_machine(const tt_nvml *n, tt_machine *m)
{
    size_t gpus = (size_t)m->n_gpus;

    m->system.nvml = TT_YES;
    if (!CALL(n, SystemGetDriverVersion, m->system.driver, sizeof m->system.driver))
        m->system.driver[0] = 0;
    TT_TRY(tt_calloc(gpus, gpus, &m->p2p));
    for (size_t i = 0; i < gpus; i++)
        for (size_t j = 0; j < gpus; j++) {
            device one = n->devices[m->gpus[i].dev], two = n->devices[m->gpus[j].dev];

            if (i != j && one != NULL && two != NULL)
                m->p2p[i * gpus + j] = (uint8_t)p2p_of(n, one, two);
        }
    return TUTTI_OK;
}

void tt_nvml_fabric(const tt_nvml *n, uint8_t cluster_out[16], uint32_t *clique_out)
{
    fabric_info info = {.version = FABRIC_VERSION};

    if (tt_nvml_count(n) == 0 || n->devices[0] == NULL ||
        !CALL(n, DeviceGetGpuFabricInfoV, n->devices[0], &info) || info.state != FABRIC_COMPLETED ||
        info.status != 0)
        return;
    memcpy(cluster_out, info.cluster, sizeof info.cluster);
    *clique_out = info.clique;
}
