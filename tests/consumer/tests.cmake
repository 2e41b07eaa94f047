# Builds the project in tests/consumer/project with an install tree, and with the source tree inside it. If the library
# has CUDA, a consumer's kernel is compiled and launched too: on a GPU if there is one, and on the stand-in runtime if the
# library uses the shared CUDA runtime.
set(consumer_cuda)
if(TAPESTRY_CUDA_FOUND)
  string(REGEX MATCH "[0-9]+" architecture "${CMAKE_CUDA_ARCHITECTURES}")
  if(NOT architecture)
    set(architecture native)
  else()
    set(architecture sm_${architecture})
  endif()
  set(consumer_cuda -D NVCC=${CMAKE_CUDA_COMPILER} -D ARCH=${architecture})
  if(TARGET tapestry_cudart AND CMAKE_CUDA_RUNTIME_LIBRARY STREQUAL "Shared")
    list(APPEND consumer_cuda -D STAND_IN=$<TARGET_FILE_DIR:tapestry_cudart>)
  endif()
endif()
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
get_property(programs GLOBAL PROPERTY TAPESTRY_PROGRAMS)
set(loops "")
if(TARGET tapestry_loops)
  set(loops -D LOOPS=$<TARGET_FILE:tapestry_loops>)
endif()
set(ways subdirectory whole_subdirectory)
if(TAPESTRY_INSTALL)
  list(APPEND ways install)
endif()
foreach(way ${ways})
  add_test(NAME consumer.${way} COMMAND ${CMAKE_COMMAND}
    -D WAY=${way} -D SOURCE=${PROJECT_SOURCE_DIR} -D BUILD=${PROJECT_BINARY_DIR} -D LIBRARY=$<TARGET_FILE:tapestry> ${loops}
    -D WORK=${PROJECT_BINARY_DIR}/consumer/${way} -D GENERATOR=${CMAKE_GENERATOR} -D COMPILER=${CMAKE_CXX_COMPILER}
    -D LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER} -D JOBS=${cores} -D "PROGRAMS=${programs}" ${consumer_cuda}
    -P ${CMAKE_CURRENT_LIST_DIR}/run.cmake)
  set_tests_properties(consumer.${way} PROPERTIES TIMEOUT 900 LABELS consumer)
endforeach()
# This takes three minutes on two cores. It finds single files that fail to compile inside another project.
set_tests_properties(consumer.whole_subdirectory PROPERTIES LABELS "consumer;long")

# Loads the library into a program that has used up most of the static TLS, and libstdc++'s thread-local variables. The
# program is not linked with libstdc++.
add_executable(load_late ${CMAKE_CURRENT_LIST_DIR}/load_late.cpp)
target_link_libraries(load_late PRIVATE ${CMAKE_DL_LIBS})
target_link_options(load_late PRIVATE LINKER:--as-needed)
set(loaded_first)
foreach(name uses_libstdcxx takes_static_tls takes_more_static_tls)
  add_library(${name} MODULE ${CMAKE_CURRENT_LIST_DIR}/loaded_first.cpp)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/consumer)
  if(name MATCHES "static_tls")
    target_compile_definitions(${name} PRIVATE STATIC_TLS_BYTES=448)
  endif()
  add_dependencies(load_late ${name})
  list(APPEND loaded_first $<TARGET_FILE:${name}>)
endforeach()
add_test(NAME consumer.load_late COMMAND load_late ${loaded_first} $<TARGET_FILE:tapestry>)
set_tests_properties(consumer.load_late PROPERTIES TIMEOUT 60 LABELS consumer)

add_test(NAME consumer.exports COMMAND ${CMAKE_COMMAND} -D NM=${CMAKE_NM} -D LIBRARY=$<TARGET_FILE:tapestry>
  -P ${CMAKE_CURRENT_LIST_DIR}/exports.cmake)
set_tests_properties(consumer.exports PROPERTIES TIMEOUT 60 LABELS consumer)

foreach(compiler g++ clang++)
  string(REPLACE "++" "" name ${compiler})
  string(TOUPPER TAPESTRY_${name}XX variable)
  find_program(${variable} ${compiler})
  if(${variable})
    add_test(NAME consumer.${compiler} COMMAND ${CMAKE_COMMAND} -D COMPILER=${${variable}}
      -D INCLUDE=${PROJECT_BINARY_DIR}/include -D HEADERS=${CMAKE_CURRENT_BINARY_DIR}/headers/all.cpp
      -D WORK=${PROJECT_BINARY_DIR}/consumer/${name} -P ${CMAKE_CURRENT_LIST_DIR}/compilers.cmake)
  else()
    add_test(NAME consumer.${compiler} COMMAND ${CMAKE_COMMAND} -E echo "skipped: ${compiler} is not installed")
  endif()
  set_tests_properties(consumer.${compiler} PROPERTIES TIMEOUT 300 LABELS consumer SKIP_REGULAR_EXPRESSION "^skipped: ")
endforeach()
