#pragma once
// Formats tables as text.
#include <string>
#include <vector>

namespace apps {

/// Formats a table whose first row is the header. A column is left-aligned if a cell below the header begins
/// with a letter, otherwise right-aligned. Rows that are too short are filled with empty cells.
std::string text_table(const std::vector<std::vector<std::string>>& rows);
/// Formats the same table as Markdown.
std::string markdown_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace apps
