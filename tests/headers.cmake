# Compiles public headers by themselves, to show that a header includes what it uses. A header that its own .cpp file includes
# first is skipped, because the library's build compiles it by itself already. In a unity build it does not. Then those that
# differ from the parent commit are compiled, and an eighth of the others, which the commit chooses, to save time. Without git,
# all are compiled. One more file includes all public headers twice. All files see only the library's public interface, as a
# consumer does.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  ${PROJECT_SOURCE_DIR}/core/*.h ${PROJECT_SOURCE_DIR}/autograd/*.h
  ${PROJECT_SOURCE_DIR}/nn/*.h ${PROJECT_SOURCE_DIR}/data/*.h ${PROJECT_SOURCE_DIR}/distributed/*.h)
list(FILTER headers EXCLUDE REGEX "/internal/")  # the same headers as in cmake/install.cmake
set(part "")
if(TAPESTRY_UNITY)
  execute_process(WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} COMMAND git rev-parse HEAD^ HEAD
    OUTPUT_VARIABLE commits OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE no_parent ERROR_QUIET)
  if(NOT no_parent)
    string(REGEX MATCH "[0-9a-f]$" part "${commits}")
    math(EXPR part "0x${part} % 8")
    execute_process(WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} COMMAND git diff --name-only --relative HEAD^ -- "*.h"
      OUTPUT_VARIABLE changed COMMAND_ERROR_IS_FATAL ANY)
    string(REPLACE "\n" ";" changed "${changed}")
  endif()
endif()
set(units)
set(all "")
foreach(header tapestry.h ${headers})
  string(APPEND all "#include \"tapestry/${header}\"\n")
  string(REGEX REPLACE "\\.h$" ".cpp" own ${PROJECT_SOURCE_DIR}/${header})
  if(EXISTS ${own})
    file(STRINGS ${own} first REGEX "^#include" LIMIT_COUNT 1)
    string(MD5 hash ${header})
    string(SUBSTRING ${hash} 0 6 hash)
    math(EXPR header_part "0x${hash} % 8")
    if(first STREQUAL "#include \"tapestry/${header}\"" AND
       NOT (TAPESTRY_UNITY AND (part STREQUAL "" OR part EQUAL header_part OR header IN_LIST changed)))
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
