# Compiles public headers by themselves, to show that a header includes what it uses. A header that its own .cpp file includes
# first is skipped, because the library's build compiles it by itself already. One more file includes all public headers twice. All
# files see only the library's public interface, as a consumer does.
#
# A unity build compiles no file by itself. There, such headers and the library's .cpp files are compiled here if the change
# touches them, and of the others an eighth, which the commit chooses, to save time. The change is that of tools/test --part (base_of_change).
# Without git, all headers and no further .cpp files are compiled.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  ${PROJECT_SOURCE_DIR}/core/*.h ${PROJECT_SOURCE_DIR}/autograd/*.h
  ${PROJECT_SOURCE_DIR}/nn/*.h ${PROJECT_SOURCE_DIR}/data/*.h ${PROJECT_SOURCE_DIR}/distributed/*.h)
list(FILTER headers EXCLUDE REGEX "/internal/")  # the same headers as in cmake/install.cmake
set(chosen_part "")
set(changed "")
if(TAPESTRY_UNITY)
  execute_process(WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} COMMAND git rev-parse HEAD
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE no_git ERROR_QUIET)
  if(NOT no_git)
    string(REGEX MATCH "[0-9a-f]$" chosen_part "${commit}")
    math(EXPR chosen_part "0x${chosen_part} % 8")
    execute_process(WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
      COMMAND bash -c "source tools/lib/parts.sh && source tools/lib/changed.sh && base=$(base_of_change) && changed_files $base"
      OUTPUT_VARIABLE changed ERROR_QUIET)
    string(REPLACE "\n" ";" changed "${changed}")
  endif()
endif()
# Sets RESULT if the file is compiled by itself in this build.
function(tapestry_chosen result file)
  string(MD5 hash ${file})
  string(SUBSTRING ${hash} 0 6 hash)
  math(EXPR part "0x${hash} % 8")
  set(${result} FALSE PARENT_SCOPE)
  if(TAPESTRY_UNITY AND (chosen_part STREQUAL "" OR part EQUAL chosen_part OR file IN_LIST changed))
    set(${result} TRUE PARENT_SCOPE)
  endif()
endfunction()

set(units)
set(all "")
foreach(header tapestry.h ${headers})
  string(APPEND all "#include \"tapestry/${header}\"\n")
  string(REGEX REPLACE "\\.h$" ".cpp" own ${PROJECT_SOURCE_DIR}/${header})
  if(EXISTS ${own})
    file(STRINGS ${own} first REGEX "^#include" LIMIT_COUNT 1)
    tapestry_chosen(chosen ${header})
    if(first STREQUAL "#include \"tapestry/${header}\"" AND NOT chosen)
      continue()
    endif()
  endif()
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/headers/${header}.cpp)
  file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"tapestry/@header@\"\n" @ONLY)
  list(APPEND units ${unit})
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/headers/all.cpp CONTENT "@all@@all@" @ONLY)
list(APPEND units ${CMAKE_CURRENT_BINARY_DIR}/headers/all.cpp)
add_library(tests_headers OBJECT ${units})
target_link_libraries(tests_headers PRIVATE tapestry tapestry_warnings)
target_compile_options(tests_headers PRIVATE -O0)

# The library's files by themselves, without optimization and without the optional libraries that single files use.
set(singles "")
if(NOT chosen_part STREQUAL "")
  file(GLOB_RECURSE files CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
    ${PROJECT_SOURCE_DIR}/core/*.cpp ${PROJECT_SOURCE_DIR}/autograd/*.cpp ${PROJECT_SOURCE_DIR}/kernels/*.cpp
    ${PROJECT_SOURCE_DIR}/nn/*.cpp ${PROJECT_SOURCE_DIR}/data/*.cpp ${PROJECT_SOURCE_DIR}/distributed/*.cpp)
  list(FILTER files EXCLUDE REGEX "^kernels/cpu/|/cuda/")  # compiled by themselves in the library, or with options of their own
  foreach(file ${files})
    tapestry_chosen(chosen ${file})
    if(chosen)
      list(APPEND singles ${PROJECT_SOURCE_DIR}/${file})
    endif()
  endforeach()
endif()
if(singles)
  add_library(tests_singles OBJECT ${singles})
  target_include_directories(tests_singles PRIVATE ${PROJECT_BINARY_DIR}/include)
  target_compile_definitions(tests_singles PRIVATE TAPESTRY_VERSION="${PROJECT_VERSION}")
  target_link_libraries(tests_singles PRIVATE tapestry_private tapestry_warnings)
  target_compile_options(tests_singles PRIVATE -O0)
endif()
