#pragma once
// What tests/golden/nn.py recorded, and the formula that it made weights and inputs from.
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/tapestry.h"

namespace tapestry::test {

struct Record {
  Shape sizes;
  std::vector<double> values;
};

/// The lines of tests/golden/nn_<name>.txt.
class NnGolden {
 public:
  explicit NnGolden(const std::string& name);
  /// Throws std::runtime_error when there is none.
  const Record& at(const std::string& key) const;
  /// All that begin with this prefix, the prefix cut off, in the order of the file.
  std::vector<std::pair<std::string, Record>> under(const std::string& prefix) const;

 private:
  std::vector<std::pair<std::string, Record>> lines_;
};

/// Numbers in scale * [-0.5, 0.5), scattered, the same to the last bit as in the script.
Tensor formula(const Shape& sizes, int seed, double scale = 1, DType dtype = DType::f64);
Tensor labels(const Shape& sizes, int seed, int classes);
/// The module in f64, every floating tensor of its state by the formula.
void fill(nn::Module& module, double scale = 1);

/// The elements, row-major.
std::vector<double> values_of(const Tensor& t);
/// |a - b| / |b| in the Euclidean norm (|a| where b is 0).
double distance(const std::vector<double>& a, const std::vector<double>& b);
/// Empty if shape and elements agree within `tolerance` of the largest (at least 1), else what differs.
std::string difference(const Tensor& got, const Record& wanted, double tolerance);

}  // namespace tapestry::test
