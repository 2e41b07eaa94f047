# Libraries that tests open at run time: the stand-in NCCL, and one that has only version functions.
function(tapestry_test_library target output_name)
  add_library(${target} SHARED ${ARGN})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME ${output_name} POSITION_INDEPENDENT_CODE ON
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests/standin)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE tapestry_warnings)
endfunction()

tapestry_test_library(standin_versions tapestry_versions ${CMAKE_CURRENT_LIST_DIR}/versions.cpp)
if(TARGET tests_core)
  add_dependencies(tests_core standin_versions)
  set_property(SOURCE core/cuda_libraries_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS
    TAPESTRY_VERSIONS_LIBRARY="$<TARGET_FILE:standin_versions>")
endif()

if(TAPESTRY_NCCL_FOUND AND TARGET tests_distributed)
  tapestry_test_library(standin_nccl nccl ${CMAKE_CURRENT_LIST_DIR}/standin.cpp)
  set_target_properties(standin_nccl PROPERTIES SOVERSION 2)
  target_include_directories(standin_nccl SYSTEM PRIVATE ${TAPESTRY_NCCL_INCLUDES})
  add_dependencies(tests_distributed standin_nccl)
  set_property(SOURCE distributed/nccl_support.cpp APPEND PROPERTY COMPILE_DEFINITIONS
    TAPESTRY_STANDIN_NCCL="$<TARGET_FILE:standin_nccl>")
endif()
