#pragma once
// How many registers and how much stack each kernel may use: the table tests/device_code/budget.tsv.
#include <string>
#include <vector>

#include "tests/device_code/device_code.h"

namespace device_code {

/// The budget is for machine code that this version of nvcc makes for this architecture. Others differ.
inline constexpr int kBudgetArch = 90;
inline constexpr const char* kBudgetCompiler = "13.0";

/// One row. `kernel` is a name without Tapestry's namespaces, with its template arguments, or without them
/// for all instantiations that have no row of their own.
struct Budget {
  std::string kernel;
  int registers = 0;  // per thread
  int stack = 0;      // bytes per thread, including spilled registers
  bool operator==(const Budget&) const = default;
};

/// "conv::gemm<float, 32>" for "void tapestry::kernels::cuda::conv::gemm<float, 32>".
std::string budget_name(const Kernel& kernel);

/// Reads a table with a header line and the columns of Budget, separated by tabs. Throws std::runtime_error
/// that names a malformed line.
std::vector<Budget> read_budget(const fs::path& file);
/// Writes a table.
void write_budget(const fs::path& file, const std::vector<Budget>& budget);

/// The rows that these kernels need. Registers are rounded up to 8, the unit in which a GPU allocates them.
/// The instantiations of a kernel share a row, unless there are at most 16 and their registers differ by more
/// than 32.
std::vector<Budget> needed_budget(const std::vector<Kernel>& kernels);

/// A line for each kernel that exceeds its row or has none, for each row that no kernel uses, and for each
/// row that allows at least 16 registers more than its kernels need.
std::vector<std::string> budget_faults(const std::vector<Kernel>& kernels, const std::vector<Budget>& budget);

}  // namespace device_code
