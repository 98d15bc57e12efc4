# SPDX-License-Identifier: Apache-2.0
# tutti::tutti (shared) and tutti::tutti_static from one set of objects; install and export.
include(CMakePackageConfigHelpers)

set(tutti_private_libs MPI::MPI_C PkgConfig::HDF5 PkgConfig::JANSSON PkgConfig::XXHASH PkgConfig::HWLOC
    PkgConfig::EXPAT Threads::Threads m rt
    ${CMAKE_DL_LIBS})
if(TUTTI_HAVE_CUDA)
    list(APPEND tutti_private_libs CUDA::cudart ${TUTTI_NCCL_LIBRARY})
    target_include_directories(tutti_objects SYSTEM PRIVATE ${TUTTI_NCCL_INCLUDE})
endif()
target_compile_definitions(tutti_objects PRIVATE TUTTI_HAVE_CUDA=$<BOOL:${TUTTI_HAVE_CUDA}>
    TUTTI_HAVE_XXH_DISPATCH=$<BOOL:${TUTTI_HAVE_XXH_DISPATCH}>)
target_link_libraries(tutti_objects PRIVATE tutti_build_flags ${tutti_private_libs})

# One rule for both libraries; make would run it twice at the same time but for the target.
set(TUTTI_CUDA_OBJECTS)
if(TUTTI_HAVE_CUDA)
    tutti_nvcc(TUTTI_CUDA_OBJECTS ${PROJECT_SOURCE_DIR}/collectives/cuda/kernels.cu)
    add_custom_target(tutti_cuda_kernels DEPENDS ${TUTTI_CUDA_OBJECTS})
endif()

add_library(tutti SHARED $<TARGET_OBJECTS:tutti_objects> ${TUTTI_CUDA_OBJECTS})
add_library(tutti_static STATIC $<TARGET_OBJECTS:tutti_objects> ${TUTTI_CUDA_OBJECTS})
if(TUTTI_HAVE_CUDA)
    add_dependencies(tutti tutti_cuda_kernels)
    add_dependencies(tutti_static tutti_cuda_kernels)
endif()
# Before 1.0 each minor version may break the ABI.
set_target_properties(tutti PROPERTIES VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set_target_properties(tutti_static PROPERTIES OUTPUT_NAME tutti)
foreach(lib tutti tutti_static)
    add_library(tutti::${lib} ALIAS ${lib})
    target_include_directories(${lib} INTERFACE
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/runtime/include>
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/collectives/include>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endforeach()
target_link_libraries(tutti PRIVATE $<BUILD_INTERFACE:tutti_build_flags> ${tutti_private_libs})
# A program that links the static library links what it needs.
target_link_libraries(tutti_static PUBLIC ${tutti_private_libs} PRIVATE $<BUILD_INTERFACE:tutti_build_flags>)

# Two export files: who links the shared library need not have the development files of what it is made of.
install(TARGETS tutti EXPORT tuttiSharedTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT tutti NAMELINK_COMPONENT tutti-dev)
install(TARGETS tutti_static EXPORT tuttiStaticTargets
    ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT tutti-dev)
set(tutti_config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
foreach(kind Shared Static)
    install(EXPORT tutti${kind}Targets NAMESPACE tutti:: DESTINATION ${tutti_config_dir} COMPONENT tutti-dev)
endforeach()
install(DIRECTORY runtime/include/tutti collectives/include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    COMPONENT tutti-dev FILES_MATCHING PATTERN "*.h")
configure_package_config_file(runtime/cmake/tuttiConfig.cmake.in ${PROJECT_BINARY_DIR}/tuttiConfig.cmake
    INSTALL_DESTINATION ${tutti_config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
    DESTINATION ${tutti_config_dir} COMPONENT tutti-dev)

# tutti.pc finds its folders from its own place, so that an installed tree may be moved (cmake --install --prefix).
if(IS_ABSOLUTE "${CMAKE_INSTALL_LIBDIR}" OR IS_ABSOLUTE "${CMAKE_INSTALL_INCLUDEDIR}")
    set(tutti_pc_prefix ${CMAKE_INSTALL_PREFIX})
    set(tutti_pc_libdir ${CMAKE_INSTALL_FULL_LIBDIR})
    set(tutti_pc_includedir ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
    file(RELATIVE_PATH up "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
    string(REGEX REPLACE "/$" "" up "${up}")
    set(tutti_pc_prefix "\${pcfiledir}/${up}")
    set(tutti_pc_libdir "\${prefix}/${CMAKE_INSTALL_LIBDIR}")
    set(tutti_pc_includedir "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
# What libtutti.a is linked with, as found here. Not Requires.private: pkg-config --static would follow it down to the
# private libraries of shared libraries (hwloc's names -ludev, whose development package nobody needs for this).
set(tutti_pc_libs ${HDF5_LINK_LIBRARIES} ${JANSSON_LINK_LIBRARIES} ${XXHASH_LINK_LIBRARIES} ${HWLOC_LINK_LIBRARIES} ${EXPAT_LINK_LIBRARIES}
    ${MPI_C_LIBRARIES} -lpthread -lm -lrt -ldl)
if(TUTTI_HAVE_CUDA)
    list(APPEND tutti_pc_libs ${CUDA_cudart_LIBRARY} ${TUTTI_NCCL_LIBRARY})
endif()
list(JOIN tutti_pc_libs " " tutti_pc_libs)
configure_file(runtime/cmake/tutti.pc.in ${PROJECT_BINARY_DIR}/tutti.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tutti.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT tutti-dev)
