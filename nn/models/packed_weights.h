#pragma once
// Weights that stay in the blocks of their file, for generation and as the frozen base of LoRA.
//
//   const nn::ModelWeights weights("SmolLM2-135M-Instruct.Q4_1.gguf");
//   const auto model = [&] {
//     const DeviceGuard guard("meta");                 // no memory for weights that will be replaced
//     return std::make_unique<nn::Llama>(nn::LlamaConfig::from_gguf(*weights.gguf()));
//   }();
//   nn::load_packed_weights(*model, weights);          // 93 MB instead of 538 MB of f32
#include <string>
#include <utility>
#include <vector>

#include "tapestry/nn/models/weights.h"

namespace tapestry::nn {

/// Names of parameters, and the packed weights that take their places.
using PackedWeights = std::vector<std::pair<std::string, PackedTensor>>;

/// Does what load_weights() does, but the weights of Linear and Embedding layers stay in their blocks
/// (Linear::set_packed_weight) and share the file's memory where its order of rows is that of the layer. They
/// are no longer parameters, and get no gradient. All other tensors are loaded, and stay trainable. In
/// Hugging Face's files, weights of f32, f16 and bf16 stay in their dtype; those of a Gpt2 are transposed
/// there, and are therefore loaded as parameters.
LoadResult load_packed_weights(Module& module, const ModelWeights& weights, bool strict = true);

/// The packed weights of the module's layers, under the names that the parameters would have. With
/// SaveGgufOptions::packed they are written as they are.
PackedWeights packed_weights(const Module& module);

}  // namespace tapestry::nn
