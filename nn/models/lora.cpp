#include "tapestry/nn/models/lora.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/dropout.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/nn/init.h"
#include "tapestry/nn/internal/lora_targets.h"
#include "tapestry/nn/internal/name_pattern.h"
#include "tapestry/nn/internal/options_text.h"
#include "tapestry/nn/internal/remove_child.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/internal/undivided.h"
#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"

namespace tapestry::nn {

namespace {

constexpr const char* kChild = "lora";
constexpr const char* kAllLinear = "all-linear";

// The dtype and device of an adapter. A layer whose weight is packed has no tensor to ask.
TensorOptions tensors_beside(const Linear& base) {
  const Parameter& weight = base.weight;
  if (!weight.defined() || !weight.is_floating_point()) return {DType::f32, kCPU};
  const DType dtype = weight.dtype();
  return {dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype, weight.device()};
}
Tensor first_matrix(const Linear& base, const LoraOptions& o) {
  return init::kaiming_uniform_(empty({o.r, base.options.in_features}, tensors_beside(base)), std::sqrt(5.0));
}
Tensor second_matrix(const Linear& base, const LoraOptions& o) {
  return zeros({base.options.out_features, o.r}, tensors_beside(base));
}

LoraAdapter* adapter_of(const Module& layer) {
  for (const auto& [name, child] : layer.named_children())
    if (name == kChild)
      if (auto* const adapter = dynamic_cast<LoraAdapter*>(child)) return adapter;
  return nullptr;
}

bool ends_with_name(const std::string& path, const std::string& name) {
  return path == name ||
         (path.size() > name.size() && path.ends_with(name) && path[path.size() - name.size() - 1] == '.');
}

}  // namespace

LoraAdapter::LoraAdapter(Linear& base, std::shared_ptr<const LoraOptions> o)
    : options(std::move(o)),
      A(param("A", first_matrix(base, *options))),
      B(param("B", second_matrix(base, *options))) {
  // The hook belongs to the layer, which owns this adapter; the destructor removes it.
  hook_ = base.register_forward_hook(
      [this](Module&, const std::vector<Tensor>& inputs, std::vector<Tensor>& outputs) {
        if (!merged && !in_layer) outputs[0] = outputs[0] + call(*this, inputs[0]).to(outputs[0].dtype());
      });
}
LoraAdapter::~LoraAdapter() { hook_.remove(); }

Tensor LoraAdapter::forward(const Tensor& x) {
  const Tensor wide = x.to(A.dtype());
  // The narrow product is scaled, because it has fewer elements than the result.
  return linear(linear(dropout(wide, options->lora_dropout, is_training()), A) * scaling(), B);
}

double LoraAdapter::scaling() const {
  const auto r = static_cast<double>(options->r);
  return options->lora_alpha / (options->use_rslora ? std::sqrt(r) : r);
}

Tensor LoraAdapter::delta() const { return matmul(B, A) * scaling(); }

std::string LoraAdapter::options_text() const {
  return detail::OptionsText()
      .add("r", options->r)
      .add("lora_alpha", options->lora_alpha)
      .add("lora_dropout", options->lora_dropout, 0.0)
      .add("use_rslora", options->use_rslora, false)
      .str();
}

std::vector<std::pair<std::string, LoraAdapter*>> lora_adapters(const Module& model) {
  std::vector<std::pair<std::string, LoraAdapter*>> found;
  for (const auto& [path, module] : model.named_modules())
    if (LoraAdapter* const adapter = adapter_of(*module)) found.emplace_back(path, adapter);
  return found;
}

// ---- adding ----

namespace detail {

std::vector<std::pair<std::string, Linear*>> lora_targets(const Module& model, LoraOptions options,
                                                          bool all_must_match) {
  const char* const op = "add_lora";
  if (options.target_modules.empty() && options.target_pattern.empty()) {
    if (dynamic_cast<const Llama*>(&model)) options.target_modules = {"q_proj", "v_proj"};
    if (dynamic_cast<const Gpt2*>(&model)) options.target_modules = {"c_attn"};
    check(!options.target_modules.empty(), "[", op, "] a ", model.type_name(),
          " has no default layers; name them in target_modules, or set it to {\"", kAllLinear, "\"}");
  }
  check(options.target_modules.empty() || options.target_pattern.empty(), "[", op,
        "] target_modules and target_pattern are both set; set one of them");
  const bool all = options.target_modules == std::vector<std::string>{kAllLinear};
  std::vector<std::size_t> matches(options.target_modules.size());
  std::unordered_set<const void*> heads;  // slots, or the blocks of packed weights
  for (const Module* const m : model.modules())
    if (const auto* const language = dynamic_cast<const LanguageModel*>(m)) {
      if (language->output_weight().defined()) heads.insert(language->output_weight().id());
      if (language->packed_output_weight().defined()) heads.insert(language->packed_output_weight().data());
    }
  std::optional<detail::NamePattern> pattern;
  if (!options.target_pattern.empty()) pattern.emplace(options.target_pattern);
  std::vector<std::pair<std::string, Linear*>> found;
  for (const auto& [path, module] : model.named_modules()) {
    auto* const layer = dynamic_cast<Linear*>(module);
    if (!layer) continue;
    const bool packed = layer->packed_weight().defined();
    const bool head = packed ? heads.contains(layer->packed_weight().data())
                             : layer->weight.defined() && heads.contains(layer->weight.id());
    bool selected = all && !head;
    for (std::size_t i = 0; !all && i < matches.size(); ++i)
      if (ends_with_name(path, options.target_modules[i])) ++matches[i], selected = true;
    if (pattern) selected = pattern->matches(path);
    if (!selected) continue;
    check(
        !head, "[", op, "] '", path,
        "' is the head of a language model, whose weight is used without a call of the layer; leave it out");
    found.emplace_back(path, layer);
  }
  for (std::size_t i = 0; all_must_match && !all && i < matches.size(); ++i)
    check(matches[i] > 0, "[", op, "] no Linear layer of the ", model.type_name(), " is named '",
          options.target_modules[i], "'; named_modules() lists the layers");
  check(!found.empty(), "[", op, "] no Linear layer of the ", model.type_name(), " is selected",
        pattern ? " by the pattern \"" + options.target_pattern + "\"" : std::string(),
        "; named_modules() lists the layers");
  return found;
}

void check_lora_options(const LoraOptions& o) {
  const char* const op = "add_lora";
  constexpr std::int64_t kMost = 1 << 16;
  check(o.r >= 1 && o.r <= kMost, "[", op, "] r is ", o.r, "; a rank is from 1 to ", kMost, ", often 8");
  check(std::isfinite(o.lora_alpha), "[", op, "] lora_alpha is ", o.lora_alpha, "; it must be a number");
  check(o.lora_dropout >= 0 && o.lora_dropout < 1, "[", op, "] lora_dropout is ", o.lora_dropout,
        "; it must be in [0, 1)");
}

}  // namespace detail

namespace {

void check_layers(const Module& model, const std::vector<std::pair<std::string, Linear*>>& targets) {
  const char* const op = "add_lora";
  check(lora_adapters(model).empty(), "[", op, "] the ", model.type_name(),
        " has adapters already; call remove_lora() first");
  for (const auto& [path, layer] : targets) {
    check(layer->weight.replicas() <= 1, "[", op, "] '", path, "' has ", layer->weight.replicas(),
          " replicas; add adapters before the model is replicated");
    check(!layer->weight.defined() || !layer->weight.layout(), "[", op, "] '", path,
          "' is divided; add adapters before tensor_parallel() and fully_shard()");
    for (const auto& [name, child] : layer->named_children())
      check(name != kChild, "[", op, "] '", path, "' has a child '", kChild, "' of another kind");
  }
}

}  // namespace

std::vector<std::string> add_lora(Module& model, const LoraOptions& options) {
  detail::check_lora_options(options);
  return detail::add_adapters(model, options, detail::lora_targets(model, options, /*all_must_match=*/true));
}

std::vector<std::string> detail::add_adapters(Module& model, const LoraOptions& options,
                                              const std::vector<std::pair<std::string, Linear*>>& targets) {
  check_layers(model, targets);
  const auto shared = std::make_shared<const LoraOptions>(options);
  std::vector<std::shared_ptr<LoraAdapter>> made;  // memory may run out; then nothing was added
  for (const auto& [path, layer] : targets) made.push_back(std::make_shared<LoraAdapter>(*layer, shared));
  model.requires_grad_(false);
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < targets.size(); ++i) {
    made[i]->train(targets[i].second->is_training());
    targets[i].second->add(kChild, made[i]);
    paths.push_back(targets[i].first);
  }
  return paths;
}

// ---- merging and removing ----

namespace {

// The layer, its path and its adapter.
struct Adapted {
  std::string path;
  Linear* layer;
  LoraAdapter* adapter;
};
std::vector<Adapted> adapted_layers(const char* op, const Module& model) {
  std::vector<Adapted> found;
  for (const auto& [path, adapter] : lora_adapters(model))
    found.push_back({path, &dynamic_cast<Linear&>(model.at(path)), adapter});
  check(!found.empty(), "[", op, "] the ", model.type_name(), " has no adapters; add_lora() adds them");
  return found;
}

// True if this rank has the part that it computes with: all of the tensor, or what tensor_parallel() left.
bool has_own_part(const Parameter& p) {
  const auto& layout = p.layout();
  return !layout || (layout->full_cuts() == layout->cuts().size() &&
                     std::none_of(layout->cuts().begin(), layout->cuts().end(),
                                  [](const Cut& cut) { return cut.dim == Cut::kHeld; }));
}

void set_merged(const char* op, Module& model, bool on) {
  std::vector<Adapted> layers = adapted_layers(op, model);
  std::erase_if(layers, [on](const Adapted& a) { return a.adapter->merged == on; });
  // How many modules use a weight: merging must not change a tied weight.
  std::unordered_map<const void*, int> users;
  for (const Module* const m : model.modules())
    if (const auto* const layer = dynamic_cast<const Linear*>(m); layer && layer->weight.defined())
      ++users[layer->weight.id()];
  for (const Module* const m : model.modules())
    if (const auto* const language = dynamic_cast<const LanguageModel*>(m))
      ++users[language->output_weight().id()];
  for (const auto& [path, layer, adapter] : layers) {
    const Parameter& weight = layer->weight;
    check(weight.defined() && weight.replicas() == 1 && !weight.is_computed() && has_own_part(weight) &&
              adapter->A.replicas() == 1 && has_own_part(adapter->A) && has_own_part(adapter->B),
          "[", op, "] the weight of '", path,
          "' is packed, parametrized, sharded or replicated; merge into a model whose weights are plain "
          "tensors");
    const Shape sizes{adapter->B.size(0), adapter->A.size(1)};
    check(weight.is_floating_point() && weight.sizes() == sizes, "[", op, "] the weight of '", path, "' is ",
          weight.dtype(), " ", weight.sizes(), "; expected floating-point numbers of shape ", sizes);
    check(users[weight.id()] == 1, "[", op, "] the weight of '", path,
          "' is shared with another module, which must not change; keep the adapter apart");
  }
  const NoGradGuard no_grad;
  for (const auto& [path, layer, adapter] : layers) {
    const Tensor delta = adapter->delta().to(layer->weight.device());
    const Tensor& weight = layer->weight;
    // In 16 bits the sum is rounded once.
    if (weight.dtype() == delta.dtype()) on ? weight.add_(delta) : weight.sub_(delta);
    else weight.copy_(on ? weight.to(delta.dtype()) + delta : weight.to(delta.dtype()) - delta);
    adapter->merged = on;
  }
}

}  // namespace

void merge_lora(Module& model) { set_merged("merge_lora", model, true); }
void unmerge_lora(Module& model) { set_merged("unmerge_lora", model, false); }

void remove_lora(Module& model) {
  check_undivided("remove_lora", model, false,
                  "remove the adapters of a model that is neither sharded nor replicated");
  for (const Adapted& a : adapted_layers("remove_lora", model)) detail::remove_child(*a.layer, kChild);
}

// ---- state ----

StateDict lora_state_dict(const Module& model, const StateDict& whole) {
  StateDict dict;
  const StateDictIndex given(whole);
  for (const Adapted& a : adapted_layers("lora_state_dict", model)) {
    for (const auto& [name, key, slot] : {std::tuple(".lora_A.weight", ".lora.A", a.adapter->A),
                                          {".lora_B.weight", ".lora.B", a.adapter->B}}) {
      const Tensor* const known = given.find(a.path + key);
      check(known || gives_whole(slot), "[lora_state_dict] the adapter of '", a.path,
            "' is divided; call it inside FullyShard::unshard(true), or pass Strategy::whole_state()");
      dict.emplace_back(a.path + name, known ? *known : slot.tensor().detach());
    }
  }
  return dict;
}

void load_lora_state_dict(Module& model, const StateDict& dict) {
  for (const Adapted& a : adapted_layers("load_lora_state_dict", model))
    check(gives_whole(a.adapter->A) && gives_whole(a.adapter->B), "[load_lora_state_dict] the adapter of '",
          a.path, "' is divided; load adapters before tensor_parallel() and fully_shard()");
  std::vector<std::pair<Tensor, Tensor>> copies;  // to, from
  const std::string wrong = detail::lora_differences(lora_state_dict(model), dict, &copies);
  check(wrong.empty(), "[load_lora_state_dict] ", wrong);
  const NoGradGuard no_grad;
  for (const auto& [to, from] : copies) to.copy_(from.to(to.device()));
}

std::string detail::lora_differences(const StateDict& model, const StateDict& dict,
                                     std::vector<std::pair<Tensor, Tensor>>* copies) {
  std::string missing, unexpected, shapes;
  constexpr int kMostListed = 6;
  int counts[3] = {};
  const auto note = [&](std::string& list, int which, const std::string& text) {
    if (counts[which]++ < kMostListed) list += (list.empty() ? "" : ", ") + text;
  };
  const StateDictIndex index(dict), known(model);
  for (const auto& [name, tensor] : model) {
    const Tensor* const from = index.find(name);
    if (!from) note(missing, 0, name);
    else if (from->sizes() != tensor.sizes())
      note(shapes, 2, name + " is " + from->sizes().str() + " instead of " + tensor.sizes().str());
    else if (copies) copies->emplace_back(tensor, *from);
  }
  std::unordered_set<std::string_view> seen;
  for (const auto& [name, tensor] : dict)
    if (!known.find(name)) note(unexpected, 1, name);
    else if (!seen.insert(name).second) note(unexpected, 1, name + " (twice)");
  std::string all;
  const auto tell = [&](const char* what, const std::string& list, int which) {
    if (list.empty()) return;
    all += (all.empty() ? "" : "; ") + std::string(what) + ": " + list;
    if (counts[which] > kMostListed) all += " and " + std::to_string(counts[which] - kMostListed) + " more";
  };
  tell("wrong shapes", shapes, 2);
  tell("missing tensors", missing, 0);
  tell("tensors that this model does not have", unexpected, 1);
  return all;
}

}  // namespace tapestry::nn
