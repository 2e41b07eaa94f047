# Warnings, sanitizers and the instruction set.
include(CheckCXXSourceRuns)

add_library(tapestry_warnings INTERFACE)
set(warnings -Wall -Wextra -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 cries wolf: "text" + std::string(...) "overlaps" (its bug 105329), an atomic behind a pointer that might be
  # null "overflows".
  list(APPEND warnings -Wno-restrict -Wno-stringop-overflow)
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND warnings -Wno-overloaded-virtual)  # a module's forward has any signature
endif()
list(JOIN warnings "," host_warnings)
if(TAPESTRY_WERROR)
  list(APPEND warnings -Werror)
  set(cuda_errors --Werror=all-warnings)
endif()
target_compile_options(tapestry_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${host_warnings};${cuda_errors}>")

if(TAPESTRY_SANITIZE)
  add_compile_options(-fsanitize=${TAPESTRY_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${TAPESTRY_SANITIZE})
  if(TAPESTRY_SANITIZE MATCHES "undefined")
    # ASan itself ends a program at what null, object-size, vptr and pointer-overflow would find, for half their time of
    # compiling. Alignment is put back for CUDA kernels: a GPU refuses what this CPU reads.
    add_compile_options(-fno-sanitize-recover=undefined
      -fno-sanitize=null,object-size,vptr,alignment,pointer-overflow)
    set(TAPESTRY_CHECK_ALIGNMENT -fsanitize=alignment)
  endif()
  if(TAPESTRY_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # A call for each check is a tenth less to compile than the check itself. Not where the arithmetic is: it is slower.
    add_compile_options(--param=asan-instrumentation-with-call-threshold=0)
    set(TAPESTRY_CHECK_INLINE --param=asan-instrumentation-with-call-threshold=7000)
  endif()
  add_compile_definitions(TAPESTRY_SANITIZED=1)
  if(TAPESTRY_SANITIZE MATCHES "thread")
    # Their own synchronisation is invisible to TSan, which then reports races that are none.
    set(TAPESTRY_OPENMP OFF)
    set(TAPESTRY_ONEDNN OFF)
  endif()
endif()

# Under sanitizers most of the code is sooner compiled without optimisation than run faster with it. Not these files, which
# do the arithmetic.
function(tapestry_arithmetic)
  if(TAPESTRY_SANITIZE)
    set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS -O1 ${TAPESTRY_CHECK_INLINE})
    set_property(SOURCE ${ARGN} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# CPU kernels are compiled for AVX2 and FMA where the building machine has them. Not for AVX-512: Eigen's AVX-512
# GEMM was measured 20% slower than its AVX2 one with g++ 12 on Zen 4.
if(TAPESTRY_CPU_ARCH STREQUAL "auto")
  set(TAPESTRY_ARCH_FLAGS "")
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64" AND NOT CMAKE_CROSSCOMPILING)
    set(CMAKE_REQUIRED_FLAGS "")
    check_cxx_source_runs("int main() { return !(__builtin_cpu_supports(\"avx2\") && __builtin_cpu_supports(\"fma\")); }"
      TAPESTRY_HAS_AVX2)
    if(TAPESTRY_HAS_AVX2)
      set(TAPESTRY_ARCH_FLAGS -march=x86-64-v3)
    endif()
  endif()
else()
  set(TAPESTRY_ARCH_FLAGS -march=${TAPESTRY_CPU_ARCH})
endif()

find_program(CCACHE ccache)
if(CCACHE AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
