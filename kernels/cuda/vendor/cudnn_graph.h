#pragma once
// Operation graphs of cuDNN, and the plans that run them.
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tapestry/core/dtype.h"
#include "tapestry/kernels/cuda/vendor/cudnn_descriptor.h"

namespace tapestry::kernels::cuda::cudnn {

using Sizes = std::vector<std::int64_t>;
/// The strides of a dense row-major array.
Sizes row_major(const Sizes& sizes);

enum class Direction { forward, backward_data, backward_filter };

/// Two spatial dimensions: height and width.
struct Convolution {
  std::int64_t stride[2], padding[2], dilation[2];
};

/// What an operation graph is made for: a handle, whose GPU will run it, or the properties of a GPU that this
/// machine need not have (a DEVICEPROP descriptor, cuDNN 9.8 and later), with which graphs and plans can be
/// made but not run.
struct Target {
  Handle handle;
  const Descriptor* device = nullptr;
};

/// Which engines of cuDNN may be used. Engines that round sums or inputs to less than the contracts of the
/// slots ask for are never used: those with the notes REDUCED_PRECISION_REDUCTION and DOWN_CONVERT_INPUTS.
struct EngineRules {
  bool deterministic = false;  ///< excludes engines with the note NONDETERMINISTIC
  bool tensor_cores = true;  ///< false excludes engines with the note TENSOR_CORE, which compute f32 in TF32
  std::int64_t most_workspace = std::int64_t{4} << 30;  ///< bytes
};

/// Collects operations. Tensors are known by their unique ids, which count from 1 in the order of the calls
/// that make them. All functions throw CudnnError if cuDNN refuses a descriptor.
class Graph {
 public:
  /// Addresses of tensors are multiples of `alignment` bytes.
  explicit Graph(std::int64_t alignment) : alignment_(alignment) {}

  /// A tensor in memory. Plan::run() takes the addresses of these tensors in the order of their creation.
  std::int64_t tensor(const Sizes& sizes, const Sizes& strides, DataType type);
  /// A result that another operation of the graph uses and that is not stored.
  std::int64_t intermediate(const Sizes& sizes, const Sizes& strides, DataType type);
  /// A number, as a tensor of four dimensions of size 1.
  std::int64_t constant(float value);
  std::int64_t constant(std::int32_t value);

  /// Sums in f32. The tensors have the roles of the direction forward; the result is y, x or weight.
  void convolve(Direction direction, const Convolution& options, std::int64_t x, std::int64_t weight,
                std::int64_t y);
  /// y = mode(x), or mode(x, b); binary_select is y = condition ? x : b. Computes in `type`.
  void pointwise(PointwiseMode mode, std::int64_t x, std::optional<std::int64_t> b, std::int64_t y,
                 DataType type = DataType::float_, std::optional<std::int64_t> condition = {});
  /// y[i] = i's index along `axis`; x gives the shape.
  void gen_index(std::int64_t x, std::int64_t axis, std::int64_t y);
  /// c = a b for the last two dimensions. Sums in f32.
  void matmul(std::int64_t a, std::int64_t b, std::int64_t c);
  /// Reduces the dimensions that have size 1 in y, in f32.
  void reduce(ReductionOperator op, std::int64_t x, std::int64_t y);
  /// y has other sizes and strides than x and the same elements.
  void reshape(std::int64_t x, std::int64_t y);

  /// Makes the graph of all operations.
  Descriptor finalize(const Target& target) const;

  /// The unique ids of the tensors in memory.
  const std::vector<std::int64_t>& stored() const { return stored_; }
  /// The unique ids and values of the constants.
  struct Constant {
    std::int64_t id;
    alignas(8) unsigned char bytes[8];
  };
  const std::deque<Constant>& constants() const { return constants_; }

 private:
  Descriptor& add_tensor(const Sizes& sizes, const Sizes& strides, DataType type);
  std::int64_t add_constant(const void* value, std::size_t bytes, DataType type);
  const Descriptor& at(std::int64_t id) const { return tensors_[static_cast<std::size_t>(id - 1)]; }

  std::int64_t alignment_;
  std::deque<Descriptor> tensors_, parameters_, operations_;
  std::vector<std::int64_t> stored_;
  std::deque<Constant> constants_;
};

/// An execution plan. One thread at a time may run it.
class Plan {
 public:
  /// Asks cuDNN's heuristics for engine configurations (mode A, then B, then fallback), and takes the first
  /// one that the rules allow and that cuDNN supports. Throws CudnnError with refused() if there is none.
  Plan(const Target& target, Graph graph, const EngineRules& rules);

  std::int64_t workspace() const { return workspace_; }  ///< bytes
  /// "engine 41": cuDNN's number of the engine for this kind of graph.
  std::string str() const;
  /// Enqueues the work on the handle's stream. `addresses` are those of Graph::tensor().
  void run(Handle handle, std::span<void* const> addresses, void* workspace) const;

 private:
  Graph graph_;  // cuDNN does not say that a plan copies the descriptors it was made of
  Descriptor operations_;
  std::optional<Descriptor> config_, plan_;
  std::int64_t engine_ = -1, workspace_ = 0;
};

/// cuDNN's name of a dtype. Throws TypeError for dtypes that convolutions and attention do not have.
DataType data_type(DType dtype);

}  // namespace tapestry::kernels::cuda::cudnn
