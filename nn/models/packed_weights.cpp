#include "tapestry/nn/models/packed_weights.h"

#include <memory>
#include <optional>
#include <set>

#include "tapestry/nn/internal/undivided.h"
#include "tapestry/nn/layers/embedding.h"
#include "tapestry/nn/layers/linear.h"

namespace tapestry::nn {
namespace {

constexpr const char* kOutputHead = "lm_head.weight";

// Calls f(name of the weight, layer) for each layer whose weight may be packed.
template <class F>
void for_each_layer(const Module& module, const F& f) {
  for (const auto& [path, child] : module.named_modules()) {
    const std::string name = path.empty() ? "weight" : path + ".weight";
    if (auto* linear = dynamic_cast<Linear*>(child)) f(name, *linear);
    else if (auto* embedding = dynamic_cast<Embedding*>(child)) f(name, *embedding);
  }
}

Shape weight_sizes(const Linear& layer) { return {layer.options.out_features, layer.options.in_features}; }
Shape weight_sizes(const Embedding& layer) {
  return {layer.options.num_embeddings, layer.options.embedding_dim};
}
bool can_be_packed(const Linear&) { return true; }
bool can_be_packed(const Embedding& layer) { return !layer.options.max_norm; }

std::string name_in(const ModelWeights& weights, const std::string& name) {
  if (weights.find(name) || name != kOutputHead) return name;
  for (const char* tied : {"model.embed_tokens.weight", "transformer.wte.weight"})
    if (weights.find(tied)) return tied;
  return name;
}

// The name in a GGUF file of a weight that it has as (out, in) and Hugging Face's files have transposed.
std::optional<std::string> stored_transposed(const std::string& name) {
  for (const WeightName& rule : weight_names("gpt2")) {
    if (rule.layout != WeightLayout::transposed) continue;
    const std::string hf = rule.hf, gguf = rule.gguf;
    const std::size_t at = hf.find("{}"), tail = hf.size() - at - 2;
    if (name.size() <= at + tail || name.compare(0, at, hf, 0, at) != 0 ||
        name.compare(name.size() - tail, tail, hf, at + 2, tail) != 0)
      continue;
    const std::string layer = name.substr(at, name.size() - at - tail);
    if (layer.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::size_t to = gguf.find("{}");
    return gguf.substr(0, to) + layer + gguf.substr(to + 2);
  }
  return std::nullopt;
}

// A tensor of f32, f16 or bf16 as a packed one that shares its memory.
PackedTensor packed_view(const Tensor& x) {
  const Tensor dense = x.contiguous();
  const BlockType type = dense.dtype() == DType::f32   ? BlockType::f32
                         : dense.dtype() == DType::f16 ? BlockType::f16
                                                       : BlockType::bf16;
  return PackedTensor(type, dense.sizes(), static_cast<const std::uint8_t*>(dense.raw_data()), dense.nbytes(),
                      std::make_shared<const Tensor>(dense));
}

// The weight of a layer, or nothing if the file has none that can stay packed.
std::optional<PackedTensor> packed_weight(const ModelWeights& weights, const std::string& name) {
  const std::string stored = name_in(weights, name);
  const ModelWeights::Entry* const entry = weights.find(stored);
  if (!entry) return std::nullopt;
  const std::optional<std::string> transposed = stored_transposed(stored);
  if (weights.gguf()) return transposed ? weights.gguf()->packed(*transposed) : weights.packed(stored);
  const bool floating =
      entry->dtype == DType::f32 || entry->dtype == DType::f16 || entry->dtype == DType::bf16;
  if (transposed || !floating) return std::nullopt;
  return packed_view(weights.read(stored));
}

}  // namespace

LoadResult load_packed_weights(Module& module, const ModelWeights& weights, bool strict) {
  check_undivided("load_packed_weights", module, false,
                  "load the weights before the model is sharded or replicated");
  // What will be packed is found before anything is changed.
  PackedWeights packed;
  std::set<std::string> wanted;
  LoadResult result;
  std::string wrong;
  const auto expect = [&](const std::string& name, const Shape& sizes, const Shape& own) {
    if (sizes != own)
      wrong += concat({"\n  ", name, " has the shape ", sizes, ", but the module's is ", own});
  };
  for_each_layer(module, [&](const std::string& name, auto& layer) {
    if (!can_be_packed(layer)) return;
    std::optional<PackedTensor> weight = packed_weight(weights, name);
    if (!weight) return;
    expect(name, weight->sizes(), weight_sizes(layer));
    wanted.insert(name);
    packed.emplace_back(name, std::move(*weight));
  });
  for (const auto& [name, tensor] : module.state_dict()) {
    if (!wanted.insert(name).second) continue;
    const ModelWeights::Entry* const entry = weights.find(name_in(weights, name));
    if (!entry) result.missing.push_back(name);
    else if (!stored_transposed(name)) expect(name, entry->sizes, tensor.sizes());
  }
  for (const ModelWeights::Entry& entry : weights.entries())
    if (!wanted.count(entry.name) && !detail::is_copy_of_embedding(weights, entry.name))
      result.unexpected.push_back(entry.name);
  if (strict) {
    for (const std::string& name : result.missing) wrong += "\n  " + name + " is missing";
    for (const std::string& name : result.unexpected) wrong += "\n  " + name + " is unexpected";
  }
  check(wrong.empty(), "[load_packed_weights] the weights do not fit to the module:", wrong,
        "\nBuild the module from the configuration of these weights.");

  std::size_t next = 0;
  for_each_layer(module, [&](const std::string& name, auto& layer) {
    if (next < packed.size() && packed[next].first == name) layer.set_packed_weight(packed[next++].second);
  });
  load_weights(module, weights, /*strict=*/false);
  return result;
}

PackedWeights packed_weights(const Module& module) {
  PackedWeights all;
  for_each_layer(module, [&](const std::string& name, auto& layer) {
    if (layer.packed_weight().defined()) all.emplace_back(name, layer.packed_weight());
  });
  return all;
}

}  // namespace tapestry::nn
