# What makes a full build of the library fast: files compiled together, a precompiled header, and no more optimization than
# a folder's work needs.

# Files with loops over numbers, and those that allocate the result of each operation. They get full optimization, and each is
# compiled by itself.
set(TAPESTRY_ARITHMETIC "^(kernels/cpu/|core/(allocator|tensor|internal/cpu_allocator)\\.cpp$|distributed/comm/(reduce|internal/host_exchange)\\.cpp$)")

# Kernels whose loops are as fast with -O2, if it vectorizes and moves conditions out of loops as -O3 does, and compile in two
# thirds of the time.
set(TAPESTRY_ROWS "^kernels/cpu/(loss|norm_batch|softmax)\\.cpp$")

# tapestry_unity(TARGET VARIABLE): replaces .cpp files in this list by units, each of which includes about 16 files of one folder and
# its internal/. The compiler then reads their headers once. Files in a unit share an anonymous namespace, so the names in it
# must differ. Arithmetic is not replaced, because most of its time goes into code, nor are files with options, definitions
# or include folders of their own.
function(tapestry_unity target variable)
  set(sources)
  set(folders)
  foreach(source ${${variable}})
    file(RELATIVE_PATH path ${PROJECT_SOURCE_DIR} ${source})
    set(own "")
    foreach(property COMPILE_OPTIONS COMPILE_DEFINITIONS INCLUDE_DIRECTORIES)
      get_property(value SOURCE ${source} PROPERTY ${property})
      string(APPEND own "${value}")
    endforeach()
    if(own OR path MATCHES "${TAPESTRY_ARITHMETIC}|\\.cu$")
      list(APPEND sources ${source})
    else()
      string(REGEX REPLACE "(/internal)?/[^/]*$" "" folder ${path})
      list(APPEND folders ${folder})
      list(APPEND files_${folder} ${path})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder ${folders})
    list(LENGTH files_${folder} count)
    cmake_path(GET folder PARENT_PATH parent)
    if(count LESS 6 AND parent)  # few files share a unit with those of the folder above
      list(APPEND files_${parent} ${files_${folder}})
      set(files_${folder} "")
      list(REMOVE_ITEM folders ${folder})
      list(APPEND folders ${parent})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder ${folders})
    list(LENGTH files_${folder} count)
    math(EXPR units "(${count} + 15) / 16")
    foreach(file ${files_${folder}})
      # A file's name alone says which unit it belongs to, so that a new file does not move others.
      string(MD5 hash ${file})
      string(SUBSTRING ${hash} 0 6 hash)
      math(EXPR unit "0x${hash} % ${units}")
      string(APPEND content_${unit} "#include \"tapestry/${file}\"\n")
    endforeach()
    math(EXPR last "${units} - 1")
    foreach(unit RANGE ${last})
      if(content_${unit})
        set(source ${PROJECT_BINARY_DIR}/unity/${target}/${folder}/unit_${unit}.cpp)
        file(CONFIGURE OUTPUT ${source} CONTENT "${content_${unit}}" @ONLY)
        list(APPEND sources ${source})
        if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
          # g++ does not give this warning for types of the file that it compiles, and takes included files for headers.
          set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -Wno-subobject-linkage)
        endif()
      endif()
      unset(content_${unit})
    endforeach()
  endforeach()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()

# tapestry_optimization(TARGET FILE...): sets the level of each of the target's C++ files. Options of the user in
# CMAKE_CXX_FLAGS_RELEASE are respected: only -O3, CMake's default, is replaced. kernels/ and autograd/ keep it: they run in each operation.
function(tapestry_optimization target)
  if(TAPESTRY_SANITIZE STREQUAL "thread")
    return()  # the tests of threads calculate little, so that even arithmetic is compiled with the preset's -O0
  elseif(TAPESTRY_SANITIZE)
    # Without optimization, compiling saves more time than the tests lose. Arithmetic is the exception.
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-O1;${TAPESTRY_CHECK_INLINE}>")
  endif()
  foreach(source ${ARGN})
    string(REPLACE "${PROJECT_BINARY_DIR}/unity/${target}/" "" path ${source})
    string(REPLACE "${PROJECT_SOURCE_DIR}/" "" path ${path})
    if(path MATCHES "^distributed/planner/")  # the page of tapestry-compare computes the same bits, in JavaScript
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -ffp-contract=off)
    endif()
    if(path MATCHES "${TAPESTRY_ARITHMETIC}|\\.cu$" AND NOT (path MATCHES "${TAPESTRY_ROWS}" AND NOT TAPESTRY_SANITIZE))
      continue()
    endif()
    set_property(SOURCE ${source} PROPERTY SKIP_PRECOMPILE_HEADERS ON)
    if(TAPESTRY_SANITIZE)
      set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS -O0 ${TAPESTRY_CHECK_BY_CALL})
    elseif(CMAKE_CXX_FLAGS_RELEASE MATCHES "-O3")
      if(path MATCHES "^(nn|distributed)/")
        set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O1>)
      elseif(path MATCHES "${TAPESTRY_ROWS}" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O2>
          $<$<CONFIG:Release>:-fvect-cost-model=dynamic> $<$<CONFIG:Release>:-funswitch-loops>)
      elseif(path MATCHES "^core/")
        set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS $<$<CONFIG:Release>:-O2>)
      endif()
    endif()
  endforeach()
endfunction()

# tapestry_precompile(TARGET): precompiles headers of the standard library for the target's C++ files. Headers of ours are not
# precompiled: ccache may restore a precompiled header that was made before a comment changed, and g++ would then include a
# header of ours that has #pragma once a second time.
function(tapestry_precompile target)
  set(headers algorithm array atomic chrono cmath condition_variable cstring deque functional limits map memory mutex numeric
    optional set span string string_view thread tuple unordered_map unordered_set utility vector)
  list(TRANSFORM headers REPLACE ".+" "$<$<COMPILE_LANGUAGE:CXX>:<\\0$<ANGLE-R>>")
  target_precompile_headers(${target} PRIVATE ${headers})
  # g++ 12 warns wrongly about std::string's operator+. It knows that a header of the system is concerned, and stays silent,
  # unless the header is precompiled.
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds>")
endfunction()
