# cmake -D WAY=install|subdirectory|whole_subdirectory -D SOURCE= -D BUILD= -D LIBRARY= -D WORK= ... -P run.cmake
# Runs one of the consumer tests. install uses an install tree. subdirectory compiles the consumer and one file of each of
# the library's folders inside the consumer's project, and links with LIBRARY and LOOPS. whole_subdirectory compiles
# the whole library inside the consumer's project. With NVCC, install also compiles a consumer's kernel.
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed (${result})")
  endif()
endfunction()

set(project ${CMAKE_CURRENT_LIST_DIR}/project)
file(REMOVE_RECURSE ${WORK}/prefix)
# The first configuration is the one under test, so the cache of an earlier run is removed.
file(REMOVE ${WORK}/build/CMakeCache.txt)

if(WAY STREQUAL "install")
  # A package is installed in one place and used in another.
  run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/prefix/staged)
  set(prefix ${WORK}/prefix/final)
  file(RENAME ${WORK}/prefix/staged ${prefix})

  # The install tree holds the public headers, the library, its CMake package, the programs and the licence. It holds no
  # tests, and no headers of other projects.
  file(GLOB top RELATIVE ${prefix} ${prefix}/*)
  list(SORT top)
  if(NOT top STREQUAL "bin;include;lib;share")
    message(FATAL_ERROR "the install tree holds ${top}")
  endif()
  file(GLOB programs RELATIVE ${prefix}/bin ${prefix}/bin/*)
  list(SORT programs)
  list(SORT PROGRAMS)
  if(NOT programs STREQUAL PROGRAMS)
    message(FATAL_ERROR "the install tree's bin holds ${programs}, and should hold ${PROGRAMS}")
  endif()
  # Each program finds the library although the install tree was moved.
  foreach(program ${programs})
    if(NOT program MATCHES "^bench_")  # they read commands, and have no --help
      run(${prefix}/bin/${program} --help)
      run(${prefix}/bin/${program} --version)
    endif()
  endforeach()
  run(${prefix}/bin/tapestry-run --nproc-per-node 2 true)
  file(GLOB folders RELATIVE ${prefix}/include/tapestry ${prefix}/include/* ${prefix}/include/tapestry/*)
  list(SORT folders)
  foreach(folder ${folders})
    if(NOT folder MATCHES "^(\\.\\./tapestry|tapestry\\.h|core|kernels|autograd|nn|data|distributed)$")
      message(FATAL_ERROR "the install tree holds include/tapestry/${folder}")
    endif()
  endforeach()
  file(GLOB_RECURSE files RELATIVE ${prefix}/include/tapestry ${prefix}/include/tapestry/*)
  foreach(file ${files})
    if(NOT file MATCHES "\\.(h|cuh)$")
      message(FATAL_ERROR "the install tree holds ${file}, which is not a header")
    endif()
    file(SHA256 ${SOURCE}/${file} here)
    file(SHA256 ${prefix}/include/tapestry/${file} there)
    if(NOT here STREQUAL there)
      message(FATAL_ERROR "${file} was changed by the installation")
    endif()
  endforeach()
  set(options -D USE_PACKAGE=ON -D CMAKE_BUILD_TYPE=Release -D CMAKE_PREFIX_PATH=${prefix})

  if(NVCC)
    # Static is what CMake chooses for consumers; the shared runtime can be replaced by the stand-in in STAND_IN.
    file(GLOB library_folder ${prefix}/lib*)
    file(GLOB loops ${library_folder}/libtapestry_loops.so)  # with TAPESTRY_CPU_ARCH=any
    foreach(runtime static shared)
      run(${NVCC} -std=c++20 --expt-relaxed-constexpr -arch=${ARCH} --no-compress -cudart ${runtime} -I ${prefix}/include
        ${project}/kernel.cu -o ${WORK}/kernel_${runtime} -L ${library_folder} -ltapestry ${loops}
        -Xlinker -rpath,${library_folder} -Xlinker --allow-shlib-undefined)
    endforeach()
    run(${WORK}/kernel_static)
    if(STAND_IN)
      run(${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${STAND_IN} TAPESTRY_PTX_EXIT=keep ${WORK}/kernel_shared)
    endif()
  endif()
else()
  # Without optimisation, since compiling takes longer than running. The project's warnings also reach the library's files.
  set(warnings "-Wall -Wextra -Wshadow -Wpedantic -Wconversion -Werror")
  set(options -D USE_PACKAGE=OFF -D CMAKE_BUILD_TYPE=Debug -D CMAKE_CXX_FLAGS_DEBUG=-O0 -D TAPESTRY_SOURCE=${SOURCE}
    -D CMAKE_CXX_FLAGS=${warnings})
endif()

set(program consumer)
set(targets)
if(WAY STREQUAL "subdirectory" AND GENERATOR MATCHES "Ninja")  # Ninja can build single objects
  list(APPEND options -D TAPESTRY_LIBRARY=${LIBRARY} -D TAPESTRY_LOOPS=${LOOPS})
  set(program consumer_of_library)
  set(PROJECT_SOURCE_DIR ${SOURCE})
  include(${SOURCE}/cmake/base.cmake)
  foreach(folder core kernels/cpu autograd/ops nn data distributed/comm)
    file(GLOB files ${SOURCE}/${folder}/*.cpp)
    tapestry_base_of(files ${files})
    list(GET files 0 file)
    file(RELATIVE_PATH file ${SOURCE} ${file})
    list(APPEND targets tapestry/CMakeFiles/tapestry_base.dir/${file}.o)
  endforeach()
endif()

run(${CMAKE_COMMAND} -S ${project} -B ${WORK}/build -G ${GENERATOR} -D CMAKE_CXX_COMPILER=${COMPILER}
  -D CMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} ${options})
run(${CMAKE_COMMAND} --build ${WORK}/build --target ${targets} ${program} --parallel ${JOBS})
run(${WORK}/build/${program})

if(WAY STREQUAL "subdirectory")
  # Cache variables belong to the whole project, so those of the library carry its name. Others come from CMake and its
  # find modules.
  file(STRINGS ${WORK}/build/CMakeCache.txt variables REGEX "^[A-Za-z0-9_]+:(BOOL|STRING|PATH|FILEPATH|UNINITIALIZED)=")
  list(FILTER variables EXCLUDE REGEX "^(TAPESTRY|CMAKE|USE_PACKAGE|ZLIB|PNG|JPEG|OpenMP|Gloo|CUDA|CUDAToolkit)[_:]")
  if(variables)
    list(JOIN variables "\n" variables)
    message(FATAL_ERROR "cache variables without the prefix TAPESTRY_:\n${variables}")
  endif()

  # A guest installs nothing, and builds no programs, unless it is asked to.
  file(STRINGS ${WORK}/build/tapestry/cmake_install.cmake installs REGEX "file\\(INSTALL")
  if(installs)
    message(FATAL_ERROR "the library would be installed although TAPESTRY_INSTALL is off")
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} --build ${WORK}/build --target help OUTPUT_VARIABLE all_targets)
  if(all_targets MATCHES "tapestry-run")
    message(FATAL_ERROR "tapestry-run is built although TAPESTRY_BUILD_TOOLS is off")
  endif()

  # A static library is refused, and the message says why.
  execute_process(COMMAND ${CMAKE_COMMAND} -D BUILD_SHARED_LIBS=OFF ${WORK}/build
    RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE text)
  if(result EQUAL 0 OR NOT text MATCHES "always a shared library")
    message(FATAL_ERROR "BUILD_SHARED_LIBS=OFF must be refused (${result}): ${text}")
  endif()
endif()
