#pragma once
// Low-rank adaptation: trains two narrow matrices beside each frozen Linear layer.
//
//   nn::Llama model(config);
//   nn::load_weights(model, weights);
//   nn::add_lora(model, {.r = 8, .lora_alpha = 16, .target_modules = {"q_proj", "v_proj"}});
//   optim::AdamW optimizer(model.parameters(), {.lr = 2e-4});  // frozen parameters are left alone
//   ... train ...
//   nn::save_lora("adapter", model);                           // PEFT's files
//   nn::merge_lora(model);                                     // or: the plain model with the sum as weights
//   nn::remove_lora(model);
//
// Source: Hu et al., "LoRA: low-rank adaptation of large language models", 2021. Names, defaults and files
// are those of Hugging Face's PEFT.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/nn/module.h"

namespace tapestry::nn {

/// Names and defaults of PEFT's LoraConfig.
struct LoraOptions {
  std::int64_t r = 8;       ///< the rank: rows of lora_A, columns of lora_B
  double lora_alpha = 8;    ///< the adapter's result is multiplied by lora_alpha / r
  double lora_dropout = 0;  ///< of the adapter's input, in training
  /// A Linear layer is adapted if its path is one of these names, or ends with "." and one of them.
  /// "all-linear" means every Linear layer but the head of a language model. Empty means q_proj and v_proj in
  /// a Llama, and c_attn in a Gpt2.
  std::vector<std::string> target_modules = {};
  /// Instead of names: a regular expression, which must match the whole path. It has the syntax of Python's
  /// `re` without assertions and references.
  std::string target_pattern = {};
  bool use_rslora = false;  ///< lora_alpha / sqrt(r) instead (Kalajdzievski 2023)
};

/// The adapter of one Linear layer. It is registered as the layer's child "lora". The layer then returns
/// base(x) + scaling * (dropout(x) A^T) B^T, where base(x) is the result of the layer's own forward. A (r,
/// in) is initialised uniformly in [-1 / sqrt(in), 1 / sqrt(in)], as by PEFT. B (out, r) is initialised with
/// 0, so an untrained adapter changes nothing. Both have the dtype of the layer's weight, or f32 if that is
/// f16 or bf16.
class LoraAdapter : public Module {
 public:
  LoraAdapter(class Linear& base, std::shared_ptr<const LoraOptions> options);
  ~LoraAdapter() override;
  /// What the adapter adds to the layer's result for the input x (..., in).
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  double scaling() const;
  /// scaling * B A, (out, in), in the dtype of the parameters.
  Tensor delta() const;

  const std::shared_ptr<const LoraOptions> options;
  Parameter& A;
  Parameter& B;
  bool merged = false;    ///< the layer's weight contains delta(), so forward is not called
  bool in_layer = false;  ///< Linear::divided_forward adds the result: ranks divide the layer

 private:
  HookHandle hook_;
};

/// Freezes all parameters of the model and adds an adapter to each Linear layer that the options select.
/// Returns their paths. Call it after the weights are loaded and before the model is replicated, sharded,
/// split into stages or given to an optimizer. The adapters are computed by forward hooks, so they work
/// wherever a layer is called: in checkpoint(), DistributedDataParallel, DataParallel, fully_shard and
/// stages of a Pipeline, and for layers whose weight stays packed. tensor_parallel() divides an adapter with
/// its layer.
///
/// Throws ValueError, and changes nothing, if options are out of range, if a name selects no layer, if it
/// selects the head of a language model, whose weight is used without a call of the layer, if the model has
/// adapters, or if a selected layer has several replicas or is sharded.
std::vector<std::string> add_lora(Module& model, const LoraOptions& options = {});
/// The adapters of a model with the paths of their layers.
std::vector<std::pair<std::string, LoraAdapter*>> lora_adapters(const Module& model);

/// Adds delta() to the weight of each adapted layer, which then costs nothing to call. unmerge_lora()
/// subtracts it again: the weights are as before but for rounding. Layers that are merged already are left
/// alone. Ranks that divide a layer by tensor_parallel() each merge their own part, and must all call it.
/// Both throw ValueError, and change nothing, if the model has no adapters, or if a layer's weight is packed,
/// parametrized, sharded, has several replicas, or is used by other modules too.
void merge_lora(Module& model);
void unmerge_lora(Module& model);
/// Removes all adapters. Merged weights stay merged, and frozen parameters stay frozen. Throws ValueError if
/// there are none. Handles of the adapters' parameters stay valid; optimizers that have them do nothing
/// useful any more.
void remove_lora(Module& model);

/// The adapters' parameters under PEFT's names, but without their prefix "base_model.model.". An example is
/// "model.layers.0.self_attn.q_proj.lora_A.weight". The tensors share storage with the model. Throws
/// ValueError if a parameter is divided. Call it inside FullyShard::unshard(true) then, or pass `whole`: a
/// state dict of the model that has the whole tensors, such as Strategy::whole_state().
StateDict lora_state_dict(const Module& model, const StateDict& whole = {});
/// Copies such tensors into the adapters, with conversion of device and dtype. Throws one ValueError that
/// lists every missing and unexpected name and every wrong shape; nothing was loaded then. Throws ValueError
/// if an adapter is divided: load adapters before the model is.
void load_lora_state_dict(Module& model, const StateDict& dict);

// ---- PEFT's files ----

/// Writes adapter_config.json and adapter_model.safetensors into a folder, which is created if it does not
/// exist. PEFT's PeftModel.from_pretrained() reads them. `base_model` becomes base_model_name_or_path, and
/// `whole` is that of lora_state_dict(). Throws ValueError as lora_state_dict() does, and IoError if the
/// files cannot be written.
void save_lora(const std::string& folder, const Module& model, const std::string& base_model = {},
               const StateDict& whole = {});
/// Adds the adapters that save_lora() or PEFT wrote, and returns their options. Throws IoError, and leaves
/// the model as it was, if a file cannot be read or is broken, if the configuration asks for what is not
/// supported (other kinds of adapters, biases, DoRA, ranks that differ between layers, initial values that
/// change the base, modules_to_save, and every member that is neither read nor known to be harmless), or if
/// the tensors are not those of the configuration's layers in this model: another model, a wrong rank,
/// missing or further tensors. Throws ValueError as add_lora() does.
LoraOptions load_lora(Module& model, const std::string& folder);

}  // namespace tapestry::nn
