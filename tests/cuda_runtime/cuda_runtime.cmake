# Tests of core/cuda/runtime.cpp and of kernel launches, which call the stand-in CUDA runtime instead of a GPU's.
# They need the CUDA toolkit's headers and nvcc, but no GPU, and run in builds without CUDA and under ASan too: there
# the program compiles core/cuda/runtime.cpp itself, and the library has no CUDA devices.
configure_file(support/cuda_runtime/exports.map.in ${PROJECT_BINARY_DIR}/stand_in/exports.map @ONLY)

# The copy of the runtime that a module has which links it statically. Its functions are hidden, as in libcudart_static.a.
add_library(tests_cudart_copy OBJECT support/cuda_runtime/runtime.cpp)
target_compile_options(tests_cudart_copy PRIVATE -fvisibility=hidden)
# The shared library that takes the place of libcudart, in a folder that LD_LIBRARY_PATH can name.
add_library(tests_cudart SHARED support/cuda_runtime/control.cpp support/cuda_runtime/driver.cpp
  support/cuda_runtime/ptx.cpp support/cuda_runtime/runtime.cpp)
set_target_properties(tests_cudart PROPERTIES OUTPUT_NAME cudart LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/stand_in
  VERSION ${CUDAToolkit_VERSION_MAJOR} SOVERSION ${CUDAToolkit_VERSION_MAJOR})
target_link_options(tests_cudart PRIVATE LINKER:--version-script=${PROJECT_BINARY_DIR}/stand_in/exports.map)
foreach(target tests_cudart_copy tests_cudart)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_include_directories(${target} SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
  target_link_libraries(${target} PRIVATE tapestry_warnings)
endforeach()

# kernels.cu is compiled to PTX only: nothing here runs machine code.
set(nvcc_options -std=c++20 --no-compress --expt-relaxed-constexpr --generate-code=arch=compute_80,code=compute_80
  -I${PROJECT_SOURCE_DIR} -I${PROJECT_BINARY_DIR}/include -Xcompiler=-fPIC)
if(TAPESTRY_SANITIZE)
  string(REPLACE "," "\\," sanitize "-fsanitize=${TAPESTRY_SANITIZE}")
  list(APPEND nvcc_options "-Xcompiler=${sanitize}" -Xcompiler=-fno-sanitize-recover=undefined)
endif()
foreach(module first second)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/cuda_runtime_${module}.o)
  add_custom_command(OUTPUT ${object}
    COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} ${nvcc_options} -DMODULE=${module} -MD -MF ${object}.d
      -c ${CMAKE_CURRENT_SOURCE_DIR}/cuda_runtime/kernels.cu -o ${object}
    DEPENDS cuda_runtime/kernels.cu DEPFILE ${object}.d VERBATIM)
endforeach()

add_library(tests_cuda_module SHARED ${CMAKE_CURRENT_BINARY_DIR}/cuda_runtime_second.o $<TARGET_OBJECTS:tests_cudart_copy>)
set_target_properties(tests_cuda_module PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(tests_cuda_module PRIVATE tests_cudart tapestry)

target_sources(tests_cuda_runtime PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/cuda_runtime_first.o)
target_include_directories(tests_cuda_runtime SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
if(TAPESTRY_CUDA_FOUND AND CMAKE_CUDA_RUNTIME_LIBRARY STREQUAL "Shared")
  target_compile_definitions(tests_cuda_runtime PRIVATE TAPESTRY_LIBRARY_HAS_CUDA=1)
else()
  target_sources(tests_cuda_runtime PRIVATE ${PROJECT_SOURCE_DIR}/core/cuda/runtime.cpp)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/core/cuda/runtime.cpp APPEND PROPERTY COMPILE_DEFINITIONS TAPESTRY_HAS_CUDA=1)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/core/cuda/runtime.cpp PROPERTY SKIP_PRECOMPILE_HEADERS ON)
endif()
# The program's own dependencies are loaded before those of its libraries, so the stand-in comes before libcudart.
target_link_libraries(tests_cuda_runtime PRIVATE tests_cudart tests_cuda_module tapestry_ptx)

get_property(all_tests DIRECTORY PROPERTY TESTS)
list(FILTER all_tests INCLUDE REGEX "^cuda_runtime\\.")
add_test(NAME cuda_runtime.sync_launches COMMAND tests_cuda_runtime "[sync_launches]")
set_tests_properties(cuda_runtime.sync_launches PROPERTIES TIMEOUT ${TAPESTRY_TEST_TIMEOUT} LABELS cuda_runtime
  ENVIRONMENT "${environment};TAPESTRY_SYNC_LAUNCHES=1")
# Missing entry points of the stand-in fail at the start, not when they are called.
foreach(test ${all_tests} cuda_runtime.sync_launches)
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT LD_BIND_NOW=1)
endforeach()

# The tests for real GPUs of tests/core, on the stand-in.
if(TAPESTRY_CUDA_FOUND AND CMAKE_CUDA_RUNTIME_LIBRARY STREQUAL "Shared")
  add_test(NAME cuda_runtime.core_cuda_gpu COMMAND tests_core -\# "[\#cuda_gpu_test]" ${fail_without_tests})
  set_tests_properties(cuda_runtime.core_cuda_gpu PROPERTIES TIMEOUT ${TAPESTRY_TEST_TIMEOUT} LABELS cuda_runtime ENVIRONMENT
    "${environment};LD_LIBRARY_PATH=$<TARGET_FILE_DIR:tests_cudart>;TAPESTRY_STAND_IN_EXIT=ignore;TAPESTRY_REQUIRE_CUDA=1")
endif()
