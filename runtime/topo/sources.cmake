# SPDX-License-Identifier: Apache-2.0
# The machine: model, readers, paths.
target_sources(tutti_objects PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/assemble.c
    ${CMAKE_CURRENT_LIST_DIR}/catalogue.c
    ${CMAKE_CURRENT_LIST_DIR}/cpuset.c
    ${CMAKE_CURRENT_LIST_DIR}/join.c
    ${CMAKE_CURRENT_LIST_DIR}/flow.c
    ${CMAKE_CURRENT_LIST_DIR}/graph.c
    ${CMAKE_CURRENT_LIST_DIR}/hwloc_links.c
    ${CMAKE_CURRENT_LIST_DIR}/hwloc_read.c
    ${CMAKE_CURRENT_LIST_DIR}/live.c
    ${CMAKE_CURRENT_LIST_DIR}/matrix_build.c
    ${CMAKE_CURRENT_LIST_DIR}/matrix_read.c
    ${CMAKE_CURRENT_LIST_DIR}/model.c
    ${CMAKE_CURRENT_LIST_DIR}/nccl_read.c
    ${CMAKE_CURRENT_LIST_DIR}/nccl_write.c
    ${CMAKE_CURRENT_LIST_DIR}/nvml.c
    ${CMAKE_CURRENT_LIST_DIR}/paths.c
    ${CMAKE_CURRENT_LIST_DIR}/read.c
    ${CMAKE_CURRENT_LIST_DIR}/seal.c
    ${CMAKE_CURRENT_LIST_DIR}/synthetic.c
    ${CMAKE_CURRENT_LIST_DIR}/sysfs.c
    ${CMAKE_CURRENT_LIST_DIR}/sysfs_net.c
    ${CMAKE_CURRENT_LIST_DIR}/text.c
    ${CMAKE_CURRENT_LIST_DIR}/topo.c
    ${CMAKE_CURRENT_LIST_DIR}/tree.c
    ${CMAKE_CURRENT_LIST_DIR}/walk.c
    ${CMAKE_CURRENT_LIST_DIR}/ways.c
    ${CMAKE_CURRENT_LIST_DIR}/wires.c
    ${CMAKE_CURRENT_LIST_DIR}/xml.c)
# What follows from it: costs, plan, findings.
target_sources(tutti_objects PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/bind.c
    ${CMAKE_CURRENT_LIST_DIR}/comm_config.c
    ${CMAKE_CURRENT_LIST_DIR}/cost.c
    ${CMAKE_CURRENT_LIST_DIR}/cost_cache.c
    ${CMAKE_CURRENT_LIST_DIR}/fabric.c
    ${CMAKE_CURRENT_LIST_DIR}/findings.c
    ${CMAKE_CURRENT_LIST_DIR}/findings_gpu.c
    ${CMAKE_CURRENT_LIST_DIR}/findings_kinds.c
    ${CMAKE_CURRENT_LIST_DIR}/findings_nic.c
    ${CMAKE_CURRENT_LIST_DIR}/findings_nvlink.c
    ${CMAKE_CURRENT_LIST_DIR}/findings_pci.c
    ${CMAKE_CURRENT_LIST_DIR}/groups.c
    ${CMAKE_CURRENT_LIST_DIR}/order.c
    ${CMAKE_CURRENT_LIST_DIR}/order_cost.c
    ${CMAKE_CURRENT_LIST_DIR}/plan.c
    ${CMAKE_CURRENT_LIST_DIR}/variables.c)
