# cmake -D COMPILER= -D INCLUDE= -D HEADERS= -D WORK= -P compilers.cmake
# Compiles a consumer's file with one compiler: under strict warnings, as C++20 and C++23, and after macros of other libraries.
# HEADERS is a file that includes each public header. Nothing is linked, so most runs only check the syntax.
execute_process(COMMAND ${COMPILER} --version OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "^[^\n]*" version "${version}")
message(STATUS "${version}")
set(warnings -Wall -Wextra -Wshadow -Wpedantic -Wconversion -Werror)
set(cxx23 -std=c++2b)  # the name that g++ 12 and clang 14 share

function(compile)
  execute_process(COMMAND ${COMPILER} -I ${INCLUDE} ${ARGN} COMMAND_ECHO STDOUT RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "failed (${result})")
  endif()
endfunction()

set(guest ${CMAKE_CURRENT_LIST_DIR}/guest.cpp)
compile(-std=c++20 -fsyntax-only ${warnings} ${guest})
compile(${cxx23} -fsyntax-only ${warnings} ${guest})

# tapestry.h hides the macros; the other headers must compile in spite of them. The standard library's headers come first,
# because these macros break them too.
file(WRITE ${WORK}/macros.cpp "#include <bits/stdc++.h>
#define check(x) (x)
#define fail(x) (x)
#define slots
#define emit
#define signals public
#define foreach for
#define min(a, b) ((a) < (b) ? (a) : (b))
#define max(a, b) ((a) > (b) ? (a) : (b))
#include \"${HEADERS}\"\n")
compile(-std=c++20 -fsyntax-only ${warnings} ${WORK}/macros.cpp)

execute_process(COMMAND ${COMPILER} -I ${INCLUDE} -std=c++20 -fno-rtti -fsyntax-only ${HEADERS}
  RESULT_VARIABLE result ERROR_VARIABLE text)
string(REGEX MATCHALL "error: [^\n]*" errors "${text}")
list(LENGTH errors count)
if(result EQUAL 0 OR NOT count EQUAL 1 OR NOT text MATCHES "compile without -fno-rtti")
  message(FATAL_ERROR "-fno-rtti must give one error that says what to do, not ${count}:\n${text}")
endif()

if(NOT version MATCHES "clang")
  compile(-std=c++20 -O3 ${warnings} -c ${CMAKE_CURRENT_LIST_DIR}/dangling.cpp -o ${WORK}/dangling.o)
endif()
