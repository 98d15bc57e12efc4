/* SPDX-License-Identifier: Apache-2.0 */
/* Machines known by name, each a line of the grammar of synthetic.c. */
#include "topo/read.h"

static const tt_topo_catalogue catalogue[] = {
    {"dgx-1v", "DGX-1: 8 V100 in a hybrid cube mesh, 4 x 100 Gb/s InfiniBand",
     "gpus=8 sm=70 name=V100-SXM2 mem=16 numa=2 cpu=intel:79 cores=40 pcie=3x16 tree=switch:2 "
     "nvlink=cube nics=4 rate=100 net=ib"},
    {"dgx-2", "DGX-2: 16 V100 behind NVSwitches, 8 x 100 Gb/s InfiniBand",
     "gpus=16 sm=70 name=V100-SXM3 mem=32 numa=2 cpu=intel:85 cores=48 pcie=3x16 tree=switch:2 "
     "nvlink=switch:6 nics=8 rate=100 net=ib"},
    {"dgx-a100", "DGX A100: 8 A100 behind NVSwitches, 8 x 200 Gb/s InfiniBand, 8 NUMA domains",
     "gpus=8 sm=80 name=A100-SXM4 mem=40 numa=8 gpunuma=3,3,1,1,7,7,5,5 cpu=amd:49 cores=32 "
     "pcie=4x16 tree=switch:2 nvlink=switch:12 nics=8 rate=200 net=ib"},
    {"hgx-h100", "HGX H100: 8 H100 behind NVSwitches, a 400 Gb/s InfiniBand port beside each",
     "gpus=8 sm=90 name=H100-SXM5 mem=80 numa=2 cpu=intel:143 cores=112 pcie=5x16 tree=switch:1 "
     "nvlink=switch:18 nics=8 rate=400 net=ib"},
    {"hgx-b200", "HGX B200: 8 B200 behind NVSwitches, a 400 Gb/s InfiniBand port beside each",
     "gpus=8 sm=100 name=B200 mem=180 numa=2 cpu=intel:207 cores=112 pcie=5x16 tree=switch:1 "
     "nvlink=switch:18 nics=8 rate=400 net=ib"},
    {"gb200-nvl72", "GB200 NVL72: 18 trays of 4 GB200 in one NVLink fabric, 4 x 400 Gb/s each",
     "x18 fabric=18 gpus=4 sm=100 name=GB200 mem=186 numa=2 cpu=arm cores=72 pcie=5x16 tree=root "
     "nvlink=switch:18 c2c=5x44712 nics=4 rate=400 net=ib"},
    {"p4d", "AWS p4d.24xlarge: 8 A100, 4 x 100 Gb/s EFA",
     "gpus=8 sm=80 name=A100-SXM4 mem=40 numa=2 cpu=intel:85 cores=48 pcie=3x16 tree=switch:2 "
     "nvlink=switch:12 nics=4 rate=100 net=efa"},
    {"p5", "AWS p5.48xlarge: 8 H100, 32 x 100 Gb/s EFA",
     "gpus=8 sm=90 name=H100-SXM5 mem=80 numa=2 cpu=amd:1 cores=96 pcie=5x16 tree=switch:1 "
     "nvlink=switch:18 nics=32 rate=100 net=efa"},
    {"ndv4", "Azure ND A100 v4: 8 A100 in 4 NUMA domains, 8 x 200 Gb/s InfiniBand",
     "gpus=8 sm=80 name=A100-SXM4 mem=40 numa=4 gpunuma=1,1,0,0,3,3,2,2 cpu=amd:49 cores=24 "
     "pcie=4x16 tree=switch:1 nvlink=switch:12 nics=8 rate=200 net=ib"},
    {"pcie-4", "4 A100 PCIe at root ports of two processors, one 100 Gb/s port",
     "gpus=4 sm=80 name=A100-PCIe mem=40 numa=2 cpu=intel:106 cores=64 pcie=4x16 tree=root nics=1 "
     "rate=100 net=roce"},
    {"pcie-8", "8 A40 behind two PCIe switches, a 100 Gb/s port at each",
     "gpus=8 sm=86 name=A40 mem=48 numa=2 cpu=intel:106 cores=64 pcie=4x16 tree=switch:4 nics=2 "
     "rate=100 net=roce"},
    {"l40s-8", "8 L40S behind four PCIe switches, a 200 Gb/s port at each",
     "gpus=8 sm=89 name=L40S mem=48 numa=2 cpu=intel:143 cores=64 pcie=4x16 tree=switch:2 nics=4 "
     "rate=200 net=roce"},
    {"a100-pcie-pairs", "4 A100 PCIe, bridged in two pairs, one 100 Gb/s port",
     "gpus=4 sm=80 name=A100-PCIe mem=80 numa=2 cpu=amd:49 cores=64 pcie=4x16 tree=root "
     "nvlink=pair:12 nics=1 rate=100 net=ib"},
    {"vm-flat-8", "a virtual machine with 8 H100 and 8 ports on its root bus, the tree hidden",
     "gpus=8 sm=90 name=H100-SXM5 mem=80 numa=1 cpu=intel:143 cores=208 tree=flat "
     "nvlink=switch:18 nics=8 rate=400 net=ib"},
    {"workstation-2", "2 RTX A6000 with a bridge, 10 Gb/s Ethernet",
     "gpus=2 sm=86 name=A6000 mem=48 numa=1 cpu=amd:49 cores=64 pcie=4x16 tree=root nvlink=pair:4 "
     "nics=1 rate=10 net=eth"},
    {"grace-hopper", "one GH200 with C2C, a 400 Gb/s port",
     "gpus=1 sm=90 name=GH200 mem=96 numa=1 cpu=arm cores=72 pcie=5x16 tree=root c2c=10x44712 "
     "nics=1 rate=400 net=ib"},
};

const tt_topo_catalogue *tt_topo_catalogue_at(int i)
{
    return i >= 0 && (size_t)i < sizeof catalogue / sizeof *catalogue ? &catalogue[i] : NULL;
}
