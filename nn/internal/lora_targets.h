#pragma once
// What nn/models/lora.cpp and lora_files.cpp share.
#include <string>
#include <utility>
#include <vector>

#include "tapestry/nn/models/lora.h"

namespace tapestry::nn::detail {

/// Throws ValueError if a number is out of range.
void check_lora_options(const LoraOptions& options);
/// The layers that the options select, with their paths. Throws ValueError if there are none, or, if
/// `all_must_match`, if one of the names selects none.
std::vector<std::pair<std::string, Linear*>> lora_targets(const Module& model, LoraOptions options,
                                                          bool all_must_match);
/// add_lora() for layers that are selected already.
std::vector<std::string> add_adapters(Module& model, const LoraOptions& options,
                                      const std::vector<std::pair<std::string, Linear*>>& targets);
/// Describes how the names and shapes of `dict` differ from those of `model`; empty if they do not. Appends
/// the pairs of tensors to `copies`, unless it is null.
std::string lora_differences(const StateDict& model, const StateDict& dict,
                             std::vector<std::pair<Tensor, Tensor>>* copies);

}  // namespace tapestry::nn::detail
