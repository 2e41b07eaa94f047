# Each public header compiles by itself, twice over, with no more than a consumer has: the library's public interface.
file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
  ${PROJECT_SOURCE_DIR}/core/*.h ${PROJECT_SOURCE_DIR}/kernels/*.h ${PROJECT_SOURCE_DIR}/autograd/*.h
  ${PROJECT_SOURCE_DIR}/nn/*.h ${PROJECT_SOURCE_DIR}/data/*.h ${PROJECT_SOURCE_DIR}/distributed/*.h)
list(FILTER headers EXCLUDE REGEX "^kernels/(cpu|bench)/|/internal/")  # as cmake/install.cmake
set(units)
foreach(header tapestry.h ${headers})
  set(unit ${CMAKE_CURRENT_BINARY_DIR}/headers/${header}.cpp)
  file(CONFIGURE OUTPUT ${unit} CONTENT "#include \"tapestry/@header@\"\n#include \"tapestry/@header@\"\n" @ONLY)
  list(APPEND units ${unit})
endforeach()
add_library(tests_headers OBJECT ${units})
target_link_libraries(tests_headers PRIVATE tapestry tapestry_warnings)
target_compile_options(tests_headers PRIVATE -O0)
