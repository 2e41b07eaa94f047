#pragma once
// The residual stream of a model that ranks divide, and the conversions at the borders of its divided
// regions.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "tapestry/core/generator.h"
#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/distributed/placement/convert.h"
#include "tapestry/distributed/tensor/tensor_parallel.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

/// The length of a sequence, if all that were seen are equal.
struct OneLength {
  static constexpr std::int64_t kNone = -1, kSeveral = -2;
  std::int64_t value = kNone;

  void see(std::int64_t length) { value = value == kNone || value == length ? length : kSeveral; }
  bool is_known() const { return value >= 0; }
};

struct LayerWeights {
  Tensor weight, bias;
};
/// linear() of a divided layer. The gradients of the weights are delayed (autograd/internal/delay.h).
Tensor whole_product(const Tensor& x, const LayerWeights& layer);

/// The input of a region, and the results of its column layers for it.
struct EnteredRegion {
  Tensor x;
  std::vector<Tensor> results;
};

/// Shared by the layers of one model. If ranks divide the stream, a part alone does not say how long the
/// whole sequence is: with 2 ranks, 4 elements may be a part of 8, or of 7. into_region() takes the length
/// that entered the stream in this call of the model. If none or several did, as with a stream that was
/// divided before the call, or for a checkpoint() that recomputes a call after one with another length, the
/// ranks exchange the sizes of their parts: one small blocking all-gather. Parts that are not those of
/// nn::Region::part() are refused then. Where one length has entered in a call, a divided stream of another
/// length that comes from outside of the model is a ValueError only on ranks whose part does not fit.
class ResidualStream {
 public:
  ResidualStream(Axis axis, const TensorParallelOptions& options)
      : axis(std::move(axis)),
        sequence(options.sequence),
        chunks(options.chunks),
        sequence_dim_(options.sequence_dim) {}

  const Axis axis;
  const bool sequence;
  const int chunks;

  /// From the stream into a divided region: replicated. Backward adds the ranks' gradients.
  Tensor into_region(const Tensor& x);
  /// A sum whose parts the ranks of a region have computed, on the stream.
  Tensor from_parts(const Tensor& x);
  /// The parts of the last dimension, `whole_size` elements, that the ranks of a region have, gathered: the
  /// same whole tensor on all ranks, with equal gradients.
  Tensor gathered(const Tensor& x, std::int64_t whole_size);
  /// A tensor that all ranks have computed, with equal gradients, on the stream.
  Tensor from_invariant(const Tensor& x);
  /// While the result exists, this thread draws other random numbers than the other ranks: see
  /// draw_own_numbers().
  std::shared_ptr<void> own_numbers(Device device);

  // ---- chunks.cpp

  /// Returns into_region(x). If it is gathered in chunks, also computes the products of these column layers:
  /// the product of a chunk runs while the next chunk is gathered. Otherwise there are no results.
  EnteredRegion gathered_products(const Tensor& x, const std::vector<LayerWeights>& layers);
  /// from_parts() of the product of a row layer. With chunks, a product runs while the chunk before it is
  /// reduced and scattered. addend(dtype) is added to the product, unless it is undefined.
  Tensor scattered_product(const Tensor& x, const Tensor& weight, const std::function<Tensor(DType)>& addend);

  /// A parameter that each rank uses for its own part of a computation: backward adds the ranks' gradients.
  Tensor replicated(const Tensor& p);
  /// The same for a parameter that is used on the stream, if ranks divide the stream.
  Tensor on_stream(const Tensor& p) { return sequence ? replicated(p) : p; }

  /// A scope of a call of the whole model.
  std::shared_ptr<void> call();

  /// What the layers of the model send on this rank: see TensorParallel.
  const std::shared_ptr<ConversionTraffic> traffic = std::make_shared<ConversionTraffic>();

 private:
  int dim_of(const Tensor& x) const;
  Tensor converted(const Tensor& x, Placement from, Placement to,
                   std::optional<std::int64_t> whole_size = {}) const;
  PendingConversion begun(const Tensor& chunk, Placement from, Placement to, std::int64_t whole_size,
                          bool fills_wait) const;

  // The length of the whole sequence of which `x` is this rank's part. All ranks decide alike whether to
  // exchange. Throws ValueError on all ranks if exchanged parts are not those of nn::Region::part().
  std::int64_t length_of(const Tensor& x, int dim);
  void see(std::int64_t length);

  const int sequence_dim_;
  bool in_call_ = false;  // of the whole model
  OneLength of_call_, of_all_;
  Generator own_;  // of own_numbers(). A member, because graphs keep the context in which they were recorded
};

/// Registers a scope around the module's calls in which these parameters give `converted` of them.
void convert_parameters_in_calls(nn::Module& module, std::vector<nn::Parameter> parameters,
                                 std::function<Tensor(const Tensor&)> converted);

/// In calls of the module in training, random numbers are this rank's own. They follow from the number that
/// all ranks would draw next, so a call that is repeated with the same state of the generator, as
/// checkpoint() does, draws the same numbers.
void draw_own_numbers(nn::Module& module, const std::shared_ptr<ResidualStream>& stream);
/// In calls of the module, random numbers are those that all ranks draw, also inside a module of
/// draw_own_numbers().
void draw_common_numbers(nn::Module& module);

}  // namespace tapestry::distributed
