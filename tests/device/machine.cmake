# The tests of tests_gpu on the PTX machine: the library's launches run through the CUDA runtime of tools/ptx/runtime, which
# executes the PTX that nvcc made of the kernels. Races are not searched, because that takes three times as long, and unwritten
# shared memory may be read, because products of ragged tiles load it and drop the results.
set(machine_launches ${PROJECT_BINARY_DIR}/machine_launches)
add_test(NAME machine.forget COMMAND sh -c "rm -rf \"$0\" && mkdir \"$0\"" ${machine_launches})
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
  add_test(NAME machine.${unit} COMMAND tests_gpu -\# "${select}" ${fail_without_tests})
  set_tests_properties(machine.${unit} PROPERTIES TIMEOUT ${TAPESTRY_TEST_TIMEOUT} LABELS machine FIXTURES_SETUP machine_run
    FIXTURES_REQUIRED machine_forgotten ENVIRONMENT
    "${environment};LD_LIBRARY_PATH=$<TARGET_FILE_DIR:tapestry_cudart>;TAPESTRY_REQUIRE_CUDA=1;TAPESTRY_LOGICAL_DEVICES=2;TAPESTRY_PTX_CHECK=initialised;TAPESTRY_PTX_LAUNCHES=${machine_launches}/${unit}")
endforeach()
# Every kernel that nvcc compiled has run, except those of not_on_machine.txt.
set(objects $<FILTER:$<TARGET_OBJECTS:tapestry>,INCLUDE,\\.cu\\.o$>)
add_test(NAME machine.coverage COMMAND ${CMAKE_COMMAND} -E env NOT_RUN=${CMAKE_CURRENT_SOURCE_DIR}/device/not_on_machine.txt
  ${CMAKE_CURRENT_SOURCE_DIR}/device/coverage.sh ${machine_launches} ${objects} COMMAND_EXPAND_LISTS)
set_tests_properties(machine.coverage PROPERTIES LABELS machine FIXTURES_REQUIRED machine_run)
