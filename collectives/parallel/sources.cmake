# SPDX-License-Identifier: Apache-2.0
target_sources(tutti_objects PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/check.c
    ${CMAKE_CURRENT_LIST_DIR}/cross_entropy.c
    ${CMAKE_CURRENT_LIST_DIR}/layout.c
    ${CMAKE_CURRENT_LIST_DIR}/pipe.c
    ${CMAKE_CURRENT_LIST_DIR}/schedule.c
    ${CMAKE_CURRENT_LIST_DIR}/tensor.c)
