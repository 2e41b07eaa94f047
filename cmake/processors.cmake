# Which files are compiled for which x86-64 processors.
#
# Files with loops over numbers are compiled for TAPESTRY_ARCH_FLAGS, all others for any x86-64. With TAPESTRY_CPU_ARCH=any, the
# loops are in a library of their own, tapestry_loops, which is made twice: for any x86-64, and with AVX2 and FMA. The latter is in
# the folder glibc-hwcaps/x86-64-v3 beside the former. There the dynamic linker of glibc 2.33 or newer looks first, if the
# processor has these instructions. Two versions of each loop in one library would be simpler to install. But the linker
# keeps one copy of each inline function, whichever file it comes from, so code for any processor could call a copy with AVX2.
set(TAPESTRY_LOOPS "${TAPESTRY_ARITHMETIC}|^data/(internal/)?[^/]*\\.cpp$")
if(TAPESTRY_CPU_ARCH STREQUAL "any" AND NOT TAPESTRY_SANITIZE)
  # The check of the processor comes before all other code of the library that it checks, and runs on any processor.
  string(APPEND TAPESTRY_LOOPS "|^kernels/processor\\.cpp$")
  set_property(SOURCE ${PROJECT_SOURCE_DIR}/kernels/processor.cpp APPEND PROPERTY COMPILE_OPTIONS -march=x86-64)
endif()

# tapestry_processors(TARGET FILE...): sets the instruction set of each of the target's files.
function(tapestry_processors target)
  # Sanitized builds do not leave their machine. TSan's has one precompiled header for all files, for one instruction set.
  if(NOT TAPESTRY_HAS_X86_64 OR NOT TAPESTRY_ARCH_FLAGS OR TAPESTRY_SANITIZE)
    return()
  endif()
  foreach(source ${ARGN})
    string(REPLACE "${PROJECT_BINARY_DIR}/unity/${target}/" "" path ${source})
    string(REPLACE "${PROJECT_SOURCE_DIR}/" "" path ${path})
    if(path MATCHES "\\.cu$")
      continue()
    elseif(path MATCHES "${TAPESTRY_LOOPS}")
      string(REPLACE "." "[.]" path ${path})
      set_property(GLOBAL APPEND PROPERTY TAPESTRY_LOOP_SOURCES ${source})
      set_property(GLOBAL APPEND PROPERTY TAPESTRY_LOOP_OBJECTS ${path})
    else()
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -march=x86-64)
    endif()
  endforeach()
endfunction()

# tapestry_loop_libraries(): with TAPESTRY_CPU_ARCH=any, moves the loops from the library into one for any x86-64, and compiles
# them again for AVX2 and FMA. The libraries need each other: the functions that the loops call are found when both are loaded.
function(tapestry_loop_libraries)
  set(folder ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
  if(NOT folder)
    set(folder ${CMAKE_CURRENT_BINARY_DIR})
  endif()
  get_property(loops GLOBAL PROPERTY TAPESTRY_LOOP_SOURCES)
  # The dynamic linker would prefer the libraries of an earlier configuration.
  file(GLOB_RECURSE earlier ${folder}/glibc-hwcaps/libtapestry.so*)
  if(earlier)
    file(REMOVE ${earlier})
  endif()
  if(NOT TAPESTRY_CPU_ARCH STREQUAL "any" OR NOT loops)  # sanitized builds have no list of loops
    file(REMOVE_RECURSE ${folder}/glibc-hwcaps)
    return()
  endif()
  get_property(objects GLOBAL PROPERTY TAPESTRY_LOOP_OBJECTS)
  list(JOIN objects "|" objects)
  set(loop_objects "tapestry_base[.]dir/([.]/)?(unity/tapestry_base/)?(${objects})[.]o$")
  get_target_property(all tapestry SOURCES)
  list(REMOVE_ITEM all $<TARGET_OBJECTS:tapestry_base>)
  set(others ${all})
  list(REMOVE_ITEM others ${loops})
  list(REMOVE_ITEM all ${others})
  add_library(tapestry_loops SHARED ${all} "$<FILTER:$<TARGET_OBJECTS:tapestry_base>,INCLUDE,${loop_objects}>")
  add_library(tapestry_v3 SHARED ${loops})
  foreach(property COMPILE_DEFINITIONS COMPILE_FEATURES COMPILE_OPTIONS INCLUDE_DIRECTORIES LINK_DEPENDS LINK_LIBRARIES LINK_OPTIONS
      PRECOMPILE_HEADERS SOVERSION UNITY_BUILD VERSION)
    get_target_property(value tapestry ${property})
    if(NOT value STREQUAL "value-NOTFOUND")
      set_property(TARGET tapestry_loops tapestry_v3 PROPERTY ${property} ${value})
    endif()
  endforeach()
  set_property(TARGET tapestry PROPERTY SOURCES ${others} "$<FILTER:$<TARGET_OBJECTS:tapestry_base>,EXCLUDE,${loop_objects}>")
  target_link_libraries(tapestry PUBLIC tapestry_loops)
  if(NOT TAPESTRY_IS_PACKAGE)
    set_property(TARGET tapestry PROPERTY INSTALL_RPATH "$ORIGIN")
  endif()
  add_library(tapestry_v3_flags INTERFACE)  # these come after the flags of tapestry_private
  target_compile_options(tapestry_v3_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3>)
  target_link_libraries(tapestry_v3 PRIVATE tapestry_v3_flags)
  set_target_properties(tapestry_v3 PROPERTIES OUTPUT_NAME tapestry_loops LIBRARY_OUTPUT_DIRECTORY ${folder}/glibc-hwcaps/x86-64-v3)
  # Programs are linked with the first library, and load the second one where it is.
  add_library(tapestry_loaded INTERFACE)
  add_dependencies(tapestry_loaded tapestry_v3)
  target_link_libraries(tapestry INTERFACE $<BUILD_INTERFACE:tapestry_loaded>)
endfunction()
