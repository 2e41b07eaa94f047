// Builds the table of operations and kinds of test (build_matrix()).
#include <algorithm>
#include <map>

#include "tests/support/op_check.h"

namespace tapestry::test {
namespace {

struct Cell {
  int tests = 0;
  std::string reason;  // the reason of NOT_APPLICABLE
};

struct Line {
  Cell cells[kNumKinds];
  DTypeSet takes = 0, run = 0;
};

bool has_tensor(const Golden& g) {
  return std::any_of(g.inputs.begin(), g.inputs.end(),
                     [](const auto& v) { return v && v->sizes.numel() > 1; });
}

void count_case(const Golden& g, const OpInfo& op, Line& line) {
  const auto add = [&](Kind kind, bool counts) { line.cells[static_cast<int>(kind)].tests += counts; };
  add(Kind::golden, true);
  add(Kind::gradcheck, op.differentiable && g.generic() && !g.tagged("no_gradcheck") && !g.tagged("empty"));
  add(Kind::gradgradcheck, op.twice && g.generic() && !g.tagged("no_gradcheck") &&
                               !g.tagged("no_gradgradcheck") && !g.tagged("empty"));
  add(Kind::strided, has_tensor(g) && !g.tagged("no_strided"));
  add(Kind::empty, g.tagged("empty"));
  add(Kind::extreme, g.tagged("extreme"));
  for (DType dtype : g.run_dtypes(op.dtypes)) {
    for (const auto& v : g.inputs)
      if (v) line.run |= bit(g.actual(v->dtype, dtype));
    if (g.inputs.empty())  // an operation without inputs is a factory: count the dtypes of its results
      for (const Values& v : g.outputs) line.run |= bit(v.dtype);
  }
}

std::string list_dtypes(DTypeSet set) {
  std::string text;
  for (int d = 0; d < kNumDTypes; ++d)
    if (contains(set, static_cast<DType>(d)))
      text.append(text.empty() ? "" : ", ").append(dtype_name(static_cast<DType>(d)));
  return text;
}

std::string markdown_of(const std::map<std::string, Line>& lines, const std::vector<DeviceColumn>& columns) {
  std::string table = "| operation |", rule = "|---|";
  for (int k = 0; k < kNumKinds; ++k) {
    table.append(" ").append(kind_name(static_cast<Kind>(k))).append(" |");
    rule += "---|";
  }
  for (const DeviceColumn& column : columns) {
    table.append(" ").append(column.title).append(" |");
    rule += "---|";
  }
  table += "\n" + rule + "\n";
  std::vector<std::string> notes;
  // The number of a note, between parentheses.
  const auto noted = [&](const std::string& reason) {
    auto note = static_cast<std::size_t>(std::find(notes.begin(), notes.end(), reason) - notes.begin());
    if (note == notes.size()) notes.push_back(reason);
    return "(" + std::to_string(note + 1) + ")";
  };
  for (const auto& [name, line] : lines) {
    table.append("| `").append(name).append("` |");
    for (const Cell& cell : line.cells) {
      if (cell.tests && &cell == &line.cells[static_cast<int>(Kind::dtypes)]) {
        table.append(" ").append(list_dtypes(line.takes)).append(" |");
      } else if (cell.tests) {
        table += " yes |";
      } else if (cell.reason.empty()) {
        table += " **blank** |";
      } else {
        table.append(" n/a ").append(noted(cell.reason)).append(" |");
      }
    }
    for (const DeviceColumn& column : columns) {
      const DeviceCell cell = column.cell(name);
      table.append(" ").append(cell.text.empty() ? "**blank**" : cell.text);
      if (!cell.reason.empty()) table.append(" ").append(noted(cell.reason));
      table += " |";
    }
    table += "\n";
  }
  if (!notes.empty()) table += "\n";
  for (std::size_t i = 0; i < notes.size(); ++i)
    table.append(std::to_string(i + 1)).append(". ").append(notes[i]).append("\n");
  return table;
}

}  // namespace

Matrix build_matrix(const std::vector<OpInfo>& ops, const std::vector<GoldenRow>& golden,
                    const std::vector<KindRow>& rows, const std::vector<std::string>& families,
                    const std::function<const GoldenCases&(const std::string&)>& cases,
                    const std::vector<DeviceColumn>& columns) {
  Matrix matrix;
  const auto failed = [&](std::initializer_list<std::string_view> parts) {
    std::string text;
    for (std::string_view part : parts) text += part;
    matrix.failures.push_back(std::move(text));
  };
  std::map<std::string, Line> lines;
  std::map<std::string, OpInfo> info;
  for (const OpInfo& op : ops) {
    if (!info.emplace(op.name, op).second) failed({"two operations are registered as '", op.name, "'"});
    Line& line = lines[op.name];
    line.takes = op.dtypes;
    if (!op.differentiable)
      for (const Kind kind : {Kind::gradcheck, Kind::gradgradcheck})
        line.cells[static_cast<int>(kind)].reason = "has no gradient";
  }

  for (const GoldenRow& row : golden)
    if (!info.count(base_name(row.op)))
      failed({"GOLDEN_OP of '", row.op, "': no operation is registered under that name"});
  for (const std::string& family : families) {
    for (const auto& g : cases(family)) {
      const bool run = std::any_of(golden.begin(), golden.end(), [&](const GoldenRow& row) {
        return row.op == g->op && row.family == family;
      });
      const auto op = info.find(base_name(g->op));
      if (!run) failed({"tests/golden/ops/", family, ".json: no GOLDEN_OP runs '", g->label, "'"});
      else if (op != info.end()) count_case(*g, op->second, lines[op->first]);
    }
  }
  for (const KindRow& row : rows) {
    if (!info.count(row.op)) {
      failed({kind_name(row.kind), " test of '", row.op, "': no operation is registered under that name"});
      continue;
    }
    Cell& cell = lines[row.op].cells[static_cast<int>(row.kind)];
    if (row.reason.empty()) ++cell.tests;
    else cell.reason = row.reason;
  }

  for (auto& [name, line] : lines) {
    const DTypeSet missing = static_cast<DTypeSet>(line.takes & ~line.run);
    line.cells[static_cast<int>(Kind::dtypes)].tests += missing == 0;
    for (int k = 0; k < kNumKinds; ++k) {
      const Cell& cell = line.cells[k];
      const char* kind = kind_name(static_cast<Kind>(k));
      if (cell.tests && !cell.reason.empty())
        failed({name, " x ", kind, ": is tested, and said not to be applicable: ", cell.reason});
      if (cell.tests || !cell.reason.empty()) continue;
      if (static_cast<Kind>(k) == Kind::dtypes)
        failed({name, " x dtypes: takes ", list_dtypes(missing), ", which no case runs"});
      else failed({name, " x ", kind, ": is blank"});
    }
  }
  for (const DeviceColumn& column : columns)
    for (const auto& [name, line] : lines)
      if (column.cell(name).text.empty()) failed({name, " x ", column.title, ": is blank"});
  matrix.markdown = markdown_of(lines, columns);
  return matrix;
}

}  // namespace tapestry::test
