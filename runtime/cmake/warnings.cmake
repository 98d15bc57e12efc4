# SPDX-License-Identifier: Apache-2.0
add_library(tutti_build_flags INTERFACE)
target_compile_options(tutti_build_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes
    -Wmissing-prototypes -Wvla -Wwrite-strings -Wformat=2 -Wundef
    $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation>) # texts are cut on purpose: snprintf into fixed buffers
target_compile_definitions(tutti_build_flags INTERFACE _GNU_SOURCE)
if(TUTTI_WERROR)
    target_compile_options(tutti_build_flags INTERFACE -Werror)
endif()
if(TUTTI_SANITIZE)
    target_compile_options(tutti_build_flags INTERFACE -fsanitize=${TUTTI_SANITIZE} -fno-omit-frame-pointer -g)
    if(NOT TUTTI_SANITIZE STREQUAL "thread")
        target_compile_options(tutti_build_flags INTERFACE -fno-sanitize-recover=all)
    endif()
    target_link_options(tutti_build_flags INTERFACE -fsanitize=${TUTTI_SANITIZE})
endif()
# Sums are promised bit for bit: no fused multiply-add that one compiler makes and another does not, no reassociation.
target_compile_options(tutti_build_flags INTERFACE -ffp-contract=off)
