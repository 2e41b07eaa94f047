# The stand-in cuBLASLt, which the tests of kernels/cuda/vendor open at run time.
if(TAPESTRY_CUBLASLT_FOUND AND TARGET tests_kernels)
  tapestry_test_library(standin_cublaslt cublasLt ${CMAKE_CURRENT_LIST_DIR}/standin.cpp)
  target_include_directories(standin_cublaslt PRIVATE ${PROJECT_BINARY_DIR}/include)
  target_include_directories(standin_cublaslt SYSTEM PRIVATE ${TAPESTRY_CUBLASLT_INCLUDES})
  add_dependencies(tests_kernels standin_cublaslt)
  set_property(SOURCE kernels/cublaslt_support.cpp APPEND PROPERTY COMPILE_DEFINITIONS
    TAPESTRY_STANDIN_CUBLASLT="$<TARGET_FILE:standin_cublaslt>")
endif()
