# SPDX-License-Identifier: Apache-2.0
# tutti_cuda_flags(WANTED COMPUTE_LIST OUT): nvcc's code-generation options for the architectures WANTED (75;80...) that
# the toolkit knows, given what `nvcc --list-gpu-arch` prints (compute_75 ...). Machine code for each, and PTX of the
# newest for GPUs that come later. Toolkits differ at both ends: 12.0 stops at 90, 12.8 adds 100 and 120, 13 begins at 75.
function(tutti_cuda_flags wanted compute_list out)
    set(flags)
    set(newest)
    foreach(arch ${wanted})
        if(compute_list MATCHES "compute_${arch}([^0-9]|$)")
            list(APPEND flags "-gencode=arch=compute_${arch},code=sm_${arch}")
            set(newest ${arch})
        endif()
    endforeach()
    if(newest)
        list(APPEND flags "-gencode=arch=compute_${newest},code=compute_${newest}")
    endif()
    set(${out} "${flags}" PARENT_SCOPE)
endfunction()
