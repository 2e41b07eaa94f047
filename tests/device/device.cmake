# The program tests_gpu: the tests of CUDA devices, which run the library's own kernels. It also contains tests/autograd/*_test.cpp, and
# runs each GOLDEN_OP on cuda:0. gpu.* need a GPU, and are skipped without one; machine.cmake runs the same tests on the PTX machine.
file(GLOB gpu_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/device/*.cpp)
add_executable(tests_gpu ${gpu_sources} ${PROJECT_SOURCE_DIR}/tools/bench/gpu/tutorial_kernels.cu $<TARGET_OBJECTS:tests_autograd>
  $<TARGET_OBJECTS:tests_support>)
target_link_libraries(tests_gpu PRIVATE tests_support ${TAPESTRY_CUDART} ${CMAKE_DL_LIBS})
target_precompile_headers(tests_gpu REUSE_FROM tests_support)

file(GLOB op_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/autograd/*_test.cpp)
list(FILTER gpu_sources INCLUDE REGEX "_test\\.cpp$")
foreach(source ${gpu_sources} ${op_sources})
  cmake_path(GET source STEM stem)
  string(REGEX REPLACE "_test$" "" unit ${stem})
  if(source MATCHES "/autograd/")
    file(STRINGS ${source} has_cases REGEX "^GOLDEN_OP" LIMIT_COUNT 1)
    get_target_property(built tests_autograd SOURCES)
    if(NOT has_cases OR NOT "autograd/${stem}.cpp" IN_LIST built)
      continue()
    endif()
    set(name gpu.op_${unit})
    set(select "[\#${stem}][device]")
  else()
    set(name gpu.${unit})
    set(select "[\#${stem}]~[.]")
  endif()
  add_test(NAME ${name} COMMAND tests_gpu -\# "${select}" ${fail_without_tests})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${TAPESTRY_TEST_TIMEOUT} LABELS gpu ENVIRONMENT "${environment}"
    SKIP_REGULAR_EXPRESSION "skipped: no CUDA device")
endforeach()

# These tests need two devices. On a machine with one GPU, they use two logical devices.
foreach(test core.cuda_gpu gpu.data_parallel gpu.pipeline gpu.ranks gpu.sharded_data_parallel gpu.fsdp)
  if(TEST ${test})
    set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT TAPESTRY_LOGICAL_DEVICES=2)
  endif()
endforeach()
