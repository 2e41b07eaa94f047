# The kernels of kernels/cuda/*.cuh, run by the emulator, which they find by include path.
file(GLOB emulator CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/support/cuda_emulator/*.cpp)
add_library(tests_cuda_emulator OBJECT ${emulator})
target_link_libraries(tests_cuda_emulator PRIVATE tapestry_warnings)
target_include_directories(tests_cuda_emulator PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR}/include)
# It tells the sanitizers what it does; it is not instrumented itself.
set(with_asan 0)
set(with_tsan 0)
if(TAPESTRY_SANITIZE MATCHES "address")
  set(with_asan 1)
elseif(TAPESTRY_SANITIZE MATCHES "thread")
  set(with_tsan 1)
endif()
target_compile_options(tests_cuda_emulator PRIVATE -O2 -fno-sanitize=all)
target_compile_definitions(tests_cuda_emulator PRIVATE CUDA_EMULATOR_ASAN=${with_asan} CUDA_EMULATOR_TSAN=${with_tsan})

# The kernels that the program's files include are run by the emulator.
function(tapestry_emulates_cuda program)
  target_sources(${program} PRIVATE $<TARGET_OBJECTS:tests_cuda_emulator>)
  target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/cuda_emulator ${PROJECT_SOURCE_DIR})
  target_link_libraries(${program} PRIVATE ${CMAKE_DL_LIBS})
  set_target_properties(${program} PROPERTIES ENABLE_EXPORTS ON)  # kernels have names at run time
endfunction()
tapestry_emulates_cuda(tests_emulated)
if(TAPESTRY_SANITIZE MATCHES "undefined")
  target_compile_options(tests_emulated PRIVATE ${TAPESTRY_CHECK_ALIGNMENT})
endif()
