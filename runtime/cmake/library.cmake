# SPDX-License-Identifier: Apache-2.0
# tutti::tutti (shared) and tutti::tutti_static from one set of objects; install and export.
include(CMakePackageConfigHelpers)

set(tutti_private_libs MPI::MPI_C PkgConfig::HDF5 PkgConfig::JANSSON PkgConfig::XXHASH PkgConfig::HWLOC
    Threads::Threads m rt)
target_link_libraries(tutti_objects PRIVATE tutti_build_flags ${tutti_private_libs})

add_library(tutti SHARED $<TARGET_OBJECTS:tutti_objects>)
add_library(tutti_static STATIC $<TARGET_OBJECTS:tutti_objects>)
set_target_properties(tutti PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR})
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

install(TARGETS tutti tutti_static EXPORT tuttiTargets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY runtime/include/tutti collectives/include/tutti DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
    FILES_MATCHING PATTERN "*.h")
install(EXPORT tuttiTargets NAMESPACE tutti:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
configure_package_config_file(runtime/cmake/tuttiConfig.cmake.in ${PROJECT_BINARY_DIR}/tuttiConfig.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tuttiConfig.cmake ${PROJECT_BINARY_DIR}/tuttiConfigVersion.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/tutti)
configure_file(runtime/cmake/tutti.pc.in ${PROJECT_BINARY_DIR}/tutti.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tutti.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
