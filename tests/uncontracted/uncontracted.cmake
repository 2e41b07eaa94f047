# nvcc and g++ compile the same kernels, and neither contracts. The program is one of its own, because the kernels that other
# programs compile for the emulator have the same symbols.
set(source ${CMAKE_CURRENT_SOURCE_DIR}/uncontracted/kernels_test.cpp)
set_source_files_properties(${source} PROPERTIES SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "-ffp-contract=off")
tapestry_emulates_cuda(tests_uncontracted)
target_link_libraries(tests_uncontracted PRIVATE tapestry_ptx)
if(CUDAToolkit_NVCC_EXECUTABLE)
  set(ptx ${CMAKE_CURRENT_BINARY_DIR}/uncontracted.ptx)
  add_custom_command(OUTPUT ${ptx} VERBATIM DEPENDS uncontracted/instances.cu DEPFILE ${ptx}.d
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -arch=compute_80 -lineinfo -ptx -fmad=false --expt-relaxed-constexpr
      --diag-suppress=445 -I${PROJECT_SOURCE_DIR} -I${PROJECT_BINARY_DIR}/include -MD -MF ${ptx}.d -MT ${ptx}
      ${CMAKE_CURRENT_SOURCE_DIR}/uncontracted/instances.cu -o ${ptx})
  target_sources(tests_uncontracted PRIVATE ${ptx})
  set_property(SOURCE ${source} APPEND PROPERTY COMPILE_DEFINITIONS "TAPESTRY_PTX_FILE=\"${ptx}\"")
endif()
