#include "tests/device_code/budget.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

namespace device_code {
namespace {

constexpr const char* kHeader = "kernel\tregisters\tstack";
constexpr int kUnit = 8, kSlack = 16;

int rounded(int registers) { return (registers + kUnit - 1) / kUnit * kUnit; }
std::string family(const std::string& name) { return name.substr(0, name.find('<')); }

}  // namespace

std::string budget_name(const Kernel& kernel) {
  std::string name = kernel.name();
  if (name.starts_with("void ")) name.erase(0, 5);
  for (const char* space : {"tapestry::kernels::cuda::", "tapestry::kernels::", "tapestry::"})
    for (std::size_t at; (at = name.find(space)) != std::string::npos;)
      name.erase(at, std::string(space).size());
  return name;
}

std::vector<Budget> read_budget(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!in || !std::getline(in, line) || line != kHeader)
    throw std::runtime_error("[budget] " + file.string() + " does not begin with the line \"" + kHeader +
                             "\"");
  std::vector<Budget> budget;
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    Budget row;
    std::string rest;
    if (!std::getline(fields, row.kernel, '\t') || !(fields >> row.registers >> row.stack) || fields >> rest)
      throw std::runtime_error("[budget] " + file.string() + " has the malformed line \"" + line + "\"");
    budget.push_back(row);
  }
  return budget;
}

void write_budget(const fs::path& file, const std::vector<Budget>& budget) {
  std::ofstream out(file);
  out << kHeader << '\n';
  for (const Budget& row : budget) out << row.kernel << '\t' << row.registers << '\t' << row.stack << '\n';
}

std::vector<Budget> needed_budget(const std::vector<Kernel>& kernels) {
  std::map<std::string, std::vector<const Kernel*>> families;
  for (const Kernel& k : kernels) families[family(budget_name(k))].push_back(&k);
  std::map<std::string, Budget> rows;
  for (const auto& [name, members] : families) {
    const auto [least, most] =
        std::minmax_element(members.begin(), members.end(),
                            [](const Kernel* a, const Kernel* b) { return a->registers < b->registers; });
    const bool apart = members.size() <= 16 && (*most)->registers - (*least)->registers > 32;
    for (const Kernel* k : members) {
      Budget& row = rows[apart ? budget_name(*k) : name];
      row.kernel = apart ? budget_name(*k) : name;
      row.registers = std::max(row.registers, rounded(k->registers));
      row.stack = std::max(row.stack, k->stack);
    }
  }
  std::vector<Budget> budget;
  for (const auto& [name, row] : rows) budget.push_back(row);
  return budget;
}

std::vector<std::string> budget_faults(const std::vector<Kernel>& kernels,
                                       const std::vector<Budget>& budget) {
  std::map<std::string, const Budget*> rows;
  for (const Budget& row : budget) rows[row.kernel] = &row;
  std::map<std::string, int> used;  // the registers that the kernels of a row need
  std::vector<std::string> found;
  for (const Kernel& k : kernels) {
    const std::string name = budget_name(k);
    auto it = rows.find(name);
    if (it == rows.end()) it = rows.find(family(name));
    if (it == rows.end()) {
      found.push_back(name + ": no row; it uses " + std::to_string(k.registers) + " registers");
      continue;
    }
    const Budget& row = *it->second;
    used[row.kernel] = std::max(used[row.kernel], rounded(k.registers));
    if (k.registers > row.registers)
      found.push_back(name + ": " + std::to_string(k.registers) + " registers of at most " +
                      std::to_string(row.registers));
    if (k.stack > row.stack)
      found.push_back(name + ": " + std::to_string(k.stack) + " bytes of stack of at most " +
                      std::to_string(row.stack));
  }
  for (const Budget& row : budget) {
    if (!used.contains(row.kernel)) found.push_back(row.kernel + ": no kernel uses this row");
    else if (row.registers >= used[row.kernel] + kSlack)
      found.push_back(row.kernel + ": the row allows " + std::to_string(row.registers) + " registers, and " +
                      std::to_string(used[row.kernel]) + " suffice");
  }
  return found;
}

}  // namespace device_code
