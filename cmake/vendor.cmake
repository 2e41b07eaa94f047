# Sets up NVIDIA's libraries that are opened at run time (core/cuda/libraries.h) instead of linked. The NCCL backend is
# compiled if nccl.h and the CUDA headers are found, even in a build without CUDA: its tests use a fake GPU and a stand-in NCCL.
find_path(TAPESTRY_NCCL_INCLUDE_DIR nccl.h HINTS /usr/local/cuda/include)
find_path(TAPESTRY_CUDA_RUNTIME_INCLUDE_DIR cuda_runtime.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ${TAPESTRY_NCCL_INCLUDE_DIR} /usr/local/cuda/include)
set(TAPESTRY_NCCL_FOUND OFF)
if(TAPESTRY_NCCL_INCLUDE_DIR AND TAPESTRY_CUDA_RUNTIME_INCLUDE_DIR)
  set(TAPESTRY_NCCL_FOUND ON)
  set(TAPESTRY_NCCL_INCLUDES ${TAPESTRY_NCCL_INCLUDE_DIR} ${TAPESTRY_CUDA_RUNTIME_INCLUDE_DIR})
  message(STATUS "NCCL: ${TAPESTRY_NCCL_INCLUDE_DIR}/nccl.h")
  set(uses_nccl distributed/comm/nccl_backend.cpp distributed/comm/internal/nccl_communicator.cpp)
  list(TRANSFORM uses_nccl PREPEND ${PROJECT_SOURCE_DIR}/)
  set_property(SOURCE ${uses_nccl} APPEND PROPERTY INCLUDE_DIRECTORIES ${TAPESTRY_NCCL_INCLUDES})
  set_property(SOURCE ${uses_nccl} APPEND PROPERTY COMPILE_DEFINITIONS TAPESTRY_HAS_NCCL=1)
else()
  message(STATUS "nccl.h not found: no collectives between GPUs but through the host")
endif()

target_link_libraries(tapestry_private INTERFACE ${CMAKE_DL_LIBS})
if(TAPESTRY_CUDA_FOUND)
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/core/cuda/libraries.cpp APPEND PROPERTY COMPILE_DEFINITIONS
    TAPESTRY_CUDA_MAJOR=${CUDAToolkit_VERSION_MAJOR} "TAPESTRY_CUDA_LIBRARY_DIR=\"${CUDAToolkit_LIBRARY_DIR}\"")
endif()
