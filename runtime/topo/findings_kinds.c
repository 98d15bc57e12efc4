/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The catalogue of findings: `tutti topo --explain ID` prints a row.
 *
 * Sorted by subject: NVLink, PCIe and NUMA, NICs, GPUs, the job. An id is for programs and does not
 * change. Severity says what happens to a job: an error keeps it from starting, hangs it, makes it
 * crawl or compute wrong numbers; a warning is speed lost or something that is not what it seems; a
 * note costs nothing by itself.
 */
#include <string.h>

#include "topo/findings.h"

#define E TT_SEVERITY_ERROR
#define W TT_SEVERITY_WARNING
#define N TT_SEVERITY_NOTE

static const tt_finding_kind kinds[] = {
    {"nvlink-none", E, "a GPU without NVLink among GPUs that have it",
     "A GPU whose links are all down, or that its description leaves out, is invisible to NCCL's "
     "search as an NVLink peer. The search then often finds nothing that fits and falls back to "
     "one "
     "channel in rank order, which it tells at INFO level only; all ranks go at that speed.",
     "Leave the GPU out (CUDA_VISIBLE_DEVICES), or reset it and look at `nvidia-smi nvlink -s` and "
     "the fabric manager's log."},
    {"nvlink-degraded", W, "fewer NVLinks than the other GPUs have",
     "Single links go down after errors and stay down until a reset. A ring passes every GPU, so "
     "the "
     "GPU with the fewest links sets the speed of all.",
     "Reset the GPU (`nvidia-smi -r`); if the link does not come back, have the board looked at."},
    {"nvlink-bridge", W, "an NVLink bridge with fewer links than it should have",
     "A bridge between two PCIe cards carries four links; three of four is a bad contact.",
     "Reseat the bridge."},
    {"nvlink-self", E, "NVLinks whose target is the GPU itself",
     "Some published topology files name the GPU's own bus id as the target of its links. NCCL "
     "accepts the file, sees no NVLink, and works over PCIe.",
     "Correct the file's nvlink targets, or do not set NCCL_TOPO_FILE to it."},
    {"nvlink-peer", W, "NVLinks that lead to a bus id that is no GPU here",
     "The other end is a GPU that this process does not see (a container with some of the GPUs), "
     "or "
     "the file's bus ids are those of the host and not of the guest.",
     "Make all GPUs of the NVLink domain visible, or correct the bus ids of the file."},
    {"nvlink-one-sided", W, "two GPUs that count the links between them differently",
     "NCCL wants a link in both directions; a one-sided entry is a file error or a link that is "
     "trained on one side only.",
     "Compare `nvidia-smi nvlink -s` of both GPUs; correct the file if it is one."},
    {"nvlink-hidden-switch", N, "an NVSwitch that is not shown",
     "In virtual machines and containers the switches' bus ids are hidden. The links still lead to "
     "one; tutti and NCCL treat all switches of a host as one, so nothing is lost.",
     "Nothing."},
    {"fabric-failed", E, "the NVLink fabric could not be set up",
     "On machines with NVSwitch the fabric manager trains and routes the links when it starts. "
     "Links "
     "may show as active while no traffic passes.",
     "Look at the fabric manager (`systemctl status nvidia-fabricmanager`) and its log."},
    {"fabric-not-ready", E, "NVLinks that are active on a fabric that was never set up",
     "The state of a link tells that it is trained, not that the fabric is configured. Until the "
     "fabric manager (and on several hosts IMEX) has finished, CUDA fails or waits.",
     "Start the fabric manager, wait until `nvidia-smi -q` shows Fabric State: Completed."},
    {"fabric-cliques", W, "hosts of one NVLink cluster in different cliques",
     "NVLink between hosts works within a clique. Hosts with different clique ids talk over the "
     "network although they hang on one NVLink cluster.",
     "Place the job inside one clique, or have the partition changed."},
    {"p2p-nvlink-refused", E, "peer access refused where NVLink is",
     "The driver says that two GPUs with NVLink between them may not access each other. NCCL "
     "treats "
     "this as an error and stops at initialisation unless NCCL_IGNORE_DISABLED_P2P=1.",
     "Correct the driver or the fabric before the job; NCCL_IGNORE_DISABLED_P2P=1 makes it slow "
     "instead."},
    {"p2p-pcie-refused", W, "peer access refused over PCIe",
     "Chipset, driver setting or virtualisation forbid direct transfers; NCCL copies through the "
     "host's memory instead.",
     "Nothing if the GPUs do not support it; else check the BIOS, the IOMMU and the driver."},
    {"nccl-fallback", E, "NCCL's search finds no ring",
     "When no channel of any candidate speed fits the tree, NCCL takes one channel in rank order "
     "and "
     "counts 0.1 GB/s. It tells so only in its INFO log, so jobs just are ten to a hundred times "
     "slower.",
     "Look at the findings on NVLink and PCIe above: one broken link or port is the usual cause."},

    {"vm-flat", W, "a virtual machine that hides the PCIe tree",
     "With every device on the root bus and no NUMA node NCCL takes all paths for PHB: GPUDirect "
     "RDMA "
     "is off and NICs are chosen blindly. H200 machines fell from 475 to 27 GB/s by this.",
     "Give the guest the tree (switch layout, ACS/ATS), or write one with `tutti topo "
     "--export-nccl` from the host's description and set NCCL_TOPO_FILE to it."},
    {"pcie-virtual-port", W, "a PCIe port with an impossible speed above a GPU or NIC",
     "Virtual machines present ports of 2.5 GT/s x1. NCCL believes them, and counts 0.2 GB/s for "
     "everything behind.",
     "Set NCCL_TOPO_FILE to a corrected description (`tutti topo --export-nccl`)."},
    {"pcie-unknown", N, "PCIe speed not known",
     "Sandboxes and templates leave link_speed and link_width empty; NCCL then assumes Gen3 x16.",
     "Nothing where NVLink carries the traffic; else give NCCL a description with the speeds."},
    {"pcie-width", W, "PCIe trained to fewer lanes than the device has",
     "A bad contact, a riser or a slot with fewer lanes. Unlike speed, which drops while a GPU is "
     "idle, lanes do not come back under load.",
     "Reseat the card; check the slot's wiring."},
    {"pcie-uneven", W, "a GPU with slower PCIe than the others",
     "Rings pass every GPU, so the slowest link counts for all that is not on NVLink.",
     "Move the card to a slot of full width, or leave it out."},
    {"numa-unknown", N, "NUMA node -1",
     "Firmware or hypervisor do not tell where a device is. Ranks are then spread over the cores, "
     "and nobody knows whether near their GPU.",
     "Set the node in the BIOS or hypervisor; on a machine with one domain nothing is lost."},
    {"numa-differs", N, "two tools name different NUMA domains",
     "nvidia-smi tells NODE or an affinity by the driver's tables, NCCL follows the PCIe tree, and "
     "the two do not always agree. tutti goes by the tree, as NCCL does.",
     "Nothing; if the tree is wrong, correct it with NCCL_TOPO_FILE."},
    {"cpuset-empty", W, "no core near a GPU may be used",
     "The launcher or the container gave this job cores of another domain. NCCL finds an empty "
     "intersection, says so at INFO, and keeps the far cores.",
     "Ask for cores on the GPU's domain (Slurm: --gpus-per-task with --cpu-bind, Kubernetes: the "
     "topology manager)."},
    {"cpuset-cut", N, "some cores near a GPU are not for this job",
     "A cpuset cuts the affinity that tools show. Ranks are bound to what is left.", "Nothing."},
    {"acs-on", E, "ACS redirects peer-to-peer traffic",
     "With Access Control Services on, a switch sends transfers between the devices below it up to "
     "the CPU. Peer-to-peer then hangs, is slow, or with the IOMMU translates wrongly.",
     "Turn ACS off for the switches (BIOS, or `setpci` on their ACS control), or the IOMMU to "
     "passthrough (iommu=pt)."},
    {"acs-unknown", N, "an IOMMU is on and ACS cannot be read",
     "The ACS state lies in the part of PCI configuration space that only root may read. Unknown "
     "is "
     "not off.",
     "Run `tutti doctor --links` to measure peer-to-peer, or `lspci -vvv | grep ACSCtl` as root."},
    {"slow-middle", N, "parts of a machine without a fast link between them",
     "A ring over all GPUs is capped by the link between the sockets or switches. Communicators "
     "that "
     "stay in one part are not.",
     "Let the inner axis of the mesh fit a part (tutti places it there); all-reduce over all in "
     "three "
     "steps."},
    {"xml-overflow", E, "too many devices for NCCL's description of the machine",
     "NCCL keeps 256 nodes per rank before it joins the ranks' descriptions. Hosts with 32 NICs "
     "behind deep switches exceed that.",
     "Use an NCCL with a larger limit, or restrict the NICs (NCCL_IB_HCA, fewer EFA devices)."},

    {"nic-none", N, "no NIC", "Without a NIC the host works alone.", "Nothing on a single host."},
    {"net-plugin", E, "EFA without its NCCL plugin",
     "EFA is reached through the plugin aws-ofi-nccl. Without it NCCL falls back to TCP sockets on "
     "some interface, at a tenth of the speed or less, and says so at INFO.",
     "Install aws-ofi-nccl, or put libnccl-net.so on LD_LIBRARY_PATH (in the container too)."},
    {"rdma-unused", W, "an RDMA device without a visible port",
     "The device is on the bus but /sys/class/infiniband is empty or hidden: the container was "
     "started without /dev/infiniband, or the driver is not loaded.",
     "Give the container /dev/infiniband (and IPC_LOCK); load the driver."},
    {"nic-down", W, "a port that is down",
     "NCCL leaves ports out that are not active, so fewer NICs carry the traffic, and rails differ "
     "between hosts.",
     "Check cable and switch (`ibstat`, `ip link`)."},
    {"nic-speed", N, "a port without a speed",
     "Virtual interfaces often give none; NCCL counts 10 Gb/s.",
     "Restrict the interfaces with NCCL_SOCKET_IFNAME or NCCL_IB_HCA if it is not to be used."},
    {"nic-uneven", W, "NICs of different speed",
     "NCCL spreads channels over the NICs it finds near. Management ports among them slow a "
     "collective down to their pace.",
     "Name the fast ones in NCCL_IB_HCA (`tutti topo --plan` prints the line)."},
    {"nic-no-gdr", W, "RDMA without access to GPU memory",
     "GPUDirect RDMA takes nvidia-peermem or dma-buf. Without it data is copied through the host's "
     "memory.",
     "Load nvidia-peermem, or use a kernel and driver with dma-buf."},
    {"nic-far", W, "GPUs whose nearest NIC is beyond the CPU",
     "Across the host bridge NCCL uses no GPUDirect RDMA, and the traffic crosses the links "
     "between "
     "sockets.",
     "Use the GPUs near NICs for the ranks that talk between hosts; on a VM give NCCL the real "
     "tree."},
    {"nic-by-peer", N, "GPUs that reach the network through a peer GPU",
     "With PXN a GPU sends over NVLink to a peer that has a near NIC. It works well and costs some "
     "NVLink bandwidth and memory.",
     "Nothing; NCCL_PXN_DISABLE=1 would make it slow."},
    {"nic-unused", W, "NICs near no GPU",
     "A NIC that is nobody's nearest carries nothing, unless the ranks are told to use it.",
     "Check the slots; NCCL_NETDEVS_POLICY and NCCL_CROSS_NIC=1 may bring it in."},
    {"nic-shared", N, "GPUs that share a NIC",
     "There are fewer NICs than GPUs; what crosses hosts is limited by the NICs.",
     "Keep axes that carry much inside the host."},
    {"rails-shared", W, "GPUs and NICs do not pair one to one",
     "Some GPUs share a NIC while another is free, so the collective goes at half speed.",
     "Check the tree; a topology file with the right switches corrects it."},
    {"cross-nic", N, "rings that change NICs between hosts",
     "NCCL's search gets more bandwidth when a ring enters and leaves a host by different NICs. "
     "Where "
     "each rail is a network of its own the two ends cannot reach each other.",
     "On rail-only networks set NCCL_CROSS_NIC=0."},
    {"hosts-nics", E, "hosts with different NICs",
     "NCCL agrees on the smallest number of channels and the worst path of all hosts; differing "
     "lists "
     "of adapters made it hang.",
     "Give all hosts the same NCCL_IB_HCA, or leave the odd host out."},
    {"rails-differ", N, "equal GPUs on different rails on two hosts",
     "NIC k is near GPU k on one host and near another on the next. Ranks of equal local index "
     "then "
     "talk across rails.",
     "Nothing: tutti's meshes are placed by rail. Programs that count GPUs by index are slower."},

    {"mig", E, "MIG slices",
     "A slice has neither NVLink nor peer-to-peer, and NCCL refuses two slices of one GPU in a "
     "communicator.",
     "Turn MIG off (`nvidia-smi -mig 0`), or run one rank per GPU on the host backend."},
    {"duplicate-gpu", E, "two GPUs with one bus id",
     "NCCL tells GPUs apart by bus id. Equal ones are slices, or a mistake in the file.",
     "One rank per GPU; correct the file."},
    {"gpu-mixed", W, "GPUs of different architecture",
     "All ranks wait for the slowest, and NCCL's LL128 protocol needs equal architectures below "
     "Hopper.",
     "Keep communicators to GPUs of one kind."},
    {"gpu-unknown", N, "GPUs of unknown architecture",
     "The speed of an NVLink depends on it; estimates may be wrong.",
     "Give `sm` in the description."},
    {"vgpu", W, "virtual GPUs", "A time-sliced vGPU has no peer-to-peer and no NVLink.",
     "Use passthrough for training."},
    {"gpu-busy", W, "another process on a GPU",
     "What shares the GPU shares its time; every rank waits for it in every step.",
     "Look for it with `nvidia-smi`; end it or leave the GPU out."},
    {"gpu-throttled", W, "a GPU whose clocks are held down",
     "Power, temperature or hardware slow the GPU. In data parallelism one slow rank slows all.",
     "Check power and cooling (`nvidia-smi -q -d PERFORMANCE`)."},
    {"row-remap-pending", W, "memory rows that wait to be remapped",
     "The GPU met errors in its memory and will replace the rows at the next reset.",
     "Reset the GPU before a long job."},
    {"row-remap-failed", E, "memory rows that could not be remapped",
     "The spare rows are used up; errors will end a job.", "Have the GPU replaced."},
    {"no-driver", E, "GPUs without a driver",
     "The device is on the PCI bus but NVML cannot be loaded: no driver is installed, or the "
     "container was started without its GPUs.",
     "Install the driver, or start the container with its GPUs (--gpus all)."},
    {"one-gpu-visible", W, "one of several GPUs is visible",
     "A rank that sees only its own GPU leaves NCCL to find the others by bus id. In separate "
     "containers it takes them for other hosts: no peer-to-peer, no shared memory.",
     "Show all GPUs of the host to every rank; tutti takes each rank's own by local index."},
    {"gpus-hidden", N, "some GPUs are not visible",
     "A container or CUDA_VISIBLE_DEVICES leaves some out; of CUDA_VISIBLE_DEVICES CUDA also "
     "ignores "
     "all that follows an entry it does not know. Rings are built over the visible ones.",
     "Nothing if it is meant."},
    {"cuda-order", N, "CUDA and nvidia-smi number GPUs differently",
     "CUDA's default order is fastest first, or that of CUDA_VISIBLE_DEVICES. An index that one "
     "tool "
     "prints means another GPU to the other.",
     "Go by bus id or UUID, or set CUDA_DEVICE_ORDER=PCI_BUS_ID."},
    {"gpu-gap", N, "a gap in the GPUs' numbers",
     "A number that is left out is a GPU that fell off the bus, is excluded, or was trimmed from "
     "the "
     "file.",
     "Compare with `nvidia-smi -L`; look for Xid 79 in the kernel log."},
    {"memory-node", N, "GPU memory that is a NUMA node",
     "On Grace the GPU's memory is a NUMA node without cores, and numbers do not follow sockets.",
     "Bind by cores, not by node number; tutti does."},
    {"template", N, "a template rather than a machine",
     "Cloud vendors ship trees without GPUs and NICs, which NCCL completes on the machine.",
     "Use it as NCCL_TOPO_FILE there; to look at the whole, run `tutti topo` on the machine."},

    {"split-containers", W, "ranks of one machine that NCCL takes for several hosts",
     "NCCL joins ranks into a host by hostname and boot id (or NCCL_HOSTID) and by /dev/shm. One "
     "container per rank splits the host: neither peer-to-peer nor shared memory is used.",
     "Run the ranks in one container, or with --ipc=host and equal host names or NCCL_HOSTID."},
    {"env-overrides", W, "a variable that overrides the plan",
     "NCCL's variables hold for the whole process and win over what a program sets. tutti reports "
     "those that cost something and leaves them as they are.",
     "Unset it, unless it is meant."},
};

const tt_finding_kind *tt_finding_kind_at(int i)
{
    return i < 0 || i >= (int)(sizeof kinds / sizeof kinds[0]) ? NULL : &kinds[i];
}

const tt_finding_kind *tt_finding_kind_of(const char *id)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].id, id) == 0)
            return &kinds[i];
    return NULL;
}
