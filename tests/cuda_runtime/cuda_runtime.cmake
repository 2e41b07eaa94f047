# Tests of core/cuda/runtime.cpp and of kernel launches, which call the CUDA runtime over the PTX machine instead of a GPU's.
# They need the CUDA toolkit's headers and nvcc, but no GPU, and run in builds without CUDA and under ASan too: there
# the program compiles core/cuda/runtime.cpp itself, and the library has no CUDA devices.

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

add_library(tests_cuda_module SHARED ${CMAKE_CURRENT_BINARY_DIR}/cuda_runtime_second.o $<TARGET_OBJECTS:tapestry_cudart_copy>)
set_target_properties(tests_cuda_module PROPERTIES LINKER_LANGUAGE CXX)
target_link_libraries(tests_cuda_module PRIVATE tapestry_cudart tapestry)

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
target_link_libraries(tests_cuda_runtime PRIVATE tapestry_cudart tests_cuda_module)

if(NOT TAPESTRY_SANITIZE)
  # counters_test.cpp reads the registers of the library's kernels, and judges counts as the machine does.
  target_sources(tests_cuda_runtime PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/device_code/device_code.cpp)
  target_link_libraries(tests_cuda_runtime PRIVATE tapestry_ptx ${CMAKE_DL_LIBS})
  # proof_page_test.cpp runs the page's program by tapestry-ptx.
  ptx_cuda_program(scale_rows SOURCES ${PROJECT_SOURCE_DIR}/docs/tutorials/how-a-kernel-is-proved/scale_rows.cu
    OPTIONS --expt-relaxed-constexpr -I${PROJECT_BINARY_DIR}/include)
  set(command ${PROJECT_SOURCE_DIR}/tools/ptx/tests/laboratory/command.cpp)
  target_sources(tests_cuda_runtime PRIVATE ${command} ${PROJECT_SOURCE_DIR}/tools/ptx/tests/laboratory/page.cpp)
  set_source_files_properties(${command} PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_DEFINITIONS
    "TAPESTRY_PTX=\"$<TARGET_FILE:tapestry-ptx>\";TAPESTRY_LABORATORY=\"$<TARGET_FILE_DIR:scale_rows>\"")
  add_dependencies(tests_cuda_runtime tapestry-ptx scale_rows)
endif()

if(TARGET standin_nccl)
  add_dependencies(tests_cuda_runtime standin_nccl)
  set_property(SOURCE cuda_runtime/nccl_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS
    TAPESTRY_STANDIN_NCCL="$<TARGET_FILE:standin_nccl>")
  set_property(SOURCE cuda_runtime/nccl_test.cpp PROPERTY SKIP_PRECOMPILE_HEADERS ON)
endif()

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
    "${environment};LD_LIBRARY_PATH=$<TARGET_FILE_DIR:tapestry_cudart>;TAPESTRY_PTX_EXIT=keep;TAPESTRY_PTX_DEVICES=2;TAPESTRY_REQUIRE_CUDA=1")
endif()
