#pragma once
// Whole language models from files and to files.
//
//   std::unique_ptr<nn::LanguageModel> model = nn::load_language_model("SmolLM2-135M-Instruct.Q4_1.gguf");
//   nn::save_language_model("smollm2-hf", *model);
#include <memory>
#include <string>
#include <vector>

#include "tapestry/core/safetensors_shards.h"
#include "tapestry/nn/models/gpt2.h"
#include "tapestry/nn/models/llama.h"
#include "tapestry/nn/models/olmoe.h"
#include "tapestry/nn/models/weights.h"

namespace tapestry::nn {

struct LoadLanguageModelOptions {
  /// The weights of a GGUF file stay in its blocks (load_packed_weights): less memory and faster words, but
  /// they are not trained. Other files are loaded as f32.
  bool packed = false;
};

/// Builds the model of a GGUF file, or of a folder of Hugging Face, and loads its weights. `path` may also be
/// a config.json, whose folder has the weights. Throws IoError if a file is missing or broken, and ValueError
/// if the weights do not fit to the configuration.
std::unique_ptr<LanguageModel> load_language_model(const std::string& path,
                                                   const LoadLanguageModelOptions& options = {});
/// The same from weights that are open already, which are those of `path`.
std::unique_ptr<LanguageModel> load_language_model(const std::string& path, const ModelWeights& weights,
                                                   const LoadLanguageModelOptions& options = {});

/// The weights in the layout of Hugging Face's files, in which GPT-2's linear layers are (in, out) and
/// experts have matrices of their own, read one by one when they are written. Parameters of fully_shard()
/// must be whole: call it, and write, while FullyShard::unshard(true) lasts. Packed weights must be unpacked,
/// and adapters removed (ValueError). Throws ValueError for a model that is none of Llama, Gpt2 and Olmoe.
std::vector<TensorSource> hf_sources(const LanguageModel& model);

/// Writes config.json and the weights into a folder (save_hf), or a GGUF file (save_gguf). Throws ValueError
/// for an Olmoe as a GGUF file.
void save_language_model(const std::string& folder, const LanguageModel& model,
                         const SaveShardsOptions& options = {});
void save_language_model_gguf(const std::string& path, const LanguageModel& model,
                              const SaveGgufOptions& options = {});

}  // namespace tapestry::nn
