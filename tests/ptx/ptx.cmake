target_sources(tests_ptx PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/ptx/lanes.cu)
target_link_libraries(tests_ptx PRIVATE ${TAPESTRY_CUDART})
