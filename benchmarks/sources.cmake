# SPDX-License-Identifier: Apache-2.0
# `tutti bench`
foreach(source baseline bound chart ckpt ckpt_raw collective command data engine job measure models ops options overlap peer_limit
    peer_mpi report scaling step synth_options synthetic variant words)
    target_sources(tutti_program PRIVATE ${CMAKE_CURRENT_LIST_DIR}/${source}.c)
endforeach()
