#pragma once
// Pages of HTML that are one file and need no network.
#include <string>

namespace apps {

/// The files of a page, which the build embeds (page/embed.cmake).
struct PageFiles {
  const char* html;           ///< with the places {{title}}, {{css}}, {{data}}, {{script}} and {{hash}}
  const char* css;            ///< all style sheets
  const char* script;         ///< all scripts
  const char* script_sha256;  ///< in hexadecimal digits
};

/// The page as one text. `title` is plain text. `data` is JSON from json_in_html().
std::string page_of(const PageFiles& files, const std::string& title, const std::string& data);

/// The same JSON without characters that could end an element of HTML or a line of a script.
std::string json_in_html(const std::string& json);

}  // namespace apps
