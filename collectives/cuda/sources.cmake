# SPDX-License-Identifier: Apache-2.0
# kernels.cu has a rule of its own in runtime/cmake/library.cmake.
if(TUTTI_HAVE_CUDA)
    target_sources(tutti_objects PRIVATE ${CMAKE_CURRENT_LIST_DIR}/math.c)
endif()
