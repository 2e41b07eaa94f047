# The tests of tests_gpu on the PTX machine: the library's launches run through the CUDA runtime of tools/ptx/runtime, which
# executes the PTX that nvcc made of the kernels. Unwritten shared memory may be read, because products of ragged tiles load it and
# drop the results. Searching races takes up to three times as long, so machine.sizes, machine.extremes, machine.classifier
# and machine.large do without. tools/test --full adds machine.races_sizes and machine.large.
set(machine_launches ${PROJECT_BINARY_DIR}/machine_launches)
add_test(NAME machine.forget COMMAND sh -c "rm -rf \"$0\" && mkdir -p \"$0\"" ${machine_launches})
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
  set(on_machine "${environment};LD_LIBRARY_PATH=$<TARGET_FILE_DIR:tapestry_cudart>;TAPESTRY_REQUIRE_CUDA=1;TAPESTRY_LOGICAL_DEVICES=4")
  set(checks initialised,races)
  if(unit STREQUAL "extremes")  # other tests launch these kernels, with ordinary values
    set(checks initialised)
  elseif(unit STREQUAL "sizes")
    set(checks initialised)
    add_test(NAME machine.races_sizes COMMAND tests_gpu -\# "${select}" ${fail_without_tests})
    set_tests_properties(machine.races_sizes PROPERTIES TIMEOUT 3600 LABELS "machine;long" ENVIRONMENT
      "${on_machine};TAPESTRY_PTX_CHECK=initialised,races")
  endif()
  add_test(NAME machine.${unit} COMMAND tests_gpu -\# "${select}" ${fail_without_tests})
  set_tests_properties(machine.${unit} PROPERTIES TIMEOUT ${TAPESTRY_TEST_TIMEOUT} LABELS machine FIXTURES_SETUP machine_run
    FIXTURES_REQUIRED machine_forgotten ENVIRONMENT
    "${on_machine};TAPESTRY_PTX_CHECK=${checks};TAPESTRY_PTX_LAUNCHES=${machine_launches}/${unit}")
endforeach()
add_test(NAME machine.large COMMAND tests_gpu "[.large]" ${fail_without_tests})
set_tests_properties(machine.large PROPERTIES TIMEOUT 3600 LABELS "machine;long" ENVIRONMENT "${on_machine};TAPESTRY_PTX_CHECK=initialised")
if(TARGET classifier)
  add_test(NAME machine.classifier COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/device/classifier.sh $<TARGET_FILE:classifier>)
  set_tests_properties(machine.classifier PROPERTIES TIMEOUT ${TAPESTRY_TEST_TIMEOUT} LABELS machine ENVIRONMENT
    "${on_machine};TAPESTRY_PTX_CHECK=initialised")
endif()
# Every kernel that nvcc compiled has run, except those of not_on_machine.txt.
set(objects $<FILTER:$<TARGET_OBJECTS:tapestry>,INCLUDE,\\.cu\\.o$> $<FILTER:$<TARGET_OBJECTS:tapestry_base>,INCLUDE,\\.cu\\.o$>)
add_test(NAME machine.coverage COMMAND ${CMAKE_COMMAND} -E env NOT_RUN=${CMAKE_CURRENT_SOURCE_DIR}/device/not_on_machine.txt
  ${CMAKE_CURRENT_SOURCE_DIR}/device/coverage.sh ${machine_launches} ${objects} COMMAND_EXPAND_LISTS)
set_tests_properties(machine.coverage PROPERTIES LABELS machine FIXTURES_REQUIRED machine_run)
# The launches are known to device_code.resources, which checks them against the kernels' launch bounds.
if(TEST device_code.resources)
  get_property(machine_tests DIRECTORY PROPERTY TESTS)
  list(FILTER machine_tests INCLUDE REGEX "^machine\\.")
  set_tests_properties(device_code.resources PROPERTIES DEPENDS "${machine_tests}")
endif()
# The wrappers of PTX instructions, lane by lane.
add_test(NAME machine.lanes COMMAND tests_ptx ${fail_without_tests})
set_tests_properties(machine.lanes PROPERTIES TIMEOUT ${TAPESTRY_TEST_TIMEOUT} LABELS machine ENVIRONMENT
  "${on_machine};TAPESTRY_PTX_CHECK=initialised,races")
