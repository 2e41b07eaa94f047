# Describes the install tree and the CMake package. find_package(tapestry) defines the target tapestry::tapestry.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# The components `library`, `development` and `tools` become Debian packages (package.cmake).
install(TARGETS tapestry EXPORT tapestry-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
set(TAPESTRY_LINKED -ltapestry)
if(TARGET tapestry_v3)
  string(APPEND TAPESTRY_LINKED " -ltapestry_loops")
  install(TARGETS tapestry_loops EXPORT tapestry-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development)
  install(TARGETS tapestry_v3 LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/glibc-hwcaps/x86-64-v3 NAMELINK_SKIP COMPONENT library)
endif()
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME development)

# Public headers keep their folders. Headers below a folder `internal/` are private and are not installed. Kernels are
# private as a whole, except the two headers with which a program compiles and launches CUDA kernels of its own.
install(FILES ${PROJECT_SOURCE_DIR}/tapestry.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapestry)
foreach(folder core autograd nn data distributed)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapestry
    FILES_MATCHING PATTERN "*.h" PATTERN "internal" EXCLUDE)
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/kernels/cuda/portable.cuh ${PROJECT_SOURCE_DIR}/kernels/cuda/launch.cuh
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapestry/kernels/cuda)
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT licence)

# For compilers that are called without CMake.
file(RELATIVE_PATH TAPESTRY_HEADERS_FROM_PROGRAMS ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_INCLUDEDIR})
configure_file(${PROJECT_SOURCE_DIR}/cmake/tapestry-config.in ${PROJECT_BINARY_DIR}/cmake/tapestry-config @ONLY)
install(PROGRAMS ${PROJECT_BINARY_DIR}/cmake/tapestry-config DESTINATION ${CMAKE_INSTALL_BINDIR})

# The package finds no other packages: all dependencies of the library are private to it.
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tapestry)
install(EXPORT tapestry-targets NAMESPACE tapestry:: DESTINATION ${package_folder})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tapestry-config.cmake.in
  ${PROJECT_BINARY_DIR}/cmake/tapestry-config.cmake INSTALL_DESTINATION ${package_folder})
# Before version 1.0, a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/tapestry-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/tapestry-config.cmake
  ${PROJECT_BINARY_DIR}/cmake/tapestry-config-version.cmake DESTINATION ${package_folder})
if(PROJECT_IS_TOP_LEVEL)
  include(cmake/package.cmake)
endif()
