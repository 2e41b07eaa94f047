# The project in tests/consumer/project, built against an install tree and around the source tree.
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
get_property(programs GLOBAL PROPERTY TAPESTRY_PROGRAMS)
foreach(way install subdirectory whole_subdirectory)
  add_test(NAME consumer.${way} COMMAND ${CMAKE_COMMAND}
    -D WAY=${way} -D SOURCE=${PROJECT_SOURCE_DIR} -D BUILD=${PROJECT_BINARY_DIR} -D LIBRARY=$<TARGET_FILE:tapestry>
    -D WORK=${PROJECT_BINARY_DIR}/consumer/${way} -D GENERATOR=${CMAKE_GENERATOR} -D COMPILER=${CMAKE_CXX_COMPILER}
    -D LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER} -D JOBS=${cores} -D "PROGRAMS=${programs}" -P ${CMAKE_CURRENT_LIST_DIR}/run.cmake)
  set_tests_properties(consumer.${way} PROPERTIES TIMEOUT 900 PROCESSORS ${cores} LABELS consumer)
endforeach()
# Three minutes on two cores, to find what a file alone can do wrong as a part of another project.
set_tests_properties(consumer.whole_subdirectory PROPERTIES LABELS "consumer;long")

add_executable(load_late ${CMAKE_CURRENT_LIST_DIR}/load_late.cpp)
target_link_libraries(load_late PRIVATE ${CMAKE_DL_LIBS})
add_test(NAME consumer.load_late COMMAND load_late $<TARGET_FILE:tapestry>)
set_tests_properties(consumer.load_late PROPERTIES TIMEOUT 60 LABELS consumer)
