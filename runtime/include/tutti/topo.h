/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Topology: GPUs, NVLink, PCIe, NUMA domains and NICs of one host or many, from the live machine or
 * from a description of it, and the paths between them by NCCL's rules.
 *
 * Devices are numbered over all hosts: host 0's GPUs first. Within a host the order is NCCL's (that
 * of its XML), not CUDA's: compare bus ids. A tutti_topo never changes; any thread may read it.
 */
#ifndef TUTTI_TOPO_H
#define TUTTI_TOPO_H

#include "tutti/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tutti_topo tutti_topo;

/* Best first, as NCCL orders them. NODE of nvidia-smi does not exist here: devices of one NUMA
 * domain are PHB, of two SYS. */
typedef enum tutti_path_type {
    TUTTI_PATH_LOC = 0, /* the same device */
    TUTTI_PATH_NVL = 1, /* NVLink, also through NVSwitch */
    TUTTI_PATH_NVB = 2, /* NVLink with one GPU in between */
    TUTTI_PATH_C2C = 3, /* the link between a Grace CPU and its GPU */
    TUTTI_PATH_PIX = 4, /* one PCIe switch */
    TUTTI_PATH_PXB = 5, /* several PCIe switches, not the CPU */
    TUTTI_PATH_P2C = 6, /* a NIC at the CPU's own PCIe, and C2C */
    TUTTI_PATH_PXN = 7, /* a NIC of another GPU, reached by NVLink */
    TUTTI_PATH_PHB = 8, /* the CPU's PCIe host bridge */
    TUTTI_PATH_SYS = 9, /* between NUMA domains */
    TUTTI_PATH_NET = 10, /* between hosts by the network */
    TUTTI_PATH_DIS = 11 /* none */
} tutti_path_type;

typedef enum tutti_device_kind { TUTTI_DEVICE_GPU = 1, TUTTI_DEVICE_NIC = 2 } tutti_device_kind;

typedef struct tutti_topo_path {
    tutti_path_type type;
    double gbps; /* 1e9 bytes/s in one direction, NCCL's estimate */
    int hops; /* links passed */
} tutti_topo_path;

/* What is not known is 0, -1 for indices, "" for text. Strings are borrowed from the topo. */
typedef struct tutti_topo_gpu_info {
    size_t size; /* sizeof(tutti_topo_gpu_info), set by the caller */
    int host; /* of tutti_topo_host_count() */
    int dev; /* index that NVML and nvidia-smi use on its host */
    int numa; /* NUMA node, as the kernel numbers it */
    int sm; /* 90 */
    int island; /* GPUs with equal islands reach each other by NVLink */
    int nvlinks; /* active links */
    int nic; /* nearest NIC, numbered over all hosts */
    double pcie_gbps;
    uint64_t memory; /* bytes */
    const char *name, *uuid;
    char busid[24];
} tutti_topo_gpu_info;
#define TUTTI_TOPO_GPU_INFO_INIT                                                                   \
    {                                                                                              \
        sizeof(tutti_topo_gpu_info), 0, 0, 0, 0, 0, 0, 0, 0.0, 0, NULL, NULL,                      \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

typedef struct tutti_topo_nic_info {
    size_t size; /* sizeof(tutti_topo_nic_info), set by the caller */
    int host;
    int numa;
    int port;
    double gbps; /* 1e9 bytes/s in one direction */
    const char *name;
    char busid[24];
} tutti_topo_nic_info;
#define TUTTI_TOPO_NIC_INFO_INIT                                                                   \
    {                                                                                              \
        sizeof(tutti_topo_nic_info), 0, 0, 0, 0.0, NULL,                                           \
        {                                                                                          \
            0                                                                                      \
        }                                                                                          \
    }

/*
 * Reads a description from a file: NCCL topology XML, an hwloc XML export, or the text of
 * `nvidia-smi topo -m`, told apart by content. The caller closes *topo_out. Errors: ARG, IO,
 * CORRUPT (malformed; the text names the line), UNSUPPORTED (recognised, but it describes no
 * machine), NO_MEMORY.
 * Collective: no. Blocks: host, for the file. Stream: none. Threads: any. Graph-capture: allowed.
 * After a failure: allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_topo_open_file(const char *path,
                                                            tutti_topo **topo_out);

/*
 * Reads a description from a line of text: a name of the catalogue such as "hgx-h100", several
 * hosts of it ("hgx-h100 x4"), or the grammar of docs/topology.md. Errors: ARG (the text says
 * where), NO_MEMORY. Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture:
 * allowed. After a failure: allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_topo_open_synthetic(const char *text,
                                                                 tutti_topo **topo_out);

/*
 * Looks at the machine this process runs on, with or without GPUs; TUTTI_TOPO_FSROOT looks at a
 * recorded /sys instead. Errors: IO, UNSUPPORTED, NO_MEMORY.
 * Collective: no. Blocks: host, some 10 ms. Stream: none. Threads: any. Graph-capture: allowed.
 * After a failure: allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_topo_open_live(tutti_topo **topo_out);

/*
 * Frees a topology; NULL is ignored.
 * Collective: no. Blocks: no. Stream: none. Threads: one. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API void tutti_topo_close(tutti_topo *topo);

/*
 * Numbers of hosts, of GPUs and NICs over all hosts, and of NVLink islands; 0 of NULL.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API int tutti_topo_host_count(const tutti_topo *topo);
TUTTI_API int tutti_topo_gpu_count(const tutti_topo *topo);
TUTTI_API int tutti_topo_nic_count(const tutti_topo *topo);
TUTTI_API int tutti_topo_island_count(const tutti_topo *topo);

/*
 * Facts of a GPU or a NIC; set info->size first. Errors: ARG (no such device).
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_topo_gpu(const tutti_topo *topo, int gpu,
                                                      tutti_topo_gpu_info *info);
TUTTI_API TUTTI_NODISCARD tutti_status tutti_topo_nic(const tutti_topo *topo, int nic,
                                                      tutti_topo_nic_info *info);

/*
 * The path from a GPU to a GPU or a NIC as NCCL would use it, by the rules of NCCL 2.28 (ncclTopo
 * computePaths). Between hosts: NVL where both belong to one NVLink fabric, else NET. Errors: ARG.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_topo_path_query(const tutti_topo *topo, int gpu,
                                                             tutti_device_kind kind, int peer,
                                                             tutti_topo_path *path_out);

/*
 * Writes one host as NCCL topology XML, for NCCL_TOPO_FILE where a virtual machine hides its tree.
 * The file is replaced whole or not at all. Errors: ARG, IO, NO_SPACE, NO_MEMORY.
 * Collective: no. Blocks: host, for the file. Stream: none. Threads: any. Graph-capture: allowed.
 * After a failure: allowed.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_topo_write_nccl(const tutti_topo *topo, int host,
                                                             const char *path);

#ifdef __cplusplus
}
#endif
#endif
