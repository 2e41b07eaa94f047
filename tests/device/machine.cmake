# The tests of tests_gpu on the PTX machine: the library's launches run through the CUDA runtime of tools/ptx/runtime, which
# executes the PTX that nvcc made of the kernels. Unwritten shared memory may be read, because products of ragged tiles load it and
# drop the results. Searching races takes up to three times as long, so machine.sizes, whose launches are the largest, does without;
# tools/test --full runs machine.races_sizes.
set(machine_launches ${PROJECT_BINARY_DIR}/machine_launches)
set(golden_results ${PROJECT_BINARY_DIR}/golden_results)  # for machine.agreement
add_test(NAME machine.forget COMMAND sh -c "rm -rf \"$0\" \"$1\" && mkdir -p \"$0\" \"$1/emulated\" \"$1/machine\""
  ${machine_launches} ${golden_results})
set_tests_properties(machine.forget PROPERTIES LABELS machine FIXTURES_SETUP machine_forgotten)
get_property(gpu_tests DIRECTORY PROPERTY TESTS)
list(FILTER gpu_tests INCLUDE REGEX "^gpu\\.")
foreach(test ${gpu_tests})
  string(REGEX REPLACE "^gpu\\." "" unit ${test})
  if(unit MATCHES "^op_")
    string(REGEX REPLACE "^op_(.*)" "[#\\1_test][device]" select ${unit})
  else()
    set(select "[#${unit}_test]~[.]")
  endif()
  set(on_machine "${environment};LD_LIBRARY_PATH=$<TARGET_FILE_DIR:tapestry_cudart>;TAPESTRY_REQUIRE_CUDA=1;TAPESTRY_LOGICAL_DEVICES=2")
  set(checks initialised,races)
  if(unit STREQUAL "sizes")
    set(checks initialised)
    add_test(NAME machine.races_sizes COMMAND tests_gpu -\# "${select}" ${fail_without_tests})
    set_tests_properties(machine.races_sizes PROPERTIES TIMEOUT 3600 LABELS "machine;long" ENVIRONMENT
      "${on_machine};TAPESTRY_PTX_CHECK=initialised,races")
  endif()
  add_test(NAME machine.${unit} COMMAND tests_gpu -\# "${select}" ${fail_without_tests})
  set_tests_properties(machine.${unit} PROPERTIES TIMEOUT ${TAPESTRY_TEST_TIMEOUT} LABELS machine FIXTURES_SETUP machine_run
    FIXTURES_REQUIRED machine_forgotten ENVIRONMENT
    "${on_machine};TAPESTRY_PTX_CHECK=${checks};TAPESTRY_PTX_LAUNCHES=${machine_launches}/${unit}")
  if(unit MATCHES "^op_")
    set_property(TEST machine.${unit} APPEND PROPERTY ENVIRONMENT TAPESTRY_GOLDEN_RESULTS=${golden_results}/machine/${unit})
    set_property(TEST device.${unit} APPEND PROPERTY ENVIRONMENT TAPESTRY_GOLDEN_RESULTS=${golden_results}/emulated/${unit})
    set_property(TEST machine.${unit} device.${unit} APPEND PROPERTY FIXTURES_SETUP golden_results)
    set_property(TEST device.${unit} APPEND PROPERTY FIXTURES_REQUIRED machine_forgotten)
  endif()
endforeach()
if(TARGET classifier)
  add_test(NAME machine.classifier COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/device/classifier.sh $<TARGET_FILE:classifier>)
  set_tests_properties(machine.classifier PROPERTIES TIMEOUT ${TAPESTRY_TEST_TIMEOUT} LABELS machine ENVIRONMENT
    "${on_machine};TAPESTRY_PTX_CHECK=initialised")
endif()
# Both programs have recorded the same results of golden cases, bit by bit or within their bounds (tests/support/agreement.h).
add_test(NAME machine.agreement COMMAND tests_gpu "[.agreement]" ${fail_without_tests})
set_tests_properties(machine.agreement PROPERTIES LABELS machine FIXTURES_REQUIRED golden_results ENVIRONMENT
  "${on_machine};TAPESTRY_EMULATED_RESULTS=${golden_results}/emulated;TAPESTRY_MACHINE_RESULTS=${golden_results}/machine")
# Every kernel that nvcc compiled has run, except those of not_on_machine.txt.
set(objects $<FILTER:$<TARGET_OBJECTS:tapestry>;$<TARGET_OBJECTS:tapestry_base>,INCLUDE,\\.cu\\.o$>)
add_test(NAME machine.coverage COMMAND ${CMAKE_COMMAND} -E env NOT_RUN=${CMAKE_CURRENT_SOURCE_DIR}/device/not_on_machine.txt
  ${CMAKE_CURRENT_SOURCE_DIR}/device/coverage.sh ${machine_launches} ${objects} COMMAND_EXPAND_LISTS)
set_tests_properties(machine.coverage PROPERTIES LABELS machine FIXTURES_REQUIRED machine_run)
