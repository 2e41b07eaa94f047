add_subdirectory(${PROJECT_SOURCE_DIR}/tools/ptx ${PROJECT_BINARY_DIR}/tools/ptx)
target_link_libraries(tests_ptx_machine PRIVATE tapestry_ptx)
# compiled_test.cpp reads the PTX of kernels.cu, and hopper_test.cpp that of hopper.cu; nothing is compiled for a GPU.
if(CUDAToolkit_NVCC_EXECUTABLE)
  set(ptx ${CMAKE_CURRENT_BINARY_DIR}/ptx_machine_kernels.ptx)
  add_custom_command(OUTPUT ${ptx} VERBATIM DEPENDS ptx_machine/kernels.cu
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -arch=compute_80 -lineinfo -ptx ${CMAKE_CURRENT_SOURCE_DIR}/ptx_machine/kernels.cu -o ${ptx})
  target_sources(tests_ptx_machine PRIVATE ${ptx})
  set_property(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/ptx_machine/compiled_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS
    "TAPESTRY_PTX_FILE=\"${ptx}\"")
  set_property(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/ptx_machine/compiled_test.cpp PROPERTY SKIP_PRECOMPILE_HEADERS ON)
  set(ptx ${CMAKE_CURRENT_BINARY_DIR}/ptx_machine_hopper.ptx)
  add_custom_command(OUTPUT ${ptx} VERBATIM DEPENDS ptx_machine/hopper.cu
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -arch=sm_90a -lineinfo -ptx ${CMAKE_CURRENT_SOURCE_DIR}/ptx_machine/hopper.cu -o ${ptx})
  target_sources(tests_ptx_machine PRIVATE ${ptx})
  set_property(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/ptx_machine/hopper_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS
    "TAPESTRY_HOPPER_FILE=\"${ptx}\"")
  set_property(SOURCE ${CMAKE_CURRENT_SOURCE_DIR}/ptx_machine/hopper_test.cpp PROPERTY SKIP_PRECOMPILE_HEADERS ON)
endif()
