#include "tapestry/nn/models/pretrained.h"

#include <filesystem>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/context.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/models/internal/conv1d.h"
#include "tapestry/nn/models/internal/experts.h"
#include "tapestry/nn/models/lora.h"
#include "tapestry/nn/models/packed_weights.h"

namespace tapestry::nn {
namespace {

// What decides how much a model allocates before its weights are read.
struct Sizes {
  const char* layers;  // the beginning of the names of a layer's weights
  std::int64_t count;
  std::vector<std::pair<const char*, Shape>> shapes;
  std::vector<std::pair<const char*, Shape>> either =
      {};  // of which the file has the first, or else the second
};
Sizes sizes_of(const LlamaConfig& c) {
  return {"model.layers.",
          c.num_hidden_layers,
          {{"model.embed_tokens.weight", {c.vocab_size, c.hidden_size}},
           {"model.layers.0.self_attn.q_proj.weight", {c.num_attention_heads * c.head_dim, c.hidden_size}},
           {"model.layers.0.self_attn.k_proj.weight", {c.num_key_value_heads * c.head_dim, c.hidden_size}},
           {"model.layers.0.mlp.gate_proj.weight", {c.intermediate_size, c.hidden_size}}}};
}
Sizes sizes_of(const Gpt2Config& c) {
  return {"transformer.h.",
          c.n_layer,
          {{"transformer.wte.weight", {c.vocab_size, c.n_embd}},
           {"transformer.wpe.weight", {c.n_positions, c.n_embd}},
           {"transformer.h.0.mlp.c_fc.weight", {c.n_embd, c.n_inner}}}};
}

Sizes sizes_of(const OlmoeConfig& c) {
  Sizes sizes{
      "model.layers.",
      c.num_hidden_layers,
      {{"model.embed_tokens.weight", {c.vocab_size, c.hidden_size}},
       {"model.layers.0.self_attn.k_proj.weight", {c.num_key_value_heads * c.head_dim(), c.hidden_size}},
       {"model.layers.0.mlp.gate.weight", {c.num_experts, c.hidden_size}}}};
  // The matrices of experts stand in the file one by one, or as one tensor.
  sizes.either = {
      {"model.layers.0.mlp.experts.0.down_proj.weight", {c.hidden_size, c.intermediate_size}},
      {"model.layers.0.mlp.experts.down_proj", {c.num_experts, c.hidden_size, c.intermediate_size}}};
  return sizes;
}

// A configuration of a few bytes can claim any size, so it is compared with the tensors before anything is
// built. load_weights() compares the rest.
void check_sizes(const Sizes& sizes, const ModelWeights& weights) {
  std::string wrong;
  auto shapes = sizes.shapes;
  if (!sizes.either.empty()) shapes.push_back(sizes.either[weights.find(sizes.either[0].first) ? 0 : 1]);
  for (const auto& [name, expected] : shapes) {
    const ModelWeights::Entry* const entry = weights.find(name);
    if (!entry) wrong += concat({"\n  ", name, " is missing"});
    else if (entry->sizes != expected)
      wrong +=
          concat({"\n  ", name, " has the shape ", entry->sizes, ", but the configuration's is ", expected});
  }
  std::unordered_set<std::string_view> layers;
  const std::string_view prefix = sizes.layers;
  for (const ModelWeights::Entry& entry : weights.entries()) {
    const std::string_view name = entry.name;
    if (name.starts_with(prefix))
      layers.insert(name.substr(prefix.size(), name.find('.', prefix.size()) - prefix.size()));
  }
  if (static_cast<std::int64_t>(layers.size()) != sizes.count)
    wrong += concat({"\n  there are ", layers.size(), " layers, but the configuration has ", sizes.count});
  check(wrong.empty(), "[load_language_model] the weights do not fit to the configuration:", wrong,
        "\nPass the weights and the configuration of one model.");
}

template <class M, class Config>
std::unique_ptr<LanguageModel> load(const Config& config, const ModelWeights& weights, bool packed) {
  check_sizes(sizes_of(config), weights);
  std::unique_ptr<LanguageModel> model;
  {
    // On meta, so that no time goes into initial values.
    const DeviceGuard guard("meta");
    model = std::make_unique<M>(config);
  }
  if (packed && weights.gguf()) load_packed_weights(*model, weights);
  else load_weights(*model, weights);
  return model;
}

// Calls fn with the model as what it is.
template <class F>
auto visit(const LanguageModel& model, F&& fn) {
  if (const auto* llama = dynamic_cast<const Llama*>(&model)) return fn(*llama);
  if (const auto* olmoe = dynamic_cast<const Olmoe*>(&model)) return fn(*olmoe);
  const auto* gpt2 = dynamic_cast<const Gpt2*>(&model);
  check(gpt2 != nullptr, "[hf_sources] there is no file format for a model of type ", model.type_name(),
        "; Llama, Gpt2 and Olmoe have one");
  return fn(*gpt2);
}

}  // namespace

std::unique_ptr<LanguageModel> load_language_model(const std::string& path,
                                                   const LoadLanguageModelOptions& options) {
  const std::filesystem::path given(path);
  const bool config = given.filename() == "config.json";
  return load_language_model(path, ModelWeights(config ? (given.parent_path() / ".").string() : path),
                             options);
}

std::unique_ptr<LanguageModel> load_language_model(const std::string& path, const ModelWeights& weights,
                                                   const LoadLanguageModelOptions& options) {
  if (const GgufFile* const file = weights.gguf()) {
    if (file->metadata().string("general.architecture") == "gpt2")
      return load<Gpt2>(Gpt2Config::from_gguf(*file), weights, options.packed);
    return load<Llama>(LlamaConfig::from_gguf(*file), weights, options.packed);
  }
  const std::string type = model_type_of(path);
  if (type == "gpt2") return load<Gpt2>(Gpt2Config::from_hf_json(path), weights, options.packed);
  if (type == "olmoe") return load<Olmoe>(OlmoeConfig::from_hf_json(path), weights, options.packed);
  return load<Llama>(LlamaConfig::from_hf_json(path), weights, options.packed);
}

std::vector<TensorSource> hf_sources(const LanguageModel& model) {
  for (const auto& [name, parameter] : model.named_parameters())
    check_has_whole("hf_sources", name, parameter,
                    "call it on all ranks while FullyShard::unshard(true) lasts");
  check(packed_weights(model).empty(),
        "[hf_sources] the weights are packed; load the model without `packed`");
  check(lora_adapters(model).empty(),
        "[hf_sources] the model has adapters; merge_lora() and remove_lora() them");
  const bool gpt2 = visit(model, [](const auto& m) { return std::is_same_v<decltype(m), const Gpt2&>; });
  StateDict stored;
  for (const auto& [name, tensor] : model.state_dict()) {
    const auto matrices = detail::expert_matrices(name, tensor.sizes());
    for (const detail::ExpertMatrix& m : matrices)
      stored.emplace_back(m.name, tensor.detach().select(0, m.expert).narrow(0, m.first, m.sizes[0]));
    if (matrices.empty()) stored.emplace_back(name, tensor);
  }
  std::vector<TensorSource> all = weight_sources(stored);
  for (TensorSource& source : all)
    if (gpt2 && is_conv1d(source.name)) {
      source.sizes = {source.sizes[1], source.sizes[0]};
      source.read = [read = std::move(source.read)] { return read().t().contiguous(); };
    }
  return all;
}

void save_language_model(const std::string& folder, const LanguageModel& model,
                         const SaveShardsOptions& options) {
  visit(model, [&](const auto& m) { save_hf(folder, m.config, hf_sources(m), options); });
}

void save_language_model_gguf(const std::string& path, const LanguageModel& model,
                              const SaveGgufOptions& options) {
  visit(model, [&](const auto& m) {
    if constexpr (std::is_same_v<decltype(m), const Olmoe&>)
      fail(
          "[save_language_model_gguf] a model of type Olmoe cannot be written as a GGUF file; "
          "save_language_model() writes a folder");
    else save_gguf(path, m.config, hf_sources(m), options);
  });
}

}  // namespace tapestry::nn
