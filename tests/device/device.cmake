# The tests of CUDA devices are compiled into two programs:
#   tests_device   g++ compiles kernels/cuda/*.cu, and the emulator runs them on fake GPUs. These kernels register after the
#                  library's and take their slots.
#   tests_gpu      runs the library's own kernels on a GPU. Only builds with CUDA have this program.
# Both programs also contain tests/autograd/*_test.cpp, and run each GOLDEN_OP on cuda:0.
file(GLOB_RECURSE device_code CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/kernels/cuda/*.cu)
# The emulator does not know the instructions of kernels/cuda/hopper: the PTX machine executes those kernels.
list(FILTER device_code EXCLUDE REGEX "/cuda/(launch\\.cu$|hopper/)")

# All device code must be in kernels/cuda/, so that it is compiled for the emulator and tested.
file(GLOB_RECURSE everywhere CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/core/*.cu ${PROJECT_SOURCE_DIR}/kernels/*.cu
  ${PROJECT_SOURCE_DIR}/autograd/*.cu ${PROJECT_SOURCE_DIR}/nn/*.cu ${PROJECT_SOURCE_DIR}/data/*.cu
  ${PROJECT_SOURCE_DIR}/distributed/*.cu ${PROJECT_SOURCE_DIR}/apps/*.cu)
list(FILTER everywhere EXCLUDE REGEX "/kernels/cuda/(launch\\.cu$|hopper/)")
list(REMOVE_ITEM everywhere ${device_code})
if(everywhere)
  message(FATAL_ERROR "These are not compiled for the emulator: ${everywhere}. Device code lives in kernels/cuda/.")
endif()
if(TAPESTRY_CUDA_FOUND)
  foreach(source ${device_code})
    if(NOT source IN_LIST cuda_sources)
      message(FATAL_ERROR "${source} is not compiled into the library.")
    endif()
  endforeach()
endif()

tapestry_batches(device_batches ${device_code})
add_library(tests_emulated_kernels OBJECT ${device_batches})
set_source_files_properties(${device_batches} PROPERTIES LANGUAGE CXX)
target_include_directories(tests_emulated_kernels PRIVATE ${PROJECT_SOURCE_DIR}
  ${CMAKE_CURRENT_SOURCE_DIR}/support/cuda_emulator)
target_link_libraries(tests_emulated_kernels PRIVATE tapestry tapestry_warnings)
target_compile_options(tests_emulated_kernels PRIVATE -O1)
if(TAPESTRY_SANITIZE MATCHES "undefined")
  target_compile_options(tests_emulated_kernels PRIVATE ${TAPESTRY_CHECK_ALIGNMENT})
endif()

target_sources(tests_device PRIVATE $<TARGET_OBJECTS:tests_autograd> $<TARGET_OBJECTS:tests_emulated_kernels>)
tapestry_emulates_cuda(tests_device)

set(device_programs device)
if(TAPESTRY_CUDA_FOUND)
  list(APPEND device_programs gpu)
  file(GLOB gpu_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/device/*.cpp)
  add_executable(tests_gpu ${gpu_sources} $<TARGET_OBJECTS:tests_autograd> $<TARGET_OBJECTS:tests_support>)
  target_link_libraries(tests_gpu PRIVATE tests_support)
  target_precompile_headers(tests_gpu REUSE_FROM tests_support)
endif()

foreach(program ${device_programs})
  get_target_property(sources tests_${program} SOURCES)
  list(FILTER sources INCLUDE REGEX "_test\\.cpp$")
  file(GLOB op_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/autograd/*_test.cpp)
  foreach(source ${sources} ${op_sources})
    cmake_path(GET source STEM stem)
    string(REGEX REPLACE "_test$" "" unit ${stem})
    if(source MATCHES "/autograd/")
      file(STRINGS ${source} has_cases REGEX "^GOLDEN_OP" LIMIT_COUNT 1)
      get_target_property(built tests_autograd SOURCES)
      if(NOT has_cases OR NOT "autograd/${stem}.cpp" IN_LIST built)
        continue()
      endif()
      set(name ${program}.op_${unit})
      set(select "[\#${stem}][device]")
    elseif(program STREQUAL "device")
      continue()  # tests/CMakeLists.txt has added its entry
    else()
      set(name ${program}.${unit})
      set(select "[\#${stem}]~[.]")
    endif()
    add_test(NAME ${name} COMMAND tests_${program} -\# "${select}" ${fail_without_tests})
    set_tests_properties(${name} PROPERTIES TIMEOUT ${TAPESTRY_TEST_TIMEOUT} LABELS ${program} ENVIRONMENT "${environment}")
    if(program STREQUAL "gpu")
      set_tests_properties(${name} PROPERTIES SKIP_REGULAR_EXPRESSION "skipped: no CUDA device")
    endif()
  endforeach()
endforeach()

# These tests need two devices. On a machine with one GPU, they use two logical devices.
foreach(test core.cuda_gpu gpu.data_parallel gpu.pipeline gpu.ranks gpu.sharded_data_parallel gpu.fsdp)
  if(TEST ${test})
    set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT TAPESTRY_LOGICAL_DEVICES=2)
  endif()
endforeach()

set_property(TEST device.models APPEND PROPERTY ENVIRONMENT TAPESTRY_EMULATOR_SEED=1)  # starts the threads in another order

# The tests of emulated kernels record which kernels they launch, with which block sizes. kernels.coverage checks that nvcc
# compiled no other kernels, and device_code.resources checks the block sizes. The other programs that use the emulator are not
# recorded: docs/ and tests/ptx have kernels of their own, and the sanitizer presets do not compile for GPUs.
set(recorded ${PROJECT_BINARY_DIR}/emulated_launches)
get_property(all_tests DIRECTORY PROPERTY TESTS)
list(FILTER all_tests INCLUDE REGEX "^(emulated|device)\\.")
# The folder is emptied, because it may contain records of tests that no longer exist.
add_test(NAME kernels.forget COMMAND sh -c "rm -rf \"$0\" && mkdir \"$0\"" ${recorded})
set_tests_properties(kernels.forget PROPERTIES LABELS "emulated;device" FIXTURES_SETUP kernels_forgotten)
foreach(test ${all_tests})
  set_property(TEST ${test} APPEND PROPERTY ENVIRONMENT TAPESTRY_EMULATED_LAUNCHES=${recorded}/${test})
  set_tests_properties(${test} PROPERTIES FIXTURES_SETUP kernels_run FIXTURES_REQUIRED kernels_forgotten)
endforeach()
if(TAPESTRY_CUDA_FOUND)
  set(objects $<FILTER:$<TARGET_OBJECTS:tapestry>;$<TARGET_OBJECTS:tapestry_base>,INCLUDE,\\.cu\\.o$>)
  add_test(NAME kernels.coverage COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/device/coverage.sh ${recorded} ${objects}
    COMMAND_EXPAND_LISTS)
else()
  add_test(NAME kernels.coverage COMMAND ${CMAKE_COMMAND} -E echo "skipped: this build has no nvcc")
endif()
set_tests_properties(kernels.coverage PROPERTIES LABELS "emulated;device" FIXTURES_REQUIRED kernels_run
  SKIP_REGULAR_EXPRESSION "^skipped: ")
if(TEST device_code.resources)
  set_tests_properties(device_code.resources PROPERTIES DEPENDS "${all_tests}")
endif()
