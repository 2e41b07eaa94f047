# Runs the kernels of kernels/cuda/*.cuh on the emulator. portable.cuh finds the emulator by the include path.
file(GLOB emulator CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/support/cuda_emulator/*.cpp)
add_library(tests_cuda_emulator OBJECT ${emulator})
target_link_libraries(tests_cuda_emulator PRIVATE tapestry_warnings)
target_include_directories(tests_cuda_emulator PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include)
# The emulator is not instrumented, but it notifies the sanitizers of fiber switches and barriers.
set(with_asan 0)
set(with_tsan 0)
if(TAPESTRY_SANITIZE MATCHES "address")
  set(with_asan 1)
elseif(TAPESTRY_SANITIZE MATCHES "thread")
  set(with_tsan 1)
endif()
target_compile_options(tests_cuda_emulator PRIVATE -O2 -fno-sanitize=all)
target_compile_definitions(tests_cuda_emulator PRIVATE CUDA_EMULATOR_ASAN=${with_asan} CUDA_EMULATOR_TSAN=${with_tsan})

# Makes the emulator run the kernels that the program's source files include.
function(tapestry_emulates_cuda program)
  target_sources(${program} PRIVATE $<TARGET_OBJECTS:tests_cuda_emulator>)
  target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/cuda_emulator ${PROJECT_SOURCE_DIR})
  target_link_libraries(${program} PRIVATE ${CMAKE_DL_LIBS})
  set_target_properties(${program} PROPERTIES ENABLE_EXPORTS ON)  # exports symbols, so that dladdr() finds the names of kernels
endfunction()
tapestry_emulates_cuda(tests_emulated)
if(TAPESTRY_SANITIZE MATCHES "undefined")
  target_compile_options(tests_emulated PRIVATE ${TAPESTRY_CHECK_ALIGNMENT})
endif()
