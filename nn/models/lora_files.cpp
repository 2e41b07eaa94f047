// PEFT's files: adapter_config.json and adapter_model.safetensors.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/atomic_file.h"
#include "tapestry/core/safetensors.h"
#include "tapestry/nn/internal/lora_targets.h"
#include "tapestry/nn/layers/linear.h"
#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/lora.h"

namespace tapestry::nn {

namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kTensors = "adapter_model.safetensors";
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::uintmax_t kMostBytes = 1 << 20;

/// adapter_config.json, and the errors about it.
class AdapterConfig {
 public:
  explicit AdapterConfig(const std::string& path) : path_(path) {
    std::error_code error;
    require(fs::is_regular_file(path, error), "does not exist, or is not a file");
    const std::uintmax_t size = fs::file_size(path, error);
    require(!error && size <= kMostBytes, "cannot be read, or is larger than ", std::int64_t{kMostBytes},
            " bytes");
    std::ifstream in(path, std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    require(in.is_open() && !in.bad(), "cannot be read");
    root_ = Json::parse(text, nullptr, false);
    require(root_.is_object(), "is not a JSON object");
  }
  template <class... Parts>
  void require(bool ok, const Parts&... parts) const {
    check<IoError>(ok, "[load_lora] ", path_, ": ", parts...);
  }

  LoraOptions options() const {
    const Json* const kind = member("peft_type");
    require(kind && kind->is_string() && kind->get<std::string>() == "LORA", "peft_type is not \"LORA\"");
    expect_no_more();
    const Json* const bias = member("bias");
    require(!bias || *bias == "none", "bias is not \"none\", which is not supported");
    const Json* const initial = member("init_lora_weights");
    const bool plain =
        !initial || initial->is_boolean() || *initial == "gaussian" || *initial == "orthogonal";
    require(plain, "init_lora_weights is set to a method that changes the weights of the base, which is not ",
            "supported; convert the adapter with PEFT's path_initial_model_for_weight_conversion");
    LoraOptions o;
    const double r = number("r", 8);
    require(r >= 1 && r <= 65536 && r == std::floor(r), "r is no rank from 1 to 65536");
    o.r = static_cast<std::int64_t>(r);
    o.lora_alpha = number("lora_alpha", 8);
    o.lora_dropout = number("lora_dropout", 0);
    require(std::isfinite(o.lora_alpha), "lora_alpha is no finite number");
    require(o.lora_dropout >= 0 && o.lora_dropout < 1, "lora_dropout is not in [0, 1)");
    const Json* const rank_stabilized = member("use_rslora");
    require(!rank_stabilized || rank_stabilized->is_boolean(), "use_rslora is not true or false");
    o.use_rslora = rank_stabilized && rank_stabilized->get<bool>();
    const Json* const targets = member("target_modules");
    if (targets && targets->is_string()) {
      const auto text = targets->get<std::string>();
      if (text == "all-linear") o.target_modules = {text};
      else o.target_pattern = text;
      require(!text.empty(), "target_modules is empty");
    } else if (targets && !targets->is_null()) {
      require(targets->is_array() && !targets->empty(), "target_modules is no list of names");
      for (const Json& name : *targets) {
        require(name.is_string() && !name.get_ref<const std::string&>().empty(),
                "target_modules is no list of names");
        o.target_modules.push_back(name.get<std::string>());
      }
    }
    return o;
  }

 private:
  const Json* member(const char* name) const {
    const auto found = root_.find(name);
    return found == root_.end() || found->is_null() ? nullptr : &*found;
  }
  // Throws if there is a member that options() does not read. A member that is null, false or empty asks for
  // nothing.
  void expect_no_more() const {
    constexpr std::string_view kRead[] = {"peft_type",  "r",    "lora_alpha",     "lora_dropout",
                                          "use_rslora", "bias", "target_modules", "init_lora_weights"};
    // How the file came about, and what only matters beside members that must not be set. fan_in_fan_out
    // describes the layers of the base. Layers that ensure_weight_tying would tie are no targets here.
    constexpr std::string_view kHarmless[] = {
        "base_model_name_or_path", "revision",          "task_type",      "auto_mapping",  "peft_version",
        "inference_mode",          "fan_in_fan_out",    "layers_pattern", "megatron_core", "loftq_config",
        "ensure_weight_tying",     "qalora_group_size", "runtime_config", "merge_weights"};
    const auto is_in = [](const auto& names, const std::string& name) {
      return std::find(std::begin(names), std::end(names), name) != std::end(names);
    };
    for (const auto& [name, value] : root_.items()) {
      const bool empty = value.is_null() || value == false || (value.is_structured() && value.empty());
      require(empty || is_in(kRead, name) || is_in(kHarmless, name), name,
              " is set, which is not supported; write the adapter without it");
    }
  }
  double number(const char* name, double fallback) const {
    const Json* const value = member(name);
    require(!value || value->is_number(), name, " is no number");
    return value ? value->get<double>() : fallback;
  }

  std::string path_;
  Json root_;
};

// The layers that a file's configuration names, for PEFT's own matching: the names of the options, or, where
// those depend on the class of the model or on its head, the paths.
Json targets_of(const LoraOptions& options,
                const std::vector<std::pair<std::string, LoraAdapter*>>& adapters) {
  if (!options.target_pattern.empty()) return options.target_pattern;
  const bool by_name =
      !options.target_modules.empty() && options.target_modules != std::vector<std::string>{"all-linear"};
  std::vector<std::string> names = options.target_modules;
  if (!by_name) {
    names.clear();
    for (const auto& [path, adapter] : adapters) names.push_back(path);
  }
  return names;
}

}  // namespace

void save_lora(const std::string& folder, const Module& model, const std::string& base_model,
               const StateDict& whole) {
  NamedTensors tensors;
  for (const auto& [name, tensor] : lora_state_dict(model, whole))
    tensors.emplace_back(std::string(kPrefix) + name, tensor.cpu().contiguous());
  const auto adapters = lora_adapters(model);
  const LoraOptions& o = *adapters.front().second->options;
  const auto optional = [](bool known, const std::string& text) { return known ? Json(text) : Json(); };
  Json config;
  config["base_model_name_or_path"] = optional(!base_model.empty(), base_model);
  config["bias"] = "none";
  config["fan_in_fan_out"] = dynamic_cast<const Gpt2*>(&model) != nullptr;  // of Hugging Face's Conv1D
  config["inference_mode"] = true;
  config["init_lora_weights"] = true;
  config["lora_alpha"] = o.lora_alpha == std::floor(o.lora_alpha) && std::abs(o.lora_alpha) < 1e15
                             ? Json(static_cast<std::int64_t>(o.lora_alpha))
                             : Json(o.lora_alpha);
  config["lora_dropout"] = o.lora_dropout;
  config["peft_type"] = "LORA";
  config["r"] = o.r;
  config["target_modules"] = targets_of(o, adapters);
  config["task_type"] = optional(dynamic_cast<const LanguageModel*>(&model) != nullptr, "CAUSAL_LM");
  config["use_dora"] = false;
  config["use_rslora"] = o.use_rslora;
  std::string text;
  try {
    text = config.dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    fail("[save_lora] a name of the configuration is not UTF-8");
  }
  std::error_code error;
  fs::create_directories(folder, error);
  check<IoError>(fs::is_directory(folder), "[save_lora] ", folder, ": cannot be created: ", error.message());
  save_safetensors((fs::path(folder) / kTensors).string(), tensors, {{"format", "pt"}});
  write_file_atomically((fs::path(folder) / kConfig).string(), text);
}

LoraOptions load_lora(Module& model, const std::string& folder) {
  const AdapterConfig config((fs::path(folder) / kConfig).string());
  const LoraOptions options = config.options();
  const SafetensorsFile file((fs::path(folder) / kTensors).string());
  const std::string path = (fs::path(folder) / kTensors).string();

  // Names and shapes are compared before any tensor is read.
  std::vector<std::pair<std::string, Linear*>> targets;
  try {
    targets = detail::lora_targets(model, options, /*all_must_match=*/false);
  } catch (const ValueError& e) {
    config.require(false, "does not fit to the ", model.type_name(), ": ", e.what());
  }
  StateDict wanted, found;
  const TensorOptions meta(DType::f32, Device("meta"));
  for (const auto& [name, layer] : targets) {
    wanted.emplace_back(name + ".lora_A.weight", empty({options.r, layer->options.in_features}, meta));
    wanted.emplace_back(name + ".lora_B.weight", empty({layer->options.out_features, options.r}, meta));
  }
  for (const SafetensorsFile::Entry& entry : file.entries()) {
    const bool prefixed = std::string_view(entry.name).starts_with(kPrefix);
    check<IoError>(contains(kFloats, entry.dtype), "[load_lora] ", path, ": ", entry.name, " is of ",
                   entry.dtype, "; adapters are floating-point numbers");
    found.emplace_back(prefixed ? entry.name.substr(kPrefix.size()) : "(without prefix) " + entry.name,
                       empty(entry.sizes, meta));
  }
  const std::string wrong = detail::lora_differences(wanted, found, nullptr);
  check<IoError>(wrong.empty(), "[load_lora] ", path, ": is no adapter of rank ", options.r,
                 " for this model: ", wrong);
  StateDict dict;
  for (const auto& [name, tensor] : wanted) dict.emplace_back(name, file.read(std::string(kPrefix) + name));
  detail::add_adapters(model, options, targets);
  load_lora_state_dict(model, dict);
  return options;
}

}  // namespace tapestry::nn
