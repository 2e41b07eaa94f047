# The C++ code in README.md and docs/. A block fenced as ```cpp is
# - a program if it begins with #include: a target that is built if it is asked for, or with the tests,
# - otherwise the body of a function with `using namespace tapestry`, a fragment (tests/docs/docs.cmake).
# If the next block after it is fenced as ```text output, it must print that text (tests/docs/prints.h).
# A block fenced as ```cpp listing is an excerpt of the sources, which tests/structure/listings_test.cpp compares; a block
# fenced as ```cpp outline is neither compiled nor compared.
#
# The program of docs/tutorials/ddp-step-by-step.md is the target docs_ddp_step_by_step, that of docs/reference/zero.md is
# docs_reference_zero, and the second of three programs on a page ends in _2. Between the program and the next block, the page
# names the command that builds the target and runs it.
set(TAPESTRY_PAGES ${PROJECT_BINARY_DIR}/pages)  # the folder of the generated sources
file(GLOB_RECURSE pages CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/docs/*.md)
list(APPEND pages ${PROJECT_SOURCE_DIR}/README.md)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${pages})
set(page_programs "")   # the targets
set(page_fragments "")  # the code of test cases
set(page_outputs "")    # the code of test cases that run those programs whose output is on the page
set(page_faults "")

foreach(page ${pages})
  file(RELATIVE_PATH name ${PROJECT_SOURCE_DIR} ${page})
  string(REGEX REPLACE "^docs/(tutorials/)?|\\.md$" "" id ${name})
  string(REGEX REPLACE "[^A-Za-z0-9]+" "_" id ${id})
  string(TOLOWER "docs_${id}" id)
  file(READ ${page} text)
  string(REGEX MATCHALL "\n```cpp\n#include" found "${text}")
  list(LENGTH found count)
  set(number 0)
  set(line 1)
  set(fence "\n```cpp\n")
  string(LENGTH "${fence}" fence_length)
  string(FIND "${text}" "${fence}" begin)
  while(NOT begin EQUAL -1)
    math(EXPR begin "${begin} + ${fence_length}")
    string(SUBSTRING "${text}" 0 ${begin} before)
    string(REGEX MATCHALL "\n" newlines "${before}")
    list(LENGTH newlines lines)
    math(EXPR line "${line} + ${lines}")
    string(SUBSTRING "${text}" ${begin} -1 text)
    string(FIND "${text}" "\n```" end)
    math(EXPR end "${end} + 1")
    string(SUBSTRING "${text}" 0 ${end} code)
    # What follows: the text up to the next block, and that block's lines if they are the output.
    math(EXPR end "${end} + 3")
    string(SUBSTRING "${text}" ${end} -1 behind)
    string(FIND "${behind}" "\n```" next)
    string(SUBSTRING "${behind}" 0 ${next} between)
    string(FIND "${behind}" "\n```text output\n" output)
    set(has_output FALSE)
    if(NOT output EQUAL -1 AND output EQUAL next)
      set(has_output TRUE)
      math(EXPR output "${output} + 16")
      string(SUBSTRING "${behind}" ${output} -1 behind)
      string(FIND "${behind}" "```" end)
      string(SUBSTRING "${behind}" 0 ${end} output)
    endif()
    string(FIND "${code}" "#include" include)
    if(include EQUAL 0)
      set(target ${id})
      math(EXPR number "${number} + 1")
      if(count GREATER 1)
        string(APPEND target _${number})
      endif()
      if(NOT between MATCHES "`cmake --build build/release --target ${target} && [^`]*${target}[` ]")
        string(APPEND page_faults "${name}:${line}: name the command behind the program: `cmake --build build/release --target ${target} && ${target}` [builds and runs](write-a-model.md#compile-it) this program.\n")
      endif()
      file(CONFIGURE OUTPUT ${TAPESTRY_PAGES}/${target}.cpp CONTENT "#line ${line} \"${page}\"\n${code}" @ONLY)
      add_executable(${target} EXCLUDE_FROM_ALL ${TAPESTRY_PAGES}/${target}.cpp)
      target_link_libraries(${target} PRIVATE tapestry)
      target_compile_options(${target} PRIVATE -O0)  # compiling takes longer than running: the work is the library's
      list(APPEND page_programs ${target})
      if(has_output)
        string(APPEND page_outputs "TEST_CASE(\"${target}\", \"[.]\") {\n  tests::prints(\"${name}:${line}\", R\"output(${output})output\", [] { tests::run_program(\"${target}\"); });\n}\n")
        set(${target}_has_output TRUE)
      endif()
    else()
      if(has_output)
        set(code "tests::prints(\"${name}:${line}\", R\"output(${output})output\", [] {\n#line ${line} \"${page}\"\n${code}});\n")
      else()
        set(code "#line ${line} \"${page}\"\n${code}")
      endif()
      string(APPEND page_fragments "TEST_CASE(\"${name}:${line}\") {\n  const tests::InTempDir here;\n  using namespace tapestry;\n${code}}\n")
    endif()
    string(FIND "${text}" "${fence}" begin)
  endwhile()
endforeach()
