# The tests read the machine code that nvcc made from the kernels, and from planted.cu, whose kernels have faults.
target_link_libraries(tests_device_code PRIVATE ${CMAKE_DL_LIBS})
if(TAPESTRY_CUDA_FOUND)
  string(REGEX MATCHALL "[0-9]+" architectures "${CMAKE_CUDA_ARCHITECTURES}")
  list(JOIN architectures " " architectures)
  target_sources(tests_device_code PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/device_code/planted.cu)
  target_link_libraries(tests_device_code PRIVATE ${TAPESTRY_CUDART})
  set_property(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/device_code/resources_test.cpp
    ${CMAKE_CURRENT_SOURCE_DIR}/device_code/budget_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS TAPESTRY_HAS_CUDA=1
    "TAPESTRY_DEVICE_ARCHITECTURES=\"${architectures}\"" "TAPESTRY_NVCC_VERSION=\"${CMAKE_CUDA_COMPILER_VERSION}\"")
endif()
