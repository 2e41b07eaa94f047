#include "tapestry/apps/common/table.h"

#include <algorithm>
#include <cctype>

namespace apps {
namespace {

using Rows = std::vector<std::vector<std::string>>;

struct Column {
  std::size_t width = 3;  // Markdown needs at least three dashes below a header
  bool left = false;
};

std::string cell(const std::vector<std::string>& row, std::size_t column) {
  return column < row.size() ? row[column] : std::string();
}

std::vector<Column> columns_of(const Rows& rows) {
  std::size_t count = 0;
  for (const auto& row : rows) count = std::max(count, row.size());
  std::vector<Column> columns(count);
  for (std::size_t c = 0; c < count; ++c)
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::string text = cell(rows[r], c);
      columns[c].width = std::max(columns[c].width, text.size());
      if (r > 0 && !text.empty() && std::isalpha(static_cast<unsigned char>(text[0]))) columns[c].left = true;
    }
  return columns;
}

std::string padded(const std::string& text, const Column& column) {
  const std::string space(column.width - text.size(), ' ');
  return column.left ? text + space : space + text;
}

}  // namespace

std::string text_table(const Rows& rows) {
  const std::vector<Column> columns = columns_of(rows);
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t c = 0; c < columns.size(); ++c)
      line += (c ? "  " : "") + padded(cell(row, c), columns[c]);
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + '\n';
  }
  return out;
}

std::string markdown_table(const Rows& rows) {
  const std::vector<Column> columns = columns_of(rows);
  std::string out;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t c = 0; c < columns.size(); ++c) out += "| " + padded(cell(rows[r], c), columns[c]) + " ";
    out += "|\n";
    if (r > 0) continue;
    for (const Column& c : columns)
      out += "|" + (c.left ? std::string(c.width + 2, '-') : std::string(c.width + 1, '-') + ":");
    out += "|\n";
  }
  return out;
}

}  // namespace apps
