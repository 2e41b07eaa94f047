// Each kernel's machine code stays within the registers and the stack that tests/device_code/budget.tsv gives
// it. A register more than the GPU's unit of 8 costs occupancy, which no other test here sees.
#include "tests/device_code/budget.h"

#include <algorithm>
#include <cstdio>
#include <fstream>

#include "tapestry/core/version.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"
#include "tests/support/source.h"

using namespace device_code;

TEST_CASE("no kernel exceeds its budget of registers and stack") {
#if TAPESTRY_HAS_CUDA
  const fs::path library = file_of(reinterpret_cast<const void*>(&tapestry::version));
  std::vector<Kernel> kernels = read_kernels(library);
  std::erase_if(kernels, [](const Kernel& k) { return k.arch != kBudgetArch; });
  const std::string compiler = TAPESTRY_NVCC_VERSION;
  if (kernels.empty() || !compiler.starts_with(std::string(kBudgetCompiler) + ".")) {
    std::printf("skipped: the budget is for sm_%d and nvcc %s, and this library is of nvcc %s\n", kBudgetArch,
                kBudgetCompiler, compiler.c_str());
    return;
  }
  const fs::path needed = library.parent_path().parent_path() / "kernel_budget.tsv";
  write_budget(needed, needed_budget(kernels));
  INFO("If each difference is intended, copy " << needed << " to tests/device_code/budget.tsv");
  CHECK(budget_faults(kernels, read_budget(tests::source_path("tests/device_code/budget.tsv"))) ==
        std::vector<std::string>{});
#else
  std::printf("skipped: no CUDA toolkit, so no kernel was compiled for GPUs\n");
#endif
}

TEST_CASE("a kernel over its budget, without a row, and a row that is too large are reported") {
  // void tapestry::kernels::cuda::sum<float, n>(float*)
  const auto kernel = [](int n, int registers, int stack = 0) {
    return Kernel{.symbol = "_ZN8tapestry7kernels4cuda3sumIfLi" + std::to_string(n) + "EEEvPT_",
                  .arch = 90,
                  .registers = registers,
                  .stack = stack};
  };
  CHECK(budget_name(kernel(4, 1)) == "sum<float, 4>");
  const std::vector<Kernel> alike{kernel(1, 33), kernel(2, 40)}, apart{kernel(1, 33), kernel(2, 66)};
  const std::vector<Budget> one{{"sum", 40, 0}};
  CHECK(needed_budget(alike) == one);
  CHECK(needed_budget(apart) == std::vector<Budget>{{"sum<float, 1>", 40, 0}, {"sum<float, 2>", 72, 0}});
  CHECK(budget_faults(alike, one).empty());
  CHECK(budget_faults(apart, needed_budget(apart)).empty());
  const auto fault = [](const std::vector<Kernel>& kernels, const std::vector<Budget>& budget) {
    const std::vector<std::string> found = budget_faults(kernels, budget);
    CHECK(found.size() == 1);
    return found.empty() ? "" : found[0];
  };
  CHECK(fault({kernel(1, 41)}, one) == "sum<float, 1>: 41 registers of at most 40");
  CHECK(fault({kernel(1, 40, 8)}, one) == "sum<float, 1>: 8 bytes of stack of at most 0");
  CHECK(fault({kernel(1, 40), kernel(2, 50)}, {{"sum<float, 1>", 40, 0}}) ==
        "sum<float, 2>: no row; it uses 50 registers");
  CHECK(fault(alike, {{"other", 8, 0}, {"sum", 40, 0}}) == "other: no kernel uses this row");
  CHECK(fault(alike, {{"sum", 56, 0}}) == "sum: the row allows 56 registers, and 40 suffice");
  CHECK(budget_faults(alike, {{"sum", 48, 0}}).empty());

  const tests::TempDir folder;
  const fs::path file = fs::path(folder.path()) / "budget.tsv";
  write_budget(file, needed_budget(apart));
  CHECK(read_budget(file) == needed_budget(apart));
  for (const char* text :
       {"", "kernel\tregisters\n", "kernel\tregisters\tstack\nsum\t8\n",
        "kernel\tregisters\tstack\nsum\t8\t0\t1\n", "kernel\tregisters\tstack\nsum\tx\t0\n"}) {
    std::ofstream(file) << text;
    CHECK_THROWS_WITH(read_budget(file), ContainsSubstring("[budget] "));
  }
}
