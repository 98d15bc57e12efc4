# SPDX-License-Identifier: Apache-2.0
target_sources(tutti_objects PRIVATE
    ${CMAKE_CURRENT_LIST_DIR}/ahead.c
    ${CMAKE_CURRENT_LIST_DIR}/control.c
    ${CMAKE_CURRENT_LIST_DIR}/entropy.c
    ${CMAKE_CURRENT_LIST_DIR}/fan.c
    ${CMAKE_CURRENT_LIST_DIR}/host.c
    ${CMAKE_CURRENT_LIST_DIR}/kernels.c
    ${CMAKE_CURRENT_LIST_DIR}/kernels_plain.c
    ${CMAKE_CURRENT_LIST_DIR}/kernels_tree.c
    ${CMAKE_CURRENT_LIST_DIR}/lead.c
    ${CMAKE_CURRENT_LIST_DIR}/link.c
    ${CMAKE_CURRENT_LIST_DIR}/math.c
    ${CMAKE_CURRENT_LIST_DIR}/meet.c
    ${CMAKE_CURRENT_LIST_DIR}/memory.c
    ${CMAKE_CURRENT_LIST_DIR}/memory_table.c
    ${CMAKE_CURRENT_LIST_DIR}/order.c
    ${CMAKE_CURRENT_LIST_DIR}/p2p.c
    ${CMAKE_CURRENT_LIST_DIR}/pairs.c
    ${CMAKE_CURRENT_LIST_DIR}/quick.c
    ${CMAKE_CURRENT_LIST_DIR}/reach.c
    ${CMAKE_CURRENT_LIST_DIR}/reduce.c
    ${CMAKE_CURRENT_LIST_DIR}/reduce_plan.c
    ${CMAKE_CURRENT_LIST_DIR}/route.c
    ${CMAKE_CURRENT_LIST_DIR}/small.c
    ${CMAKE_CURRENT_LIST_DIR}/spread.c
    ${CMAKE_CURRENT_LIST_DIR}/sum.c
    ${CMAKE_CURRENT_LIST_DIR}/tune.c)

# The loops are compiled once per instruction set. What the options allow changes no result: comparisons may be made on
# values that are not used, and errno is not read.
set(tt_loops plain)
set(tt_loops_plain)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$")
    list(APPEND tt_loops avx2 avx512)
    set(tt_loops_avx2 -mavx2 -mf16c)
    set(tt_loops_avx512 -mavx2 -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl)
endif()
foreach(set ${tt_loops})
    set(file ${CMAKE_CURRENT_LIST_DIR}/kernels_${set}.c)
    if(NOT set STREQUAL plain)
        target_sources(tutti_objects PRIVATE ${file})
    endif()
    set_source_files_properties(${file} TARGET_DIRECTORY tutti_objects PROPERTIES
        COMPILE_OPTIONS "-O3;-fno-trapping-math;-fno-math-errno;${tt_loops_${set}}")
endforeach()
