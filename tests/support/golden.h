#pragma once
// Recorded cases (tests/golden/ops/*.json), and tensors made from and turned into plain numbers. Rests on
// core alone: what is tested must not help to test itself.
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::test {

using Param = std::variant<std::monostate, bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                           std::vector<double>>;

/// A recorded tensor, row-major.
struct Values {
  DType dtype = DType::f64;
  Shape sizes;
  std::vector<double> values;
  std::vector<double> scale;  ///< |y| + sum |dy/dx_i| |x_i|; see tests/golden/cases.py
};

struct Golden {
  std::string op, label;
  std::set<std::string> tags;
  double slack = 1;
  std::map<std::string, Param, std::less<>> params;
  std::vector<std::optional<Values>> inputs;
  std::vector<Values> outputs;
  std::set<std::size_t> constant;  ///< inputs that are not differentiated
  bool has_grads = false;
  std::vector<std::optional<Values>> grads;  ///< one an input, none where PyTorch has none

  bool tagged(const char* tag) const { return tags.count(tag) != 0; }
  /// Whether float64 stands for the dtype under test: it is the only floating dtype among the inputs.
  bool generic() const;
  /// The dtypes to run in: of a generic case those of `takes` that hold the inputs exactly; f64 (as recorded)
  /// for all others.
  std::vector<DType> run_dtypes(DTypeSet takes) const;
  /// `recorded` with float64 replaced by the dtype under test, where that is what it stands for.
  DType actual(DType recorded, DType under_test) const {
    return recorded == DType::f64 && generic() ? under_test : recorded;
  }
};
using GoldenCases = std::vector<std::shared_ptr<const Golden>>;

/// Throws std::runtime_error with what is wrong.
GoldenCases parse_golden(const std::string& text);
/// Reads tests/golden/ops/<family>.json once.
const GoldenCases& golden_family(const std::string& family);
/// All families that there is a file of.
std::vector<std::string> golden_families();

/// The dtype named "f64", "i32", ... in golden files.
DType parse_dtype(const std::string& name);
/// Distance from 1 to the next number; 0 for integral dtypes.
double epsilon(DType dtype);
/// The largest finite number.
double largest(DType dtype);
/// The distance between the smallest numbers.
double smallest(DType dtype);
/// Whether the dtype has this number.
bool holds(DType dtype, double value);

enum class Layout { dense, transposed, stepped, channels_last };
inline constexpr Layout kLayouts[] = {Layout::dense, Layout::transposed, Layout::stepped,
                                      Layout::channels_last};
const char* layout_name(Layout layout);

/// A tensor with these values, laid out so (dense where the layout makes no difference to the shape). Memory
/// between the elements holds NaN, or the largest integer.
Tensor make(const Values& values, DType dtype, Layout layout = Layout::dense);
/// The same bytes, laid out alike, in memory of another device.
Tensor moved(const Tensor& t, Device device);
/// The elements, row-major.
std::vector<double> numbers(const Tensor& t);

/// The storage of tensors as it was, to see whether anything wrote to it.
class Snapshot {
 public:
  explicit Snapshot(const std::vector<Tensor>& tensors);
  /// Text for each tensor that changed: its bytes, shape or strides.
  std::vector<std::string> changes() const;

 private:
  std::vector<Tensor> tensors_;
  std::vector<std::vector<char>> bytes_;
  std::vector<Shape> sizes_, strides_;
};

}  // namespace tapestry::test
