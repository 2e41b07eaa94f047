# Run as a script: cmake -DOUT=embedded.cpp -DFOLDER=page -DSCRIPTS="data.js;..." -P embed.cmake
# Writes a source file that contains the files of the page as strings.
set(script "\"use strict\";\n")
foreach(file ${SCRIPTS})
  file(READ ${FOLDER}/${file} text)
  string(APPEND script "${text}")
endforeach()
string(SHA256 hash "${script}")
file(READ ${FOLDER}/page.html html)
file(READ ${FOLDER}/page.css css)
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
file(WRITE ${OUT} "#include \"tapestry/apps/compare/page/page.h\"

namespace apps::compare {
const char* const kPageHtml = ${html};
const char* const kPageCss = ${css};
const char* const kPageScript = ${script};
const char* const kPageScriptSha256 = \"${hash}\";
}  // namespace apps::compare
")
