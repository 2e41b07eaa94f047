#pragma once
// The living page of a comparison: one file of HTML that needs no network. README.md describes its parts.
#include <string>

#include "tapestry/apps/compare/verdict.h"

namespace apps::compare {

std::string page(const Report& report, const Judgement& judgement);

/// The files of this folder, which the build embeds (embed.cmake).
extern const char* const kPageHtml;
extern const char* const kPageCss;
extern const char* const kPageScript;        ///< all scripts, in the order of CMakeLists.txt
extern const char* const kPageScriptSha256;  ///< in hexadecimal digits

}  // namespace apps::compare
