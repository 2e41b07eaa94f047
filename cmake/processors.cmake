# Which files are compiled for which x86-64 processors.
#
# Files with loops over numbers are compiled for TAPESTRY_ARCH_FLAGS, all others for any x86-64. Two libraries are made from them
# with TAPESTRY_CPU_ARCH=any: one whose loops are compiled for any x86-64, too, and one whose loops have AVX2 and FMA. The latter
# is in the folder glibc-hwcaps/x86-64-v3 beside the former. There the dynamic linker of glibc 2.33 or newer looks first, if the
# processor has these instructions. Two versions of each loop in one library would take less space on disk. But the linker
# keeps one copy of each inline function, whichever file it comes from, so code for any processor could call a copy with AVX2.
set(TAPESTRY_LOOPS "${TAPESTRY_ARITHMETIC}|^data/(internal/)?[^/]*\\.cpp$")

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

# tapestry_second_library(): with TAPESTRY_CPU_ARCH=any, makes the library whose loops have AVX2 and FMA.
function(tapestry_second_library)
  if(NOT TAPESTRY_CPU_ARCH STREQUAL "any")
    return()
  endif()
  # It has the same object files, except those of the loops.
  get_property(loops GLOBAL PROPERTY TAPESTRY_LOOP_SOURCES)
  get_property(objects GLOBAL PROPERTY TAPESTRY_LOOP_OBJECTS)
  if(NOT loops)
    return()  # a sanitized build
  endif()
  list(JOIN objects "|" objects)
  add_library(tapestry_v3 SHARED ${loops}
    "$<FILTER:$<TARGET_OBJECTS:tapestry>,EXCLUDE,tapestry[.]dir/([.]/)?(unity/tapestry/)?(${objects})[.]o$>"
    "$<FILTER:$<TARGET_OBJECTS:tapestry_base>,EXCLUDE,tapestry_base[.]dir/([.]/)?(unity/tapestry_base/)?(${objects})[.]o$>")
  foreach(property COMPILE_DEFINITIONS COMPILE_FEATURES COMPILE_OPTIONS INCLUDE_DIRECTORIES LINK_DEPENDS LINK_LIBRARIES LINK_OPTIONS
      PRECOMPILE_HEADERS SOVERSION UNITY_BUILD VERSION)
    get_target_property(value tapestry ${property})
    if(NOT value STREQUAL "value-NOTFOUND")
      set_property(TARGET tapestry_v3 PROPERTY ${property} ${value})
    endif()
  endforeach()
  add_library(tapestry_v3_flags INTERFACE)  # these come after the flags of tapestry_private
  target_compile_options(tapestry_v3_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3>)
  target_link_libraries(tapestry_v3 PRIVATE tapestry_v3_flags)
  if(TAPESTRY_CUDA_FOUND)
    target_sources(tapestry_v3 PRIVATE $<TARGET_OBJECTS:tapestry_hopper>)
  endif()
  set(folder ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
  if(NOT folder)
    set(folder ${CMAKE_CURRENT_BINARY_DIR})
  endif()
  set_target_properties(tapestry_v3 PROPERTIES OUTPUT_NAME tapestry LIBRARY_OUTPUT_DIRECTORY ${folder}/glibc-hwcaps/x86-64-v3)
  # Programs are linked with the first library, and load the second one where it is.
  add_library(tapestry_loaded INTERFACE)
  add_dependencies(tapestry_loaded tapestry_v3)
  target_link_libraries(tapestry INTERFACE $<BUILD_INTERFACE:tapestry_loaded>)
endfunction()
