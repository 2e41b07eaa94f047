# The same source is compiled twice: by g++ for the emulator, and by nvcc for a GPU.
set_property(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/ptx/lanes_emulated.cpp APPEND PROPERTY INCLUDE_DIRECTORIES
  ${CMAKE_CURRENT_SOURCE_DIR}/support/cuda_emulator)
target_sources(tests_ptx PRIVATE $<TARGET_OBJECTS:tests_cuda_emulator>)
target_link_libraries(tests_ptx PRIVATE ${CMAKE_DL_LIBS})
set_target_properties(tests_ptx PROPERTIES ENABLE_EXPORTS ON)
if(TAPESTRY_CUDA_FOUND)
  target_sources(tests_ptx PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/ptx/lanes_gpu.cu)
  target_link_libraries(tests_ptx PRIVATE ${TAPESTRY_CUDART})
  set_property(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/ptx/lanes_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS TAPESTRY_HAS_CUDA=1)
endif()
