# SPDX-License-Identifier: Apache-2.0
target_sources(tutti_objects PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/backends.c
    ${CMAKE_CURRENT_LIST_DIR}/copy.c
    ${CMAKE_CURRENT_LIST_DIR}/host.c
    ${CMAKE_CURRENT_LIST_DIR}/host_stream.c
    ${CMAKE_CURRENT_LIST_DIR}/shm.c
    ${CMAKE_CURRENT_LIST_DIR}/../boot/stream.c)
if(TUTTI_HAVE_CUDA)
    target_sources(tutti_objects PRIVATE
        ${CMAKE_CURRENT_LIST_DIR}/cuda.c
        ${CMAKE_CURRENT_LIST_DIR}/cuda_choose.c
        ${CMAKE_CURRENT_LIST_DIR}/cuda_event.c
        ${CMAKE_CURRENT_LIST_DIR}/cuda_memory.c)
endif()
