# SPDX-License-Identifier: Apache-2.0
target_sources(tutti_objects PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/begin.c
    ${CMAKE_CURRENT_LIST_DIR}/capture.c
    ${CMAKE_CURRENT_LIST_DIR}/check.c
    ${CMAKE_CURRENT_LIST_DIR}/commit.c
    ${CMAKE_CURRENT_LIST_DIR}/fold.c
    ${CMAKE_CURRENT_LIST_DIR}/gather.c
    ${CMAKE_CURRENT_LIST_DIR}/issue.c
    ${CMAKE_CURRENT_LIST_DIR}/join.c
    ${CMAKE_CURRENT_LIST_DIR}/learn.c
    ${CMAKE_CURRENT_LIST_DIR}/measure.c
    ${CMAKE_CURRENT_LIST_DIR}/micros.c
    ${CMAKE_CURRENT_LIST_DIR}/norm.c
    ${CMAKE_CURRENT_LIST_DIR}/plan.c
    ${CMAKE_CURRENT_LIST_DIR}/ready.c
    ${CMAKE_CURRENT_LIST_DIR}/reducer.c
    ${CMAKE_CURRENT_LIST_DIR}/scalar.c
    ${CMAKE_CURRENT_LIST_DIR}/shard.c
    ${CMAKE_CURRENT_LIST_DIR}/sources.c
    ${CMAKE_CURRENT_LIST_DIR}/state.c
    ${CMAKE_CURRENT_LIST_DIR}/stats.c
    ${CMAKE_CURRENT_LIST_DIR}/wait.c)
