# SPDX-License-Identifier: Apache-2.0
target_sources(tutti_objects PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/../backends.c
    ${CMAKE_CURRENT_LIST_DIR}/calls.c
    ${CMAKE_CURRENT_LIST_DIR}/check.c
    ${CMAKE_CURRENT_LIST_DIR}/comm.c
    ${CMAKE_CURRENT_LIST_DIR}/exact.c
    ${CMAKE_CURRENT_LIST_DIR}/group.c
    ${CMAKE_CURRENT_LIST_DIR}/init.c
    ${CMAKE_CURRENT_LIST_DIR}/issue.c
    ${CMAKE_CURRENT_LIST_DIR}/key.c
    ${CMAKE_CURRENT_LIST_DIR}/layout.c
    ${CMAKE_CURRENT_LIST_DIR}/memory.c
    ${CMAKE_CURRENT_LIST_DIR}/planning.c
    ${CMAKE_CURRENT_LIST_DIR}/scalars.c
    ${CMAKE_CURRENT_LIST_DIR}/split.c
    ${CMAKE_CURRENT_LIST_DIR}/variables.c)
