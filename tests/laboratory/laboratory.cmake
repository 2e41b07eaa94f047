# Programs of a user's own, without Tapestry, that the tests run with tapestry-ptx: planted bugs, and those of the tutorial.
add_dependencies(tests_laboratory tapestry-ptx)
set(folder ${CMAKE_CURRENT_BINARY_DIR}/laboratory)
file(MAKE_DIRECTORY ${folder})

# laboratory_program(TARGET SOURCES... [ARCHITECTURE N] [OPTIONS ...])
function(laboratory_program target)
  cmake_parse_arguments(PARSE_ARGV 1 program "" "" "SOURCES;OPTIONS")
  set(objects "")
  foreach(source ${program_SOURCES})
    cmake_path(GET source STEM stem)
    set(object ${folder}/${target}_${stem}.o)
    set(architecture 80)
    if(stem STREQUAL "hopper")
      set(architecture 90a)
    endif()
    add_custom_command(OUTPUT ${object}
      COMMAND ${CMAKE_CXX_COMPILER_LAUNCHER} ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 -g --no-compress -lineinfo
        --generate-code=arch=compute_${architecture},code=compute_${architecture} -I${PROJECT_SOURCE_DIR} ${program_OPTIONS}
        -MD -MF ${object}.d -c ${source} -o ${object}
      DEPENDS ${source} DEPFILE ${object}.d VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  add_executable(${target} ${objects})
  set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX RUNTIME_OUTPUT_DIRECTORY ${folder})
  target_link_libraries(${target} PRIVATE CUDA::cudart)
  add_dependencies(tests_laboratory ${target})
endfunction()

file(GLOB planted CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/laboratory/planted/*.cu)
laboratory_program(planted SOURCES ${planted})
foreach(program sum transpose)
  laboratory_program(${program} SOURCES ${PROJECT_SOURCE_DIR}/docs/tutorials/cuda-without-a-gpu/${program}.cu)
endforeach()
laboratory_program(scale_rows SOURCES ${PROJECT_SOURCE_DIR}/docs/tutorials/how-a-kernel-is-proved/scale_rows.cu
  OPTIONS --expt-relaxed-constexpr -I${PROJECT_BINARY_DIR}/include)
laboratory_program(sum_race SOURCES ${PROJECT_SOURCE_DIR}/docs/tutorials/cuda-without-a-gpu/sum.cu OPTIONS -DRACE)

# counters_test.cpp runs the library on the PTX machine itself.
target_sources(tests_laboratory PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/device_code/device_code.cpp)
target_include_directories(tests_laboratory SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
target_link_libraries(tests_laboratory PRIVATE tapestry_cudart tapestry_ptx ${CMAKE_DL_LIBS})
if(TAPESTRY_CUDA_FOUND AND CMAKE_CUDA_RUNTIME_LIBRARY STREQUAL "Shared")
  target_compile_definitions(tests_laboratory PRIVATE TAPESTRY_LIBRARY_HAS_CUDA=1)
endif()
# The same program as nvcc makes it without one of the options.
foreach(kind "static;--no-compress" "compressed;-cudart=shared;-arch=sm_80" "sass;-cudart=shared;-gencode=arch=compute_80,code=sm_80")
  list(POP_FRONT kind name)
  add_custom_command(OUTPUT ${folder}/sum_${name} VERBATIM DEPENDS ${PROJECT_SOURCE_DIR}/docs/tutorials/cuda-without-a-gpu/sum.cu
    COMMAND ${CUDAToolkit_NVCC_EXECUTABLE} -std=c++20 ${kind} ${PROJECT_SOURCE_DIR}/docs/tutorials/cuda-without-a-gpu/sum.cu
      -o ${folder}/sum_${name})
  target_sources(tests_laboratory PRIVATE ${folder}/sum_${name})
  string(TOUPPER ${name} upper)
  target_compile_definitions(tests_laboratory PRIVATE TAPESTRY_${upper}_PROGRAM="${folder}/sum_${name}")
endforeach()
target_sources(tests_laboratory PRIVATE ${PROJECT_SOURCE_DIR}/tools/ptx/laboratory/program_file.cpp
  ${PROJECT_SOURCE_DIR}/tools/ptx/laboratory/report.cpp)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/tutorials/cuda-without-a-gpu.md)
target_compile_definitions(tests_laboratory PRIVATE TAPESTRY_PTX="$<TARGET_FILE:tapestry-ptx>" TAPESTRY_LABORATORY="${folder}")
