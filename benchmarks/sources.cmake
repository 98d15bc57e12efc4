# SPDX-License-Identifier: Apache-2.0
# `tutti bench`
foreach(source baseline bound chart collective command data measure ops options peer_limit peer_mpi report variant)
    target_sources(tutti_program PRIVATE ${CMAKE_CURRENT_LIST_DIR}/${source}.c)
endforeach()
