#pragma once
// Reads the results of PyTorch that tests/golden/nn.py recorded, and computes the same weights and inputs as
// that script.
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

/// Reads tests/golden/nn_<name>.txt. Each line is a named record.
class NnGolden {
 public:
  explicit NnGolden(const std::string& name);
  /// Returns the record with this name. Throws std::runtime_error if there is none.
  const Record& at(const std::string& key) const;
  /// Returns all records whose names begin with `prefix`, in the order of the file. The prefix is removed
  /// from the names.
  std::vector<std::pair<std::string, Record>> under(const std::string& prefix) const;

 private:
  std::vector<std::pair<std::string, Record>> lines_;
};

/// Returns pseudo-random numbers in scale * [-0.5, 0.5). tests/golden/nn.py computes exactly the same bits.
Tensor formula(const Shape& sizes, int seed, double scale = 1, DType dtype = DType::f64);
Tensor labels(const Shape& sizes, int seed, int classes);
/// Converts the module to f64 and fills every floating-point tensor of its state dict by formula(), as nn.py
/// does.
void fill(nn::Module& module, double scale = 1);

/// Returns the elements in row-major order.
std::vector<double> values_of(const Tensor& t);
/// Returns |a - b| / |b| in the Euclidean norm, or |a| if b is 0.
double distance(const std::vector<double>& a, const std::vector<double>& b);
/// Compares a tensor with a record. Returns an empty string if the shapes are equal and the elements differ
/// by at most `tolerance` times max(1, the largest recorded element). Otherwise returns a text that describes
/// the difference.
std::string difference(const Tensor& got, const Record& wanted, double tolerance);

}  // namespace tapestry::test
