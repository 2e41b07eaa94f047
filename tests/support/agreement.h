#pragma once
// Two programs run the same golden cases on CUDA devices: tests_device executes kernels that g++ compiled,
// and tests_gpu on the PTX machine those that nvcc compiled. Each of them records its results, and the test
// machine.agreement compares the records.
#include <cstddef>
#include <string>
#include <vector>

#include "tests/support/golden.h"
#include "tests/support/op_case.h"

namespace tapestry::test {

/// Whether results of the operation in floating dtypes may differ between the two programs, because a
/// compiler rounds differently. All other results must have the same bits.
bool may_round(const std::string& op);

/// Appends a line to the file that TAPESTRY_GOLDEN_RESULTS names, which the process empties first: the
/// operation, the name of the result, its dtype, and a hash of its bits. If the result may be rounded
/// differently, the line has the bits instead of the hash, and the tolerance of each element. Does nothing
/// without that variable. `t` is on the host. NaN has many bit patterns and is recorded as one.
void record_result(const std::string& op, const std::string& name, const Tensor& t,
                   const std::vector<double>& tolerances);

struct Agreement {
  Failures failures;
  std::size_t equal = 0;   ///< results with the same bits
  std::size_t within = 0;  ///< results that differ, but not by more than they may
  double largest = 0;      ///< the largest difference of these, in parts of the tolerance
};
/// Compares all records in two folders. A result that may be rounded differently may differ by half of its
/// tolerance. A result that only one folder has is a failure.
Agreement compare_results(const std::string& folder, const std::string& other);

}  // namespace tapestry::test
