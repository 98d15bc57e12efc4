# SPDX-License-Identifier: Apache-2.0
if(TUTTI_HAVE_CUDA)
    target_sources(tutti_objects PRIVATE
        ${CMAKE_CURRENT_LIST_DIR}/abort.c
        ${CMAKE_CURRENT_LIST_DIR}/backend.c
        ${CMAKE_CURRENT_LIST_DIR}/calls.c
        ${CMAKE_CURRENT_LIST_DIR}/composite.c
        ${CMAKE_CURRENT_LIST_DIR}/error.c
        ${CMAKE_CURRENT_LIST_DIR}/feature.c
        ${CMAKE_CURRENT_LIST_DIR}/hier.c
        ${CMAKE_CURRENT_LIST_DIR}/launch.c
        ${CMAKE_CURRENT_LIST_DIR}/memory.c
        ${CMAKE_CURRENT_LIST_DIR}/ring.c
        ${CMAKE_CURRENT_LIST_DIR}/share.c
        ${CMAKE_CURRENT_LIST_DIR}/watch.c)
endif()
