#pragma once
// The living page of a comparison: one file of HTML that needs no network. README.md describes its parts.
#include <string>

#include "tapestry/apps/common/page_files.h"
#include "tapestry/apps/compare/verdict.h"

namespace apps::compare {

std::string page(const Report& report, const Judgement& judgement);

/// The files of this folder, with the scripts in the order of CMakeLists.txt.
extern const PageFiles kPage;

}  // namespace apps::compare
