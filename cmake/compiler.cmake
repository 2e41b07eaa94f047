# Sets warnings, sanitizers, the instruction set, the linker and the compiler cache.
include(CheckCXXSourceRuns)
include(CheckLinkerFlag)

add_library(tapestry_warnings INTERFACE)
set(warnings -Wall -Wextra -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Two warnings of g++ 12 are often false: -Wrestrict for "text" + std::string(...) (GCC bug 105329), and
  # -Wstringop-overflow for an atomic behind a pointer that may be null.
  list(APPEND warnings -Wno-restrict -Wno-stringop-overflow)
elseif(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  list(APPEND warnings -Wno-overloaded-virtual)  # modules overload forward with any signature
endif()
if(NOT PROJECT_IS_TOP_LEVEL AND NOT TAPESTRY_WERROR)
  # The project that contains this one may enable other warnings, or turn warnings into errors. Its options also reach the
  # library's own files, so -w, which comes later, switches all warnings off for these files. The headers are free of warnings.
  set(warnings -w)
  set(cuda_errors --disable-warnings)
endif()
list(JOIN warnings "," host_warnings)
if(TAPESTRY_WERROR)
  list(APPEND warnings -Werror)
  set(cuda_errors --Werror=all-warnings)
endif()
target_compile_options(tapestry_warnings INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${host_warnings};${cuda_errors}>")

if((TAPESTRY_WERROR OR TAPESTRY_SANITIZE) AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # With a larger heap, g++ collects garbage less often: compiling takes 5% less time and up to 1 GiB more memory per process.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1048576>)
endif()
if(TAPESTRY_SANITIZE)
  add_compile_options(-fsanitize=${TAPESTRY_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${TAPESTRY_SANITIZE})
  if(TAPESTRY_SANITIZE MATCHES "undefined")
    # The checks that are switched off here would double the compile time. AddressSanitizer finds the same errors as null,
    # object-size, vptr and pointer-overflow.
    add_compile_options(-fno-sanitize-recover=undefined
      -fno-sanitize=null,object-size,vptr,alignment,pointer-overflow)
  endif()
  if(TAPESTRY_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # AddressSanitizer's checks are compiled as function calls, which takes 10% less time to compile than inline checks, but
    # they run slower. Arithmetic (see weight.cmake) has inline checks.
    set(TAPESTRY_CHECK_BY_CALL --param=asan-instrumentation-with-call-threshold=0)
    add_compile_options(${TAPESTRY_CHECK_BY_CALL})
    set(TAPESTRY_CHECK_INLINE --param=asan-instrumentation-with-call-threshold=7000)
  endif()
  add_compile_definitions(TAPESTRY_SANITIZED=1)
  if(TAPESTRY_SANITIZE MATCHES "thread")
    # TSan does not see the synchronisation inside these libraries, and would report false races.
    set(TAPESTRY_OPENMP OFF)
    set(TAPESTRY_ONEDNN OFF)
  endif()
endif()

# Loops over numbers use AVX2 and FMA if the building machine has them (processors.cmake). They do not use AVX-512: with g++ 12
# on Zen 4, Eigen's AVX-512 matrix product was measured to be 20% slower than its AVX2 one.
set(TAPESTRY_HAS_X86_64 OFF)
set(TAPESTRY_MACHINE_FLAGS "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(TAPESTRY_HAS_X86_64 ON)
  if(NOT CMAKE_CROSSCOMPILING)
    set(CMAKE_REQUIRED_FLAGS "")
    check_cxx_source_runs("int main() { return !(__builtin_cpu_supports(\"avx2\") && __builtin_cpu_supports(\"fma\")); }"
      TAPESTRY_HAS_AVX2)
    if(TAPESTRY_HAS_AVX2)
      set(TAPESTRY_MACHINE_FLAGS -march=x86-64-v3)
    endif()
  endif()
endif()
if(TAPESTRY_CPU_ARCH STREQUAL "auto")
  set(TAPESTRY_ARCH_FLAGS ${TAPESTRY_MACHINE_FLAGS})
elseif(TAPESTRY_CPU_ARCH STREQUAL "any")
  if(NOT TAPESTRY_HAS_X86_64)
    message(FATAL_ERROR "TAPESTRY_CPU_ARCH=any is for x86-64, and this build is for ${CMAKE_SYSTEM_PROCESSOR}: leave it at auto.")
  endif()
  set(TAPESTRY_ARCH_FLAGS -march=x86-64)
else()
  set(TAPESTRY_ARCH_FLAGS -march=${TAPESTRY_CPU_ARCH})
endif()

if(PROJECT_IS_TOP_LEVEL)
  set(TAPESTRY_LINKER "auto" CACHE STRING "Linker, as the compiler's -fuse-ld takes it: lld, gold, ...; auto: lld if it is found")
  if(TAPESTRY_LINKER STREQUAL "auto")
    # A linker that the user's flags name stays, and lld cannot read g++'s objects of link-time optimization.
    check_linker_flag(CXX -fuse-ld=lld TAPESTRY_HAS_LLD)
    if(TAPESTRY_HAS_LLD AND NOT CMAKE_INTERPROCEDURAL_OPTIMIZATION AND
       NOT "${CMAKE_CXX_FLAGS} ${CMAKE_EXE_LINKER_FLAGS} ${CMAKE_SHARED_LINKER_FLAGS}" MATCHES "-fuse-ld=|-flto")
      add_link_options(-fuse-ld=lld)  # it links a test program in a sixth of the time that GNU ld takes
    endif()
  elseif(TAPESTRY_LINKER)
    add_link_options(-fuse-ld=${TAPESTRY_LINKER})
  endif()
  find_program(TAPESTRY_CCACHE ccache)
  if(TAPESTRY_CCACHE)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${TAPESTRY_CCACHE})
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${TAPESTRY_CCACHE})
  endif()
endif()
