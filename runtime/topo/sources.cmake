# SPDX-License-Identifier: Apache-2.0
target_sources(tutti_objects PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/comm_config.c
    ${CMAKE_CURRENT_LIST_DIR}/order.c
    ${CMAKE_CURRENT_LIST_DIR}/plan.c)
