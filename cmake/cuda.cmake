# The CUDA toolkit, and what else of NVIDIA's is used where it is found. What a build without CUDA compiles, a build with
# it compiles with the same flags: CUDA's headers and definitions go to the files that use them alone.
set(TAPESTRY_CUDA_FOUND OFF)
set(TAPESTRY_CUDA_ARCHITECTURES "80;90" CACHE STRING "GPUs to compile for, as CMAKE_CUDA_ARCHITECTURES; native: this machine's")
if(NOT TAPESTRY_CUDA)
  return()
endif()

find_package(CUDAToolkit QUIET)
set(use_cuda ${CUDAToolkit_FOUND})
if(TAPESTRY_CUDA STREQUAL "auto" AND NOT EXISTS /proc/driver/nvidia/version AND NOT EXISTS /dev/nvidiactl)
  set(use_cuda OFF)
endif()
if(use_cuda)
  if(CUDAToolkit_NVCC_EXECUTABLE AND NOT DEFINED ENV{CUDACXX})
    set(ENV{CUDACXX} ${CUDAToolkit_NVCC_EXECUTABLE})  # which need not be on the PATH
  endif()
  include(CheckLanguage)
  check_language(CUDA)
  set(use_cuda ${CMAKE_CUDA_COMPILER})
endif()
if(NOT use_cuda)
  if(NOT TAPESTRY_CUDA MATCHES "^(auto|toolkit)$")
    message(FATAL_ERROR "TAPESTRY_CUDA=${TAPESTRY_CUDA}, and no CUDA toolkit was found: put nvcc on the PATH, or set CUDAToolkit_ROOT.")
  endif()
  message(STATUS "CUDA: not used (TAPESTRY_CUDA=${TAPESTRY_CUDA}, toolkit: ${CUDAToolkit_FOUND})")
  return()
endif()
set(TAPESTRY_CUDA_FOUND ON)
message(STATUS "CUDA: ${CUDAToolkit_VERSION}, for ${TAPESTRY_CUDA_ARCHITECTURES}")

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${TAPESTRY_CUDA_ARCHITECTURES})
endif()
# Relaxed: constexpr functions of core are called on the GPU too. 445 minds the lambdas of for_types(), which take a type
# and no argument.
string(APPEND CMAKE_CUDA_FLAGS " --expt-relaxed-constexpr --diag-suppress=445")
enable_language(CUDA)
# CMake 3.25 does not know how to ask nvcc 13 for the standard that C++ sources have.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)

# The runtime is linked in, so that the library runs where there is no CUDA. The driver is asked for at run time.
target_link_libraries(tapestry_private INTERFACE CUDA::cudart_static)

# Files that see CUDA's headers. Others keep the compile commands, and with them the cached objects, that they have in a
# build without.
function(tapestry_uses_cuda)
  cmake_parse_arguments(uses "" "" "FILES;INCLUDES;DEFINITIONS" ${ARGN})
  set_property(SOURCE ${uses_FILES} APPEND PROPERTY INCLUDE_DIRECTORIES ${CUDAToolkit_INCLUDE_DIRS} ${uses_INCLUDES})
  set_property(SOURCE ${uses_FILES} APPEND PROPERTY COMPILE_DEFINITIONS TAPESTRY_HAS_CUDA=1 ${uses_DEFINITIONS})
endfunction()
tapestry_uses_cuda(FILES ${PROJECT_SOURCE_DIR}/core/cuda/runtime.cpp)

# Libraries that come with the toolkit, in the system, or in Python's nvidia packages: there with headers, and libraries
# without the name that linkers look for.
find_program(PYTHON3_PROGRAM NAMES python3 python)
if(PYTHON3_PROGRAM AND NOT DEFINED NVIDIA_PACKAGES)
  execute_process(OUTPUT_VARIABLE packages OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
    COMMAND ${PYTHON3_PROGRAM} -c "import importlib.util as u; s = u.find_spec('nvidia'); print(';'.join(s.submodule_search_locations if s else []))")
  set(NVIDIA_PACKAGES "${packages}" CACHE STRING "Folders of Python's nvidia packages")
endif()
# <name>_INCLUDE_DIR and <name>_LIBRARY, in the cache.
function(tapestry_find_nvidia name header library)
  set(includes ${CUDAToolkit_INCLUDE_DIRS})
  set(libraries ${CUDAToolkit_LIBRARY_DIR})
  foreach(folder ${NVIDIA_PACKAGES})
    file(GLOB more_includes ${folder}/*/include)
    file(GLOB more_libraries ${folder}/*/lib)
    list(APPEND includes ${more_includes})
    list(APPEND libraries ${more_libraries})
  endforeach()
  find_path(${name}_INCLUDE_DIR ${header} HINTS ${includes})
  set(versioned)
  foreach(folder ${libraries})
    file(GLOB more ${folder}/lib${library}.so.*)
    list(APPEND versioned ${more})
  endforeach()
  list(TRANSFORM versioned REPLACE ".*/" "")
  find_library(${name}_LIBRARY NAMES ${library} ${versioned} HINTS ${libraries})
endfunction()

tapestry_find_nvidia(NCCL nccl.h nccl)
if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY)
  message(STATUS "NCCL: ${NCCL_LIBRARY}")
  target_link_libraries(tapestry_private INTERFACE ${NCCL_LIBRARY})
  tapestry_uses_cuda(FILES ${PROJECT_SOURCE_DIR}/distributed/comm/nccl_backend.cpp
    INCLUDES ${NCCL_INCLUDE_DIR} DEFINITIONS TAPESTRY_HAS_NCCL=1)
else()
  message(STATUS "NCCL not found: no collectives between GPUs but through the host")
endif()

# The peer of the convolutions: tools/gpu_check wants it there.
tapestry_find_nvidia(CUDNN cudnn.h cudnn)
