# SPDX-License-Identifier: Apache-2.0
target_sources(tutti_objects PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/mesh.c
    ${CMAKE_CURRENT_LIST_DIR}/parse.c
    ${CMAKE_CURRENT_LIST_DIR}/text.c)
