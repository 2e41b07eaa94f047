// gpt convert: GGUF to a folder of Hugging Face and back.
#include <cstdio>
#include <filesystem>
#include <type_traits>
#include <utility>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/apps/gpt/commands.h"
#include "tapestry/apps/gpt/model_files.h"
#include "tapestry/core/atomic_file.h"
#include "tapestry/core/gguf.h"
#include "tapestry/nn/models/lora.h"

namespace apps::gpt {

using namespace tapestry;

namespace {

struct Options {
  std::string model, out, type, tokenizer, adapter;
};

// The weights with their elements converted to `dtype`.
std::vector<TensorSource> as(std::vector<TensorSource> sources, DType dtype) {
  for (TensorSource& source : sources) {
    if (source.dtype == dtype) continue;
    source.dtype = dtype;
    source.read = [read = std::move(source.read), dtype] { return read().to(dtype); };
  }
  return sources;
}

// Calls fn with the configuration of the model. The number of tokens that the weights know decides, because a
// wrong one would only be noticed when the result is used.
template <class F>
void with_config(const std::string& path, const nn::ModelWeights& weights, F&& fn) {
  const auto checked = [&](const auto& config, const char* embedding) {
    const auto* entry = weights.find(embedding);
    check<IoError>(entry != nullptr, "[gpt convert] ", path, " has no weight ", embedding);
    check<IoError>(entry->sizes.size() == 2 && entry->sizes[0] == config.vocab_size, "[gpt convert] ", path,
                   " says that the vocabulary has ", config.vocab_size, " tokens, but the shape of ",
                   embedding, " is ", entry->sizes, "; the configuration belongs to another model");
    fn(config);
  };
  const GgufFile* const gguf = weights.gguf();
  const std::string type = gguf ? gguf->metadata().string("general.architecture") : nn::model_type_of(path);
  if (type == "olmoe") checked(nn::OlmoeConfig::from_hf_json(path), "model.embed_tokens.weight");
  else if (type == "gpt2")
    checked(gguf ? nn::Gpt2Config::from_gguf(*gguf) : nn::Gpt2Config::from_hf_json(path),
            "transformer.wte.weight");
  else
    checked(gguf ? nn::LlamaConfig::from_gguf(*gguf) : nn::LlamaConfig::from_hf_json(path),
            "model.embed_tokens.weight");
}

std::int64_t context_of(const nn::LlamaConfig& c) { return c.max_position_embeddings; }
std::int64_t context_of(const nn::Gpt2Config& c) { return c.n_positions; }
std::int64_t context_of(const nn::OlmoeConfig& c) { return c.max_position_embeddings; }

int run(const Options& o) {
  if (o.model.empty() || o.out.empty())
    throw UsageError("[gpt convert] pass --model FILE and --out FILE.gguf, or --out FOLDER");
  check<IoError>(std::filesystem::exists(o.model), "[gpt convert] there is no model ", o.model);
  check<IoError>(!std::filesystem::exists(o.out) ||
                     (std::filesystem::is_directory(o.out) && std::filesystem::is_empty(o.out)),
                 "[gpt convert] ", o.out, " exists already; choose another name, or remove it");
  // What an interrupted conversion has left.
  const std::filesystem::path target = std::filesystem::absolute(o.out);
  remove_abandoned_files(target.parent_path().string(),
                         [&](const std::string& name) { return name == target.filename().string(); });
  const nn::ModelWeights weights(o.model);
  TokenizerFiles files = read_tokenizer_files(o.model, weights);
  if (!o.tokenizer.empty()) files.parts = data::read_tokenizer_parts(o.tokenizer);
  const bool to_gguf = o.out.ends_with(".gguf");
  std::vector<TensorSource> sources = weights.sources();
  std::unique_ptr<nn::LanguageModel> merged;  // owns what the sources read
  if (!o.adapter.empty()) {
    merged = nn::load_language_model(o.model, weights);
    nn::load_lora(*merged, o.adapter);
    nn::merge_lora(*merged);
    nn::remove_lora(*merged);
    sources = nn::hf_sources(*merged);
    for (TensorSource& source : sources)  // the sums are f32
      if (const auto* entry = weights.find(source.name); entry && !to_gguf && o.type.empty())
        source = as({source}, entry->dtype)[0];
  }
  with_config(o.model, weights, [&](const auto& config) {
    if (files.parts)
      check(static_cast<std::int64_t>(files.parts->tokens.size()) <= config.vocab_size,
            "[gpt convert] the tokenizer has ", files.parts->tokens.size(), " tokens, but the model knows ",
            config.vocab_size, "; pass the tokenizer that belongs to the model");
    if (!to_gguf) {
      if (o.type == "q8_0")
        throw UsageError(
            "[gpt convert] a folder of Hugging Face has no weights of type q8_0; write a GGUF file");
      if (!o.type.empty())
        sources = as(std::move(sources), o.type == "f32"   ? DType::f32
                                         : o.type == "f16" ? DType::f16
                                                           : DType::bf16);
      write_folder(o.out, false, [&](const std::string& folder) {
        nn::save_hf(folder, config, sources);
        write_tokenizer_files(folder, files, context_of(config));
      });
      return;
    }
    nn::SaveGgufOptions options;
    if (o.type == "f16") options.type = BlockType::f16;
    if (o.type == "bf16") options.type = BlockType::bf16;
    if (o.type == "q8_0") options.type = BlockType::q8_0;
    // A GGUF file keeps what it says of itself.
    if (weights.gguf())
      for (const auto& [key, value] : weights.gguf()->metadata().entries())
        if (!key.starts_with("tokenizer.") || o.tokenizer.empty()) options.metadata.set(key, value);
    if (files.parts && (!weights.gguf() || !o.tokenizer.empty())) {
      data::put_gguf(*files.parts, options.metadata);
      if (files.bos >= 0)
        options.metadata.set("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(files.bos));
      if (files.eos >= 0)
        options.metadata.set("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(files.eos));
      if (!files.chat_template.empty()) options.metadata.set("tokenizer.chat_template", files.chat_template);
    }
    if constexpr (std::is_same_v<decltype(config), const nn::OlmoeConfig&>)
      throw UsageError("[gpt convert] a model of type olmoe has no GGUF file; write a folder");
    else nn::save_gguf(o.out, config, sources, options);
  });
  std::printf("wrote %s: %zu tensors%s%s\n", o.out.c_str(), sources.size(),
              o.adapter.empty() ? "" : " with the adapter merged",
              files.parts ? ", and the tokenizer" : "; the model has no tokenizer");
  return 0;
}

}  // namespace

int convert(int argc, char** argv) {
  Options o;
  CommandLine line(
      "gpt convert",
      "Converts a GGUF file to a folder of Hugging Face, and back. The output must not exist, and appears "
      "when it is complete.");
  line.add("--model", o.model, "A GGUF file, or a folder with config.json and model.safetensors");
  line.add("--out", o.out, "The output: a GGUF file if the name ends in .gguf, else a folder");
  line.add("--type", o.type,
           "The type of the weights; without it f32 in a GGUF file, and in a folder that of the model, with "
           "f32 for "
           "types of blocks",
           {.check = one_of({"f32", "f16", "bf16", "q8_0"})});
  line.add("--adapter", o.adapter, "Adds the LoRA adapters of this folder to the weights");
  line.add("--tokenizer", o.tokenizer, "A tokenizer.json to write instead of the model's");
  line.footer("Exit status: 0 done, 1 failed, 2 wrong options.");
  return line.run(argc, argv, [&] { return run(o); });
}

}  // namespace apps::gpt
