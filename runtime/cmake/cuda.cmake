# SPDX-License-Identifier: Apache-2.0
# TUTTI_CUDA=AUTO|ON|OFF: whether the CUDA backend is built. It needs the CUDA toolkit >= 12 with nvcc and NCCL >= 2.19.
# Sets TUTTI_HAVE_CUDA, and then CUDA::cudart (the shared one, so that a program and its libraries share one runtime),
# TUTTI_NCCL_INCLUDE, TUTTI_NCCL_LIBRARY and TUTTI_NVCC_FLAGS. nvcc is run by a rule of our own, not by CMake's CUDA language: with that every program
# that links libtutti.a would be linked by nvcc's C++ compiler.
set(TUTTI_CUDA AUTO CACHE STRING "The CUDA backend: AUTO (where toolkit and NCCL are found), ON or OFF")
set_property(CACHE TUTTI_CUDA PROPERTY STRINGS AUTO ON OFF)
set(TUTTI_CUDA_ARCHS "75;80;86;89;90;100;120" CACHE STRING
    "GPU architectures to compile for; those that the toolkit does not know are left out")
include(${CMAKE_CURRENT_LIST_DIR}/cuda_archs.cmake)
set(TUTTI_HAVE_CUDA FALSE)

# Sets tutti_cuda_lacks to what is missing, or to "".
macro(tutti_find_cuda)
    set(tutti_cuda_lacks)
    find_package(CUDAToolkit 12.0 QUIET)
    if(NOT CUDAToolkit_FOUND OR NOT TARGET CUDA::cudart)
        set(tutti_cuda_lacks "a CUDA toolkit of version 12 or later")
    elseif(NOT CUDAToolkit_NVCC_EXECUTABLE)
        set(tutti_cuda_lacks "nvcc")
    else()
        find_path(TUTTI_NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
        find_library(TUTTI_NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
        mark_as_advanced(TUTTI_NCCL_INCLUDE TUTTI_NCCL_LIBRARY)
        set(tutti_nccl_version 0)
        if(TUTTI_NCCL_INCLUDE AND TUTTI_NCCL_LIBRARY)
            file(STRINGS ${TUTTI_NCCL_INCLUDE}/nccl.h tutti_nccl_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
            string(REGEX REPLACE ".*NCCL_MAJOR ([0-9]+).*NCCL_MINOR ([0-9]+).*NCCL_PATCH ([0-9]+).*" "\\1.\\2.\\3"
                tutti_nccl_version "${tutti_nccl_lines}")
        endif()
        if(tutti_nccl_version VERSION_LESS 2.19)
            set(tutti_cuda_lacks "NCCL of version 2.19 or later (nccl.h and libnccl.so)")
        endif()
    endif()
endmacro()

if(TUTTI_CUDA STREQUAL "AUTO" AND TUTTI_SANITIZE)
    set(tutti_cuda_lacks "a build without sanitizers")
elseif(TUTTI_CUDA)
    tutti_find_cuda()
else()
    set(tutti_cuda_lacks "TUTTI_CUDA=ON")
endif()

if(tutti_cuda_lacks)
    if(TUTTI_CUDA AND NOT TUTTI_CUDA STREQUAL "AUTO")
        message(FATAL_ERROR "TUTTI_CUDA=${TUTTI_CUDA} needs ${tutti_cuda_lacks}")
    endif()
    add_feature_info(CUDA FALSE "needs ${tutti_cuda_lacks}")
    return()
endif()

execute_process(COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} --list-gpu-arch OUTPUT_VARIABLE tutti_nvcc_archs
    COMMAND_ERROR_IS_FATAL ANY)
tutti_cuda_flags("${TUTTI_CUDA_ARCHS}" "${tutti_nvcc_archs}" tutti_gencode)
if(NOT tutti_gencode)
    message(FATAL_ERROR "nvcc ${CUDAToolkit_VERSION} knows none of TUTTI_CUDA_ARCHS=${TUTTI_CUDA_ARCHS}")
endif()
# -fvisibility: what nvcc makes external must not leave the library. No contraction: sums are promised bit for bit.
set(TUTTI_NVCC_FLAGS ${tutti_gencode} -O3 -std=c++17 --fmad=false --expt-relaxed-constexpr
    -Xcompiler=-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-Wall,-Wextra)
if(TUTTI_WERROR)
    list(APPEND TUTTI_NVCC_FLAGS -Werror=all-warnings -Xcompiler=-Werror)
endif()
set(TUTTI_HAVE_CUDA TRUE)
add_feature_info(CUDA TRUE "toolkit ${CUDAToolkit_VERSION}, NCCL ${tutti_nccl_version}")

# tutti_nvcc(OBJECT_OUT SOURCE): a rule that compiles SOURCE; *OBJECT_OUT names the object.
function(tutti_nvcc object_out source)
    get_filename_component(name ${source} NAME)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
    add_custom_command(OUTPUT ${object} DEPENDS ${source} DEPFILE ${object}.d VERBATIM COMMENT "nvcc ${name}"
        COMMAND ${CMAKE_CUDA_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} ${TUTTI_NVCC_FLAGS}
            -ccbin ${CMAKE_C_COMPILER} -I${PROJECT_SOURCE_DIR}/runtime -I${PROJECT_SOURCE_DIR}/collectives
            -I${PROJECT_SOURCE_DIR}/runtime/include -MD -MF ${object}.d -MT ${object} -c ${source} -o ${object})
    set(${object_out} ${object} PARENT_SCOPE)
endfunction()
