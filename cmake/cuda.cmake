# Finds the CUDA toolkit and NCCL's header. C++ files that do not use CUDA have the same compile commands with and
# without it, so that a compiler cache serves both builds: only files that use CUDA see its headers and definitions.
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
    set(ENV{CUDACXX} ${CUDAToolkit_NVCC_EXECUTABLE})  # nvcc need not be on the PATH
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
# Kernels call constexpr functions of core, which needs --expt-relaxed-constexpr. Warning 445 objects to for_types(), whose
# lambdas have a template parameter that no argument uses.
string(APPEND CMAKE_CUDA_FLAGS " --expt-relaxed-constexpr --diag-suppress=445")
enable_language(CUDA)
# CMake 3.25 does not know the C++20 option of nvcc 13.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)

# CMAKE_CUDA_RUNTIME_LIBRARY selects the CUDA runtime. Static, the default, makes a library that also loads on machines
# without CUDA. With Shared, another library of the same name can replace the runtime: CI's tests do that.
set(TAPESTRY_CUDART CUDA::cudart_static)
if(CMAKE_CUDA_RUNTIME_LIBRARY STREQUAL "Shared")
  set(TAPESTRY_CUDART CUDA::cudart)
endif()
target_link_libraries(tapestry_private INTERFACE ${TAPESTRY_CUDART})

# tapestry_uses_cuda(FILES ... [INCLUDES ...] [DEFINITIONS ...]): these files see CUDA's headers and TAPESTRY_HAS_CUDA.
function(tapestry_uses_cuda)
  cmake_parse_arguments(uses "" "" "FILES;INCLUDES;DEFINITIONS" ${ARGN})
  set_property(SOURCE ${uses_FILES} APPEND PROPERTY INCLUDE_DIRECTORIES ${CUDAToolkit_INCLUDE_DIRS} ${uses_INCLUDES})
  set_property(SOURCE ${uses_FILES} APPEND PROPERTY COMPILE_DEFINITIONS TAPESTRY_HAS_CUDA=1 ${uses_DEFINITIONS})
endfunction()
tapestry_uses_cuda(FILES ${PROJECT_SOURCE_DIR}/core/cuda/runtime.cpp)

# nccl.h comes with the toolkit, with the system, or in Python's nvidia packages. vendor.cmake uses it.
find_program(TAPESTRY_PYTHON NAMES python3 python)
if(TAPESTRY_PYTHON AND NOT DEFINED TAPESTRY_NVIDIA_PACKAGES)
  execute_process(OUTPUT_VARIABLE packages OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
    COMMAND ${TAPESTRY_PYTHON} -c "import importlib.util as u; s = u.find_spec('nvidia'); print(';'.join(s.submodule_search_locations if s else []))")
  set(TAPESTRY_NVIDIA_PACKAGES "${packages}" CACHE STRING "Folders of Python's nvidia packages")
endif()
set(nccl_folders ${CUDAToolkit_INCLUDE_DIRS})
foreach(folder ${TAPESTRY_NVIDIA_PACKAGES})
  file(GLOB includes ${folder}/*/include)
  list(APPEND nccl_folders ${includes})
endforeach()
find_path(TAPESTRY_NCCL_INCLUDE_DIR nccl.h HINTS ${nccl_folders})
