# Run as a script: cmake -DOUT=embedded.cpp -DHEADER=page.h -DNAME=apps::kPage -DHTML=page.html -DPOLICY="img-src data:"
#                        "-DSTYLES=page.css;..." "-DSCRIPTS=dom.js;..." -P embed.cmake
# Writes a source file that defines the apps::PageFiles NAME, which HEADER declares, with the files of a page as strings.
set(script "\"use strict\";\n")
foreach(file ${SCRIPTS})
  file(READ ${file} text)
  string(APPEND script "${text}")
endforeach()
string(SHA256 hash "${script}")
file(READ ${CMAKE_CURRENT_LIST_DIR}/frame.html html)
file(READ ${HTML} body)
string(REPLACE "{{policy}}" "${POLICY}" html "${html}")
string(REPLACE "{{body}}" "${body}" html "${html}")
set(css "")
foreach(file ${STYLES})
  file(READ ${file} text)
  string(APPEND css "${text}")
endforeach()
# A compiler may limit the length of one literal to 64 kB, so long texts are split into several.
function(literal result text)
  set(out "")
  string(LENGTH "${text}" length)
  set(at 0)
  while(at LESS length)
    string(SUBSTRING "${text}" ${at} 12000 part)
    string(APPEND out "R\"embedded(${part})embedded\"\n")
    math(EXPR at "${at} + 12000")
  endwhile()
  set(${result} "${out}" PARENT_SCOPE)
endfunction()
literal(html "${html}")
literal(css "${css}")
literal(script "${script}")
file(WRITE ${OUT} "#include \"tapestry/${HEADER}\"

const apps::PageFiles ${NAME} = {
${html},
${css},
${script},
\"${hash}\"};
")
