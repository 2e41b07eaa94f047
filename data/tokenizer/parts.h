#pragma once
// The files of tokenizers, read and written.
//
//   const data::TokenizerParts parts = data::read_tokenizer_parts(file.metadata());   // of a GGUF file
//   write_file_atomically("model/tokenizer.json", data::tokenizer_json(parts));
#include <string>

#include "tapestry/data/tokenizer/tokenizer.h"

namespace tapestry::data {

/// What a tokenizer.json has, and what the metadata of a GGUF file has. Both throw IoError as
/// Tokenizer::from_file() and from_gguf() do; Tokenizer's constructor checks that the parts fit together.
TokenizerParts read_tokenizer_parts(const std::string& path);
TokenizerParts read_tokenizer_parts(const GgufMetadata& metadata);

/// The text of a tokenizer.json, which Hugging Face's tokenizers read as the same tokenizer.
std::string tokenizer_json(const TokenizerParts& parts);
/// Adds the tokenizer to the metadata of a GGUF file: its type, rule, tokens, types of tokens and merges, and
/// whether texts begin and end with a special token. Throws ValueError if more than one token stands before
/// or after texts, which GGUF cannot express.
void put_gguf(const TokenizerParts& parts, GgufMetadata& metadata);

}  // namespace tapestry::data
