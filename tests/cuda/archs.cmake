# SPDX-License-Identifier: Apache-2.0
# nvcc's options for the architectures asked for, by what toolkits of several versions know.
include(${CMAKE_CURRENT_LIST_DIR}/../../runtime/cmake/cuda_archs.cmake)
set(all 75 80 86 89 90 100 120)
function(check toolkit known expected)
    tutti_cuda_flags("${all}" "${known}" flags)
    string(REGEX REPLACE "-gencode=arch=compute_[0-9]+,code=" "" got "${flags}")
    if(NOT got STREQUAL expected)
        message(SEND_ERROR "CUDA ${toolkit}: ${got}, not ${expected}")
    endif()
endfunction()
check(12.0 "compute_50\ncompute_52\ncompute_70\ncompute_75\ncompute_80\ncompute_86\ncompute_87\ncompute_89\ncompute_90\n"
    "sm_75;sm_80;sm_86;sm_89;sm_90;compute_90")
check(12.8 "compute_50\ncompute_75\ncompute_80\ncompute_86\ncompute_89\ncompute_90\ncompute_100\ncompute_101\ncompute_120\n"
    "sm_75;sm_80;sm_86;sm_89;sm_90;sm_100;sm_120;compute_120")
check(13.0 "compute_75\ncompute_80\ncompute_86\ncompute_87\ncompute_89\ncompute_90\ncompute_100\ncompute_110\ncompute_120\n"
    "sm_75;sm_80;sm_86;sm_89;sm_90;sm_100;sm_120;compute_120")
check(old "compute_50\ncompute_1200\n" "")
