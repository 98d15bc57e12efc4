# SPDX-License-Identifier: Apache-2.0
target_sources(tutti_objects PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/box.c
    ${CMAKE_CURRENT_LIST_DIR}/catalog.c
    ${CMAKE_CURRENT_LIST_DIR}/commit.c
    ${CMAKE_CURRENT_LIST_DIR}/dir.c
    ${CMAKE_CURRENT_LIST_DIR}/file.c
    ${CMAKE_CURRENT_LIST_DIR}/h5index.c
    ${CMAKE_CURRENT_LIST_DIR}/h5shard.c
    ${CMAKE_CURRENT_LIST_DIR}/h5util.c
    ${CMAKE_CURRENT_LIST_DIR}/identity.c
    ${CMAKE_CURRENT_LIST_DIR}/load.c
    ${CMAKE_CURRENT_LIST_DIR}/lock.c
    ${CMAKE_CURRENT_LIST_DIR}/manifest.c
    ${CMAKE_CURRENT_LIST_DIR}/manifest_read.c
    ${CMAKE_CURRENT_LIST_DIR}/owner.c
    ${CMAKE_CURRENT_LIST_DIR}/plan.c
    ${CMAKE_CURRENT_LIST_DIR}/ranks.c
    ${CMAKE_CURRENT_LIST_DIR}/reader.c
    ${CMAKE_CURRENT_LIST_DIR}/retain.c
    ${CMAKE_CURRENT_LIST_DIR}/save.c
    ${CMAKE_CURRENT_LIST_DIR}/seal.c
    ${CMAKE_CURRENT_LIST_DIR}/shard.c
    ${CMAKE_CURRENT_LIST_DIR}/source.c
    ${CMAKE_CURRENT_LIST_DIR}/stage.c
    ${CMAKE_CURRENT_LIST_DIR}/worker.c)
