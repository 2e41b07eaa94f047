# Finds the libraries that Tapestry is linked with. All of them are private: no public header includes their headers.
add_library(tapestry_private INTERFACE)

# tools/vendor_deps fills .deps/. CMake searches it after the system's folders.
list(APPEND CMAKE_SYSTEM_PREFIX_PATH ${PROJECT_SOURCE_DIR}/.deps)

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
target_link_libraries(tapestry_private INTERFACE Threads::Threads)
# The library reads neither errno nor floating-point exception flags. These options let the compiler vectorise more loops.
target_compile_options(tapestry_private INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${TAPESTRY_ARCH_FLAGS};-fno-math-errno;-fno-trapping-math>")

if(TAPESTRY_OPENMP)
  find_package(OpenMP)
  if(OpenMP_CXX_FOUND)
    target_link_libraries(tapestry_private INTERFACE OpenMP::OpenMP_CXX)
    target_compile_definitions(tapestry_private INTERFACE TAPESTRY_HAS_OPENMP=1)
  endif()
endif()

# These are header-only. They are found as include folders, not as CMake packages, because a copy in .deps/ has no package.
find_path(TAPESTRY_EIGEN_INCLUDE_DIR Eigen/Core PATH_SUFFIXES eigen3)
find_path(TAPESTRY_JSON_INCLUDE_DIR nlohmann/json.hpp)
foreach(dependency EIGEN:libeigen3-dev JSON:nlohmann-json3-dev)
  string(REPLACE ":" ";" dependency ${dependency})
  list(GET dependency 0 name)
  list(GET dependency 1 package)
  if(NOT TAPESTRY_${name}_INCLUDE_DIR)
    message(FATAL_ERROR "${name} headers were not found: install ${package} (tools/quickstart does), or set TAPESTRY_${name}_INCLUDE_DIR.")
  endif()
  target_include_directories(tapestry_private SYSTEM INTERFACE ${TAPESTRY_${name}_INCLUDE_DIR})
endforeach()

find_package(ZLIB)
if(NOT ZLIB_FOUND)
  message(FATAL_ERROR "zlib was not found: install zlib1g-dev (tools/quickstart does).")
endif()
target_link_libraries(tapestry_private INTERFACE ZLIB::ZLIB)

# Debian's CMake package of oneDNN fails without OpenCL headers, so the library and its header are found directly. The header
# must be of the same version, so it is first looked for beside the library.
if(TAPESTRY_ONEDNN)
  find_library(TAPESTRY_DNNL_LIBRARY NAMES dnnl HINTS ${dnnl_ROOT} ENV dnnl_ROOT PATH_SUFFIXES lib)
  get_filename_component(dnnl_folder "${TAPESTRY_DNNL_LIBRARY}" DIRECTORY)
  find_path(TAPESTRY_DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp
    PATHS ${dnnl_folder}/../include ${dnnl_folder}/../../include NO_DEFAULT_PATH)
  find_path(TAPESTRY_DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp)
  set(dnnl_needs "")
  if(TAPESTRY_DNNL_LIBRARY AND CMAKE_READELF)
    execute_process(COMMAND ${CMAKE_READELF} -d ${TAPESTRY_DNNL_LIBRARY} OUTPUT_VARIABLE dnnl_needs ERROR_QUIET)
  endif()
  if(dnnl_needs MATCHES "NEEDED[^\n]*(libtbb|libiomp|libsycl)")
    message(FATAL_ERROR "${TAPESTRY_DNNL_LIBRARY} needs ${CMAKE_MATCH_1}, whose threads would compete with those of the compiler's OpenMP: choose a oneDNN that was built with GNU OpenMP, or set TAPESTRY_ONEDNN=OFF.")
  endif()
  if(TAPESTRY_DNNL_LIBRARY AND TAPESTRY_DNNL_INCLUDE_DIR)
    target_link_libraries(tapestry_private INTERFACE ${TAPESTRY_DNNL_LIBRARY})
    target_include_directories(tapestry_private SYSTEM INTERFACE ${TAPESTRY_DNNL_INCLUDE_DIR})
    target_compile_definitions(tapestry_private INTERFACE TAPESTRY_HAS_ONEDNN=1)
  else()
    message(STATUS "oneDNN not found: convolutions and matrix products use Eigen, which is slower")
  endif()
endif()

# Gloo connects processes on CPUs. ThreadSanitizer does not see its synchronisation, and would report false races.
option(TAPESTRY_GLOO "Use Gloo if it is found" ON)
if(TAPESTRY_GLOO AND NOT TAPESTRY_SANITIZE MATCHES "thread")
  find_package(Gloo CONFIG QUIET)
  if(TARGET gloo)
    target_link_libraries(tapestry_private INTERFACE gloo)
    set_source_files_properties(
      ${PROJECT_SOURCE_DIR}/distributed/comm/gloo_backend.cpp
      ${PROJECT_SOURCE_DIR}/distributed/comm/internal/gloo_device.cpp
      ${PROJECT_SOURCE_DIR}/distributed/comm/internal/gloo_transport.cpp PROPERTIES
      COMPILE_DEFINITIONS TAPESTRY_HAS_GLOO=1)
    get_target_property(gloo_include_dirs gloo INTERFACE_INCLUDE_DIRECTORIES)
    find_file(TAPESTRY_GLOO_MEMORY_H gloo/common/memory.h HINTS ${gloo_include_dirs})
    mark_as_advanced(TAPESTRY_GLOO_MEMORY_H)
    if(NOT TAPESTRY_GLOO_MEMORY_H)
      set_source_files_properties(${PROJECT_SOURCE_DIR}/distributed/comm/internal/gloo_device.cpp PROPERTIES
        INCLUDE_DIRECTORIES ${PROJECT_SOURCE_DIR}/cmake/gloo)
    endif()
  else()
    message(STATUS "Gloo not found (libgloo-dev): processes on CPUs cannot use collectives")
  endif()
endif()

# Images. Only the files that call these libraries see their headers.
option(TAPESTRY_PNG "Use libpng if it is found" ON)
option(TAPESTRY_JPEG "Use libjpeg-turbo if it is found" ON)
foreach(format PNG:png:libpng-dev JPEG:jpeg:libjpeg-dev)
  string(REPLACE ":" ";" format ${format})
  list(GET format 0 name)
  list(GET format 1 file)
  list(GET format 2 package)
  if(TAPESTRY_${name})
    find_package(${name} QUIET)
    if(${name}_FOUND)
      target_link_libraries(tapestry_private INTERFACE ${name}::${name})
      set_source_files_properties(${PROJECT_SOURCE_DIR}/data/formats/internal/${file}.cpp PROPERTIES
        COMPILE_DEFINITIONS TAPESTRY_HAS_${name}=1)
    else()
      message(STATUS "${name} not found (${package}): images in this format cannot be read")
    endif()
  endif()
endforeach()

# PCRE2 splits text into words for the tokenizers.
option(TAPESTRY_PCRE2 "Use PCRE2 if it is found" ON)
if(TAPESTRY_PCRE2)
  find_library(TAPESTRY_PCRE2_LIBRARY NAMES pcre2-8)
  find_path(TAPESTRY_PCRE2_INCLUDE_DIR pcre2.h)
  if(TAPESTRY_PCRE2_LIBRARY AND TAPESTRY_PCRE2_INCLUDE_DIR)
    target_link_libraries(tapestry_private INTERFACE ${TAPESTRY_PCRE2_LIBRARY})
    target_include_directories(tapestry_private SYSTEM INTERFACE ${TAPESTRY_PCRE2_INCLUDE_DIR})
    set_source_files_properties(${PROJECT_SOURCE_DIR}/data/tokenizer/internal/word_splitter.cpp PROPERTIES
      COMPILE_DEFINITIONS TAPESTRY_HAS_PCRE2=1)
  else()
    message(STATUS "PCRE2 not found (libpcre2-dev): there are no tokenizers")
  endif()
endif()

# ICU normalizes text for the tokenizers of Qwen2.
option(TAPESTRY_ICU "Use ICU if it is found" ON)
if(TAPESTRY_ICU)
  find_library(TAPESTRY_ICU_LIBRARY NAMES icuuc)
  find_path(TAPESTRY_ICU_INCLUDE_DIR unicode/normalizer2.h)
  if(TAPESTRY_ICU_LIBRARY AND TAPESTRY_ICU_INCLUDE_DIR)
    target_link_libraries(tapestry_private INTERFACE ${TAPESTRY_ICU_LIBRARY})
    target_include_directories(tapestry_private SYSTEM INTERFACE ${TAPESTRY_ICU_INCLUDE_DIR})
    set_source_files_properties(${PROJECT_SOURCE_DIR}/data/tokenizer/internal/nfc.cpp PROPERTIES
      COMPILE_DEFINITIONS TAPESTRY_HAS_ICU=1)
  else()
    message(STATUS "ICU not found (libicu-dev): tokenizers that normalize text take no characters from U+0300 on")
  endif()
endif()

# Only the tests use Catch2.
find_path(TAPESTRY_CATCH2_INCLUDE_DIR NAMES catch2/catch_all.hpp catch2/catch.hpp)
