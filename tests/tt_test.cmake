# SPDX-License-Identifier: Apache-2.0
# tutti_test(NAME n SOURCES f... [LINK lib...] [NP 1 2 4] [ARGS a...] [LABELS l...] [TIMEOUT s] [ENV V=1...]
#            [PROCESSORS p | SLEEPS])
# Registers the program once, or, with NP, once per number of MPI ranks as n.npK. The program has the internal headers at
# hand. A test that exits 77 is skipped.
#
# PROCESSORS: the cores that it keeps busy, 1 unless said. A test that mostly waits, for a time limit say, is marked SLEEPS: it
# takes a quarter of a core. ctest is told in quarters, its -j counts them: tests/run gives 4 x cores.
#
# Labels: the area whose time tests/run adds up (house, main, cuda, topology, collectives, parallel, checkpoint) comes from
# the folder (TT_AREA, see CMakeLists.txt) unless LABELS names one. `sanitize`: built and run under the sanitizers too, or,
# as `asan`, under AddressSanitizer only, for what has one thread; a sanitizer build has these tests only. `long`: runs on demand only (`sh tests/run --long`, `ctest -L long`).
find_program(TT_MPIRUN mpirun REQUIRED)
set(TT_MPIRUN_FLAGS --oversubscribe --bind-to none)
execute_process(COMMAND id -u OUTPUT_VARIABLE tt_uid OUTPUT_STRIP_TRAILING_WHITESPACE)
if(tt_uid STREQUAL "0")
    list(APPEND TT_MPIRUN_FLAGS --allow-run-as-root)
endif()
set(TT_SLOTS 4) # of ctest, per core
# Tests run on the host backend, whatever GPUs are here, unless ENV says TUTTI_BACKEND=...
function(tt_env out)
    set(env ${ARGN})
    if(NOT "${env}" MATCHES "TUTTI_BACKEND=")
        list(APPEND env TUTTI_BACKEND=host)
    endif()
    set(${out} "${env}" PARENT_SCOPE)
endfunction()
set(TT_AREAS house main cuda topology collectives parallel checkpoint)

# The labels of a test: those given, and the folder's area if none of them is one.
function(tt_labels out)
    set(labels ${ARGN})
    foreach(area ${TT_AREAS})
        if(area IN_LIST labels)
            set(${out} "${labels}" PARENT_SCOPE)
            return()
        endif()
    endforeach()
    set(${out} "${TT_AREA};${labels}" PARENT_SCOPE)
endfunction()

# A sanitizer build describes its tests in sanitized.cmake as well, under asan.NAME or tsan.NAME: the release build's ctest
# reads that file when tests/run asks for it, so that one ctest run covers all builds.
# The sanitizers end an option at a blank, save between quotes.
if(TUTTI_SANITIZE STREQUAL "thread")
    set(TT_SANITIZER tsan)
    set(TT_SANITIZER_ENV "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:suppressions='${CMAKE_CURRENT_SOURCE_DIR}/support/tsan.supp'")
elseif(TUTTI_SANITIZE)
    set(TT_SANITIZER asan)
    set(TT_SANITIZER_ENV "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1"
        "UBSAN_OPTIONS=print_stacktrace=1" "LSAN_OPTIONS=suppressions='${CMAKE_CURRENT_SOURCE_DIR}/support/lsan.supp'")
endif()
set(TT_SANITIZED_LIST ${PROJECT_BINARY_DIR}/sanitized.cmake)
if(TT_SANITIZER)
    file(WRITE ${TT_SANITIZED_LIST} "# Written by tests/tt_test.cmake: the tests of this ${TT_SANITIZER} build\n")
endif()

function(tt_sanitized_entry name exe timeout processors labels env args)
    set(entry ${TT_SANITIZER}.${name})
    list(TRANSFORM args REPLACE "(.+)" " \"\\1\"")
    list(JOIN args "" args)
    file(APPEND ${TT_SANITIZED_LIST} "add_test([=[${entry}]=] \"${PROJECT_BINARY_DIR}/tests/${exe}\"${args})\n"
        "set_tests_properties([=[${entry}]=] PROPERTIES TIMEOUT ${timeout} PROCESSORS ${processors} SKIP_RETURN_CODE 77 "
        "LABELS \"${labels}\" ENVIRONMENT \"${env}\" WORKING_DIRECTORY \"${CMAKE_CURRENT_BINARY_DIR}\")\n")
endfunction()

# The slots of a test that keeps `processors` cores (empty: 1) busy, or sleeps.
function(tt_slots out processors sleeps)
    if(sleeps)
        set(${out} 1 PARENT_SCOPE)
        return()
    endif()
    if(NOT processors)
        set(processors 1)
    endif()
    math(EXPR slots "${TT_SLOTS} * ${processors}")
    set(${out} ${slots} PARENT_SCOPE)
endfunction()

function(tutti_test)
    cmake_parse_arguments(T "SLEEPS" "NAME;TIMEOUT;PROCESSORS" "SOURCES;LINK;NP;ARGS;LABELS;ENV" ${ARGN})
    if(T_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "tutti_test(${T_NAME}): what is ${T_UNPARSED_ARGUMENTS}?")
    endif()
    if(TT_SANITIZER AND (T_NP OR NOT ("sanitize" IN_LIST T_LABELS OR TT_SANITIZER IN_LIST T_LABELS)))
        return()
    endif()
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 120)
    endif()
    tt_slots(slots "${T_PROCESSORS}" ${T_SLEEPS})
    tt_env(T_ENV ${T_ENV})
    if(TT_SANITIZER)
        math(EXPR T_TIMEOUT "5 * ${T_TIMEOUT}")
        list(APPEND T_ENV ${TT_SANITIZER_ENV})
    endif()
    tt_labels(labels ${T_LABELS})
    string(REPLACE "." "_" exe t_${T_NAME})
    add_executable(${exe} ${T_SOURCES})
    target_include_directories(${exe} PRIVATE ${PROJECT_SOURCE_DIR}/runtime ${PROJECT_SOURCE_DIR}/collectives)
    target_link_libraries(${exe} PRIVATE tt_test ${T_LINK})
    set_target_properties(${exe} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
    set(names)
    if(T_NP)
        foreach(np ${T_NP})
            add_test(NAME ${T_NAME}.np${np} COMMAND ${TT_MPIRUN} ${TT_MPIRUN_FLAGS} -np ${np} $<TARGET_FILE:${exe}> ${T_ARGS})
            list(APPEND names ${T_NAME}.np${np})
            tt_slots(slots ${np} ${T_SLEEPS})
            set_tests_properties(${T_NAME}.np${np} PROPERTIES PROCESSORS ${slots})
        endforeach()
    else()
        add_test(NAME ${T_NAME} COMMAND ${exe} ${T_ARGS})
        set(names ${T_NAME})
        set_tests_properties(${T_NAME} PROPERTIES PROCESSORS ${slots})
        if(TT_SANITIZER)
            tt_sanitized_entry(${T_NAME} ${exe} ${T_TIMEOUT} ${slots} "${labels}" "${T_ENV}" "${T_ARGS}")
        endif()
    endif()
    set_tests_properties(${names} PROPERTIES TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77 LABELS "${labels}" ENVIRONMENT "${T_ENV}")
endfunction()

# tutti_check(NAME n COMMAND c... [LABELS l...] [TIMEOUT s] [PROCESSORS p | SLEEPS] [ENV V=1...]): any other command as a test.
function(tutti_check)
    cmake_parse_arguments(T "SLEEPS" "NAME;TIMEOUT;PROCESSORS" "COMMAND;LABELS;ENV" ${ARGN})
    if(T_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "tutti_check(${T_NAME}): what is ${T_UNPARSED_ARGUMENTS}?")
    endif()
    if(NOT T_TIMEOUT)
        set(T_TIMEOUT 120)
    endif()
    tt_slots(slots "${T_PROCESSORS}" ${T_SLEEPS})
    tt_labels(labels ${T_LABELS})
    tt_env(T_ENV ${T_ENV})
    add_test(NAME ${T_NAME} COMMAND ${T_COMMAND})
    set_tests_properties(${T_NAME} PROPERTIES TIMEOUT ${T_TIMEOUT} SKIP_RETURN_CODE 77 PROCESSORS ${slots}
        LABELS "${labels}" ENVIRONMENT "${T_ENV}")
endfunction()
