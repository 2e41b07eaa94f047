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
# uncontracted_test.cpp compares what nvcc and g++ make of the same kernels if neither contracts.
if(NOT TAPESTRY_SANITIZE)
  set(source ${CMAKE_CURRENT_SOURCE_DIR}/ptx_machine/uncontracted)
  set_source_files_properties(${source}_test.cpp PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "-ffp-contract=off"
    INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR}/support/cuda_emulator)
  target_sources(tests_ptx_machine PRIVATE $<TARGET_OBJECTS:tests_cuda_emulator>)
  target_link_libraries(tests_ptx_machine PRIVATE ${CMAKE_DL_LIBS})
  set_target_properties(tests_ptx_machine PROPERTIES ENABLE_EXPORTS ON)  # the emulator finds the names of kernels by dladdr()
  if(CUDAToolkit_NVCC_EXECUTABLE)
    set(ptx ${CMAKE_CURRENT_BINARY_DIR}/ptx_machine_uncontracted.ptx)
    add_custom_command(OUTPUT ${ptx} VERBATIM DEPENDS ptx_machine/uncontracted.cu DEPFILE ${ptx}.d
      COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -arch=compute_80 -lineinfo -ptx -fmad=false --expt-relaxed-constexpr
        --diag-suppress=445 -I${PROJECT_SOURCE_DIR} -I${PROJECT_BINARY_DIR}/include -MD -MF ${ptx}.d -MT ${ptx} ${source}.cu -o ${ptx})
    target_sources(tests_ptx_machine PRIVATE ${ptx})
    set_property(SOURCE ${source}_test.cpp APPEND PROPERTY COMPILE_DEFINITIONS "TAPESTRY_UNCONTRACTED_FILE=\"${ptx}\"")
  endif()
endif()
