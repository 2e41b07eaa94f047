#pragma once
// Types and functions that the source files of bench_gpu_ops share: the description of a benchmark, its
// inputs, and its results.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/tapestry.h"

namespace tapestry::bench {

/// The dtype and the sizes in a command such as `start softmax f32 8192 8192`.
struct Spec {
  DType dtype = DType::f32;
  Device device;
  std::vector<std::int64_t> sizes;
  bool captured = false;  ///< a training step is captured as a CUDA graph; on a CPU it is an ordinary step
  /// Returns the i-th size. Throws if the command has fewer sizes.
  std::int64_t operator[](std::size_t i) const;
};

/// Named tensors: the result `y`, gradients such as `dx`, the gradients of a model's parameters.
class Results {
 public:
  Results() = default;
  Results(const Tensor& y) { add("y", y); }  // NOLINT: most benchmarks have one result
  void add(std::string name, const Tensor& tensor) { tensors_.emplace_back(std::move(name), tensor); }
  const std::vector<std::pair<std::string, Tensor>>& tensors() const { return tensors_; }

 private:
  std::vector<std::pair<std::string, Tensor>> tensors_;
};

/// A benchmark with its inputs.
struct Work {
  std::function<Results()> call;  ///< runs the benchmark once; this call is timed
  /// If positive, the host time per operation is measured instead of the device time. It is the number of
  /// operations in one call.
  int operations = 0;
  /// Returns the results of the last call, if `call` itself returns none.
  std::function<Results()> results = {};
};

using Maker = std::function<Work(const Spec&)>;
/// The benchmarks of single operations, by name.
const std::map<std::string, Maker>& single_operations();
/// The benchmarks of whole training steps, by name.
const std::map<std::string, Maker>& training_steps();
/// The kernels of docs/tutorials/from-naive-to-fast.md, by name.
const std::map<std::string, Maker>& tutorial_kernels();

/// Uniform numbers in [-1, 1), in the order of memory. tools/gpu/peer.py computes the same numbers for the
/// same `salt`. They repeat after 4M elements.
Tensor random(const Spec& spec, const Shape& sizes, std::uint32_t salt,
              MemoryFormat format = MemoryFormat::contiguous);
/// Class indices below `classes`, shape (rows).
Tensor class_targets(const Spec& spec, std::int64_t rows, std::int64_t classes);

/// All results as text: `name: elements and statistics`, separated by ` | `. The elements are samples; the
/// statistics cover every element, so a wrong region is found although no sample lies in it. Images are read
/// in channels-last order, whatever their layout.
std::string describe(const Results& results);

}  // namespace tapestry::bench
