# Compiles each public header by itself, to show that the header includes what it uses. A header that its own .cpp file
# includes first is skipped, because the library's build compiles it by itself already. One more file includes all public
# headers twice. All files see only the library's public interface, as a consumer does.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  ${PROJECT_SOURCE_DIR}/core/*.h ${PROJECT_SOURCE_DIR}/autograd/*.h
  ${PROJECT_SOURCE_DIR}/nn/*.h ${PROJECT_SOURCE_DIR}/data/*.h ${PROJECT_SOURCE_DIR}/distributed/*.h)
list(FILTER headers EXCLUDE REGEX "/internal/")  # the same headers as in cmake/install.cmake
set(units)
set(all "")
foreach(header tapestry.h ${headers})
  string(APPEND all "#include \"tapestry/${header}\"\n")
  string(REGEX REPLACE "\\.h$" ".cpp" own ${PROJECT_SOURCE_DIR}/${header})
  if(EXISTS ${own})
    file(STRINGS ${own} first REGEX "^#include" LIMIT_COUNT 1)
    if(first STREQUAL "#include \"tapestry/${header}\"")
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
