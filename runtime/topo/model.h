/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine model: what every reader fills and everything else (paths, plan, findings, drawings)
 * reads.
 *
 * A tutti_topo is a list of hosts. A host refers to a tt_machine, its shape; identical hosts refer
 * to the same one, so 1,024 hosts of one kind cost one machine. A machine is flat arrays; objects
 * name each other by index in these arrays, -1 for none. Order is the order of NCCL's own lists
 * (the traversal of its XML), so index i here is row i there.
 *
 * A fact comes with its origin (tt_from). TT_UNKNOWN means that the field holds a default or
 * nothing: findings must not be built on it. Speeds: GB/s = 1e9 bytes/s in one direction.
 */
#ifndef TT_TOPO_MODEL_H
#define TT_TOPO_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "topo/cpuset.h"
#include "tutti/topo.h"

/* Where a fact comes from. */
typedef enum tt_from {
    TT_UNKNOWN, /* nobody said */
    TT_FROM_RULE, /* derived from other facts (an SM from a PCI device id, a NUMA node by affinity)
                   */
    TT_FROM_FILE, /* the description that was read */
    TT_FROM_SYSFS,
    TT_FROM_NVML
} tt_from;

enum { TT_TOPO_NAME = 64, TT_TOPO_UUID = 48, TT_BUSID_TEXT = 24 };

/* domain << 20 | bus << 12 | device << 4 | function; domains may have more than 16 bits. */
typedef uint64_t tt_busid;
#define TT_BUSID_NONE UINT64_MAX
#define TT_BUSID_HIDDEN UINT64_C(0xfffffffffff0) /* fffffff:ff:ff.0: a switch not shown */
tutti_status tt_busid_parse(const char *text, tt_busid *busid_out); /* CORRUPT */
const char *tt_busid_print(tt_busid busid, char text[TT_BUSID_TEXT]); /* returns text */

typedef enum tt_cpu_arch { TT_ARCH_UNKNOWN, TT_ARCH_X86, TT_ARCH_ARM, TT_ARCH_POWER } tt_cpu_arch;
typedef enum tt_cpu_vendor {
    TT_VENDOR_UNKNOWN,
    TT_VENDOR_INTEL,
    TT_VENDOR_AMD,
    TT_VENDOR_ZHAOXIN
} tt_cpu_vendor;

/* A NUMA domain with processors or devices (the <cpu> of NCCL's XML, which is no socket). */
typedef struct tt_numa {
    int id; /* as the kernel numbers it; -1: not known (virtual machines) */
    int system; /* host within a fused machine (tt_machine_fuse), else 0 */
    tt_cpu_arch arch;
    tt_cpu_vendor vendor;
    int family, model;
    tt_from id_from, cpu_from, cpus_from; /* of id; of arch, vendor, family, model; of cpus */
    tt_cpuset cpus; /* all of the domain's, whatever this process may use */
    uint64_t memory; /* bytes; 0: not known */
} tt_numa;

typedef enum tt_pci_kind {
    TT_PCI_BRIDGE, /* a port of a switch or a root port */
    TT_PCI_GPU,
    TT_PCI_NIC,
    TT_PCI_NVSWITCH,
    TT_PCI_OTHER
} tt_pci_kind;

/* A PCI function or bridge. gts and lanes describe the link to the parent, as far as the device and
 * the port above can do. */
typedef struct tt_pci {
    tt_busid busid; /* TT_BUSID_NONE: not known (matrix text, synthetic) */
    int32_t parent; /* PCI index; always below this one's own; -1: hangs on the NUMA domain */
    int32_t numa;
    uint32_t class_code; /* 0x060400 */
    uint16_t vendor, device, sub_vendor, sub_device;
    float gts; /* transfers per second and lane; 0: not known */
    uint16_t lanes; /* 0: not known */
    float gts_now; /* as trained now; 0: not known */
    uint16_t lanes_now;
    uint8_t kind; /* tt_pci_kind */
    uint8_t link_from, numa_from; /* tt_from of gts and lanes; of numa */
    int32_t iommu_group; /* -1: none or not known */
    uint32_t line; /* of the file, 0: none */
    float gbps; /* of the link by NCCL's rule: 12 where nothing is known */
} tt_pci;

typedef enum tt_tri { TT_TRI_UNKNOWN, TT_NO, TT_YES } tt_tri;

typedef enum tt_fabric_state {
    TT_FABRIC_UNKNOWN,
    TT_FABRIC_NONE, /* not supported */
    TT_FABRIC_NOT_STARTED,
    TT_FABRIC_IN_PROGRESS,
    TT_FABRIC_READY, /* completed with success */
    TT_FABRIC_FAILED /* completed with an error */
} tt_fabric_state;

/* What NVML says about a GPU at the moment; from = TT_UNKNOWN: nothing. */
typedef struct tt_gpu_health {
    uint8_t from;
    uint8_t vgpu, remap_pending, remap_failed; /* tt_tri */
    int32_t processes; /* of others on this GPU; -1: not known */
    uint64_t throttle; /* NVML's bits of clock event reasons; 0 with from known: none */
    int32_t remapped_rows; /* -1: not known */
} tt_gpu_health;

typedef struct tt_gpu {
    int32_t pci; /* its PCI function; -1: not known */
    int32_t numa; /* domain it hangs on, never -1 */
    int32_t dev; /* index of NVML and nvidia-smi on its host */
    int32_t cuda; /* CUDA's index in this process; -1: not known */
    int32_t rank; /* of the file; -1: none. Not used for anything but writing back */
    int32_t sm; /* 90; 0: not known */
    int32_t memory_node; /* NUMA id of its own memory (Grace); -1: none or not known */
    int32_t
        affinity_node; /* NUMA id that the tool names, also where it contradicts the paths; -1 */
    uint64_t memory; /* bytes; 0: not known */
    char name[TT_TOPO_NAME]; /* "NVIDIA H100 80GB HBM3"; "" */
    char uuid[TT_TOPO_UUID]; /* "GPU-..."; "" */
    uint8_t gdr; /* tt_tri: GPUDirect RDMA possible */
    uint8_t mig; /* tt_tri: MIG mode on */
    uint8_t mig_slices; /* that are visible */
    uint8_t fabric; /* tt_fabric_state */
    uint8_t sm_from, pci_from, nvlink_from, c2c_from, mig_from; /* tt_from */
    uint8_t links_down; /* NVLinks that exist and are not active; 0 also when not known */
    uint16_t c2c_links;
    uint32_t c2c_mbps; /* MB/s of one */
    uint32_t line; /* of the file, 0: none */
    tt_cpuset cpus; /* affinity the tool names, cut to what this process may use; may be empty */
    uint8_t cpus_from;
    tt_gpu_health health;
} tt_gpu;

typedef enum tt_nvlink_peer {
    TT_PEER_GPU,
    TT_PEER_SWITCH, /* NVSwitch, shown or hidden */
    TT_PEER_CPU, /* POWER */
    TT_PEER_SELF, /* the file says a GPU is linked with itself: no link */
    TT_PEER_MISSING /* a bus id that is no GPU of the host */
} tt_nvlink_peer;

/* Links of one GPU to one peer, as its own end tells: the other end has an entry of its own. */
typedef struct tt_nvlink {
    int32_t gpu;
    int32_t peer_gpu; /* -1 unless peer is TT_PEER_GPU */
    uint16_t count;
    uint8_t peer; /* tt_nvlink_peer */
    uint32_t tclass;
    tt_busid target;
    float gbps; /* count x the speed of one link of this architecture */
} tt_nvlink;

typedef enum tt_nic_kind {
    TT_NIC_UNKNOWN,
    TT_NIC_ETHERNET,
    TT_NIC_IB,
    TT_NIC_ROCE,
    TT_NIC_EFA
} tt_nic_kind;

/* A port that NCCL would list as a net. Ports of one card share its PCI function or the card id. */
typedef struct tt_nic {
    int32_t pci; /* -1: hangs on the NUMA domain itself (virtual, or not known) */
    int32_t numa;
    int32_t card; /* ports with equal ones are one card: a number of this machine */
    int32_t dev; /* NCCL's net index */
    int32_t port;
    int64_t mbps; /* as described; 0: not known, counts as 10,000 */
    float latency; /* us */
    uint64_t guid;
    int32_t maxconn;
    int32_t affinity_node; /* as of tt_gpu */
    char name[TT_TOPO_NAME]; /* "mlx5_0", "eth0" */
    char netdev[TT_TOPO_NAME]; /* the Ethernet interface of it; "" */
    uint8_t kind; /* tt_nic_kind */
    bool has_guid; /* else NCCL tells ports apart by dev */
    uint8_t gdr, coll, keep, up; /* tt_tri; coll: in-network reductions */
    uint8_t speed_from, pci_from; /* tt_from */
    uint32_t line;
    float gbps;
} tt_nic;

/* What `nvidia-smi topo -p2p` or NVML says of a pair. */
typedef enum tt_p2p {
    TT_P2P_UNKNOWN,
    TT_P2P_OK,
    TT_P2P_CHIPSET, /* CNS */
    TT_P2P_GPU, /* GNS */
    TT_P2P_TOPOLOGY, /* TNS */
    TT_P2P_DISABLED, /* DR: by a registry key */
    TT_P2P_NOT_SUPPORTED /* NS */
} tt_p2p;

/* A cell of `nvidia-smi topo -m`; what it tells and the tree can not. */
typedef enum tt_smi {
    TT_SMI_UNKNOWN, /* also: unreadable */
    TT_SMI_X,
    TT_SMI_PIX,
    TT_SMI_PXB,
    TT_SMI_PHB,
    TT_SMI_NODE,
    TT_SMI_SYS,
    TT_SMI_NV /* + the number of links */
} tt_smi;

/* Facts of a host as a whole. */
typedef struct tt_system {
    uint8_t from;
    uint8_t virtual_machine, container; /* tt_tri */
    uint8_t iommu; /* tt_tri: groups exist */
    uint8_t acs; /* tt_tri: redirects peer-to-peer traffic upward; unknown without root */
    uint8_t flat; /* tt_tri: GPUs sit on the root bus without a tree */
    uint8_t nvml; /* tt_tri: the library could be loaded */
    uint8_t cuda; /* tt_tri: CUDA was asked for its numbers, and shows GPUs */
    uint8_t rdma, efa; /* tt_tri: such a device is on the bus */
    uint8_t
        dgpu_nodes; /* NVIDIA display-class PCI functions seen, whether or not NVML lists them */
    int32_t iommu_groups;
    char driver[32], product[TT_TOPO_NAME];
} tt_system;

struct tt_paths; /* topo/paths.h */

typedef struct tt_machine {
    tt_numa *numa;
    tt_pci *pci;
    tt_gpu *gpus;
    tt_nvlink *nvlinks; /* sorted by gpu */
    tt_nic *nics;
    uint8_t *p2p; /* n_gpus x n_gpus tt_p2p, reading; NULL: nobody said */
    uint8_t *smi; /* (n_gpus + n_nics) squared, GPUs first; NULL: not from a matrix */
    struct tt_pcilink { /* direct links between the PCI switches, of Broadcom ones */
        int32_t a, b;
    } * pcilinks;
    int n_numa, n_pci, n_gpus, n_nvlinks, n_nics, n_pcilinks;
    tt_system system;
    tt_cpuset allowed; /* processors this process may use; empty: not known */
    struct tt_paths *paths; /* set by tt_topo_seal */
    struct tt_cost_cache *costs; /* likewise; cost models already made (cost_cache.c) */
    uint64_t host_hash; /* of the file; 0: none */
} tt_machine;

typedef struct tt_host {
    int32_t machine;
    char name[TT_TOPO_NAME];
    uint8_t cluster[16]; /* NVLink fabric; all zero: none */
    uint32_t clique; /* hosts of equal cluster and clique are one NVLink domain */
} tt_host;

typedef enum tt_topo_format {
    TT_TOPO_LIVE,
    TT_TOPO_SYNTHETIC,
    TT_TOPO_NCCL,
    TT_TOPO_HWLOC,
    TT_TOPO_MATRIX
} tt_topo_format;
const char *tt_topo_format_name(tt_topo_format format); /* "NCCL topology XML" */

/* What a reader met and went on from, in the order met: "line 12: ...". Plain sentences. */
typedef struct tt_topo_note {
    char *text;
    int32_t machine; /* -1: none in particular */
} tt_topo_note;

struct tutti_topo {
    tt_topo_format format;
    char *origin; /* the file's name, the synthetic text, "this machine" */
    tt_machine **machines;
    tt_host *hosts;
    tt_topo_note *notes;
    uint32_t *gpu_first, *nic_first; /* n_hosts + 1: index over all hosts of a host's first */
    int32_t *island; /* of each GPU over all hosts; hosts of one NVLink fabric share them */
    int n_machines, n_hosts, n_notes, n_islands;
    bool is_template; /* a vendor's tree in which GPUs and NICs are PCI functions only */
};

/* Building, for readers: an empty topo, an empty machine or host at its end, an object at the end
 * of a machine's list (zero filled with -1 in its indices; the index is returned through *at_out).
 */
tutti_status tt_topo_new(tt_topo_format format, const char *origin, tutti_topo **topo_out);
tutti_status tt_topo_add_machine(tutti_topo *topo, tt_machine **machine_out);
tutti_status tt_topo_add_host(tutti_topo *topo, int machine, const char *name);
tutti_status tt_machine_add_numa(tt_machine *machine, int *at_out);
tutti_status tt_machine_add_pci(tt_machine *machine, int *at_out);
tutti_status tt_machine_add_gpu(tt_machine *machine, int *at_out);
tutti_status tt_machine_add_nic(tt_machine *machine, int *at_out);
tutti_status tt_machine_add_nvlink(tt_machine *machine, int *at_out);
tutti_status tt_topo_note_add(tutti_topo *topo, int machine, const char *fmt, ...) TT_PRINTF(3, 4);
/* Checks the model (indices, tree order, caps), resolves NVLink peers, derives what rules give (an
 * SM from a device id, link speeds), computes paths and islands. CORRUPT names what is wrong. Every
 * reader ends with it. */
tutti_status tt_topo_seal(tutti_topo *topo);

/* One topo of several that describe one host each: host h is as parts[part_of[h]]. Their machines
 * are taken out of the parts, which are good only for closing then. Errors: ARG, NO_MEMORY, those
 * of tt_topo_seal. */
tutti_status tt_topo_join(tutti_topo *const *parts, int n_parts, const int *part_of, int n_hosts,
                          tutti_topo **topo_out);

/* Names and notes come from files and devices, and go into XML, JSON and terminals: what is no
 * printable character of UTF-8 becomes '?'. Sealing and the calls above do it to all texts. */
void tt_text_clean(char *text);

/* Caps that every reader keeps; more is refused. */
enum {
    TT_TOPO_MAX_GPUS = 128, /* of a machine */
    TT_TOPO_MAX_NICS = 512,
    TT_TOPO_MAX_PCI = 4096,
    TT_TOPO_MAX_NUMA = 256,
    TT_TOPO_MAX_NVLINKS = 4096,
    TT_TOPO_MAX_HOSTS = 65536,
    TT_TOPO_MAX_NOTES = 200
};

/* Speed of one NVLink of an architecture, GB/s; of sm 0 as of sm 80. */
float tt_nvlink_gbps(int sm);
/* Number of NVLinks an architecture has at most; 0: none. */
int tt_nvlink_max(int sm);
/* The SM of an NVIDIA PCI device id, 0: not known. */
int tt_sm_of_device(uint16_t device);

/* TT_BUSID_NONE: not known. */
static inline tt_busid tt_gpu_busid(const tt_machine *m, int gpu)
{
    return m->gpus[gpu].pci < 0 ? TT_BUSID_NONE : m->pci[m->gpus[gpu].pci].busid;
}

static inline const tt_machine *tt_topo_machine_of(const tutti_topo *topo, int host)
{
    return topo->machines[topo->hosts[host].machine];
}
/* The hosts of one NVLink domain as NCCL sees them: one machine, host i's objects before host
 * i + 1's. The caller frees it with tt_machine_free. */
tutti_status tt_machine_fuse(const tutti_topo *topo, const int *hosts, int n,
                             tt_machine **machine_out);
void tt_machine_free(tt_machine *machine);
/* Hosts a and b (may be equal) belong to one NVLink domain. */
bool tt_topo_same_fabric(const tutti_topo *topo, int a, int b);

#endif
