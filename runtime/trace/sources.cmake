# SPDX-License-Identifier: Apache-2.0
# NVTX 3 is headers only and does nothing until a profiler is attached; without them trace/nvtx.h is empty.
find_path(NVTX3_INCLUDE_DIR nvtx3/nvToolsExt.h HINTS ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES include)
if(NVTX3_INCLUDE_DIR)
    target_include_directories(tutti_objects SYSTEM PRIVATE ${NVTX3_INCLUDE_DIR})
endif()
target_sources(tutti_objects PRIVATE ${CMAKE_CURRENT_LIST_DIR}/recorder.c)
