# SPDX-License-Identifier: Apache-2.0
target_sources(tutti_objects PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/abort.c
    ${CMAKE_CURRENT_LIST_DIR}/circle.c
    ${CMAKE_CURRENT_LIST_DIR}/context.c
    ${CMAKE_CURRENT_LIST_DIR}/device_pick.c
    ${CMAKE_CURRENT_LIST_DIR}/environment.c
    ${CMAKE_CURRENT_LIST_DIR}/exchange.c
    ${CMAKE_CURRENT_LIST_DIR}/live.c
    ${CMAKE_CURRENT_LIST_DIR}/mpi.c
    ${CMAKE_CURRENT_LIST_DIR}/place.c
    ${CMAKE_CURRENT_LIST_DIR}/progress.c
    ${CMAKE_CURRENT_LIST_DIR}/step.c
    ${CMAKE_CURRENT_LIST_DIR}/stream.c
    ${CMAKE_CURRENT_LIST_DIR}/threads.c
    ${CMAKE_CURRENT_LIST_DIR}/wait.c
    ${CMAKE_CURRENT_LIST_DIR}/xchg.c)
