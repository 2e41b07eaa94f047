#pragma once
// Recorded test cases (tests/golden/ops/*.json), and conversion between tensors and plain numbers. This code
// uses only core, so that the operations under test do not help to test themselves.
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

/// A recorded tensor in row-major order.
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
  std::set<std::size_t> constant;  ///< indices of inputs that are not differentiated
  bool has_grads = false;
  std::vector<std::optional<Values>> grads;  ///< one per input; empty if PyTorch returns no gradient

  bool tagged(const char* tag) const { return tags.count(tag) != 0; }
  /// True if float64 is the only floating dtype among the inputs. Such a case is generic: it runs in several
  /// dtypes, which replace float64.
  bool generic() const;
  /// The dtypes to run the case in. A generic case runs in those dtypes of `takes` that represent its inputs
  /// exactly, any other case only in f64, as recorded.
  std::vector<DType> run_dtypes(DTypeSet takes) const;
  /// Returns `recorded`, with float64 replaced by the dtype under test if the case is generic.
  DType actual(DType recorded, DType under_test) const {
    return recorded == DType::f64 && generic() ? under_test : recorded;
  }
};
using GoldenCases = std::vector<std::shared_ptr<const Golden>>;

/// Throws std::runtime_error if the text is malformed.
GoldenCases parse_golden(const std::string& text);
/// tests/golden/ops, or the folder that TAPESTRY_GOLDEN_OPS names: tools/fuzz_ops writes other cases there.
std::string golden_folder();
/// The cases of <family>.json in that folder, which is read once.
const GoldenCases& golden_family(const std::string& family);
/// Returns all families that have a file in that folder.
std::vector<std::string> golden_families();

/// The dtype named "f64", "i32", ... in golden files.
DType parse_dtype(const std::string& name);
/// The distance from 1 to the next larger number; 0 for integral dtypes.
double epsilon(DType dtype);
/// The largest finite number.
double largest(DType dtype);
/// The smallest positive (subnormal) number.
double smallest(DType dtype);
/// Whether the dtype represents this value exactly.
bool holds(DType dtype, double value);

enum class Layout { dense, transposed, stepped, channels_last };
inline constexpr Layout kLayouts[] = {Layout::dense, Layout::transposed, Layout::stepped,
                                      Layout::channels_last};
const char* layout_name(Layout layout);

/// A tensor with these values in the given layout (dense if the layout does not apply to the shape). Memory
/// between the elements holds NaN, or the largest integer.
Tensor make(const Values& values, DType dtype, Layout layout = Layout::dense);
/// A copy on another device with the same bytes and strides.
Tensor moved(const Tensor& t, Device device);
/// The elements in row-major order.
std::vector<double> numbers(const Tensor& t);

/// A copy of tensors' storage, to detect writes.
class Snapshot {
 public:
  explicit Snapshot(const std::vector<Tensor>& tensors);
  /// Returns one message per tensor whose bytes, shape or strides have changed.
  std::vector<std::string> changes() const;

 private:
  std::vector<Tensor> tensors_;
  std::vector<std::vector<char>> bytes_;
  std::vector<Shape> sizes_, strides_;
};

}  // namespace tapestry::test
