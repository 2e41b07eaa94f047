#pragma once
// What divided Linear layers compute, and how the modules that contain them enter a divided region.
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tapestry/distributed/tensor/internal/stream.h"
#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/models/lora.h"

namespace tapestry::distributed {

/// The adapter of a layer, or null.
nn::LoraAdapter* adapter_of(const nn::Linear& layer);

struct ColumnLayer {
  nn::Linear* layer;
  std::function<Tensor(const Tensor&)> own = {};  ///< converts a parameter of units that ranks share, or null
  /// The parameters of this call.
  LayerWeights weights() const;
};

/// A module whose inputs enter the divided region once for all column layers inside. If the stream has
/// chunks, the products of these layers run when their input enters, and the layers return them when they are
/// called with it.
class RegionOfLayers {
 public:
  explicit RegionOfLayers(std::shared_ptr<ResidualStream> stream) : stream_(std::move(stream)) {}
  void add(const ColumnLayer& layer) { layers_.push_back(layer); }
  /// Registers the hooks of the module.
  static void enter_in_calls(nn::Module& module, const std::shared_ptr<RegionOfLayers>& region);
  /// The result of the layer, which is given once, or undefined if there is none for this input.
  Tensor take(const nn::Linear& layer, const Tensor& x);

 private:
  Tensor enter(const Tensor& x);
  void leave();

  const std::shared_ptr<ResidualStream> stream_;
  std::vector<ColumnLayer> layers_;
  std::set<const nn::Linear*> with_other_inputs_;  // their results were not taken
  Tensor x_;                                       // that has entered, in a call with chunks
  std::vector<std::pair<const nn::Linear*, Tensor>> results_;
};

/// Divides the outputs of a layer. `outputs` is the number of outputs of all ranks if they are gathered, else
/// 0. Without a region, the layer's input enters here.
void divide_outputs(const ColumnLayer& layer, const std::shared_ptr<ResidualStream>& stream,
                    const std::shared_ptr<RegionOfLayers>& region, std::int64_t outputs);
/// Divides the inputs of a layer. `behind_blocks` is true if the layer may follow one whose outputs are
/// blocks.
void divide_inputs(nn::Linear& layer, const std::shared_ptr<ResidualStream>& stream, bool behind_blocks);

/// Makes calls convert the parameters of a module on the stream, and those of its adapter.
void convert_all_in_calls(nn::Module& module, const std::shared_ptr<ResidualStream>& stream);

}  // namespace tapestry::distributed
