# cmake -D NM= -D LIBRARY= -P exports.cmake
# Fails if the library exports a symbol outside of namespace tapestry. A consumer with its own version of Eigen, JSON
# or oneDNN could be linked with such a symbol.
execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^\n]+" lines "${text}")
set(others ${lines})
list(FILTER others EXCLUDE REGEX "^[0-9a-f]+ [A-Za-z] _Z(T[VTISHW]|T[hvc][nv0-9_]*|GV|Z|GVZ)?N[KRO]*8tapestry")
list(LENGTH lines count)
list(LENGTH others count_others)
if(count LESS 1000)
  message(FATAL_ERROR "nm found only ${count} exported symbols in ${LIBRARY}")
endif()
if(count_others GREATER 0)
  list(SUBLIST others 0 20 first)
  list(JOIN first "\n" first)
  message(FATAL_ERROR "${count_others} of ${count} exported symbols are not in namespace tapestry, such as\n${first}\n"
    "See cmake/exports.map.")
endif()
message(STATUS "${count} symbols, all in namespace tapestry")
