# cmake -D PROGRAM=... -D QUOTED=FILE -P prints.cmake
# Runs PROGRAM. It must succeed, and its output (stdout and stderr together) must be the text in FILE. White space of any
# length counts as one space, so that the file may break a long line. "..." in the file matches any text.
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND ${PROGRAM} OUTPUT_VARIABLE printed ERROR_VARIABLE printed RESULT_VARIABLE status)
file(READ ${QUOTED} quoted)
set(rest "${printed}")
foreach(text IN ITEMS quoted rest)
  string(REGEX REPLACE "[ \t\r\n]+" " " ${text} "${${text}}")
  string(STRIP "${${text}}" ${text})
endforeach()

set(anchored TRUE)  # the next piece must follow directly, without other text before it
while(TRUE)
  string(FIND "${quoted}" "..." dots)
  string(SUBSTRING "${quoted}" 0 ${dots} piece)  # if there is no "..." left, this is the whole rest
  if(dots EQUAL -1 AND NOT anchored)
    string(FIND "${rest}" "${piece}" at REVERSE)  # the last piece ends the output
  else()
    string(FIND "${rest}" "${piece}" at)
  endif()
  if(at EQUAL -1 OR (anchored AND NOT at EQUAL 0))
    set(missing "${piece}")
    break()
  endif()
  string(LENGTH "${piece}" length)
  math(EXPR at "${at} + ${length}")
  string(SUBSTRING "${rest}" ${at} -1 rest)
  if(dots EQUAL -1)
    if(NOT rest STREQUAL "")
      set(missing "the end, but there is more: ${rest}")
    endif()
    break()
  endif()
  set(anchored FALSE)
  math(EXPR dots "${dots} + 3")
  string(SUBSTRING "${quoted}" ${dots} -1 quoted)
endwhile()

if(DEFINED missing OR NOT status EQUAL 0)
  message(FATAL_ERROR "status ${status}\nexpected: ${missing}\nprinted:\n${printed}")
endif()
