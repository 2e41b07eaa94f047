#pragma once
// Models with their tokenizers, from GGUF files and folders of Hugging Face, and folders with both.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/data/tokenizer/chat.h"
#include "tapestry/data/tokenizer/parts.h"
#include "tapestry/nn/models/pretrained.h"

namespace apps::gpt {

/// The tokenizer of a model, in parts that can be written to other files.
struct TokenizerFiles {
  std::optional<tapestry::data::TokenizerParts> parts;
  std::string chat_template;        ///< Jinja, or empty
  std::int64_t bos = -1, eos = -1;  ///< ids, or -1
  std::vector<std::int64_t> ends;   ///< further tokens that end a text or a message

  std::optional<tapestry::data::Tokenizer> tokenizer() const;
  /// The format of chat_template. `unknown` gets what no known format has (data::chat_format_of).
  std::optional<tapestry::data::ChatFormat> chat(std::string* unknown = nullptr) const;
};

/// Reads the tokenizer of a GGUF file, or of a folder: tokenizer.json, or vocab.json and merges.txt, and
/// tokenizer_config.json for the chat template. Nothing is missing if a folder has no tokenizer. Throws
/// IoError for broken files.
TokenizerFiles read_tokenizer_files(const std::string& model, const tapestry::nn::ModelWeights& weights);

struct Pretrained {
  std::unique_ptr<tapestry::nn::LanguageModel> model;
  tapestry::data::Tokenizer tokenizer;
  std::optional<tapestry::data::ChatFormat> chat;
  std::vector<std::int64_t> stop;  ///< the tokens that end a text
  std::int64_t first = -1;         ///< the token that begins a text, or -1
  std::string unknown_chat;        ///< why the model's chat template has no known format; empty without one
};

/// The options of `generate`, `chat` and `evaluate` that say which model they use.
struct ModelOptions {
  std::string model;               ///< a GGUF file or a folder
  std::string tokenizer;           ///< a tokenizer.json to use instead of the model's, or empty
  std::string adapter;             ///< a folder that PEFT or nn::save_lora() wrote, or empty
  std::string weights = "packed";  ///< "packed": weights of a GGUF file stay in its blocks; or "f32"
};
void add_model_options(CommandLine& line, ModelOptions& options);

/// Loads a model for text. Throws UsageError without a model, IoError if there is no tokenizer, and
/// ValueError if it has tokens that the model does not know.
Pretrained load_pretrained(const ModelOptions& options);

/// Writes tokenizer.json and tokenizer_config.json into a folder, as transformers reads them. Does nothing if
/// there is no tokenizer.
void write_tokenizer_files(const std::string& folder, const TokenizerFiles& files, std::int64_t context);

/// Calls write(temporary folder), and moves that folder to `path` when it is complete, so that `path` is
/// never half-written. Throws IoError if `path` exists and `replace` is false, unless it is an empty folder.
void write_folder(const std::string& path, bool replace,
                  const std::function<void(const std::string&)>& write);

}  // namespace apps::gpt
