# ptx_cuda_program(TARGET SOURCES ... [OPTIONS ...]): a program that nvcc compiles to PTX alone, with the shared CUDA runtime, as
# tapestry-ptx run takes it. It is built into the current build folder. A file named hopper.cu is compiled for sm_90a.
function(ptx_cuda_program target)
  cmake_parse_arguments(PARSE_ARGV 1 program "" "" "SOURCES;OPTIONS")
  set(objects "")
  foreach(source ${program_SOURCES})
    cmake_path(GET source STEM stem)
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${target}_${stem}.o)
    set(architecture 80)
    if(stem STREQUAL "hopper")
      set(architecture 90a)
    endif()
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -g --no-compress -lineinfo
        --generate-code=arch=compute_${architecture},code=compute_${architecture} ${program_OPTIONS}
        -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  add_executable(${target} ${objects})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX RUNTIME_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  target_link_libraries(${target} PRIVATE CUDA::cudart)
endfunction()
