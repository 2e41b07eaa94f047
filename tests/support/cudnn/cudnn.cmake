# The stand-in cuDNN, a library that tests/cudnn opens at run time. standin.h describes it.
if(TARGET tests_cudnn)
  tapestry_test_library(standin_cudnn cudnn ${CMAKE_CURRENT_LIST_DIR}/standin.cpp ${CMAKE_CURRENT_LIST_DIR}/compute.cpp
    ${CMAKE_CURRENT_LIST_DIR}/describe.cpp)
  target_include_directories(standin_cudnn PRIVATE ${PROJECT_BINARY_DIR}/include)
  target_compile_options(standin_cudnn PRIVATE -O1)  # it computes
  if(TAPESTRY_CUDA_FOUND)  # the library refuses a cuDNN that was built for another version of CUDA
    target_compile_definitions(standin_cudnn PRIVATE STANDIN_CUDA_MAJOR=${CUDAToolkit_VERSION_MAJOR})
  endif()
  add_dependencies(tests_cudnn standin_cudnn)
  set_property(SOURCE cudnn/world.cpp APPEND PROPERTY COMPILE_DEFINITIONS TAPESTRY_STANDIN_CUDNN="$<TARGET_FILE:standin_cudnn>")
endif()
