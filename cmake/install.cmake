# The install tree and the CMake package: find_package(tapestry) gives tapestry::tapestry.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS tapestry EXPORT tapestry-targets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
# It finds the library beside its own folder.
file(RELATIVE_PATH libraries_from_programs ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBDIR})
set_target_properties(tapestry-run PROPERTIES INSTALL_RPATH "$ORIGIN/${libraries_from_programs}")
install(TARGETS tapestry-run RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})

# Public headers keep their folders. What only the library's own sources include stays behind: the CPU kernels' helpers
# see Eigen and oneDNN, and a folder named `internal` says it by its name.
install(FILES ${PROJECT_SOURCE_DIR}/tapestry.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapestry)
foreach(folder core kernels autograd nn data distributed)
  if(IS_DIRECTORY ${PROJECT_SOURCE_DIR}/${folder})
    install(DIRECTORY ${PROJECT_SOURCE_DIR}/${folder} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tapestry
      FILES_MATCHING PATTERN "*.h" PATTERN "*.cuh"
      PATTERN "kernels/cpu" EXCLUDE PATTERN "kernels/bench" EXCLUDE PATTERN "internal" EXCLUDE)
  endif()
endforeach()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Nothing to find for a consumer: what the library is linked with is private to it.
set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/tapestry)
install(EXPORT tapestry-targets NAMESPACE tapestry:: DESTINATION ${package_folder})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/tapestry-config.cmake.in
  ${PROJECT_BINARY_DIR}/cmake/tapestry-config.cmake INSTALL_DESTINATION ${package_folder})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/tapestry-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/tapestry-config.cmake
  ${PROJECT_BINARY_DIR}/cmake/tapestry-config-version.cmake DESTINATION ${package_folder})
