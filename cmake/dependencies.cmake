# What the library is linked with. All of it is private: no public header includes any of these.
add_library(tapestry_private INTERFACE)

# What tools/vendor_deps copied here counts where the system has nothing.
list(APPEND CMAKE_SYSTEM_PREFIX_PATH ${PROJECT_SOURCE_DIR}/.deps)

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
target_link_libraries(tapestry_private INTERFACE Threads::Threads)
# Nothing here reads errno or floating-point exception flags; assuming that they matter keeps loops from being vectorised.
target_compile_options(tapestry_private INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${TAPESTRY_ARCH_FLAGS};-fno-math-errno;-fno-trapping-math>")

if(TAPESTRY_OPENMP)
  find_package(OpenMP)
  if(OpenMP_CXX_FOUND)
    target_link_libraries(tapestry_private INTERFACE OpenMP::OpenMP_CXX)
    target_compile_definitions(tapestry_private INTERFACE TAPESTRY_HAS_OPENMP=1)
  endif()
endif()

# Header-only, found as plain include folders so that a copy in .deps/ serves as well.
find_path(EIGEN_INCLUDE_DIR Eigen/Core PATH_SUFFIXES eigen3)
find_path(NLOHMANN_JSON_INCLUDE_DIR nlohmann/json.hpp)
find_path(ASIO_INCLUDE_DIR asio/ip/tcp.hpp)
foreach(dependency EIGEN:libeigen3-dev NLOHMANN_JSON:nlohmann-json3-dev ASIO:libasio-dev)
  string(REPLACE ":" ";" dependency ${dependency})
  list(GET dependency 0 name)
  list(GET dependency 1 package)
  if(NOT ${name}_INCLUDE_DIR)
    message(FATAL_ERROR "${name} headers were not found: install ${package} (tools/quickstart does), or set ${name}_INCLUDE_DIR.")
  endif()
  target_include_directories(tapestry_private SYSTEM INTERFACE ${${name}_INCLUDE_DIR})
endforeach()

find_package(ZLIB)
if(NOT ZLIB_FOUND)
  message(FATAL_ERROR "zlib was not found: install zlib1g-dev (tools/quickstart does).")
endif()
target_link_libraries(tapestry_private INTERFACE ZLIB::ZLIB)

# Not by its CMake package: Debian's fails without OpenCL headers.
if(TAPESTRY_ONEDNN)
  find_library(DNNL_LIBRARY NAMES dnnl)
  find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
  if(DNNL_LIBRARY AND DNNL_INCLUDE_DIR)
    target_link_libraries(tapestry_private INTERFACE ${DNNL_LIBRARY})
    target_include_directories(tapestry_private SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
    target_compile_definitions(tapestry_private INTERFACE TAPESTRY_HAS_ONEDNN=1)
  else()
    message(STATUS "oneDNN not found: convolutions and matrix products use Eigen (slower)")
  endif()
endif()

# Between processes on CPUs. ThreadSanitizer does not see its synchronisation.
option(TAPESTRY_GLOO "Use Gloo where it is found" ON)
if(TAPESTRY_GLOO AND NOT TAPESTRY_SANITIZE MATCHES "thread")
  find_package(Gloo CONFIG QUIET)
  if(TARGET gloo)
    target_link_libraries(tapestry_private INTERFACE gloo)
    set_source_files_properties(
      ${PROJECT_SOURCE_DIR}/distributed/comm/gloo_backend.cpp
      ${PROJECT_SOURCE_DIR}/distributed/comm/internal/gloo_transport.cpp PROPERTIES
      COMPILE_DEFINITIONS TAPESTRY_HAS_GLOO=1)
  else()
    message(STATUS "Gloo not found: no collectives between processes on CPUs (libgloo-dev)")
  endif()
endif()

# For the tests.
find_path(CATCH2_INCLUDE_DIR NAMES catch2/catch_all.hpp catch2/catch.hpp)
