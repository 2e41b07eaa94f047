# Describes three Debian packages, which tools/wheel --deb makes: the library, what compiles against it, and the programs.
#   cmake -S . -B build/package -DCMAKE_INSTALL_PREFIX=/usr -DTAPESTRY_CPU_ARCH=any && cd build/package && cpack -G DEB
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME tapestry)
set(CPACK_PACKAGE_VENDOR "The Tapestry authors")
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "The Tapestry authors <tapestry@packages.invalid>" CACHE STRING "Maintainer of the Debian packages")
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_PACKAGING_INSTALL_PREFIX ${CMAKE_INSTALL_PREFIX})
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib)  # the programs' library is in another package
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_ALL library development tools)
set(version "${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "deep-learning framework in C++20")
set(about "Tapestry has its own tensor, tape-based autograd and kernels, an API that is\nshaped like PyTorch's, and all ways of training on several devices.\n\n")

set(library libtapestry${PROJECT_VERSION_MAJOR})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME ${library})
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS ON)
set(CPACK_COMPONENT_LIBRARY_DESCRIPTION "${about}This package contains the shared library.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libtapestry-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${library} (= ${version})")
set(CPACK_COMPONENT_DEVELOPMENT_DESCRIPTION "${about}This package contains the headers and the CMake package.")

set(CPACK_DEBIAN_TOOLS_PACKAGE_NAME tapestry-tools)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_TOOLS_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_TOOLS_PACKAGE_DEPENDS "${library} (= ${version})")
set(CPACK_COMPONENT_TOOLS_DESCRIPTION "${about}This package contains the launcher tapestry-run, tapestry-compare, which\ncompares ways of training on several devices, and programs that train models.")

# Each package has Debian's copyright file and changelog. The library says which package has it, and calls ldconfig.
set(control ${PROJECT_BINARY_DIR}/package)
file(READ ${PROJECT_SOURCE_DIR}/LICENSE licence)
string(REGEX REPLACE "^MIT License\n\nCopyright [^\n]*\n\n" "" licence "${licence}")
string(REGEX REPLACE "\n$" "" licence "${licence}")
string(REPLACE "\n\n" "\n.\n" licence "${licence}")
string(REPLACE "\n" "\n " licence "${licence}")
file(CONFIGURE OUTPUT ${control}/copyright @ONLY CONTENT "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: tapestry

Files: *
Copyright: 2026 The Tapestry authors
License: Expat

License: Expat
 @licence@
")
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
file(CONFIGURE OUTPUT ${control}/changelog.Debian @ONLY CONTENT "tapestry (@version@) unstable; urgency=medium

  * See the upstream changelog.

 -- @CPACK_DEBIAN_PACKAGE_MAINTAINER@  @date@
")
file(CONFIGURE OUTPUT ${control}/triggers CONTENT "activate-noawait ldconfig\n")
file(CONFIGURE OUTPUT ${control}/shlibs @ONLY CONTENT "libtapestry @PROJECT_VERSION_MAJOR@ @library@ (= @version@)
libtapestry_loops @PROJECT_VERSION_MAJOR@ @library@ (= @version@)
")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA ${control}/triggers ${control}/shlibs)
if(TAPESTRY_IS_PACKAGE)
  find_program(TAPESTRY_GZIP gzip REQUIRED)
  foreach(name ${control}/changelog.Debian ${PROJECT_SOURCE_DIR}/CHANGELOG.md)
    cmake_path(GET name FILENAME file)
    string(REPLACE CHANGELOG.md changelog file ${file})
    execute_process(COMMAND ${TAPESTRY_GZIP} -9nc ${name} OUTPUT_FILE ${control}/${file}.gz COMMAND_ERROR_IS_FATAL ANY)
  endforeach()
  foreach(component LIBRARY DEVELOPMENT TOOLS)
    string(TOLOWER ${component} lower)
    install(FILES ${control}/copyright ${control}/changelog.Debian.gz ${control}/changelog.gz
      DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${CPACK_DEBIAN_${component}_PACKAGE_NAME} COMPONENT ${lower})
  endforeach()
endif()
include(CPack)
