#pragma once
// Chat templates: how a conversation becomes the tokens that a language model was trained on.
//
//   const data::ChatTemplate chat(tokenizer, data::ChatFormat::smollm2);
//   std::vector<std::int64_t> prompt = chat.encode({{"user", "Why is the sky blue?"}}).ids;
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/data/tokenizer/tokenizer.h"

namespace tapestry::data {

/// The formats of model families. Their text is that of the chat template in the family's files.
enum class ChatFormat : std::uint8_t {
  smollm2,  ///< <|im_start|>user\n...<|im_end|>\n; a default system message, unless there is one
  llama3,   ///< <|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|>, with white space trimmed
};

/// Returns the format of a chat template in Jinja, which GGUF files have as "tokenizer.chat_template" and
/// Hugging Face as chat_template in tokenizer_config.json. Returns nothing for the template of another
/// family.
std::optional<ChatFormat> chat_format_of(std::string_view jinja);

struct ChatMessage {
  std::string role;  ///< "system", "user" or "assistant"
  std::string content;
};

struct ChatOptions {
  /// End with the beginning of the assistant's message, which the model then writes.
  bool add_generation_prompt = true;
};

struct EncodedChat {
  std::vector<std::int64_t> ids;
  /// For each token, whether the assistant writes it: the content of its messages and the token that ends
  /// them. A loss on answers alone counts these tokens.
  std::vector<bool> answer;
};

class ChatTemplate {
 public:
  /// Throws ValueError if the tokenizer lacks a control token of the format.
  ChatTemplate(Tokenizer tokenizer, ChatFormat format);
  /// Names of control tokens in a message are plain text: a message cannot end itself or begin another.
  /// Throws ValueError if there is no message, a role is unknown, or a content is not UTF-8.
  EncodedChat encode(const std::vector<ChatMessage>& messages, const ChatOptions& options = {}) const;
  /// The token with which the assistant ends its message.
  std::int64_t end_of_message() const { return end_; }

 private:
  Tokenizer tokenizer_;
  ChatFormat format_;
  std::int64_t begin_ = 0, header_end_ = 0, end_ = 0, text_begin_ = 0;
};

}  // namespace tapestry::data
