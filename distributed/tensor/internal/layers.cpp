#include "tapestry/distributed/tensor/internal/layers.h"

#include <algorithm>
#include <string>

#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/placement/check.h"
#include "tapestry/nn/layout.h"
#include "tapestry/nn/models/lora.h"

namespace tapestry::distributed {
namespace {

using StreamRef = std::shared_ptr<ResidualStream>;

// The result of a layer's adapter, or undefined.
Tensor of_adapter(nn::LoraAdapter* adapter, const Tensor& x, DType dtype) {
  return adapter && !adapter->merged ? nn::call(*adapter, x).to(dtype) : Tensor();
}

// False for a parameter that fully_shard() divides and has not gathered.
bool has_own_part(const nn::Parameter& p) {
  if (!p.defined() || !p.layout()) return p.defined();
  const nn::Layout& layout = *p.layout();
  return layout.full_cuts() == layout.cuts().size() || p.is_full(current_context().replica);
}

// A row layer takes this rank's part of all heads' features. To the placement check, what was computed from
// this rank's rows of blocks is `varying`, so this conversion declares it as sharded.
Tensor from_blocks(const Tensor& x, const ResidualStream& stream) {
  if (!checks_placement() || placement_of(x, stream.axis) != Placement::varying()) return x;
  return convert(x, stream.axis, Placement::varying(), Placement::sharded(x.dim() - 1));
}

}  // namespace

nn::LoraAdapter* adapter_of(const nn::Linear& layer) {
  const auto found = nn::lora_adapters(layer);
  return found.empty() ? nullptr : found[0].second;
}

LayerWeights ColumnLayer::weights() const {
  const auto used = [&](const nn::Parameter& p) { return own && p.defined() ? own(p) : Tensor(p); };
  return {used(layer->weight), used(layer->bias)};
}

// An attention may get one tensor as several inputs; these stay one tensor. The layers' products are those of
// the first input.
void RegionOfLayers::enter_in_calls(nn::Module& module, const std::shared_ptr<RegionOfLayers>& region) {
  module.register_forward_pre_hook([region](nn::Module&, std::vector<Tensor>& inputs) {
    const std::vector<Tensor> before = inputs;
    bool is_first = true;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!before[i].defined() || !is_floating(before[i].dtype())) continue;
      std::size_t first = 0;
      while (!before[first].is_same(before[i])) ++first;
      if (first < i) inputs[i] = inputs[first];
      else
        inputs[i] = std::exchange(is_first, false) ? region->enter(before[i])
                                                   : region->stream_->into_region(before[i]);
    }
  });
  if (region->stream_->chunks > 1)
    module.register_forward_hook(
        [region](nn::Module&, const std::vector<Tensor>&, std::vector<Tensor>&) { region->leave(); });
  draw_own_numbers(module, region->stream_);
}

Tensor RegionOfLayers::enter(const Tensor& x) {
  std::vector<const nn::Linear*> chosen;
  std::vector<LayerWeights> weights;
  if (stream_->chunks > 1)
    for (const ColumnLayer& each : layers_)
      if (!with_other_inputs_.contains(each.layer) && has_own_part(each.layer->weight)) {
        chosen.push_back(each.layer);
        weights.push_back(each.weights());
      }
  EnteredRegion entered = stream_->gathered_products(x, weights);
  results_.clear();  // of a call that threw
  for (std::size_t i = 0; i < entered.results.size(); ++i)
    results_.emplace_back(chosen[i], std::move(entered.results[i]));
  x_ = results_.empty() ? Tensor() : entered.x;
  return entered.x;
}

Tensor RegionOfLayers::take(const nn::Linear& layer, const Tensor& x) {
  if (!x_.defined() || !x_.is_same(x)) return {};
  const auto found = std::find_if(results_.begin(), results_.end(),
                                  [&](const auto& result) { return result.first == &layer; });
  if (found == results_.end()) return {};
  Tensor y = std::move(found->second);
  results_.erase(found);
  return y;
}

void RegionOfLayers::leave() {
  for (const auto& [layer, result] : results_) with_other_inputs_.insert(layer);
  results_.clear();
  x_ = Tensor();
}

void divide_outputs(const ColumnLayer& column, const StreamRef& stream,
                    const std::shared_ptr<RegionOfLayers>& region, std::int64_t outputs) {
  nn::LoraAdapter* const adapter = adapter_of(*column.layer);
  if (adapter) {
    adapter->in_layer = true;
    // Each rank computes a part of the gradient of A from its own outputs, with the same elements dropped.
    convert_parameters_in_calls(*adapter, {adapter->A},
                                [stream](const Tensor& p) { return stream->replicated(p); });
    if (column.own) convert_parameters_in_calls(*adapter, {adapter->B}, column.own);
    draw_common_numbers(*adapter);
  }
  if (region) region->add(column);
  column.layer->divided_forward = [column, stream, region, outputs, adapter](const Tensor& x) {
    Tensor in = x, y = region ? region->take(*column.layer, x) : Tensor();
    if (!y.defined()) {
      const LayerWeights weights = column.weights();
      EnteredRegion entered = region ? EnteredRegion{x, {}} : stream->gathered_products(x, {weights});
      in = entered.x;
      y = entered.results.empty() ? whole_product(in, weights) : entered.results[0];
    }
    if (const Tensor more = of_adapter(adapter, in, y.dtype()); more.defined()) y = y + more;
    return outputs > 0 ? stream->gathered(y, outputs) : y;
  };
}

void divide_inputs(nn::Linear& layer, const StreamRef& stream, bool behind_blocks) {
  nn::LoraAdapter* const adapter = adapter_of(layer);
  if (adapter) {
    adapter->in_layer = true;
    // A is divided as the inputs are. So each rank's results of A, and of B, are partial sums.
    convert_parameters_in_calls(*adapter, {adapter->B},
                                [stream](const Tensor& p) { return stream->replicated(p); });
    draw_own_numbers(*adapter, stream);
  }
  layer.divided_forward = [&layer, stream, adapter, behind_blocks](const Tensor& x) {
    check(x.dim() > 0 && x.size(-1) == layer.weight->size(1), "[linear] this rank has ",
          layer.weight->size(1), " inputs of a row layer, but got ", x.sizes(),
          "; put it behind a column layer with equal features and an equal unit");
    const Tensor in = behind_blocks ? from_blocks(x, *stream) : x;
    const Tensor y = stream->scattered_product(in, layer.weight,
                                               [&](DType dtype) { return of_adapter(adapter, in, dtype); });
    return layer.bias.defined() ? y + stream->on_stream(layer.bias) : y;
  };
}

void convert_all_in_calls(nn::Module& module, const StreamRef& stream) {
  for (nn::Module* const m : module.modules()) {
    if (m != &module && !dynamic_cast<nn::LoraAdapter*>(m)) continue;
    std::vector<nn::Parameter> own;
    for (const auto& [name, slot] : m->named_parameters())
      if (name.find('.') == std::string::npos) own.push_back(slot);
    convert_parameters_in_calls(*m, std::move(own),
                                [stream](const Tensor& p) { return stream->on_stream(p); });
  }
}

}  // namespace tapestry::distributed
