#pragma once
// A table as text.
#include <string>
#include <vector>

namespace apps {

/// The first row is the head. Columns are aligned, to the left if their cells below the head begin with a
/// letter, else to the right. Rows that are too short have empty cells.
std::string text_table(const std::vector<std::vector<std::string>>& rows);
/// The same as Markdown.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace apps
